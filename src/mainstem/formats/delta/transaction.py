"""One commit that replaces rows: places that go, rows that come, all or nothing.

Owns the writing of Delta's log where delta-rs has no operation for it. The commit is a put-if-absent of the next
version, so that one of all writers gets it; a writer that loses looks at the table again and starts over.
Rows go by deletion vectors where the table has them on, and by writing their files anew without them where not.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from mainstem.formats.delta.errors import VersionMismatchError
from mainstem.formats.delta.files import vectors
from mainstem.formats.delta.files.datafiles import write_files
from mainstem.formats.delta.files.engine import FILE, ROW, Engine, Source, deleted_rows, read_errors
from mainstem.formats.delta.files.zones import row_count
from mainstem.formats.delta.log import AddFile, DeltaLog, Metadata, Protocol, State
from mainstem.formats.delta.schema import CHANGE_FEED, TableSchema, differing, schema_of
from mainstem.formats.delta.storage import Storage
from mainstem.formats.delta.values.exact import fitted
from mainstem.formats.delta.values.shredding import FEATURE, shreds
from mainstem.formats.delta.values.widening import rewritten
from mainstem.model.errors import Conflict, Invalid
from mainstem.sql import duckdb_name

# What a writer may meet in a table and this one honours.
_WRITABLE = frozenset(
    [
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "domainMetadata",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
        # It lets writers shred; a Variant as it is, is one too.
        "variantShredding",
        "variantShredding-preview",
    ]
)
_LOOKED_FOR = frozenset(["columnMapping", "generatedColumns", "identityColumns"])
VECTORS = "delta.enableDeletionVectors"


@dataclass(frozen=True)
class Commit:
    """What goes into the log beside the data."""

    operation: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    # Applications' own progress, in the same commit: by id, how far it is.
    transactions: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    # Whether it adds rows without having looked at any.
    blind: bool = False


@dataclass(frozen=True)
class Replacement:
    """What a commit changes: rows by their places in `files`, and the rows that come."""

    files: Sequence[AddFile]
    places: pa.Table
    rows: pa.Table | None = None
    # For the change feed, where the table keeps one: rows with `_change_type`.
    feed: pa.Table | None = None
    # What the table is from now on, and files that go whole: for a change of its schema.
    metadata: Metadata | None = None
    dropped: Sequence[AddFile] = ()
    # The rows that come are those of the dropped files, in another place.
    moved: bool = False
    # `add` actions of files that the caller has written, and keeps or removes where the commit fails.
    added: Sequence[Mapping[str, Any]] = ()


class Transaction:
    """A writer of one table at one version."""

    def __init__(self, engine: Engine, log: DeltaLog, state: State) -> None:
        self._engine = engine
        self._storage = engine.storage
        self._log = log
        self._state = state
        self.schema: TableSchema = schema_of(state.metadata)
        # The file of deletion vectors that this commit wrote.
        self._vectors: str | None = None
        self._check_writable()

    @property
    def keeps_feed(self) -> bool:
        """Whether changes have to be written down row by row."""
        return self.schema.has(CHANGE_FEED)

    def commit(self, change: Replacement, about: Commit, now_ms: int) -> int:
        """Write everything, then the next version. Raises VersionMismatchError where someone else has it already."""
        table = self._log.table
        actions: list[dict[str, Any]] = [commit_info(self._state, about, now_ms)]
        try:
            # One by one: what is written is known by its action, also where a later one cannot be.
            for action in self._actions(change, about, now_ms):
                actions.append(action)
        except BaseException:
            self._discard(actions, change)
            raise
        version = self._state.version + 1
        content = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        try:
            self._storage.put_if_absent(self._log.commit_path(version), content.encode())
        except Conflict as error:
            self._discard(actions, change)
            raise VersionMismatchError(table, expected=self._state.version, got=version) from error
        return version

    def _actions(self, change: Replacement, about: Commit, now_ms: int) -> Iterator[dict[str, Any]]:
        """What the commit says, each file once it is written."""
        table, before = self._log.table, self.schema
        if self.schema.has("delta.appendOnly") and (change.places.num_rows or (change.dropped and not change.moved)):
            raise Invalid(f"the table takes only new rows. table={table}", reason="append_only")
        for app, progress in about.transactions.items():
            yield {"txn": {"appId": app, "version": progress, "lastUpdated": now_ms}}
        if change.metadata is not None:
            yield from self._described(change.metadata)
        elif shreds(self.schema) and not {FEATURE, "variantShredding"} & set(self._state.protocol.writerFeatures or ()):
            yield {"protocol": _upgraded(self._state.protocol, {FEATURE})}
        if differing(before, self.schema):
            yield from self._retyped(change, before, now_ms)
        elif change.places.num_rows:
            yield from self._without(change, now_ms)
        for file in change.dropped:
            yield {"remove": {**_removal(file, now_ms), "dataChange": not change.moved}}
        for add in change.added:
            yield {"add": {**add, "dataChange": not change.moved}}
        if change.rows is not None and change.rows.num_rows:
            rows = fitted(change.rows, self.schema)
            for add in write_files(self._storage, table, self.schema, rows, now_ms):
                yield {"add": {**add, "dataChange": not change.moved}}
        if change.feed is not None and change.feed.num_rows:
            for add in write_files(self._storage, table, self.schema, change.feed, now_ms, "_change_data"):
                yield {"cdc": _feed_action(add)}

    def _discard(self, actions: Sequence[Mapping[str, Any]], change: Replacement) -> None:
        """Remove the new files of a commit that was not to be."""
        kept = {file.path for file in self._state.files.values()} | {add["path"] for add in change.added}
        for action in actions:
            path = (action.get("add") or action.get("cdc") or {}).get("path")
            if path is not None and path not in kept:
                self._storage.delete(f"{self._log.table}/{unquote(path)}")
        if self._vectors is not None:
            self._storage.delete(self._vectors)

    def _described(self, metadata: Metadata) -> list[dict[str, Any]]:
        """The actions that say what the table is; rows of the same commit are already of the new kind."""
        self.schema = schema_of(metadata)
        actions: list[dict[str, Any]] = [{"metaData": stated(metadata)}]
        needed = features_of(metadata) - set(self._state.protocol.writerFeatures or ())
        if needed:
            actions.insert(0, {"protocol": _upgraded(self._state.protocol, needed)})
        return actions

    def _without(self, change: Replacement, now_ms: int) -> Iterator[dict[str, Any]]:
        """The actions that take rows out of their files."""
        touched = rows_by_file(change.files, change.places)
        for file, _ in touched:
            yield {"remove": _removal(file, now_ms)}
        adds: Iterable[dict[str, Any]]
        adds = self._with_vectors(touched) if self.schema.has(VECTORS) else self._rewritten(touched, now_ms)
        for add in adds:
            yield {"add": add}

    def _retyped(self, change: Replacement, before: TableSchema, now_ms: int) -> Iterator[dict[str, Any]]:
        """The actions that put every file anew in the types of the new columns, without the rows that leave.

        Of a file that loses no row they say that no data changed, as of one that is only put elsewhere.
        """
        leaving = {file.key: rows for file, rows in rows_by_file(change.files, change.places)}
        dropped = {file.key for file in change.dropped}
        for key, file in self._state.files.items():
            if key not in dropped:
                gone = leaving.get(key)
                yield {"remove": {**_removal(file, now_ms), "dataChange": gone is not None}}
                for add in rewritten(self._engine, self._log.table, file, before, self.schema, now_ms, gone):
                    yield {"add": {**add, "dataChange": gone is not None}}

    def _with_vectors(self, touched: list[tuple[AddFile, BitMap64]]) -> list[dict[str, Any]]:
        table = self._log.table
        kept: list[tuple[AddFile, BitMap64]] = []
        for file, rows in touched:
            gone = rows | (deleted_rows(self._storage, table, file) or BitMap64())
            if len(gone) != row_count(file):
                kept.append((file, gone))
        if not kept:
            return []
        self._vectors, adds = with_vectors(self._storage, table, kept)
        return adds

    def _rewritten(self, touched: list[tuple[AddFile, BitMap64]], now_ms: int) -> Iterator[dict[str, Any]]:
        table = self._log.table
        for file, rows in touched:
            with self._engine.cursor() as cursor, read_errors(self._storage, table, [file]):
                cursor.register("leaving", pa.table({ROW: vectors.rows_of(rows)}))
                source = Source(cursor, self._storage, table, self.schema, [file])
                names = list(self.schema.fields)
                left = cursor.execute(
                    f"SELECT {', '.join(map(duckdb_name, names))} FROM {source.relation(names, places=True)}"
                    f" ANTI JOIN leaving USING ({ROW})"
                ).to_arrow_table()
            yield from write_files(self._storage, table, self.schema, fitted(left, self.schema), now_ms)

    def _check_writable(self) -> None:
        protocol, table = self._state.protocol, self._log.table
        # Versions before 7 name no features, and a table may list what it does not use: these are looked for.
        unknown = set(protocol.writerFeatures or ()) - _WRITABLE - _LOOKED_FOR
        stated = self._state.metadata.schemaString
        if (self.schema.configuration.get("delta.columnMapping.mode") or "none") != "none":
            unknown.add("columnMapping")
        if '"delta.generationExpression"' in stated:
            unknown.add("generatedColumns")
        if '"delta.identity' in stated:
            unknown.add("identityColumns")
        if protocol.minWriterVersion > 7 or unknown:
            raise Invalid(
                f"the table asks for more than this writer can. table={table} version={protocol.minWriterVersion} "
                f"features={sorted(unknown)}",
                reason="protocol",
            )


def with_vectors(
    storage: Storage, table: str, touched: Sequence[tuple[AddFile, BitMap64]]
) -> tuple[str, list[dict[str, Any]]]:
    """Write the deletion vectors of files: the file that has them all, and what `add` says of each file then."""
    name = uuid.uuid4()
    content, descriptors = vectors.file_of((gone for _, gone in touched), name)
    path = f"{table}/deletion_vector_{name}.bin"
    storage.put_if_absent(path, content)
    return path, [_addition(file, descriptor) for (file, _), descriptor in zip(touched, descriptors, strict=True)]


def rows_by_file(files: Sequence[AddFile], places: pa.Table) -> list[tuple[AddFile, BitMap64]]:
    """By file, the rows of it that are at some places."""
    by_file: dict[int, BitMap64] = {}
    indexes, positions = places[FILE].to_numpy(), places[ROW].to_numpy()
    order = np.argsort(indexes, kind="stable")
    edges = np.flatnonzero(np.diff(indexes[order])) + 1
    for group in np.split(order, edges) if len(order) else ():
        by_file[int(indexes[group[0]])] = vectors.bitmap_of(positions[group])
    return [(files[index], rows) for index, rows in by_file.items()]


def commit_info(state: State | None, about: Commit, now_ms: int) -> dict[str, Any]:
    """What a commit says of itself; without a state it is the first."""
    return {
        "commitInfo": {
            **about.metadata,
            "timestamp": now_ms,
            "operation": about.operation,
            "operationParameters": dict(about.parameters),
            **({} if state is None else {"readVersion": state.version}),
            "isBlindAppend": state is None or about.blind,
            "engineInfo": "mainstem",
            # Makes the commit unlike every other one, so that a writer can tell its own.
            "txnId": str(uuid.uuid4()),
        }
    }


def stated(metadata: Metadata) -> dict[str, Any]:
    """What a table is, as an action of the log says it."""
    said = {name: value for name, value in msgspec.to_builtins(metadata).items() if value is not None}
    return said | {"format": {"provider": "parquet", "options": {}}}


def features_of(metadata: Metadata) -> set[str]:
    """The features that readers and writers must know, for what the columns are."""
    features = {"timestampNtz": '"timestamp_ntz"', "variantType": '"variant"'}
    found = {feature for feature, mark in features.items() if mark in metadata.schemaString}
    return found | ({FEATURE} if shreds(schema_of(metadata)) else set())


def _upgraded(protocol: Protocol, features: set[str]) -> dict[str, Any]:
    """The protocol with features that readers and writers both must know."""
    writer = set(protocol.writerFeatures or ("appendOnly", "invariants")) | features
    if protocol.minWriterVersion in range(3, 7):
        writer |= {"checkConstraints", "changeDataFeed"}
    reader = set(protocol.readerFeatures or ()) | features
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(reader),
        "writerFeatures": sorted(writer),
    }


def _removal(file: AddFile, now_ms: int) -> dict[str, Any]:
    removal: dict[str, Any] = {
        "path": file.path,
        "deletionTimestamp": now_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": file.partitionValues,
        "size": file.size,
    }
    if file.deletionVector is not None:
        removal["deletionVector"] = msgspec.to_builtins(file.deletionVector)
    return removal


def _addition(file: AddFile, vector: vectors.Descriptor) -> dict[str, Any]:
    addition: dict[str, Any] = {
        "path": file.path,
        "partitionValues": file.partitionValues,
        "size": file.size,
        "modificationTime": file.modificationTime,
        "dataChange": True,
        "stats": _loosened(file.stats),
        "deletionVector": msgspec.to_builtins(vector),
    }
    if file.tags is not None:
        addition["tags"] = file.tags
    return addition


def _loosened(stats: str | None) -> str | None:
    """The statistics, said to be bounds that need not be met any more. As text: numbers keep all their digits."""
    if stats is None or '"tightBounds":false' in stats:
        return stats
    if '"tightBounds":true' in stats:
        return stats.replace('"tightBounds":true', '"tightBounds":false')
    body = stats.rstrip()[:-1].rstrip()
    return f'{body}{"" if body.endswith("{") else ","}"tightBounds":false}}'


def _feed_action(add: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": add["path"],
        "partitionValues": add["partitionValues"],
        "size": add["size"],
        "dataChange": False,
    }
