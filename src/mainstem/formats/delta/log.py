"""Delta's transaction log, read: from checkpoints and commits to what a table is at a version.

Owns the replay and its doubts: a version that is missing, a line that is cut off or a checkpoint that cannot be read is
a Corrupt error that names the file. It never writes; `transaction` does, and delta-rs.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus, unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from mainstem.formats.delta.files.vectors import Descriptor
from mainstem.formats.delta.storage import Storage
from mainstem.model.errors import Corrupt, Invalid, NotFound

LOG = "_delta_log"
# A path from the root, or a URI.
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")


def file_below(table: str, path: str) -> str:
    """A file that a table's log names, below the storage's root. The log writes paths as URLs do.

    Raises Corrupt for a path that leaves the table's folder: a writer of a table's log may write any path into
    it, and those who read it may read more than that one table.
    """
    plain = unquote(path)
    if ".." in plain.split("/") or _ABSOLUTE.match(plain):
        raise Corrupt("a file outside its table is not read", place=f"{table}: {path[:300]}")
    return f"{table}/{plain}"


class AddFile(msgspec.Struct, frozen=True):
    """A data file of the table."""

    path: str
    partitionValues: dict[str, str | None] = {}  # noqa: N815 - the protocol's own names
    size: int = 0
    modificationTime: int = 0  # noqa: N815
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletionVector: Descriptor | None = None  # noqa: N815
    baseRowId: int | None = None  # noqa: N815
    defaultRowCommitVersion: int | None = None  # noqa: N815
    dataChange: bool = True  # noqa: N815

    @property
    def partition(self) -> str:
        """The partition's name; empty for a table without partitions."""
        return "/".join(
            f"{quote_plus(name)}={'null' if value is None else quote_plus(value)}"
            for name, value in self.partitionValues.items()
        )

    @property
    def key(self) -> tuple[str, str | None]:
        """What tells one file, with one vector, from every other."""
        return self.path, None if self.deletionVector is None else self.deletionVector.unique_id


class Removed(msgspec.Struct, frozen=True):
    """A data file that the table no longer has."""

    path: str
    deletionTimestamp: int | None = None  # noqa: N815
    size: int | None = None
    deletionVector: Descriptor | None = None  # noqa: N815
    partitionValues: dict[str, str | None] | None = None  # noqa: N815
    dataChange: bool = True  # noqa: N815

    @property
    def key(self) -> tuple[str, str | None]:
        """As of the file that was added."""
        return self.path, None if self.deletionVector is None else self.deletionVector.unique_id


class ChangeFile(msgspec.Struct, frozen=True):
    """A file of the change feed: rows with `_change_type`."""

    path: str
    partitionValues: dict[str, str | None] = {}  # noqa: N815
    size: int = 0


class Metadata(msgspec.Struct, frozen=True):
    """What the table is."""

    id: str = ""
    # A later commit may say what an earlier one left out; without it there is no table.
    schemaString: str = ""  # noqa: N815
    partitionColumns: list[str] = []  # noqa: N815
    configuration: dict[str, str | None] = {}
    name: str | None = None
    description: str | None = None
    createdTime: int | None = None  # noqa: N815


class Protocol(msgspec.Struct, frozen=True):
    """What a reader or writer must understand."""

    minReaderVersion: int  # noqa: N815
    minWriterVersion: int  # noqa: N815
    readerFeatures: list[str] | None = None  # noqa: N815
    writerFeatures: list[str] | None = None  # noqa: N815


class _Transaction(msgspec.Struct, frozen=True):
    appId: str  # noqa: N815
    version: int


class _Sidecar(msgspec.Struct, frozen=True):
    path: str


class Action(msgspec.Struct, frozen=True):
    """One line of a commit: one of these is there."""

    add: AddFile | None = None
    remove: Removed | None = None
    metaData: Metadata | None = None  # noqa: N815
    protocol: Protocol | None = None
    txn: _Transaction | None = None
    cdc: ChangeFile | None = None
    sidecar: _Sidecar | None = None
    commitInfo: dict[str, Any] | None = None  # noqa: N815


