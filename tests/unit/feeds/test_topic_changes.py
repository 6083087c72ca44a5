"""What a `cdc.*` topic says of a table: what was written, to the letter, and nothing that the table refuses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mainstem.feeds.declared import Begin
from mainstem.feeds.fitting import Columns
from mainstem.feeds.topics.changes import Told, change_of
from mainstem.feeds.topics.views import View
from mainstem.model.names import TableName
from mainstem.model.position import LogPosition
from mainstem.tables.types import LONG
from mainstem.wire.debezium import encode_change
from mainstem.wire.kafka.opening import open_batch
from tests.unit.feeds.test_feeds_pull import opened, put
from tests.unit.log.log_fixtures import event

VALUES = ["0.1234567890123456789", "123456789012345678901234567890", "1e2", "1.0", '"\\u0000"', '{"a":[1.10]}']
NAME = TableName("default", "orders")


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_the_text_that_was_written(value: str) -> None:
    columns, before = f'{{"a":{value},"b":null}}', f'{{"c": {value}}}'
    for text, was in ((columns, before), (columns.encode(), before.encode())):
        told = Told(5, 1 << 30, "update", "k", text, was, "shop", 1)
        (message,) = encode_change(change_of(told, NAME), now_ms=1, tombstones=False)
        assert message.value is not None
        assert f'"before":{before},"after":{columns},'.encode() in message.value


class DeclaredNumber:
    """`n` is a long."""

    def known(self, namespace: str, /) -> Mapping[str, Columns]:
        return {NAME.table: {"n": LONG}}

    async def load(self, namespace: str, /) -> Mapping[str, Columns]:
        return self.known(namespace)

    def begin_of(self, namespace: str, /) -> Begin:
        return lambda _: None


class NoHistory:
    async def of_table(
        self, table: TableName, *, after: LogPosition, through: LogPosition, limit: int
    ) -> Sequence[Told]:
        return []


async def test_a_dead_letter_is_no_change_of_the_table(tmp_path: Path) -> None:
    """Read later, from the history, it is not there: whoever reads at once must end with the same."""
    rows = [{"n": 1}, {"n": "one"}, None, {"n": 2.5}, {"n": None}, {"other": "x"}]
    events = [event(at, after=row) for at, row in enumerate(rows, 1)]
    events[2] = event(3, operation="DELETE", after=...)
    async with opened(tmp_path) as (_, tap, log):
        await put(tap, events)
        for where in ("tail", "segment"):
            view = View("cdc.default.orders", NAME, log, NoHistory(), DeclaredNumber())
            head, records = open_batch(await view.read(1, 7))
            keys = [json.loads(record.key or b"{}")["id"] for record in records]
            assert keys == ["key-1", "key-3", "key-5", "key-6"], where
            # Past what is left out, too.
            assert (head.base_offset, head.last_offset_delta) == (1, 5)
            await log.flush()
