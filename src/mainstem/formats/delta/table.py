"""A Delta table for Python: rows in, rows out, every version kept.

Thin where delta-rs has the operation: optimize, restore, checkpoints, constraints. Reads are in `readable`, new rows go
through `appending`, and what replaces rows (upsert, update, delete) through `transaction`, so that a batch costs what
it touches. Every write is one commit, its new columns included, and no value becomes another one on the way (`exact`).
"""

import datetime as dt
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import deltalake
import msgspec
import pyarrow as pa

from mainstem.documents import parse_update
from mainstem.formats.delta import creating, replacing
from mainstem.formats.delta.appending import (
    ATTEMPTS_MAX,
    Append,
    Wanted,
    chunks,
    gathered,
    has_done,
    is_stream,
)
from mainstem.formats.delta.constraints import check_constraints
from mainstem.formats.delta.errors import VersionMismatchError, delta_errors
from mainstem.formats.delta.files.datafiles import ROW_GROUP_ROWS
from mainstem.formats.delta.files.engine import PLACES
from mainstem.formats.delta.files.vacuum import missing_of, retention_s, unneeded
from mainstem.formats.delta.find import Find, Question
from mainstem.formats.delta.log import Metadata, State
from mainstem.formats.delta.queries import Filter
from mainstem.formats.delta.readable import ReadableTable
from mainstem.formats.delta.replacing import Changed
from mainstem.formats.delta.schema import (
    CHANGE_FEED,
    KIND,
    TableSchema,
    check_feed,
    delta_schema,
    schema_of,
    with_columns,
)
from mainstem.formats.delta.storage import Storage
from mainstem.formats.delta.transaction import VECTORS, Commit, Replacement, Transaction
from mainstem.formats.delta.values.evolution import EVOLUTION, Widening, evolution_of, with_evolution
from mainstem.formats.delta.values.exact import fitted
from mainstem.formats.delta.values.rows import table_of
from mainstem.formats.delta.values.shredding import SHREDDING, shreds
from mainstem.formats.delta.values.widening import recast, widening_of
from mainstem.model.errors import Conflict, Invalid, NotFound
from mainstem.runtime.backoff import Backoff
from mainstem.runtime.clock import Clock, SystemClock

CHECKPOINT_INTERVAL = 100
_T = TypeVar("_T")


