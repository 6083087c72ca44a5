"""A Delta table for Python: rows in, rows out, every version kept.

Thin where delta-rs has the operation: appends, optimize, vacuum, restore, the change feed. Reads go through `find`,
and what replaces rows (upsert, update, delete) through `transaction`, so that a batch costs what it touches.
"""

import datetime as dt
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import deltalake
import pyarrow as pa

from mainstem.client.backoff import Backoff
from mainstem.client.delta import creating, replacing
from mainstem.client.delta.datafiles import ROW_GROUP_ROWS, varied
from mainstem.client.delta.engine import data_path, engine_of
from mainstem.client.delta.errors import VersionMismatchError, delta_errors
from mainstem.client.delta.find import Find, Question
from mainstem.client.delta.log import DeltaLog, Metadata, State
from mainstem.client.delta.queries import Filter, Queryable
from mainstem.client.delta.replacing import Changed
from mainstem.client.delta.rows import documents_of, table_of
from mainstem.client.delta.schema import TableSchema, delta_schema, schema_of
from mainstem.client.delta.shredding import SHREDDING, shreds
from mainstem.client.delta.snapshot import Snapshot
from mainstem.client.delta.storage import Storage, create_storage
from mainstem.client.delta.transaction import CHANGE_FEED, VECTORS, Commit, Replacement, Transaction
from mainstem.client.delta.vacuum import retention_s, unneeded
from mainstem.documents import parse_update
from mainstem.model.errors import Conflict, Invalid, NotFound
from mainstem.runtime.clock import Clock, SystemClock

# How often a write that lost is done again on what the winner left. Of sixteen writers on a busy machine, some lose
# thirty times.
ATTEMPTS_MAX = 200
CHECKPOINT_INTERVAL = 100
_T = TypeVar("_T")
_NOTHING = pa.table({"file_index": pa.array([], pa.int64()), "file_row_number": pa.array([], pa.int64())})