_DECODER = msgspec.json.Decoder(Action, strict=False)


@dataclass(frozen=True)
class State:
    """A table at a version."""

    version: int
    protocol: Protocol
    metadata: Metadata
    files: dict[tuple[str, str | None], AddFile]
    transactions: dict[str, int] = field(default_factory=dict)


class DeltaLog:
    """The log of one table. Remembers the newest state it has seen, and reads only what came since."""

    def __init__(self, storage: Storage, table: str) -> None:
        self.storage = storage
        self.table = table
        self._newest: State | None = None

    def commit_path(self, version: int) -> str:
        """Where a version's commit is."""
        return f"{self.table}/{LOG}/{version:020d}.json"

    def exists(self) -> bool:
        """Whether there is a table at all."""
        return self._newest is not None or bool(self._listing().versions)

    def newest(self) -> State:
        """The table as it is now."""
        if self._newest is None:
            self._newest = self._load(None)
        version, draft = self._newest.version, None
        # A commit that follows is looked for by its name: a listing would cost as much as the whole log is long.
        while (content := self._find(path := self.commit_path(version + 1))) is not None:
            draft = draft or _Draft(self._newest)
            for action in self._actions(content, path):
                draft.apply(action)
            version += 1
        if draft is not None:
            self._newest = draft.state(version, self.storage.uri(f"{self.table}/{LOG}"))
        return self._newest

    def at(self, version: int) -> State:
        """The table at a version."""
        newest = self.newest()
        if version == newest.version:
            return newest
        if not 0 <= version <= newest.version:
            raise NotFound(f"no such version. table={self.table} expected=0..{newest.version} got={version}")
        return self._load(version)

    def actions(self, version: int) -> list[Action]:
        """What one commit says. Raises NotFound where it is not in the log, or no longer."""
        path = self.commit_path(version)
        return list(self._actions(self.storage.read(path), path))

    def removals(self) -> Iterator[Removed]:
        """What the log still says of files that are gone from the table."""
        listing = self._listing()
        start = max(listing.checkpoints, default=-1)
        for action in self._checkpoint(listing.checkpoints.get(start, [])):
            if action.remove is not None:
                yield action.remove
        for version in sorted(version for version in listing.versions if version > start):
            for action in self.actions(version):
                if action.remove is not None:
                    yield action.remove

    def forget(self) -> None:
        """Read everything anew the next time: someone else may have rewritten the log."""
        self._newest = None

    def _find(self, path: str) -> bytes | None:
        try:
            return self.storage.read(path)
        except NotFound:
            return None

    def _load(self, version: int | None) -> State:
        listing = self._listing()
        if not listing.versions and not listing.checkpoints:
            raise NotFound(f"no Delta table here. table={self.storage.uri(self.table)}")
        target = max((*listing.versions, *listing.checkpoints)) if version is None else version
        start = max((at for at in listing.checkpoints if at <= target), default=None)
        draft = _Draft()
        if start is not None:
            for action in self._checkpoint(listing.checkpoints[start]):
                draft.apply(action)
        first = 0 if start is None else start + 1
        for at in range(first, target + 1):
            path = self.commit_path(at)
            if at not in listing.versions:
                if at == first == 0 and version is not None:
                    raise NotFound(f"the version is no longer in the log. table={self.table} version={version}")
                raise Corrupt(f"a version of the log is missing. expected={at} of 0..{target}", place=path)
            for action in self._actions(self.storage.read(path), path):
                draft.apply(action)
        return draft.state(target, self.storage.uri(f"{self.table}/{LOG}"))

    def _listing(self) -> "_Listing":
        listing = _Listing()
        parts: dict[int, dict[str, int]] = {}
        for entry in self.storage.entries(f"{self.table}/{LOG}"):
            name = entry.path.rpartition("/")[2]
            if match := _COMMIT.fullmatch(name):
                listing.versions.add(int(match[1]))
            elif match := _CHECKPOINT.fullmatch(name):
                parts.setdefault(int(match[1]), {})[entry.path] = int(match[3] or 1)
        for version, paths in parts.items():
            for count in set(paths.values()):
                chosen = sorted(path for path, of in paths.items() if of == count)
                # A checkpoint in parts counts once all of them are there; of several in one part any will do.
                if count == 1:
                    listing.checkpoints[version] = chosen[:1]
                elif len(chosen) == count:
                    listing.checkpoints.setdefault(version, chosen)
        return listing

    def _actions(self, content: bytes, path: str) -> Iterator[Action]:
        for number, line in enumerate(content.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                yield _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Corrupt(f"a commit cannot be read. line={number} {error}", place=self.storage.uri(path)) from None
        if not content.strip():
            raise Corrupt("a commit is empty", place=self.storage.uri(path))

    def _checkpoint(self, paths: list[str]) -> Iterator[Action]:
        for path in paths:
            if path.endswith(".json"):
                actions: Iterator[Action] = self._actions(self.storage.read(path), path)
            else:
                actions = self._parquet(path)
            for action in actions:
                if action.sidecar is not None:
                    name = action.sidecar.path
                    yield from self._parquet(file_below(f"{self.table}/{LOG}/_sidecars", name.rpartition("/")[2]))
                else:
                    yield action

    def _parquet(self, path: str) -> Iterator[Action]:
        place = self.storage.uri(path)
        try:
            with self.storage.files.open_input_file(path) as source:
                file = pq.ParquetFile(source)
                known = [name for name in Action.__struct_fields__ if name in file.schema_arrow.names]
                for batch in file.iter_batches(columns=known):
                    yield from _rows(batch, place)
        except FileNotFoundError:
            raise Corrupt("a checkpoint's file is missing", place=place) from None
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"a checkpoint cannot be read. {error}", place=place) from error


