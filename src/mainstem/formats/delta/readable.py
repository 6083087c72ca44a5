"""A Delta table as its readers see it: the newest version, past ones, what changed between two of them."""

import datetime as dt
from typing import Any

import deltalake
import pyarrow as pa

from mainstem.formats.delta.errors import delta_errors
from mainstem.formats.delta.feed import Feed
from mainstem.formats.delta.files.engine import engine_of
from mainstem.formats.delta.find import Find, Question
from mainstem.formats.delta.log import DeltaLog, Metadata, State
from mainstem.formats.delta.queries import Queryable
from mainstem.formats.delta.schema import CHANGE_FEED, schema_of
from mainstem.formats.delta.snapshot import Snapshot
from mainstem.formats.delta.storage import Storage, create_storage
from mainstem.formats.delta.values.rows import documents_of
from mainstem.model.errors import Invalid, NotFound


class ReadableTable(Queryable):
    """What can be asked of a table without changing it."""

    def __init__(self, storage: Storage | str | None, name: str) -> None:
        if not name or name.startswith("/") or ".." in name.split("/"):
            raise Invalid(f"a table's name is a path below its storage. got={name!r}")
        self.storage = storage if isinstance(storage, Storage) else create_storage(storage)
        self.name = name.strip("/")
        self._log = DeltaLog(self.storage, self.name)
        self._engine = engine_of(self.storage)

    @property
    def uri(self) -> str:
        """The table as engines name it."""
        return self.storage.uri(self.name)

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
        end = newest.version if last is None else last
        if not 0 <= first <= newest.version or end > newest.version:
            raise NotFound(f"no such version. table={self.name} expected=0..{newest.version} got={first}..{end}")
        return Feed(self._engine, self._log, newest).reader(first, end)

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

    def state(self) -> State:
        """The newest version as the log has it."""
        return self._log.newest()

    def documents(self, rows: pa.Table, *more: str, of: Metadata | None = None) -> list[dict[str, Any]]:
        """Rows in Arrow as documents; `more` are columns that the table does not have.

        `of` is what the table was when the rows were read, where that may have been before now.
        """
        found = documents_of(rows.drop_columns(list(more)), schema_of(of or self._log.newest().metadata))
        extra = rows.select(list(more)).to_pylist()
        return [document | beside for document, beside in zip(found, extra, strict=True)]
