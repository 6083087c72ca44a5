"""Plans how a state table changes its schema before a batch goes in. Pure: it sees schemas and footers, no rows."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from mainstem.model.errors import Conflict
from mainstem.tables.layout import STATE_COLUMNS, column_name, stored_name
from mainstem.tables.partitions import takes
from mainstem.tables.settings import Format, TableSettings
from mainstem.tables.types import (
    STRING,
    ColumnType,
    Kind,
    join_kinds,
    keeps_every_value,
    kind_of,
    type_of,
    typed_by_source,
    widens_in_place,
)
from mainstem.wire.mongo.batches import DOCUMENT_COLUMN

# A table's own columns, over all its rows. A row that would exceed it becomes a dead letter.
TABLE_COLUMNS_MAX = 1_000
OVER_LIMIT = f"the table has {TABLE_COLUMNS_MAX} columns, which is the limit"
# Readers of Delta tables use these names for a row's place (`formats.delta.schema` refuses them).
_DELTA_PLACES = frozenset(("file_index", "file_row_number"))
_OWN_NAMES = {name.lower(): name for name, _ in STATE_COLUMNS}
_NO_TRANSFORMS: Mapping[str, Collection[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a state table that belongs to the rows. `kind` is None where the type was declared."""

    name: str
    type: ColumnType
    kind: Kind | None = None

    @property
    def stored(self) -> str:
        """Its name in the table."""
        return stored_name(self.name)


@dataclass(frozen=True, slots=True)
class Evolution:
    """What to do to the table before the batch, and how it looks then."""

    columns: tuple[Column, ...]
    # New ones; and those that held only nulls, which are dropped and added with their real type.
    add: tuple[Column, ...] = ()
    retype: tuple[Column, ...] = ()
    widen: tuple[Column, ...] = ()
    # Every row must be cast, and the table replaced in one commit.
    rewrite: tuple[Column, ...] = ()
    # Remembered kinds changed, though perhaps no type did.
    kinds_changed: bool = False
    # Columns that the table cannot have, with the reason: rows that have one are dead letters.
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def touches_schema(self) -> bool:
        """Whether the table has to be altered at all."""
        return bool(self.add or self.retype or self.widen or self.rewrite or self.kinds_changed)


class Names:
    """The names of a state table's columns, by the rows' own names, and which more it takes: the planner and the feeds
    ask the same. Columns come in the order in which the log first has them."""

    def __init__(self, names: Iterable[str], settings: TableSettings) -> None:
        self._is_delta = settings.format is Format.DELTA
        self._names = set(names)
        self._folded = {stored_name(name).lower(): stored_name(name) for name in self._names}

    def have(self, names: Iterable[str]) -> bool:
        """Whether the table has all of these."""
        return self._names.issuperset(names)

    def refusal(self, name: str) -> str | None:
        """Why rows with this column are dead letters; None where the table has it, or can have it."""
        if name in self._names:
            return None
        if len(self._names) >= TABLE_COLUMNS_MAX:
            return OVER_LIMIT
        return self._unnameable(name) if self._is_delta else None

    def add(self, name: str) -> str | None:
        """A row has this column. Why the table cannot have it; None where it has it from now on."""
        reason = self.refusal(name)
        if reason is None and name not in self._names:
            self._names.add(name)
            self._folded[stored_name(name).lower()] = stored_name(name)
        return reason

    def _unnameable(self, name: str) -> str | None:
        """Why a table in Delta cannot have a column of this name: it does not tell upper case from lower case."""
        folded = stored_name(name).lower()
        if folded in _DELTA_PLACES:
            return f"a column of a Delta table cannot have this name. got={name}"
        taken = self._folded.get(folded) or _OWN_NAMES.get(folded)
        if taken is None:
            return None
        return f"Delta does not tell two columns apart that differ by case only. expected={taken} got={name}"