class DeltaTable(Queryable):
    """A table in a storage. It comes into being with `create` or the first `write`."""

    def __init__(self, storage: Storage | str | None, name: str, *, clock: Clock | None = None) -> None:
        if not name or name.startswith("/") or ".." in name.split("/"):
            raise Invalid(f"a table's name is a path below its storage. got={name!r}")
        self.storage = storage if isinstance(storage, Storage) else create_storage(storage)
        self.name = name.strip("/")
        self._clock = clock or SystemClock()
        self._log = DeltaLog(self.storage, self.name)
        self._engine = engine_of(self.storage)
        self._listeners: list[Callable[[int], object]] = []

    @property
    def uri(self) -> str:
        """The table as engines name it."""
        return self.storage.uri(self.name)

    # Looking.

    def exists(self) -> bool:
        """Whether the table is there."""
        return self._log.exists()

    @property
    def version(self) -> int:
        """The newest version."""
        return self._log.newest().version

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow."""
        return self.snapshot().schema

    def snapshot(self, at: int | dt.datetime | None = None) -> Snapshot:
        """The table as it is, or was: at a version, or at a time."""
        if isinstance(at, dt.datetime):
            with delta_errors(self.name):
                past = self.delta_rs()
                past.load_as_version(at if at.tzinfo else at.replace(tzinfo=dt.UTC))
                at = past.version()
        state = self._log.newest() if at is None else self._log.at(at)
        return Snapshot(self.storage, self.name, state)

    def _asked(self, question: Question) -> Find:
        return Find(self._engine, self.name, self._log.newest(), question)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The commits that the log still has, newest first."""
        self._log.newest()
        with delta_errors(self.name):
            return list(self.delta_rs().history(limit))

    def changes(self, first: int = 0, last: int | None = None) -> pa.RecordBatchReader:
        """Delta's change feed between two versions: rows with `_change_type`, `_commit_version`, `_commit_timestamp`.

        The table must have been made with `change_feed=True`.
        """
        newest = self._log.newest()
        if not schema_of(newest.metadata).has(CHANGE_FEED):
            raise Invalid(f"the table keeps no change feed. table={self.name} expected={CHANGE_FEED}=true")
        if first > newest.version:
            raise NotFound(f"no such version yet. table={self.name} expected=at most {newest.version} got={first}")
        with delta_errors(self.name):
            feed = pa.RecordBatchReader.from_stream(self.delta_rs().load_cdf(first, last))
        return feed.cast(_plain(feed.schema, schema_of(newest.metadata)))

    def to_spark(self, spark: Any, at: int | None = None) -> Any:
        """The table as a DataFrame of a Spark session that has Delta."""
        reader = spark.read.format("delta")
        if at is not None:
            reader = reader.option("versionAsOf", at)
        return reader.load(self.uri.replace("s3://", "s3a://", 1))

    def delta_rs(self) -> deltalake.DeltaTable:
        """The same table in delta-rs's own hands, at the newest version."""
        with delta_errors(self.name):
            return deltalake.DeltaTable(self.uri, storage_options=self.storage.options or None)

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
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make an empty table. One that is there already is left as it is.

        `shredded`: fields that many Variants share are columns of their own in the files. Spark then reads a path
        faster and files are smaller, but delta-rs does not read the table, nor does what needs it here.
        """
        configuration = dict(properties or {})
        configuration |= {SHREDDING: "true"} if shredded else {}
        configuration |= {VECTORS: "true"} if deletion_vectors else {}
        configuration |= {CHANGE_FEED: "true"} if change_feed else {}
        configuration |= {"delta.appendOnly": "true"} if append_only else {}
        if creating.is_plain(configuration):
            try:
                self._create(creating.described(schema, partition_by, variants, configuration), None, _CREATED)
            except VersionMismatchError:
                # Somebody's table is there.
                pass
            return
        with delta_errors(self.name):
            deltalake.DeltaTable.create(
                self.uri,
                schema=delta_schema(schema, frozenset(variants)),
                mode="ignore",
                partition_by=list(partition_by),
                configuration=configuration,
                storage_options=self.storage.options or None,
                # Properties that are not Delta's are kept, as every other writer does.
                raise_if_key_not_exists=False,
            )

    def add_columns(self, schema: pa.Schema, variants: Sequence[str] = ()) -> None:
        """Add columns; rows that are there have nulls in them."""
        with delta_errors(self.name):
            self.delta_rs().alter.add_columns(list(delta_schema(schema, frozenset(variants)).fields))

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
        with delta_errors(self.name):
            self.delta_rs().alter.set_table_properties(dict(properties))

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
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Add rows, or put them in the place of all; returns the version. The first write makes the table.

        `transaction` is an application's id and how far it is with these rows: what the table has already is not
        written again. With `expected_version` the write happens on that version or not at all.
        """

        def attempt() -> int:
            state = self._state_or_none(expected_version)
            if state is not None and transaction is not None:
                app, at = transaction
                if state.transactions.get(app, -1) >= at:
                    return state.version
            schema = None if state is None else schema_of(state.metadata)
            rows = table_of(data, schema, variants)
            if state is None and variants:
                self.create(rows.schema, partition_by=partition_by, variants=variants, properties=properties)
                return attempt()
            if state is None and creating.is_plain(properties or {}):
                made = creating.described(rows.schema, partition_by, (), properties or {})
                about = Commit("WRITE", {"mode": "Append"}, _progress(transaction), metadata or {})
                return self._create(made, rows, about)
            if schema is not None and mode == "append" and (expected_version is not None or _has_variants(schema)):
                about = Commit("WRITE", {"mode": "Append"}, _progress(transaction), metadata or {})
                return self._append(rows, about, evolve=evolve, expected_version=expected_version)
            self._write_with_delta_rs(rows, mode, partition_by, evolve, transaction, metadata, properties)
            return self._synced(state)

        return self.retried(attempt, once=expected_version is not None)

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
        if not self.exists():
            rows = replacing.last_rows(table_of(data, None), keys)
            # Someone else may make the table first; then these rows must not be appended blindly.
            self.create(rows.schema)

        def attempt() -> Changed:
            state = self._state(expected_version)
            if transaction is not None and state.transactions.get(transaction[0], -1) >= transaction[1]:
                return Changed(state.version)
            schema = schema_of(state.metadata)
            rows = replacing.last_rows(table_of(data, schema), keys) if len(data) else _no_rows(schema)
            gone = table_of(delete, schema) if delete is not None and len(delete) else _no_rows(schema)
            state = self._evolved(state, rows)
            about = Commit("MERGE", {"predicate": ", ".join(keys)}, _progress(transaction), metadata or {})
            writer = Transaction(self._engine, self._log, state)
            self._check(state, rows)
            change, counts = replacing.upsert(
                self._engine, self.name, state, rows, gone.select(keys), feed=writer.keeps_feed
            )
            return self._committed(writer, change, about, counts)

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
            documents, kept = replacing.updated(matched, found.schema, parsed, filter, self._clock.now_ms())
            if not documents:
                return Changed(state.version, matched=matched.num_rows)
            rows = table_of(documents, found.schema)
            state = self._evolved(state, rows)
            writer = Transaction(self._engine, self._log, state)
            self._check(state, rows)
            gone = matched.take(kept)
            change = replacing.replacement(files, gone, rows, writer.schema, writer.keeps_feed)
            counts = Changed(0, matched=matched.num_rows, updated=len(documents))
            return self._committed(writer, change, Commit("UPDATE", {"predicate": str(filter)}), counts)

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
        """Make the table what it was, as a new version."""
        with delta_errors(self.name):
            self.delta_rs().restore(at)
        return self.version

    def checkpoint(self) -> None:
        """Write a checkpoint, so that readers need not read the commits before it."""
        with delta_errors(self.name):
            self.delta_rs().create_checkpoint()

    # For those that build on it.

    def append_marked(self, data: Any, about: Commit, *, expected_version: int) -> int:
        """Append in one commit with applications' marks; VersionMismatchError where another writer was first."""
        rows = table_of(data, schema_of(self._state(expected_version).metadata))
        return self._append(rows, about, evolve=False, expected_version=expected_version)

    def state(self) -> State:
        """The newest version as the log has it."""
        return self._log.newest()

    def after_commit(self, listener: Callable[[int], object]) -> None:
        """Call this with the version after every write of this object. An error of it does not undo the write."""
        self._listeners.append(listener)

    def documents(self, rows: pa.Table, *more: str) -> list[dict[str, Any]]:
        """Rows in Arrow as documents; `more` are columns that the table does not have."""
        found = documents_of(rows.drop_columns(list(more)), schema_of(self._log.newest().metadata))
        extra = rows.select(list(more)).to_pylist()
        return [document | beside for document, beside in zip(found, extra, strict=True)]


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

    def _create(self, metadata: Metadata, rows: pa.Table | None, about: Commit) -> int:
        if self.exists():
            raise VersionMismatchError(self.name, expected=None, got=self.version)
        try:
            creating.create(self._log, metadata, rows, about, self._clock.now_ms())
        except Conflict as error:
            raise VersionMismatchError(self.name, expected=None, got=0) from error
        return 0

    def _append(self, rows: pa.Table, about: Commit, *, evolve: bool, expected_version: int | None) -> int:
        state = self._state(expected_version)
        if evolve:
            state = self._evolved(state, rows)
        self._check(state, rows)
        writer = Transaction(self._engine, self._log, state)
        return self._committed(writer, Replacement([], _NOTHING, rows), about, Changed(0)).version

    def _committed(self, writer: Transaction, change: Replacement, about: Commit, counts: Changed) -> Changed:
        version = writer.commit(change, about, self._clock.now_ms())
        # delta-rs has no part in tables whose Variants are shredded; Spark makes their checkpoints.
        if (version + 1) % self._checkpoint_interval(writer.schema) == 0 and not shreds(writer.schema):
            self.checkpoint()
        return counts.at(version)

    def _synced(self, before: State | None) -> int:
        """The newest version, once all that it has more than this one is durable: delta-rs leaves that to chance."""
        newest = self._log.newest()
        first, known = (0, {}) if before is None else (before.version + 1, before.files)
        new = [data_path(self.name, file) for key, file in newest.files.items() if key not in known]
        self.storage.sync([*new, *map(self._log.commit_path, range(first, newest.version + 1))])
        return newest.version

    def _checkpoint_interval(self, schema: TableSchema) -> int:
        return int(schema.configuration.get("delta.checkpointInterval") or CHECKPOINT_INTERVAL)

    def _evolved(self, state: State, rows: pa.Table) -> State:
        """The state with the columns that rows bring along."""
        known = schema_of(state.metadata).fields
        new = [field for field in rows.schema if field.name not in known]
        if not new:
            return state
        self.add_columns(pa.schema(new))
        return self._log.newest()

    def _check(self, state: State, rows: pa.Table) -> None:
        """Let delta-rs judge rows by the table's constraints, on a table that is nobody's."""
        constraints = {
            name.removeprefix(_CONSTRAINT): text
            for name, text in state.metadata.configuration.items()
            if name.startswith(_CONSTRAINT) and text
        }
        if not constraints and '"delta.invariants"' not in state.metadata.schemaString:
            return
        scratch = DeltaTable(create_storage("memory://"), "scratch")
        with delta_errors(self.name):
            schema = deltalake.Schema.from_json(state.metadata.schemaString)
            made = deltalake.DeltaTable.create(scratch.uri, schema=schema)
            if constraints:
                made.alter.add_constraint(constraints)
            deltalake.write_deltalake(scratch.uri, rows, mode="append")

    def _write_with_delta_rs(
        self,
        rows: pa.Table,
        mode: Literal["append", "overwrite"],
        partition_by: Sequence[str],
        evolve: bool,
        transaction: tuple[str, int] | None,
        metadata: Mapping[str, str] | None,
        properties: Mapping[str, str] | None,
    ) -> None:
        schema_mode: Literal["merge", "overwrite"] | None = None
        if evolve:
            schema_mode = "merge" if mode == "append" else "overwrite"
        applications = None if transaction is None else [deltalake.Transaction(*transaction, self._clock.now_ms())]
        commit = deltalake.CommitProperties(dict(metadata or {}), app_transactions=applications)
        with delta_errors(self.name):
            deltalake.write_deltalake(
                self.uri,
                rows,
                mode=mode,
                schema_mode=schema_mode,
                partition_by=list(partition_by) or None,
                configuration=properties,
                storage_options=self.storage.options or None,
                commit_properties=commit,
                writer_properties=_writer(rows),
            )


