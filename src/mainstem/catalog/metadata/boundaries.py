"""The boundary of a table: every path that its metadata names lies below its own location. Pure.

Engines read, and maintenance deletes, what metadata names. A path is checked as it comes in, from a client or a file:
in the updates of a commit, in the properties that say where files are to be written, and in a whole document where one
is registered.
"""

from collections.abc import Iterable, Iterator, Sequence

from mainstem.catalog.metadata.schemas import Document
from mainstem.model import Denied, Invalid
from mainstem.tables.places import first_beyond, folder_place_of, place_of

PATH_PROPERTIES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")

Named = tuple[str, object]


def check_updates(location: str, updates: Sequence[Document], document: Document) -> None:
    """Refuse a commit that names a path beyond the table. `location` and `document` are as the commit leaves them."""
    named = [path for update in updates for path in _in_update(update)]
    if any(update.get("action") in ("set-location", "set-properties") for update in updates):
        named += _in_properties(document.get("properties"))
    _check(location, named)


def check_document(document: Document, metadata_location: str) -> None:
    """Refuse a metadata file that names a path beyond its table, or lies there itself."""
    named: list[Named] = [("metadata file", metadata_location), *_in_properties(document.get("properties"))]
    for snapshot in document.get("snapshots") or ():
        named += _in_snapshot(snapshot)
    for section in ("statistics", "partition-statistics"):
        for entry in document.get(section) or ():
            named += _in_statistics(entry, section)
    for entry in document.get("metadata-log") or ():
        named.append(("metadata-log", entry.get("metadata-file")))
    _check(document["location"], named)


def check_properties(location: str, properties: dict[str, str]) -> None:
    """Refuse properties that have files written beyond the table."""
    _check(location, _in_properties(properties))


def refuse_beyond(location: str, manifests: Iterable[object]) -> None:
    """Refuse to read manifests that lie beyond the table, though a file of its own lists them."""
    beyond = first_beyond(manifests, location)
    if beyond is not None:
        raise Denied(f"the table names files beyond its location. expected=a path below {location} got={beyond!r:.300}")


def _in_update(update: Document) -> Iterator[Named]:
    match update.get("action"):
        case "add-snapshot":
            yield from _in_snapshot(update.get("snapshot"))
        case "set-statistics" | "set-partition-statistics" as action:
            section = action.removeprefix("set-")
            yield from _in_statistics(update.get(section), section)
        case _:
            pass


def _in_snapshot(snapshot: object) -> Iterator[Named]:
    if not isinstance(snapshot, dict):
        raise Invalid(f"snapshot is none. expected=an object got={snapshot!r:.200}")
    listed = snapshot.get("manifests")
    if "manifest-list" in snapshot or listed is None:
        yield "manifest-list", snapshot.get("manifest-list")
    # Where format v1 has no list in a file, it has one here.
    if listed is not None:
        if not isinstance(listed, list):
            raise Invalid(f"manifests is no list. expected=a list of paths got={listed!r:.200}")
        yield from (("manifests", path) for path in listed)


def _in_statistics(entry: object, section: str) -> Iterator[Named]:
    if not isinstance(entry, dict):
        raise Invalid(f"{section} is none. expected=an object got={entry!r:.200}")
    yield section, entry.get("statistics-path")


def _in_properties(properties: object) -> list[Named]:
    found = properties if isinstance(properties, dict) else {}
    # A folder to write into may be the table's own.
    return [(name, f"{str(found[name]).rstrip('/')}/") for name in PATH_PROPERTIES if found.get(name)]


def _check(location: object, named: Iterable[Named]) -> None:
    below = folder_place_of(location) + "/"
    for what, path in named:
        if not place_of(path).startswith(below):
            raise Invalid(f"{what} lies beyond the table. expected=a path below {location} got={path!r:.300}")
