"""Where tables and views are put: each has a folder of its own, which no other lies in and which lies in no other's.

Everything that is told to read, write or delete "below a table's location" relies on that.
"""

import re
from collections.abc import Callable

from mainstem.catalog.files import Files
from mainstem.catalog.names import Namespace, TableIdent, folder_of, namespace_folder_of
from mainstem.catalog.stores.sql import refuse_overlap
from mainstem.catalog.stores.store import Store
from mainstem.model import Invalid, Overloaded
from mainstem.tables.places import folder_place_of, is_inside

# Never part of a name's folder: what it separates cannot be mistaken for another table's name.
MARK = "~"
ID_LENGTH = 8
_ID = re.compile(rf"{MARK}[^/{MARK}]{{1,{ID_LENGTH}}}")


class Locations:
    """Gives out folders, each to one table or view only, and refuses those that are not free."""

    def __init__(self, files: Files, store: Store, warehouse: str, new_id: Callable[[], str]) -> None:
        self._files = files
        self._store = store
        self._warehouse = warehouse.rstrip("/")
        self._place = folder_place_of(warehouse)
        self._new_id = new_id

    @property
    def warehouse(self) -> str:
        """The folder of all of them."""
        return self._warehouse

    def claim(self, ident: TableIdent) -> str:
        """A folder for a new table. What a dropped table left behind stays untouched: the new one goes beside it."""
        # A table's folder may lie in that of a table whose name is the namespace's: then it goes to the top.
        for folder in self._own(ident):
            for location in (folder, f"{folder}{MARK}{self._new_id()[:ID_LENGTH]}"):
                if self._store.overlapping(folder_place_of(location), ident):
                    continue
                try:
                    if self._files.claim_table(location):
                        return location
                except OSError as error:
                    raise Overloaded(f"table folder cannot be made. got={error}", retry_after_s=1.0) from error
        raise Invalid(f"no folder is free for this name. got={ident}")

    def check(self, location: str, ident: TableIdent) -> str:
        """Refuse a location that cannot be a table's own, or is another's. Returns it without a slash at its end."""
        place = folder_place_of(location)
        if place == self._place or is_inside(self._place, place):
            raise Invalid(f"location holds the warehouse. expected=a folder of its own got={location!r:.300}")
        refuse_overlap(location, self._store.overlapping(place, ident))
        return location.rstrip("/")

    def of_namespace(self, namespace: Namespace) -> str:
        """The folder that the tables of a namespace are put into."""
        return f"{self._warehouse}/{namespace_folder_of(namespace)}"

    def is_inside(self, location: object) -> bool:
        """Whether a location lies below the warehouse."""
        return is_inside(location, self._warehouse)

    def is_of(self, ident: TableIdent, location: object) -> bool:
        """Whether a location is a folder that only a table of this name is ever given."""
        try:
            place = folder_place_of(location)
        except Invalid:
            return False
        for folder in map(folder_place_of, self._own(ident)):
            if place == folder or (place.startswith(folder) and _ID.fullmatch(place, len(folder))):
                return True
        return False

    def _own(self, ident: TableIdent) -> tuple[str, str]:
        folder = folder_of(ident)
        return f"{self._warehouse}/{folder}", f"{self._warehouse}/{folder.replace('/', MARK)}"
