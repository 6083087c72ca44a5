"""One query of a table: filter, projection, sort, skip and limit, as documents, as Arrow or as a stream of batches.

Owns the plan. Zone maps leave out files, DuckDB gets what the filter says in SQL, and where SQL says it only nearly
`matches` decides in the end. The answer is that of the document filter on every row, whichever way it is computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from deltalake.exceptions import DeltaError

from mainstem.documents import Projection, matcher, parse_filter, parse_projection, parse_sort, pushdown, to_duckdb
from mainstem.documents.columns import Kind
from mainstem.documents.filters.ast import EVERYTHING, AnyElement, Field, Node
from mainstem.documents.filters.predicate import YES
from mainstem.documents.filters.pushdown import is_exact
from mainstem.documents.filters.sql import SqlFilter
from mainstem.documents.sort import SortField, sort_documents
from mainstem.formats.delta.files.engine import FILE, PLACES, ROW, Engine, Source, data_path, read_errors
from mainstem.formats.delta.files.groups import chosen_groups, read_groups
from mainstem.formats.delta.files.zones import ScanStatistics, columns_in, kept_files, kept_groups, row_count
from mainstem.formats.delta.log import AddFile, State
from mainstem.formats.delta.schema import AT, TableSchema, schema_of
from mainstem.formats.delta.values.rows import documents_of
from mainstem.model.errors import Invalid
from mainstem.sql import duckdb_name

if TYPE_CHECKING:
    import duckdb

BATCH_ROWS = 65_536
# From here on opening the table once more is paid back by the faster scan.
WHOLE_ROWS_MIN = 100_000
# delta-rs's batches have 8,192 rows, for which a cast takes longer to call than to do.
CAST_BATCHES = 16
_SORTED_BY_SQL = frozenset(
    [
        Kind.BOOLEAN,
        Kind.INTEGER,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.STRING,
        Kind.TIMESTAMP,
        Kind.TIMESTAMP_TZ,
        Kind.DATE,
        Kind.OBJECT_ID,
    ]
)
Sort = Mapping[str, Any] | Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Question:
    """What is asked."""

    filter: Mapping[str, Any] = field(default_factory=dict)
    projection: Mapping[str, Any] | Sequence[str] | None = None
    sort: Sort = ()
    limit: int | None = None
    skip: int = 0


class Find:
    """A query on one version of a table. Nothing is read before its answer is asked for."""

    def __init__(self, engine: Engine, table: str, state: State, question: Question) -> None:
        self._engine = engine
        self._table = table
        self._state = state
        self._question = question
        self._node = parse_filter(question.filter)
        self._sort = parse_sort(question.sort)
        self._projection = _projection(question.projection)
        self.schema: TableSchema = schema_of(state.metadata)
        self._sql = to_duckdb(self._node, self.schema.columns)
        _check_text(self._sql)

    @cached_property
    def _predicate(self) -> Any:
        return pushdown(self._node, self.schema.columns)

    @cached_property
    def files(self) -> list[AddFile]:
        """The files in which a row may match."""
        return kept_files(self._state.files.values(), self._predicate, self.schema)

    @cached_property
    def statistics(self) -> ScanStatistics:
        """What zone maps leave unread. Looks into the footers of the files that are left."""
        groups = skipped = 0
        for file in self.files if self._predicate != YES else ():
            with read_errors(self._engine.storage, self._table, [file]):
                found = self._engine.footers.groups(data_path(self._table, file))
            kept = kept_groups(found, file, self._predicate, self.schema)
            groups += len(found)
            skipped += len(found) - kept
        every = self._state.files.values()
        size = sum(file.size for file in every)
        return ScanStatistics(
            files=len(every),
            files_skipped=len(every) - len(self.files),
            row_groups=groups,
            row_groups_skipped=skipped,
            bytes=size,
            bytes_skipped=size - sum(file.size for file in self.files),
        )

    def rows(self) -> list[dict[str, Any]]:
        """The documents."""
        found: list[dict[str, Any]] = []
        for batch in self._checked(ordered=True):
            found.extend(documents_of(batch, self.schema))
        if not self._sorted_by_sql:
            found = [dict(row) for row in sort_documents(found, self._question.sort)]
        if not self._cut_by_sql:
            end = None if self._question.limit is None else self._question.skip + self._question.limit
            found = found[self._question.skip : end]
        return found if self._projection is None else [self._projection.apply(row) for row in found]

    def arrow(self) -> pa.Table:
        """The rows in Arrow: whole columns, as they are stored."""
        for way in (self._whole, self._groups):
            found = way()
            if found is not None:
                return found
        if self._cut_by_sql:
            # All at once: DuckDB fills the columns from several threads, and batches from one.
            with self._asked(_select(self._output), self._needed(self._output), self._sorted_tail()) as asked:
                return asked.to_arrow_table().select(self._output).cast(self._arrow_schema)
        batches = list(self.batches())
        return pa.Table.from_batches(batches, self._arrow_schema)

    def _whole(self) -> pa.Table | None:
        """A large table without a question, by delta-rs, which is the fastest at that. None where it cannot."""
        asked = self._question
        is_whole = self._node == EVERYTHING and not self._sort and asked.limit is None and not asked.skip
        if not is_whole or not self._output or sum(row_count(file) or 0 for file in self.files) < WHOLE_ROWS_MIN:
            return None
        if any(self.schema.fields[name].is_variant for name in self._output):
            return None
        schema = self._arrow_schema
        try:
            with self._engine.opened(self._table, self._state) as table:
                return _table(iter(pa.RecordBatchReader.from_stream(table.scan(columns=self._output))), schema)
        except (DeltaError, pa.ArrowException, OSError):
            # The other way says what is wrong, and with which file.
            return None

    def _groups(self) -> pa.Table | None:
        """Most rows of a few row groups, by Arrow. None where DuckDB is better at it, or has to do it."""
        asked = self._question
        if self._sort or asked.limit is not None or asked.skip or not self._is_plain:
            return None
        import duckdb

        stored = [self.schema.fields[name] for name in {*self._output, *columns_in(self._predicate)}]
        paths = [data_path(self._table, file) for file in self.files]
        storage = self._engine.storage
        try:
            chosen = chosen_groups(self._engine.footers, paths, self._predicate, self.schema)
            if chosen is not None:
                with self._engine.cursor() as cursor:
                    uris = [storage.uri(path) for path in chosen]
                    alike = self._engine.shapes.are_as_stated(cursor, uris, stored)
                if alike:
                    return read_groups(storage, chosen, self._predicate, self._output, self._arrow_schema)
        except (pa.ArrowException, OSError, ValueError, duckdb.Error):
            # The other way says what is wrong, and with which file.
            pass
        return None

    @property
    def _is_plain(self) -> bool:
        """Whether files hold just the rows and columns that are asked for, and the predicate says which of them."""
        names = {*self._output, *columns_in(self._predicate)}
        return (
            bool(self._output)
            and self._predicate != YES
            and all(self.schema.fields[name].physical == name for name in names)
            and names.isdisjoint(self.schema.partition_by)
            and all(file.deletionVector is None for file in self.files)
            and is_exact(self._node, self.schema.columns, self._predicate)
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in Arrow, batch after batch, without holding them all. Sorts only by plain columns."""
        if not self._sorted_by_sql:
            ordered = sort_documents(
                [
                    (document | {AT: (batch, at)})
                    for batch in self._checked(ordered=False)
                    for at, document in enumerate(documents_of(batch, self.schema))
                ],
                self._question.sort,
            )
            end = None if self._question.limit is None else self._question.skip + self._question.limit
            for document in ordered[self._question.skip : end]:
                batch, at = document[AT]
                yield batch.slice(at, 1).select(self._output)
            return
        left, skip = self._question.limit, self._question.skip
        for whole in self._checked(ordered=True):
            batch = whole
            if not self._cut_by_sql:
                batch = whole.slice(skip, left)
                skip = max(0, skip - whole.num_rows)
                left = None if left is None else left - batch.num_rows
            if batch.num_rows:
                yield batch.select(self._output)
            if left is not None and left <= 0:
                return

    @property
    def _arrow_schema(self) -> pa.Schema:
        return pa.schema([self.schema.arrow.field(name).remove_metadata() for name in self._output])

    @cached_property
    def _output(self) -> list[str]:
        """The columns that the answer has."""
        names = list(self.schema.fields)
        if self._projection is None:
            return names
        if self._projection.inclusive:
            return [name for name in names if name in self._projection.tree and self._kept(name) is not False]
        return [name for name in names if self._kept(name) is not False]

    def _kept(self, name: str) -> bool | None:
        assert self._projection is not None
        return getattr(self._projection.tree.get(name), "wanted", None)

    @cached_property
    def _read(self) -> list[str]:
        """The columns that have to be read: those of the answer, and what is decided in Python."""
        wanted = set(self._output)
        if not self._sql.exact:
            roots = roots_of(self._node)
            wanted |= set(self.schema.fields) if roots is None else roots
        if not self._sorted_by_sql:
            wanted |= {field.path[0] for field in self._sort}
        return [name for name in self.schema.fields if name in wanted]

    @cached_property
    def _sorted_by_sql(self) -> bool:
        return all(
            len(by.path) == 1
            and (by.path[0] not in self.schema.fields or self.schema.fields[by.path[0]].column.kind in _SORTED_BY_SQL)
            for by in self._sort
        )

    @property
    def _cut_by_sql(self) -> bool:
        return self._sorted_by_sql and self._sql.exact

    def _checked(self, *, ordered: bool) -> Iterator[pa.RecordBatch]:
        """Batches of matching rows; in order, if that is SQL's to give."""
        matches = None if self._sql.exact else matcher(self._node)
        for batch in self._selected(ordered=ordered and self._sorted_by_sql):
            if matches is None:
                yield batch
                continue
            kept = pa.array([matches(document) for document in documents_of(batch, self.schema)], pa.bool_())
            yield batch.filter(kept)

    def places(self) -> tuple[list[AddFile], pa.Table]:
        """The matching rows whole, each with its file (in the list) and its place in that."""
        matches = None if self._sql.exact else matcher(self._node)
        names = list(self.schema.fields)
        found = []
        for batch in self._run(f"SELECT {', '.join(map(duckdb_name, names))}, {FILE}, {ROW}", names, places=True):
            if matches is not None:
                documents = documents_of(batch.select(names), self.schema)
                found.append(batch.filter(pa.array([matches(document) for document in documents], pa.bool_())))
            else:
                found.append(batch)
        whole = pa.schema([*((name, self.schema.fields[name].type) for name in names), *PLACES])
        return self.files, pa.Table.from_batches([_cast(batch, whole) for batch in found], whole)

    def _selected(self, *, ordered: bool) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([(name, self.schema.fields[name].type) for name in self._read])
        tail = self._sorted_tail() if ordered else ""
        for batch in self._run(_select(self._read), self._needed(self._read), tail):
            yield _cast(batch, schema)

    def _sorted_tail(self) -> str:
        fields, tail = self.schema.fields, ""
        if self._known_sort:
            tail += f" ORDER BY {', '.join(_order(by, fields[by.path[0]].column.kind) for by in self._known_sort)}"
        if self._cut_by_sql:
            tail += "" if self._question.limit is None else f" LIMIT {int(self._question.limit)}"
            tail += f" OFFSET {int(self._question.skip)}" if self._question.skip else ""
        return tail

    def _needed(self, names: Sequence[str]) -> list[str]:
        """The filter and the order may need columns that the answer does not have."""
        return [*names, *sorted(self._also_needed() - set(names))]

    def _run(self, select: str, names: Sequence[str], tail: str = "", *, places: bool = False) -> Iterator[Any]:
        with self._asked(select, names, tail, places=places) as asked:
            yield from asked.to_arrow_reader(BATCH_ROWS)

    @contextmanager
    def _asked(
        self, select: str, names: Sequence[str], tail: str, *, places: bool = False
    ) -> Iterator["duckdb.DuckDBPyConnection"]:
        storage = self._engine.storage
        with self._engine.cursor() as cursor, read_errors(storage, self._table, self.files):
            source = Source(cursor, storage, self._table, self.schema, self.files)
            text = f"{select} FROM {source.relation(names, places=places)} WHERE {self._sql.text}{tail}"
            yield cursor.execute(text, list(self._sql.parameters))

    @property
    def _known_sort(self) -> list[SortField]:
        return [by for by in self._sort if by.path[0] in self.schema.fields]

    def _also_needed(self) -> set[str]:
        roots = roots_of(self._node)
        wanted = set(self.schema.fields) if roots is None else roots
        return (wanted | {by.path[0] for by in self._known_sort}) & set(self.schema.fields)