class DeltaTable(ReadableTable):
    """A table in a storage. It comes into being with `create` or the first `write`."""

    def __init__(self, storage: Storage | str | None, name: str, *, clock: Clock | None = None) -> None:
        super().__init__(storage, name)
        self._clock = clock or SystemClock()
        self._listeners: list[Callable[[int], object]] = []

    # Making and changing the table.

    def create(
        self,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        variants: Sequence[str] = (),
        shredded: bool = False,
        deletion_vectors: bool = False,
        change_feed: bool = False,
        append_only: bool = False,
        evolution: Literal["refuse", "widen", "variant"] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make an empty table. One that is there already is left as it is.

        `evolution`: what becomes of a column that meets a value which it cannot hold. The write is refused, unless said
        otherwise; or the column becomes the narrowest type that holds both (`widen`), or a Variant.

        `shredded`: fields that many Variants share are columns of their own in the files. Spark then reads a path
        faster and files are smaller, but delta-rs does not read the table, nor does what needs it here.
        """
        configuration = with_evolution(properties, evolution)
        configuration |= {SHREDDING: "true"} if shredded else {}
        configuration |= {VECTORS: "true"} if deletion_vectors else {}
        configuration |= {CHANGE_FEED: "true"} if change_feed else {}
        configuration |= {"delta.appendOnly": "true"} if append_only else {}
        if creating.is_plain(configuration):
            try:
                self._create(creating.described(schema, partition_by, variants, configuration))
            except Conflict:
                # Somebody's table is there.
                pass
            return
        # Properties that are not Delta's are kept, as every other writer does.
        self._create_with_delta_rs(delta_schema(schema, frozenset(variants)), partition_by, configuration, strict=False)

    def add_columns(self, schema: pa.Schema, variants: Sequence[str] = ()) -> None:
        """Add columns; rows that are there have nulls in them."""
        named = [field.with_metadata({KIND: "variant"}) if field.name in variants else field for field in schema]

        def attempt() -> int:
            state = self._log.newest()
            known = [field.name for field in named if field.name in schema_of(state.metadata).fields]
            if known:
                raise Invalid(f"the table has these columns. table={self.name} got={known}", reason="schema")
            change = Replacement([], PLACES.empty_table(), metadata=with_columns(state.metadata, named))
            return Transaction(self._engine, self._log, state).commit(change, _ADDED, self._clock.now_ms())

        self.retried(attempt)

    def add_constraint(self, name: str, condition: str) -> None:
        """From now on every row must meet an SQL condition. Those that are there are checked first."""
        with delta_errors(self.name):
            self.delta_rs().alter.add_constraint({name: condition})

    def drop_constraint(self, name: str) -> None:
        """Lift a constraint."""
        with delta_errors(self.name):
            self.delta_rs().alter.drop_constraint(name)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set properties of the table."""
        evolution_of(properties)
        described = self._log.newest().metadata
        check_feed(msgspec.structs.replace(described, configuration={**described.configuration, **properties}))
        with delta_errors(self.name):
            # delta-rs knows Delta's own, and takes others only where it is not to look.
            self.delta_rs().alter.set_table_properties(
                dict(properties), raise_if_not_exists=EVOLUTION not in properties
            )

    # Rows.

    def write(
        self,
        data: Any,
        *,
        mode: Literal["append", "overwrite"] = "append",
        partition_by: Sequence[str] = (),
        variants: Sequence[str] = (),
        evolve: bool = True,
        expected_version: int | None = None,
        transaction: tuple[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
        evolution: Literal["refuse", "widen", "variant"] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Add rows, or put them in the place of all; returns the version. The first write makes the table.

        A RecordBatchReader, and a generator of documents or of Arrow data, are written while they are read, in
        bounded memory. `transaction` is an application's id and how far it is with these rows: what the table has
        already is not written again. With `expected_version` the write happens on that version or not at all.
        `evolution` and `properties` are for the table that the first write makes.
        """

        if mode not in ("append", "overwrite"):
            raise Invalid(f"mode. expected=append or overwrite got={mode!r}")
        settings = tuple(with_evolution(properties, evolution).items())
        wanted = Wanted(mode, partition_by, variants, evolve, settings, expected_version)
        about = Commit("WRITE", {"mode": mode.capitalize()}, _progress(transaction), metadata or {}, mode == "append")

        def attempt() -> int:
            state = self._state_or_none(expected_version)
            if state is not None and has_done(state, about.transactions):
                return state.version
            return self._appended(state, wanted, about, data)

        # A stream is read only once: what was written of it is committed on a later version, or not at all.
        return self.retried(attempt, once=expected_version is not None or is_stream(data))

    def upsert(
        self,
        data: Any,
        key: str | Sequence[str] = "_id",
        *,
        delete: Any = None,
        expected_version: int | None = None,
        transaction: tuple[str, int] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Changed:
        """Put rows in the place of those with the same key, and add the others. A row replaces the whole row.

        `delete` are rows (their keys are enough) that shall be gone, in the same commit.
        """
        keys = [key] if isinstance(key, str) else list(key)
        data, delete = gathered(data), gathered(delete)
        about = Commit("MERGE", {"predicate": ", ".join(keys)}, _progress(transaction), metadata or {})

        def attempt() -> Changed:
            state = self._state_or_none(expected_version)
            if state is None:
                rows = replacing.last_rows(table_of(data, None), keys)
                # Where somebody else makes the table first, these rows are no longer all new.
                version = self._appended(None, Wanted(expected_version=-1), about, rows)
                return Changed(version, inserted=rows.num_rows)
            if has_done(state, about.transactions):
                return Changed(state.version)
            schema = schema_of(state.metadata)
            widening = self._widening(state, keys)
            found = table_of(data, schema, (), widening) if len(data) else _no_rows(schema)
            rows = replacing.last_rows(found, keys)
            gone = table_of(delete, schema) if delete is not None and len(delete) else _no_rows(schema)
            described, rows = self._evolved(state, rows, widening)
            writer = Transaction(self._engine, self._log, state)
            change, counts = replacing.upsert(
                self._engine, self.name, state, described, rows, gone, keys, feed=writer.keeps_feed
            )
            return self._committed(writer, replace(change, metadata=_new(state, described)), about, counts)

        return self.retried(attempt, once=expected_version is not None)

    def update(
        self,
        filter: Filter,
        update: Mapping[str, Any],
        *,
        array_filters: Sequence[Mapping[str, Any]] = (),
        expected_version: int | None = None,
    ) -> Changed:
        """Change the matching rows by MongoDB's update operators, all in one commit."""
        parsed = parse_update(update, array_filters)

        def attempt() -> Changed:
            state = self._state(expected_version)
            found = Find(self._engine, self.name, state, Question(filter))
            files, matched = found.places()
            widening = self._widening(state)
            rows, kept = replacing.updated(matched, found.schema, parsed, filter, self._clock.now_ms(), widening)
            if not kept:
                return Changed(state.version, matched=matched.num_rows)
            described, rows = self._evolved(state, rows, widening)
            writer = Transaction(self._engine, self._log, state)
            schema = schema_of(described)
            before = recast(matched.take(kept), found.schema, schema)
            change = replacing.replacement(files, before, rows, schema, writer.keeps_feed)
            counts = Changed(0, matched=matched.num_rows, updated=len(kept))
            about = Commit("UPDATE", {"predicate": str(filter)})
            return self._committed(writer, replace(change, metadata=_new(state, described)), about, counts)

        return self.retried(attempt, once=expected_version is not None)

    def delete(self, filter: Filter, *, expected_version: int | None = None) -> Changed:
        """Delete the matching rows, all in one commit."""

        def attempt() -> Changed:
            state = self._state(expected_version)
            found = Find(self._engine, self.name, state, Question(filter))
            files, matched = found.places()
            if not matched.num_rows:
                return Changed(state.version)
            writer = Transaction(self._engine, self._log, state)
            change = replacing.removal(files, matched, found.schema, writer.keeps_feed)
            counts = Changed(0, matched=matched.num_rows, deleted=matched.num_rows)
            return self._committed(writer, change, Commit("DELETE", {"predicate": str(filter)}), counts)

        return self.retried(attempt, once=expected_version is not None)

    # Keeping it in shape.

    def optimize(self, *, target_bytes: int | None = None, z_order: Sequence[str] = ()) -> dict[str, Any]:
        """Put small files together, and drop deleted rows; with `z_order` sort rows so that zone maps skip more."""

        def attempt() -> dict[str, Any]:
            self._log.newest()
            with delta_errors(self.name):
                optimizer = self.delta_rs().optimize
                if z_order:
                    sorted_by = list(z_order)
                    return dict(optimizer.z_order(sorted_by, target_size=target_bytes, writer_properties=_writer()))
                return dict(optimizer.compact(target_size=target_bytes, writer_properties=_writer()))

        return self.retried(attempt)

    def vacuum(self, *, retention_hours: int | None = None, dry_run: bool = True) -> list[str]:
        """The files that no version within the retention needs; removed only with `dry_run=False`.

        A retention below the table's own (a week, unless set) is refused: readers of old versions would fail.
        Files that never were in a version count too, once they are that old.
        """
        kept_s = retention_s(self._log.newest().metadata.configuration)
        wanted_s = kept_s if retention_hours is None else retention_hours * 3600
        if wanted_s < kept_s:
            raise Invalid(f"the table keeps more. table={self.name} expected=at least {kept_s / 3600} hours")
        found = unneeded(self._log, self._clock.now_ms() - wanted_s * 1000)
        paths = [*found.expired, *found.orphans]
        if not dry_run:
            for path in paths:
                self.storage.delete(path)
        return [path.removeprefix(f"{self.name}/") for path in paths]

    def restore(self, at: int | dt.datetime) -> int:
        """Make the table what it was, as a new version; the newest is what it is. Marks of applications stay."""
        wanted = self.snapshot(at).version
        if wanted == self.version:
            return self.version
        if missing := missing_of(self._log, self._log.at(wanted)):
            raise NotFound(
                f"files of the version are not kept any more. table={self.name} version={wanted} "
                f"missing={len(missing)}: {missing[0]}"
            )
        with delta_errors(self.name):
            self.delta_rs().restore(wanted)
        return self.version

    def checkpoint(self) -> None:
        """Write a checkpoint, so that readers need not read the commits before it."""
        with delta_errors(self.name):
            self.delta_rs().create_checkpoint()

    # For those that build on it.

    def append_marked(self, data: Any, about: Commit, *, expected_version: int) -> int:
        """Append in one commit with applications' marks; VersionMismatchError where another writer was first."""
        wanted = Wanted(evolve=False, expected_version=expected_version)
        return self._appended(self._state(expected_version), wanted, about, data)

    def after_commit(self, listener: Callable[[int], object]) -> None:
        """Call this with the version after every write of this object. An error of it does not undo the write."""
        self._listeners.append(listener)

    def _state(self, expected_version: int | None) -> State:
        state = self._log.newest()
        if expected_version is not None and state.version != expected_version:
            raise VersionMismatchError(self.name, expected=expected_version, got=state.version)
        return state

    def _state_or_none(self, expected_version: int | None) -> State | None:
        if expected_version is None and not self.exists():
            return None
        return self._state(expected_version)

    def retried(self, attempt: Callable[[], _T], *, once: bool = False) -> _T:
        """Do it again on the newest version where another writer was first, unless the caller named the version."""
        backoff = Backoff(wait_s_min=0.005, wait_s_max=0.5)
        for left in range(ATTEMPTS_MAX, 0, -1):
            try:
                done = attempt()
                for listener in self._listeners:
                    listener(self.version)
                return done
            except VersionMismatchError:
                if once or left == 1:
                    raise
                time.sleep(backoff.next_s())
        raise AssertionError("unreachable")

    def _create(self, metadata: Metadata) -> None:
        if self.exists():
            raise Conflict(f"the table is there. table={self.name}")
        creating.create(self._log, metadata, (), _CREATED, self._clock.now_ms())

    def _create_for(self, rows: Any, wanted: Wanted) -> None:
        """Make a table that only delta-rs knows to make, for rows that are written afterwards."""
        properties = dict(wanted.properties)
        if (properties.get("delta.columnMapping.mode") or "none") != "none":
            raise Invalid(f"this writer does not map columns. table={self.name}", reason="protocol")
        schema = delta_schema(table_of(rows, None, wanted.variants).schema, frozenset(wanted.variants))
        self._create_with_delta_rs(schema, wanted.partition_by, properties, strict=EVOLUTION not in properties)

    def _create_with_delta_rs(
        self, schema: deltalake.Schema, partition_by: Sequence[str], properties: Mapping[str, str], *, strict: bool
    ) -> None:
        check_feed(Metadata("", schema.to_json(), list(partition_by), dict(properties)))
        with delta_errors(self.name):
            deltalake.DeltaTable.create(
                self.uri,
                schema=schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(properties),
                storage_options=self.storage.options or None,
                raise_if_key_not_exists=strict,
            )

    def _appended(self, state: State | None, wanted: Wanted, about: Commit, data: Any) -> int:
        parts = chunks(data)
        if state is None and not creating.is_plain(dict(wanted.properties)):
            first: Any = next(parts, [])
            self._create_for(first, wanted)
            state, parts = self._log.newest(), itertools.chain([first], parts)
        append = Append(self._engine, self._log, state, wanted, self._clock.now_ms())
        try:
            for part in parts:
                append.add(part)
        except BaseException:
            append.discard()
            raise
        return self._checkpointed(append.commit(about), append.schema)

    def _committed(self, writer: Transaction, change: Replacement, about: Commit, counts: Changed) -> Changed:
        return counts.at(self._checkpointed(writer.commit(change, about, self._clock.now_ms()), writer.schema))

    def _checkpointed(self, version: int, schema: TableSchema) -> int:
        # delta-rs has no part in tables whose Variants are shredded; Spark makes their checkpoints.
        if version and (version + 1) % self._checkpoint_interval(schema) == 0 and not shreds(schema):
            self.checkpoint()
        return version

    def _checkpoint_interval(self, schema: TableSchema) -> int:
        return int(schema.configuration.get("delta.checkpointInterval") or CHECKPOINT_INTERVAL)

    def _widening(self, state: State, keys: Sequence[str] = ()) -> Widening | None:
        return widening_of(self._engine, self.name, state.metadata, lambda: list(state.files.values()), keys)

    def _evolved(self, state: State, rows: pa.Table, widening: Widening | None) -> tuple[Metadata, pa.Table]:
        """What the table is with the columns that rows bring along, and those rows with all columns of it."""
        described = state.metadata if widening is None else widening.metadata
        known = schema_of(described).fields
        new = [field for field in rows.schema if field.name not in known]
        described = with_columns(described, new) if new else described
        rows = fitted(rows, schema_of(described))
        check_constraints(self.name, described, rows)
        return described, rows


_CREATED = Commit("CREATE TABLE")
_ADDED = Commit("ADD COLUMNS")


def _writer() -> deltalake.WriterProperties:
    """How delta-rs writes files: as we do. Its own row groups have a million rows, which leaves little to skip."""
    # Without a word it would not compress.
    return deltalake.WriterProperties(max_row_group_size=ROW_GROUP_ROWS, compression="ZSTD")


def _progress(transaction: tuple[str, int] | None) -> dict[str, int]:
    return {} if transaction is None else {transaction[0]: transaction[1]}


def _new(state: State, described: Metadata) -> Metadata | None:
    """What the commit has to say of the table, None where it stays what it is."""
    return None if described is state.metadata else described


def _no_rows(schema: TableSchema) -> pa.Table:
    return schema.arrow.empty_table()