def refuses_columns(settings: TableSettings) -> bool:
    """Whether a table has rows as dead letters for the names of their columns. One that carries whole documents loses
    nothing where a field has no column, and a history has no columns of the rows."""
    return settings.state and DOCUMENT_COLUMN not in settings.columns


def plan_evolution(
    current: Iterable[Column],
    seen: Mapping[str, Iterable[str]],
    settings: TableSettings,
    transforms: Mapping[str, Collection[str]] = _NO_TRANSFORMS,
) -> Evolution:
    """Plan from the table's columns, the JSON types seen per column in the batch, and what the user declared.

    `transforms` are those that any of the table's partition specs takes of a stored column, past ones included: a
    column's type must suit them all, or no engine could read the table's metadata any more.
    """
    columns = {column.name: column for column in current}
    add: list[Column] = []
    retype: list[Column] = []
    widen: list[Column] = []
    rewrite: list[Column] = []
    refused: dict[str, str] = {}
    names = Names(columns, settings)
    kinds_changed = False
    wanted = dict.fromkeys([*columns, *settings.columns, *seen])
    for name in wanted:
        old = columns.get(name)
        new = _partitionable(old, _grown(name, old, seen.get(name, ()), settings), transforms)
        if old is None:
            reason = names.add(name)
            if reason is not None:
                refused[name] = reason
                continue
            add.append(new)
        elif old.type != new.type:
            if old.kind is Kind.NULL:
                retype.append(new)
            elif widens_in_place(old.type, new.type):
                widen.append(new)
            elif keeps_every_value(old.type, new.type):
                rewrite.append(new)
            else:
                raise Conflict(f"column cannot change its type. column={name} expected={old.type} got={new.type}")
        kinds_changed = kinds_changed or old is None or old.kind is not new.kind
        columns[name] = new
    return Evolution(
        columns=tuple(columns.values()),
        add=tuple(add),
        retype=tuple(retype),
        widen=tuple(widen),
        rewrite=tuple(rewrite),
        kinds_changed=kinds_changed,
        refused=refused if refuses_columns(settings) else {},
    )


def _grown(name: str, old: Column | None, json_types: Iterable[str], settings: TableSettings) -> Column:
    if declared := settings.columns.get(name):
        return Column(name, declared)
    json_types = tuple(json_types)
    typed = typed_by_source(json_types)
    if typed is not None and (old is None or old.kind is Kind.NULL):
        return Column(name, typed)
    kind = kind_of(json_types)
    if old is not None:
        if old.kind is None:
            # Declared, by somebody or by its first source: its type stays, unless the source has made it wider.
            return Column(name, typed) if typed is not None and widens_in_place(old.type, typed) else old
        kind = join_kinds(old.kind, kind)
    return Column(name, type_of(kind, settings.nested), kind)


def _partitionable(old: Column | None, new: Column, transforms: Mapping[str, Collection[str]]) -> Column:
    """A type that every partition field of the column can be taken of: text, where the wanted one is not."""
    unfit = [each for each in transforms.get(new.stored, ()) if not takes(each, new.type)]
    if not unfit or old is None or old.type == new.type:
        return new
    if new.kind is None:
        raise Conflict(
            f"partitions are made of this column. column={new.name} expected=a type for {unfit} got={new.type}"
        )
    return Column(new.name, STRING, Kind.STRING)


def columns_of(fields: Iterable[tuple[str, ColumnType]], kinds: Mapping[str, str]) -> tuple[Column, ...]:
    """The rows' columns of a stored table, from its fields (without Mainstem's own) and its remembered kinds."""
    columns = []
    for stored, column_type in fields:
        name = column_name(stored)
        kind = Kind(kinds[name]) if name in kinds else None
        columns.append(Column(name, column_type, kind))
    return tuple(columns)


def kinds_of(columns: Iterable[Column]) -> dict[str, str]:
    """What the table must remember of its columns."""
    return {column.name: str(column.kind) for column in columns if column.kind is not None}
