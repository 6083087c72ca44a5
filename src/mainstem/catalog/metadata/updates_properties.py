"""Updates that tables and views share: properties and the location."""

from mainstem.catalog.metadata.draft import Draft, need
from mainstem.catalog.metadata.schemas import Document
from mainstem.model import Invalid


def set_location(draft: Draft, update: Document) -> None:
    location = need(update, "location", str).rstrip("/")
    if draft.document.get("location") != location:
        draft.replace("location", location)


def set_properties(draft: Draft, update: Document) -> None:
    # The key is called "updated" by clients of the protocol's first years.
    changes = update["updates"] if "updates" in update else need(update, "updated", dict)
    if not isinstance(changes, dict) or not all(isinstance(value, str) for value in changes.values()):
        raise Invalid(f"properties are not text. expected=an object of strings got={changes!r:.200}")
    if changes:
        draft.replace("properties", {**draft.document["properties"], **changes})


def remove_properties(draft: Draft, update: Document) -> None:
    gone = update["removals"] if "removals" in update else need(update, "removed", list)
    if not isinstance(gone, list) or not all(isinstance(key, str) for key in gone):
        raise Invalid(f"removals are not text. expected=a list of strings got={gone!r:.200}")
    if gone:
        kept = {key: value for key, value in draft.document["properties"].items() if key not in set(gone)}
        draft.replace("properties", kept)
