"""The app's way to write: inserts, updates and deletes become column deltas in the queue."""

from collections.abc import Mapping, Sequence
from typing import Any

from mainstem.client.sync.local_db import LocalDB
from mainstem.client.sync.replica import LocalWrite
from mainstem.model.errors import Invalid
from mainstem.wire.sync import Op, check_name


class SyncTracker:
    """Writes to a local database. Row, queue and clock are one transaction: what returned is on the disk."""

    def __init__(self, db: LocalDB) -> None:
        self._db = db

    def insert(self, table: str, row_id: str, columns: Mapping[str, Any]) -> None:
        """Write a row with these columns. Over a row that is there, they are set as an update would set them."""
        self.batch([LocalWrite(Op.INSERT, table, row_id, columns)])

    def update(self, table: str, row_id: str, columns: Mapping[str, Any]) -> bool:
        """Set columns; only those whose value differs travel. False if the row is not there or nothing differs."""
        return self.batch([LocalWrite(Op.UPDATE, table, row_id, columns)]) > 0

    def delete(self, table: str, row_id: str) -> bool:
        """False if the row is not there."""
        return self.batch([LocalWrite(Op.DELETE, table, row_id)]) > 0

    def batch(self, writes: Sequence[LocalWrite]) -> int:
        """Several writes that are stored together or not at all. How many of them changed something."""
        for write in writes:
            self._check(write)
        return sum(delta is not None for delta in self._db.write(writes))

    def _check(self, write: LocalWrite) -> None:
        check_name(write.table, "a table's name")
        check_name(write.row_id, "a row's id")
        if write.op == Op.DELETE:
            return
        if write.op == Op.INSERT and not write.columns:
            raise Invalid("a row needs a column")
        types = self._db.columns(write.table)
        for name, value in write.columns.items():
            check_name(name, "a column's name")
            if types is None:
                continue
            kind = types.get(name)
            if kind is None:
                raise Invalid(f"the table has no such column. table={write.table} got={name}", reason="schema_mismatch")
            if not kind.takes(value):
                raise Invalid(
                    f"a value's type. column={write.table}.{name} expected={kind} got={type(value).__name__}",
                    reason="schema_mismatch",
                )
