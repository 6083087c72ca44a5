"""Brings the schemas of sync gateways into the lake: what is declared there decides the columns' types."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.app.config import Config
from mainstem.app.spark.objectstore import delta_url
from mainstem.app.sync.declaring import Declaring
from mainstem.catalog import AlreadyExists, Catalog, Commit, CommitFailed, NewTable, TableIdent
from mainstem.feeds.schemas import ColumnKind, TableSchema
from mainstem.model import Conflict, Invalid, TableName
from mainstem.runtime.clock import Clock
from mainstem.tables.declaring import Document, column_types, column_updates, new_state, partition_updates
from mainstem.tables.settings import Format, TableSettings
from mainstem.tables.types import BOOLEAN, DOUBLE, STRING, VARIANT, ColumnType, Nested, decimal_of

if TYPE_CHECKING:
    from mainstem.app.sync.delta_schemas import DeltaColumns

_TRIES_MAX = 5
_TYPES = {ColumnKind.STRING: STRING, ColumnKind.NUMBER: DOUBLE, ColumnKind.BOOLEAN: BOOLEAN}
# What a column may be already, and still take every value of its kind.
_TAKES: Mapping[ColumnKind, frozenset[str]] = {
    ColumnKind.STRING: frozenset(["string"]),
    ColumnKind.NUMBER: frozenset(["int", "long", "float", "double"]),
    ColumnKind.BOOLEAN: frozenset(["boolean"]),
    ColumnKind.JSON: frozenset(["string", "variant"]),
}


class LakeSchemas:
    """Declares the columns of state tables, through the catalog."""

    def __init__(
        self, catalog: Catalog, config: Config, declaring: Declaring, delta: "Callable[[], DeltaColumns]"
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._declaring = declaring
        self._delta = delta

    async def declare(self, gateway: str, schema: TableSchema) -> None:
        """Make a table with these columns, or add what it lacks.

        Raises Invalid (`schema_mismatch`) where it has a column of another type. A column whose type fits already stays
        as it is: one that was inferred goes on growing. The configuration's own types win. A table without a state has
        no place for this.
        """
        name = TableName(gateway, schema.table)
        settings = self._config.table(name)
        if not settings.state:
            return
        wanted = {each.name: each.type for each in schema.columns if each.name not in settings.columns}
        fresh = await asyncio.to_thread(self._fresh, name, wanted, settings)
        async with self._declaring(name, fresh):
            await asyncio.to_thread(self._declare, name, wanted, settings)

    def _fresh(
        self, name: TableName, wanted: Mapping[str, ColumnKind], settings: TableSettings
    ) -> dict[str, ColumnType]:
        """The columns that the table lacks, as far as can be said now."""
        if settings.format is Format.DELTA:
            return _missing(name, wanted, self._delta().types(name) or {}, settings)
        ident = TableIdent(name.levels, name.table)
        there = None
        if self._catalog.table_exists(ident):
            there = column_types(self._catalog.load_table(ident).stored.document)
        return _missing(name, wanted, there or {}, settings)

    def _declare(self, name: TableName, wanted: Mapping[str, ColumnKind], settings: TableSettings) -> None:
        ident = TableIdent(name.levels, name.table)
        for _ in range(_TRIES_MAX):
            try:
                if settings.format is Format.DELTA:
                    self._declare_delta(name, wanted, settings)
                elif self._catalog.table_exists(ident):
                    self._add(ident, wanted, settings)
                else:
                    self._create(ident, wanted, settings)
                return
            except (AlreadyExists, CommitFailed, Conflict):
                # The pipeline made or changed the table at the same time.
                continue
        raise Conflict(f"the table changes all the time. table={name}")

    def _declare_delta(self, name: TableName, wanted: Mapping[str, ColumnKind], settings: TableSettings) -> None:
        there = self._delta().types(name)
        missing = _missing(name, wanted, there or {}, settings)
        if there is None:
            self._delta().create(name, missing, settings)
        elif missing:
            self._delta().add(name, missing, settings)

    def _create(self, ident: TableIdent, wanted: Mapping[str, ColumnKind], settings: TableSettings) -> None:
        types = {**settings.columns, **{name: _type(kind, settings) for name, kind in wanted.items()}}
        state = new_state(types, settings)
        self._catalog.create_namespace_if_missing(ident.namespace)
        self._catalog.create_table(ident.namespace, ident.name, NewTable(state.schema, properties=state.properties))
        if settings.partition:
            document = self._catalog.load_table(ident).stored.document
            self._commit(ident, document, partition_updates(document, settings.partition))

    def _add(self, ident: TableIdent, wanted: Mapping[str, ColumnKind], settings: TableSettings) -> None:
        document = self._catalog.load_table(ident).stored.document
        there = column_types(document)
        if there is None:
            raise Invalid(f"the table is not one of ours. got={ident}", reason="schema_mismatch")
        missing = _missing(ident.table_name, wanted, there, settings)
        if missing:
            self._commit(ident, document, column_updates(document, missing))

    def _commit(self, ident: TableIdent, document: Document, updates: list[Document]) -> None:
        """Only on top of what was looked at."""
        requirements = [
            {"type": "assert-table-uuid", "uuid": document["table-uuid"]},
            {"type": "assert-current-schema-id", "current-schema-id": document["current-schema-id"]},
            {"type": "assert-default-spec-id", "default-spec-id": document["default-spec-id"]},
        ]
        self._catalog.commit_table(Commit(ident, requirements, updates))


def _missing(
    table: TableName,
    wanted: Mapping[str, ColumnKind],
    there: Mapping[str, ColumnType | None],
    settings: TableSettings,
) -> dict[str, ColumnType]:
    """The columns that a table lacks. Raises Invalid where one has a type that does not take all values of its kind."""
    missing = {}
    for name, kind in wanted.items():
        if name not in there:
            missing[name] = _type(kind, settings)
        elif not _takes(kind, there[name]):
            raise Invalid(
                f"the lake has this column with another type. table={table} column={name} "
                f"expected={there[name]} got={kind}",
                reason="schema_mismatch",
            )
    return missing


def _type(kind: ColumnKind, settings: TableSettings) -> ColumnType:
    if kind is ColumnKind.JSON:
        return VARIANT if settings.nested is Nested.VARIANT else STRING
    return _TYPES[kind]


def _takes(kind: ColumnKind, found: ColumnType | None) -> bool:
    """Whether a column of this type takes every value of the kind. None: there were only nulls, so it will be."""
    return found is None or found in _TAKES[kind] or (kind is ColumnKind.NUMBER and decimal_of(found) is not None)


def delta_columns_of(catalog: Catalog, config: Config, data: Path, clock: Clock) -> "DeltaColumns":
    """Those of the place where the pipeline keeps its Delta tables. Imported here: a gateway without such tables starts
    sooner."""
    from mainstem.app.sync.delta_schemas import DeltaColumns

    return DeltaColumns(catalog, delta_url(config.catalog, data), config.catalog.io, clock)