def _select(names: Sequence[str]) -> str:
    return f"SELECT {', '.join(map(duckdb_name, names)) or '1 AS __one'}"


def _check_text(condition: SqlFilter) -> None:
    """Refuse half a character, which no table holds and DuckDB does not take."""
    try:
        for text in (condition.text, *condition.parameters):
            if isinstance(text, str):
                text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"a text of the filter is not Unicode. {error.reason}: {error.object!a:.80}") from None


def _projection(source: Mapping[str, Any] | Sequence[str] | None) -> Projection | None:
    if source is None:
        return None
    if isinstance(source, Mapping):
        return parse_projection(source) if source else None
    # A list of columns is meant as it is written: `_id` comes only where it is named.
    listed = dict.fromkeys(source, 1)
    return parse_projection(listed if "_id" in listed else {"_id": 0, **listed})


def _order(by: SortField, kind: Kind) -> str:
    name = duckdb_name(by.path[0])
    direction, nulls = ("DESC", "NULLS LAST") if by.descending else ("ASC", "NULLS FIRST")
    plain = f"{name} {direction} {nulls}"
    if kind is Kind.DOUBLE:
        # NaN comes before every other number in BSON's order, and after them in DuckDB's.
        return f"CASE WHEN {name} IS NULL THEN 0 WHEN isnan({name}) THEN 1 ELSE 2 END {direction}, {plain}"
    return plain


def roots_of(node: Node) -> set[str] | None:
    """The top-level names that a filter looks at; None where it may look at any."""
    found: set[str] = set()
    pending: list[Any] = [node]
    while pending:
        part = pending.pop()
        match part:
            case Field(path, test):
                found.add(path[0])
                if isinstance(test, AnyElement):
                    # Its own paths start inside the element.
                    continue
            case msgspec.Struct():
                inner = getattr(part, "path", None)
                if inner == ():
                    return None
                if inner is not None:
                    found.add(inner[0])
                pending.extend(getattr(part, name) for name in part.__struct_fields__ if name != "path")
            case tuple() | list():
                pending.extend(part)
    return found


def _table(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Batches with these columns as one table, cast some at a time: while others are being read, but not one by one."""
    parts = [schema.empty_table()]
    while some := list(islice(batches, CAST_BATCHES)):
        parts.append(pa.Table.from_batches(some).select(schema.names).cast(schema))
    return pa.concat_tables(parts)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not schema.names:
        return batch
    return batch if batch.schema.equals(schema) else batch.cast(schema)