@dataclass
class _Listing:
    versions: set[int] = field(default_factory=set)
    checkpoints: dict[int, list[str]] = field(default_factory=dict)


def _rows(batch: pa.RecordBatch, place: str) -> Iterator[Action]:
    for row in batch.to_pylist(maps_as_pydicts="lossy"):
        present = {name: value for name, value in row.items() if value is not None}
        if not present:
            continue
        try:
            yield msgspec.convert(_without_nulls(present), Action, strict=False)
        except msgspec.ValidationError as error:
            raise Corrupt(f"a checkpoint has a row that is no action. {error}", place=place) from None


def _without_nulls(value: Any) -> Any:
    """Parquet spells what is absent as null, two levels deep; deeper, in partition values, a null is a value."""
    return {
        name: {key: item for key, item in inner.items() if item is not None} if isinstance(inner, dict) else inner
        for name, inner in value.items()
    }


class _Draft:
    """A state while it is put together."""

    def __init__(self, base: State | None = None) -> None:
        self.protocol = None if base is None else base.protocol
        self.metadata = None if base is None else base.metadata
        self.files = {} if base is None else dict(base.files)
        self.transactions = {} if base is None else dict(base.transactions)

    def apply(self, action: Action) -> None:
        if action.add is not None:
            self.files[action.add.key] = action.add
        elif action.remove is not None:
            self.files.pop(action.remove.key, None)
        elif action.metaData is not None:
            self.metadata = action.metaData
        elif action.protocol is not None:
            self.protocol = action.protocol
        elif action.txn is not None:
            self.transactions[action.txn.appId] = action.txn.version

    def state(self, version: int, place: str) -> State:
        if self.protocol is None or self.metadata is None or not self.metadata.schemaString:
            raise Corrupt(f"the log never says what the table is. version={version}", place=place)
        _check_reader(self.protocol)
        return State(version, self.protocol, self.metadata, self.files, self.transactions)


_READABLE = frozenset(
    [
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
        "variantShredding",
        "variantShredding-preview",
    ]
)


def _check_reader(protocol: Protocol) -> None:
    unknown = set(protocol.readerFeatures or ()) - _READABLE
    if protocol.minReaderVersion > 3 or unknown:
        raise Invalid(
            f"the table asks for more than this reader knows. version={protocol.minReaderVersion} "
            f"features={sorted(unknown)}",
            reason="protocol",
        )
