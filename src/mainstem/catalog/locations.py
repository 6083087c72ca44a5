"""Where new tables and views are put below the warehouse."""

from collections.abc import Callable

from mainstem.catalog.files import Files
from mainstem.catalog.names import Namespace, TableIdent, folder_of, namespace_folder_of
from mainstem.model import Overloaded


class Locations:
    """Gives out folders, each to one table or view only."""

    def __init__(self, files: Files, warehouse: str, new_id: Callable[[], str]) -> None:
        self._files = files
        self._warehouse = warehouse.rstrip("/")
        self._new_id = new_id

    @property
    def warehouse(self) -> str:
        """The folder of all of them."""
        return self._warehouse

    def claim(self, ident: TableIdent) -> str:
        """A folder for a new table. What a dropped table left behind stays untouched: the new one goes beside it."""
        location = f"{self._warehouse}/{folder_of(ident)}"
        try:
            if self._files.claim_table(location):
                return location
            beside = f"{location}-{self._new_id()[:8]}"
            self._files.claim_table(beside)
        except OSError as error:
            raise Overloaded(f"table folder cannot be made. got={error}", retry_after_s=1.0) from error
        return beside

    def of_namespace(self, namespace: Namespace) -> str:
        """The folder that the tables of a namespace are put into."""
        return f"{self._warehouse}/{namespace_folder_of(namespace)}"

    def is_inside(self, location: str) -> bool:
        """Whether a folder is one that only this catalog gives out."""
        return location.startswith(self._warehouse + "/")
