"""Declares the columns of tables in Delta, in the table's own log: a version without rows.

It is the pipeline's own way to change a table's columns, without Spark: no row that is there has to be written anew.
"""

from collections.abc import Mapping
from dataclasses import replace

from mainstem.catalog import AlreadyExists, Catalog, GenericTable, TableIdent
from mainstem.formats.delta.storage import storage_by_properties
from mainstem.model import Conflict, Invalid, TableName
from mainstem.pipeline.delta.table import DeltaLake, create_state
from mainstem.runtime.clock import Clock
from mainstem.tables.evolution import Column, Evolution, Names
from mainstem.tables.layout import KEY
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import ColumnType, Kind

APPLICATION = "gateway"
Types = Mapping[str, ColumnType | None]


class DeltaColumns:
    """The declared columns of our Delta tables. Every method blocks. They raise Conflict where the table changed
    meanwhile."""

    def __init__(self, catalog: Catalog, url: str, store: Mapping[str, str], clock: Clock) -> None:
        """`url` is where the tables are, and `store` how it is reached."""
        self._catalog = catalog
        self._lake = DeltaLake(storage_by_properties(url, store), clock, self._enter, application=APPLICATION)

    def types(self, name: TableName) -> Types | None:
        """The types of a table's columns, None for one that held only nulls so far. None where there is no table."""
        table = self._lake.load(name)
        if table is None:
            return None
        if KEY not in table.names():
            raise Invalid(f"the table is not one of ours. got={name}", reason="schema_mismatch")
        return {column.name: None if column.kind is Kind.NULL else column.type for column in table.columns()}

    def create(self, name: TableName, types: Mapping[str, ColumnType], settings: TableSettings) -> None:
        """Make a table with these columns beside those that the settings declare."""
        _check(Names((), settings), [*types, *settings.columns])
        # What it is partitioned by is decided here too: Delta has no later moment for that.
        create_state(self._lake, name, replace(settings, columns={**types, **settings.columns}))

    def add(self, name: TableName, types: Mapping[str, ColumnType], settings: TableSettings) -> None:
        """Give a table columns that it lacks."""
        table = self._lake.load(name)
        if table is None:
            raise Conflict(f"the table was dropped meanwhile. table={name}")
        there = table.columns()
        if {column.name for column in there} & types.keys():
            raise Conflict(f"the table got a column meanwhile. table={name}")
        _check(Names([column.name for column in there], settings), types)
        new = tuple(Column(column, kind) for column, kind in types.items())
        plan = Evolution(columns=(*there, *new), add=new, kinds_changed=True)
        table.evolve(plan, table.marks().hlc_max, lambda *_: [])

    def _enter(self, name: TableName, location: str) -> None:
        """Have the catalog list a table."""
        ident = TableIdent(name.levels, name.table)
        self._catalog.create_namespace_if_missing(ident.namespace)
        if not self._catalog.table_exists(ident):
            try:
                self._catalog.generic.create(ident.namespace, GenericTable(name.table, "delta", location))
            except AlreadyExists:
                # Listed already.
                return


def _check(names: Names, wanted: Mapping[str, ColumnType] | list[str]) -> None:
    for column in wanted:
        reason = names.add(column)
        if reason is not None:
            raise Invalid(reason, reason="schema_mismatch")
