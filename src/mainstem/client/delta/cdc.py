"""CDC records on Delta tables: a producer that numbers them, consumers that go on where they were, and their use.

    producer ──▶ a table of records ──▶ Consumer ─┐
    any table with a change feed ──▶ FeedConsumer ─┴─▶ apply_records ──▶ any table

A position is saved as a file that only one of all consumers of a name can write: of two that run at once one goes on.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.documents.columns import Kind
from mainstem.formats.delta.schema import KIND
from mainstem.formats.delta.table import DeltaTable
from mainstem.formats.delta.transaction import Commit
from mainstem.model.change import Change
from mainstem.model.errors import Conflict, Corrupt, Invalid
from mainstem.wire.cdc_records import CDCRecord, record_of, records_of_feed

SEQUENCE = "mainstem.cdc-sequence"
POLL_RECORDS_MAX = 10_000
_JSON = {KIND: Kind.EXTENDED_JSON.value}
RECORD_SCHEMA = pa.schema(
    [
        pa.field("_id", pa.string(), False),
        pa.field("_seq", pa.int64(), False),
        pa.field("_op", pa.string(), False),
        pa.field("_before", pa.string(), True, _JSON),
        pa.field("_after", pa.string(), True, _JSON),
        pa.field("_ts", pa.int64(), False),
        pa.field("_source", pa.string(), True, _JSON),
    ]
)


class Producer:
    """Appends records to a table, numbered without a gap in the order of the commits, also with several writers."""

    def __init__(self, table: DeltaTable, name: str) -> None:
        """`name` is the producer's own; its batches are told apart by it."""
        self.table = table
        self._app = f"mainstem.cdc-producer.{name}"
        table.create(RECORD_SCHEMA, append_only=True)

    def send(self, records: Iterable[CDCRecord | Change], batch: int | None = None) -> int:
        """Append records; returns the number of the last. A batch with a number that was sent already is not again."""
        taken = [record_of(item) if isinstance(item, Change) else item for item in records]

        def attempt() -> int:
            seen = self.table.snapshot()
            progress = seen.transactions
            last = progress.get(SEQUENCE, 0)
            if not taken or (batch is not None and progress.get(self._app, -1) >= batch):
                return last
            rows = [_row(record, last + number) for number, record in enumerate(taken, start=1)]
            marks = {SEQUENCE: last + len(rows)} | ({} if batch is None else {self._app: batch})
            self.table.append_marked(rows, Commit("WRITE", {"mode": "Append"}, marks), expected_version=seen.version)
            return last + len(rows)

        return self.table.retried(attempt)


def _row(record: CDCRecord, sequence: int) -> dict[str, Any]:
    return {
        "_id": record.id,
        "_seq": sequence,
        "_op": record.op,
        "_before": record.before,
        "_after": record.after,
        "_ts": record.ts_ns,
        "_source": record.source,
    }


class _Positions:
    """Where a consumer is, at rest: one small file per saved position, of which the newest counts."""

    def __init__(self, table: DeltaTable, name: str) -> None:
        if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
            raise Invalid(f"a consumer's name has letters, digits, '-', '_' and '.'. got={name!r}")
        self._storage = table.storage
        # Engines and vacuum leave folders alone whose names start so.
        self._folder = f"{table.name}/_consumers/{name}"
        self._number, self.position = self._newest()

    def _newest(self) -> tuple[int, int]:
        entries = self._storage.entries(self._folder)
        if not entries:
            return 0, -1
        path = entries[-1].path
        try:
            return int(path.rpartition("/")[2].partition(".")[0]), int(msgspec.json.decode(self._storage.read(path)))
        except (ValueError, msgspec.DecodeError) as error:
            raise Corrupt(f"not a consumer's position. {error}", place=self._storage.uri(path)) from error

    def save(self, position: int) -> None:
        """Go on from here the next time. Conflict where another consumer of this name has gone on meanwhile."""
        newest, _ = self._newest()
        if newest != self._number:
            raise Conflict(f"another consumer went on. folder={self._folder} expected={self._number} got={newest}")
        path = f"{self._folder}/{self._number + 1:020d}.json"
        self._storage.put_if_absent(path, msgspec.json.encode(position))
        if self._number:
            self._storage.delete(f"{self._folder}/{self._number:020d}.json")
        self._number, self.position = self._number + 1, position


class Consumer:
    """Reads a table of records in their order. What was polled and not committed comes again after a restart."""

    def __init__(self, table: DeltaTable, name: str) -> None:
        self.table = table
        self._positions = _Positions(table, name)
        self._read = self._positions.position

    @property
    def position(self) -> int:
        """The number of the last record that was committed; -1 before the first."""
        return self._positions.position

    def poll(self, limit: int = POLL_RECORDS_MAX) -> list[CDCRecord]:
        """The next records, at most so many; none where there is nothing new."""
        after = {"_seq": {"$gt": self._read}}
        rows = self.table.query(after, sort={"_seq": 1}, limit=limit)
        if rows:
            self._read = rows[-1]["_seq"]
        return [_record(row) for row in rows]

    def commit(self) -> None:
        """Everything that was polled is done with."""
        if self._read > self._positions.position:
            self._positions.save(self._read)


def _record(row: dict[str, Any]) -> CDCRecord:
    values = {"before": None, "after": None, "source": {}, "ts_ns": row["_ts"]}
    values |= {name[1:]: row[name] for name in ("_id", "_seq", "_op", "_before", "_after", "_source") if name in row}
    return CDCRecord(**values)


class FeedConsumer:
    """Reads the change feed of any table as records. Its position is a version: one commit's changes come together."""

    def __init__(self, table: DeltaTable, name: str, *, key: str = "_id") -> None:
        self.table = table
        self._key = key
        self._positions = _Positions(table, name)
        self._read = self._positions.position

    @property
    def position(self) -> int:
        """The last version that was committed; -1 before the first."""
        return self._positions.position

    def poll(self) -> list[CDCRecord]:
        """The changes of every version since; none where there is nothing new."""
        newest = self.table.state()
        if newest.version <= self._read:
            return []
        feed = self.table.changes(self._read + 1, newest.version).read_all()
        while (now := self.table.state()).metadata != newest.metadata:
            # A column became another one meanwhile, and the rows may have come in either.
            newest = now
            feed = self.table.changes(self._read + 1, newest.version).read_all()
        ordered = feed.sort_by([("_commit_version", "ascending")])
        more = ("_change_type", "_commit_version", "_commit_timestamp")
        rows = self.table.documents(ordered, *more, of=newest.metadata)
        self._read = newest.version
        return list(records_of_feed(rows, table=self.table.name, key=self._key))

    def commit(self) -> None:
        """Everything that was polled is done with."""
        if self._read > self._positions.position:
            self._positions.save(self._read)


def apply_records(
    table: DeltaTable, records: Sequence[CDCRecord], *, key: str = "_id", transaction: tuple[str, int] | None = None
) -> None:
    """Bring a table to where the records say its rows are, in one commit: the last record of each id counts."""
    last = {record.id: record for record in records}
    rows = [{key: id_, **(record.after or {})} for id_, record in last.items() if record.op != "d"]
    gone = [{key: id_} for id_, record in last.items() if record.op == "d"]
    if not last:
        return
    if not table.exists():
        table.create(pa.schema([(key, pa.string())]))
    table.upsert(rows, key, delete=gone, transaction=transaction)


__all__ = ["CDCRecord", "Conflict", "Consumer", "FeedConsumer", "Producer", "apply_records"]
