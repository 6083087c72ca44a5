"""Locations of tables and of their files: one spelling for each place, compared by whole folders. Pure.

A place is a location in its one spelling: `/folder/table` for whatever `file:/folder/table` and `file:///folder/table`
say, `s3://bucket/table` for `s3a://bucket/table`. What could be read in two ways (`..`, a relative path, a query, an
escape in a `file:` URI) is no place at all, so that a check and a later open cannot disagree.
"""

import re
from collections.abc import Iterable
from urllib.parse import unquote

from mainstem.model import Invalid

LENGTH_MAX = 2048

_FILE = re.compile(r"file:(?:/{2})?(/(?!/).*)", re.DOTALL)
_URI = re.compile(r"([a-z][a-z0-9+.-]*)://([^/]+)(/.*)?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# In a URI these end the path or stand for another character: readers differ in what they make of them.
_UNCLEAR = re.compile(r"[?#\\]")
# Several names of one store.
_SAME_STORE = {"s3": ("s3", "s3a", "s3n"), "abfs": ("abfs", "abfss"), "wasb": ("wasb", "wasbs")}
_STORE = {scheme: store for store, schemes in _SAME_STORE.items() for scheme in schemes}


def place_of(location: object) -> str:
    """The one spelling of a file's or folder's location. Refuses what is not a whole path or URI."""
    if not isinstance(location, str) or not 0 < len(location) <= LENGTH_MAX or _CONTROL.search(location):
        raise Invalid(f"location is none. expected=1 to {LENGTH_MAX} printable characters got={location!r:.200}")
    lead, path = _split(location)
    # Some readers take an escape in a file: URI for what it stands for, others for itself.
    read_as = (path, unquote(path)) if location.startswith("file:") else (path,)
    if any(part in (".", "..") for each in read_as for part in each.split("/")):
        raise Invalid(f"location is not plain. expected=a path without . and .. got={location!r:.200}")
    return lead + path


def folder_place_of(location: object) -> str:
    """As `place_of`, for a table's folder: not the root, no empty parts, and nothing that has a second spelling."""
    place = place_of(location).rstrip("/")
    if "%" in place and str(location).startswith("file:"):
        raise Invalid(f"location is not plain. expected=a file: URI without escapes got={location!r:.200}")
    lead, path = _split(place) if place else ("", "")
    if "//" in path or not (lead or path):
        raise Invalid(f"location is not a table's folder. expected=a folder below the root got={location!r:.200}")
    return place


def _split(location: str) -> tuple[str, str]:
    """What stands before the path, in its one spelling, and the path."""
    if location.startswith("/"):
        return "", location
    if found := _FILE.fullmatch(location):
        if _UNCLEAR.search(found[1]):
            raise Invalid(f"location is not plain. expected=a file: URI without ? and # got={location!r:.200}")
        return "", found[1]
    found = _URI.fullmatch(location)
    if found is None or found[1] == "file" or _UNCLEAR.search(location):
        raise Invalid(f"location is relative, or no plain URI. expected=/… or scheme://… got={location!r:.200}")
    return f"{_STORE.get(found[1], found[1])}://{found[2]}", found[3] or ""


def is_inside(location: object, folder: str) -> bool:
    """Whether a file or folder lies below a table's folder. What is no plain location lies nowhere."""
    try:
        return place_of(location).startswith(folder_place_of(folder) + "/")
    except Invalid:
        return False


def first_beyond(locations: Iterable[object], folder: str) -> str | None:
    """The first of many locations that does not lie below a folder; None where all do."""
    # Nearly all of them are spelt as the folder is: those are seen at a glance.
    below = f"{folder.rstrip('/')}/"
    for location in locations:
        text = str(location)
        if not (text.startswith(below) and "/." not in text and "%2" not in text) and not is_inside(location, folder):
            return text
    return None


def spellings(place: str) -> tuple[str, ...]:
    """Every location that means this place."""
    if place.startswith("/"):
        return place, f"file:{place}", f"file://{place}"
    store, _, rest = place.partition("://")
    return tuple(f"{scheme}://{rest}" for scheme in _SAME_STORE.get(store, (store,)))


def folders_above(place: str) -> tuple[str, ...]:
    """The places of the folders that a place lies in, its store's root included."""
    lead, path = _split(place)
    parts = path.split("/")
    return tuple(lead + "/".join(parts[:depth]) for depth in range(1, len(parts)))