_CONSTRAINT = "delta.constraints."
_CREATED = Commit("CREATE TABLE")


def _writer(rows: pa.Table | None = None) -> deltalake.WriterProperties:
    """How delta-rs writes files: as we do. Its own row groups have a million rows, which leaves little to skip."""
    plain = deltalake.ColumnProperties(dictionary_enabled=False)
    return deltalake.WriterProperties(
        max_row_group_size=ROW_GROUP_ROWS,
        # Without a word it would not compress.
        compression="ZSTD",
        column_properties=None if rows is None else dict.fromkeys(varied(rows), plain),
    )


def _progress(transaction: tuple[str, int] | None) -> dict[str, int]:
    return {} if transaction is None else {transaction[0]: transaction[1]}


def _plain(found: pa.Schema, schema: TableSchema) -> pa.Schema:
    """The types that a table has; delta-rs gives views of text, which Arrow cannot sort or take from."""
    own = {name: field.type for name, field in schema.fields.items()} | {"_change_type": pa.string()}
    return pa.schema([(field.name, own.get(field.name, field.type)) for field in found])


def _no_rows(schema: TableSchema) -> pa.Table:
    return schema.arrow.empty_table()


def _has_variants(schema: TableSchema) -> bool:
    return any(field.is_variant for field in schema.fields.values())
