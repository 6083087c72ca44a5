"""New rows for a table: written as data files while they come, then made visible by one commit.

Owns the commit of a write that looked at no row. Where another writer takes the version first, the files stay and the
commit is tried on the next one, as long as the table is still what the files were written for and the application's
progress is still behind: so that a stream is read once, and a numbered batch counts once.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa

from mainstem.formats.delta import creating
from mainstem.formats.delta.constraints import CONSTRAINT, check_constraints
from mainstem.formats.delta.errors import VersionMismatchError
from mainstem.formats.delta.files.datafiles import write_files
from mainstem.formats.delta.files.engine import PLACES, Engine
from mainstem.formats.delta.log import AddFile, DeltaLog, Metadata, State
from mainstem.formats.delta.schema import TableSchema, differing, schema_of, united, with_columns
from mainstem.formats.delta.transaction import Commit, Replacement, Transaction
from mainstem.formats.delta.values.evolution import EVOLUTION, Widening
from mainstem.formats.delta.values.exact import fitted
from mainstem.formats.delta.values.rows import table_of
from mainstem.formats.delta.values.widening import discard, rewritten, widening_of
from mainstem.model.errors import Conflict, Invalid
from mainstem.runtime.backoff import Backoff

# How often a write that lost is done again on what the winner left. Of sixteen writers on a busy machine, some lose
# thirty times.
ATTEMPTS_MAX = 200
# So much of a stream is held in memory until it becomes a file.
PENDING_BYTES_MAX = 64 * 1024 * 1024
# So many documents of a stream become Arrow at once.
DOCUMENTS_MAX = 16_384
_NOTHING = PLACES.empty_table()


@dataclass(frozen=True)
class Wanted:
    """How rows are to be written."""

    mode: Literal["append", "overwrite"] = "append"
    partition_by: Sequence[str] = ()
    variants: Sequence[str] = ()
    evolve: bool = True
    properties: tuple[tuple[str, str], ...] = ()
    # On this version or not at all.
    expected_version: int | None = None


def is_stream(data: Any) -> bool:
    """Whether rows can be read only once."""
    return isinstance(data, pa.RecordBatchReader | Iterator)


def chunks(data: Any) -> Iterator[Any]:
    """The rows in parts that `table_of` takes. Of a stream only one part is in memory at a time."""
    if isinstance(data, pa.RecordBatchReader):
        yield data.schema.empty_table()
        yield from data
    elif isinstance(data, Iterator):
        yield from _grouped(data)
    elif hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.Table):
        # pandas leaves notes of its own in the schema, which would end up in the log.
        yield pa.table(data).replace_schema_metadata(None)
    else:
        yield data


def _grouped(items: Iterator[Any]) -> Iterator[Any]:
    """Single documents in lists; what is many rows already stays as it is."""
    documents: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            documents.append(item)
        if documents and (len(documents) >= DOCUMENTS_MAX or not isinstance(item, dict)):
            yield documents
            documents = []
        if not isinstance(item, dict):
            yield item
    if documents:
        yield documents


class Append:
    """One write of new rows to one table: `add` any number of times, then `commit` or `discard`."""

    def __init__(
        self,
        engine: Engine,
        log: DeltaLog,
        state: State | None,
        wanted: Wanted,
        now_ms: int,
    ) -> None:
        """`state` is None for a table that is to be made."""
        self._engine = engine
        self._log = log
        self._base = state
        self._wanted = wanted
        self._now_ms = now_ms
        self._replaces = wanted.mode == "overwrite"
        # An overwrite brings its own columns; what the others already are counts only as a hint.
        self._metadata = None if state is None or (self._replaces and wanted.evolve) else state.metadata
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        # What `add` says of the files, and what the table was to be when they were written.
        self._added: list[tuple[Metadata, dict[str, Any]]] = []
        if state is not None:
            Transaction(engine, log, state)  # says whether this writer may
            self._check_partitions(state)

    def _check_partitions(self, state: State) -> None:
        asked, has = list(self._wanted.partition_by), state.metadata.partitionColumns
        if asked and asked != has and not self._replaces:
            raise Invalid(f"the table is partitioned otherwise. table={self._log.table} expected={has} got={asked}")

    @property
    def schema(self) -> TableSchema:
        """What the table will be."""
        assert self._metadata is not None
        return schema_of(self._metadata)

    def add(self, data: Any) -> None:
        """Rows of any kind that `table_of` takes."""
        widening = self._widening()
        rows = self._arrow(data, widening)
        if self._metadata is None:
            self._metadata = self._described(rows.schema)
        elif self._wanted.evolve:
            if widening is not None and widening.metadata is not self._metadata:
                # What is held has the old columns.
                self._flush()
                self._metadata = widening.metadata
            new = [field for field in rows.schema if field.name not in self.schema.fields]
            self._metadata = with_columns(self._metadata, new) if new else self._metadata
        rows = fitted(rows, self.schema)
        check_constraints(self._log.table, self._metadata, rows)
        if rows.num_rows:
            self._pending.append(rows)
            self._pending_bytes += rows.nbytes
        if self._pending_bytes >= PENDING_BYTES_MAX:
            self._flush()

    def _widening(self) -> Widening | None:
        """How columns become others for the next rows; None where they may not."""
        if self._metadata is None or not self._wanted.evolve:
            return None
        return widening_of(self._engine, self._log.table, self._metadata, self._written)

    def _written(self) -> list[AddFile]:
        """The files that the table will have with this write, so far."""
        self._flush()
        own = [msgspec.convert(add, AddFile, strict=False) for _, add in self._added]
        return own if self._base is None or self._replaces else [*self._base.files.values(), *own]

    def _arrow(self, data: Any, widening: Widening | None) -> pa.Table:
        variants = self._wanted.variants
        if self._metadata is not None:
            return table_of(data, self.schema, variants, widening)
        if self._base is not None and isinstance(data, list | tuple):
            try:
                return table_of(data, schema_of(self._base.metadata), variants)
            except Invalid:
                # The columns that were there do not hold these values: they become others.
                pass
        return table_of(data, None, variants)

    def _described(self, schema: pa.Schema) -> Metadata:
        base = None if self._base is None else self._base.metadata
        partition_by = self._wanted.partition_by or ([] if base is None else base.partitionColumns)
        variants = [name for name in self._wanted.variants if name in schema.names]
        made = creating.described(schema, partition_by, variants, dict(self._wanted.properties))
        if base is None:
            return made
        return msgspec.structs.replace(base, schemaString=made.schemaString, partitionColumns=made.partitionColumns)

    def _flush(self) -> None:
        if self._pending:
            rows = pa.concat_tables([fitted(part, self.schema) for part in self._pending])
            self._pending, self._pending_bytes = [], 0
            assert self._metadata is not None
            added = write_files(self._log.storage, self._log.table, self.schema, rows, self._now_ms)
            self._added += [(self._metadata, add) for add in added]

    def _settle(self) -> None:
        """Write those of the files anew that were written for columns which have become others since."""
        assert self._metadata is not None
        for at in range(len(self._added)):
            written, add = self._added[at]
            if differing(schema_of(written), self.schema):
                file = msgspec.convert(add, AddFile, strict=False)
                new = rewritten(self._engine, self._log.table, file, schema_of(written), self.schema, self._now_ms)
                # At the end, so that every place before stays what it is.
                self._added += [(self._metadata, each) for each in new]
                discard(self._engine, self._log.table, [add])
        self._added = [each for each in self._added if not differing(schema_of(each[0]), self.schema)]

    def discard(self) -> None:
        """Remove the files: the write is not to be."""
        discard(self._engine, self._log.table, [add for _, add in self._added])
        self._added, self._pending = [], []

    def commit(self, about: Commit) -> int:
        """Make the rows visible; the version that has them, or that had the application's batch already."""
        try:
            self._flush()
            if self._metadata is None:
                raise Invalid("the rows have no field with a value")
            self._settle()
            return self._commit(about)
        except (VersionMismatchError, Invalid):
            # Nothing was committed. After any other error that is not known, and the files have to stay.
            self.discard()
            raise

    def _commit(self, about: Commit) -> int:
        state = self._base
        backoff = Backoff(wait_s_min=0.001, wait_s_max=0.2)
        for _ in range(ATTEMPTS_MAX):
            if state is not None and has_done(state, about.transactions):
                self.discard()
                return state.version
            try:
                return self._commit_on(state, about)
            except VersionMismatchError as lost:
                if self._wanted.expected_version is not None:
                    raise
                time.sleep(backoff.next_s())
                state = self._log.newest()
                if not self._still_fits(state):
                    raise VersionMismatchError(
                        self._log.table, expected=lost.expected, got=state.version, detail="its columns changed"
                    ) from lost
            except Invalid as error:
                if state is self._base or state is None:
                    raise
                # What came meanwhile does not go into the columns that were chosen for what was there.
                raise VersionMismatchError(
                    self._log.table, expected=None, got=state.version, detail="its columns changed"
                ) from error
        raise VersionMismatchError(self._log.table, expected=None, got=None, detail="too many writers")

    def _commit_on(self, state: State | None, about: Commit) -> int:
        assert self._metadata is not None
        added = [add for _, add in self._added]
        if state is None:
            try:
                creating.create(self._log, self._metadata, added, about, self._now_ms)
            except Conflict as error:
                raise VersionMismatchError(self._log.table, expected=None, got=0) from error
            return 0
        metadata = self._metadata if self._replaces else united(state.metadata, self._metadata, self._changed())
        change = Replacement(
            [],
            _NOTHING,
            metadata=None if metadata == state.metadata else metadata,
            dropped=list(state.files.values()) if self._replaces else (),
            added=added,
        )
        return Transaction(self._engine, self._log, state).commit(change, about, self._now_ms)

    def _changed(self) -> list[str]:
        """The columns of the table that this write makes others."""
        return [] if self._base is None else differing(schema_of(self._base.metadata), self.schema)

    def _may_change(self, name: str, known: TableSchema) -> bool:
        """Whether a column that this write makes another may still become that, or has become it meanwhile."""
        assert self._base is not None
        base = schema_of(self._base.metadata)
        alike = known.configuration.get(EVOLUTION) == base.configuration.get(EVOLUTION)
        return alike and known.fields.get(name) in (base.fields[name], self.schema.fields[name])

    def _still_fits(self, newest: State) -> bool:
        """Whether the files are files of the table as it is now."""
        assert self._metadata is not None
        if self._replaces:
            return self._base is not None and newest.metadata == self._base.metadata
        known, mine = schema_of(newest.metadata), self.schema
        changed = self._changed()
        same = {name: field for name, field in mine.fields.items() if name not in changed}
        return (
            all(self._may_change(name, known) for name in changed)
            and known.partition_by == mine.partition_by
            and _rules(newest.metadata) == _rules(self._metadata)
            and all(field == known.fields.get(name, field) for name, field in same.items())
            and all(field.nullable for name, field in known.fields.items() if name not in mine.fields)
        )


def has_done(state: State, transactions: Any) -> bool:
    """Whether a table has all of some applications' progress."""
    return bool(transactions) and all(state.transactions.get(app, -1) >= at for app, at in transactions.items())


def _rules(metadata: Metadata) -> dict[str, str | None]:
    """What rows are checked by."""
    rules = {name: text for name, text in metadata.configuration.items() if name.startswith(CONSTRAINT)}
    return rules | {"invariants": str(metadata.schemaString.count('"delta.invariants"'))}


def gathered(data: Any) -> Any:
    """All of a stream, for a write that has to look at every row before it can begin; other data as it is."""
    if not is_stream(data):
        return data
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    parts = list(chunks(data))
    if all(isinstance(part, list) for part in parts):
        return [row for part in parts for row in part]
    return pa.concat_tables([table_of(part, None) for part in parts], promote_options="default")
