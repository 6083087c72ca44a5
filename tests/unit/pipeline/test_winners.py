"""Large passes: only the last change of each key comes to the Python workers, and the table is the same as ever."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstem.formats.segments import segment_name
from mainstem.log.seal.segments import SegmentBuilder
from mainstem.model import LogPosition
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.model.change import SourceId
from mainstem.model.hlc import Hlc
from mainstem.model.position import NOWHERE
from mainstem.pipeline.plan.writer import Written
from mainstem.pipeline.source.segments import slice_for
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import parse_type
from tests.unit.pipeline.conftest import BOTH_CATALOGS, Bench

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SEGMENT_ROWS = 52_000
KEYS = 4_000


class Producer:
    """Sends updates and deletes of few keys, and knows what the table must have."""

    def __init__(self, bench: Bench, table: str, seed: int) -> None:
        self._bench = bench
        self._table = table
        self._draw = random.Random(seed)
        self.rows: dict[str, int] = {}
        self.changes = 0

    def events(self, count: int) -> list[dict[str, Any]]:
        """The next changes. Keys differ in a few bytes, as people make them."""
        made = []
        for _ in range(count):
            number = self._draw.randrange(KEYS)
            key = f"tenant{number % 40:02d}:item{number // 40:03d}"
            self.changes += 1
            event: dict[str, Any] = {"table": f"{self._bench.namespace}.{self._table}", "rowId": key, "timestamp": 1}
            if self._draw.random() < 0.1:
                self.rows.pop(key, None)
                made.append(event | {"operation": "DELETE", "sequence": self.changes})
            else:
                self.rows[key] = self.changes
                made.append(
                    event | {"operation": "UPDATE", "sequence": self.changes, "after": {"n": self.changes, "t": key}}
                )
        return made


def seal(bench: Bench, events: Sequence[dict[str, Any]]) -> Path:
    """A segment as the sealer writes it."""
    first = bench.position + 1
    builder = SegmentBuilder()
    header = BatchHeader(
        first=LogPosition(first),
        count=len(events),
        hlc_first=Hlc(first),
        arrival_ms=1_700_000_000_500,
        source=SourceId("s"),
        sequence=first,
        fingerprint=0,
        encoding=Encoding.CDC_JSON,
    )
    builder.add(header, msgspec.json.encode(events), "here")
    bench.position += len(events)
    bench.folder.mkdir(exist_ok=True)
    path = bench.folder / segment_name(LogPosition(first), LogPosition(bench.position))
    builder.write(path)
    return path


def takes_latest_only(bench: Bench, table: str) -> bool:
    """Whether a pass over all segments would take this way."""
    name = bench.name(table)
    writer = bench.writer(name)
    run = slice_for(name, bench.segments(), NOWHERE, 10**9)
    assert run is not None
    task = writer.plan(run)
    writer.discard(Written())
    return task.latest_only


def assert_table_is(bench: Bench, table: str, producer: Producer) -> None:
    assert {key: row["n"] for key, row in bench.values(table).items()} == producer.rows
    history = bench.spark.table(bench.lake.identifier(bench.name(table).history))
    assert (history.count(), history.select("_position").distinct().count()) == (producer.changes,) * 2


@BOTH_CATALOGS
def test_a_pass_over_whole_segments_ends_with_the_last_change_of_each_key(bench: Bench) -> None:
    large, small = Producer(bench, "large", 1), Producer(bench, "small", 2)
    seal(bench, large.events(SEGMENT_ROWS))
    seal(bench, large.events(SEGMENT_ROWS // 2))
    assert takes_latest_only(bench, "large")
    seal(bench, small.events(300))
    carrier = bench.carrier()
    carrier.carry(None, (), "1")
    assert_table_is(bench, "large", large)
    assert_table_is(bench, "small", small)
    # Once more over what is there, beside a table that shares a segment with others and goes the wide way.
    seal(bench, large.events(SEGMENT_ROWS))
    seal(bench, [*small.events(200), *large.events(100)])
    seal(bench, large.events(SEGMENT_ROWS))
    carrier.carry(None, (), "2")
    assert_table_is(bench, "large", large)
    assert_table_is(bench, "small", small)


def test_a_pass_takes_nothing_from_segments_beyond_its_end(bench: Bench) -> None:
    producers = [Producer(bench, "one", 3), Producer(bench, "two", 4)]
    for _ in range(2):
        for producer in producers:
            seal(bench, producer.events(SEGMENT_ROWS))
    # One segment of each table a pass, while the source of a pass holds segments of both.
    bench.carrier(rows_max=SEGMENT_ROWS).carry(None, (), "1")
    for table, producer in zip(("one", "two"), producers, strict=True):
        assert_table_is(bench, table, producer)


def test_a_declared_type_sends_every_change_to_be_judged(bench: Bench) -> None:
    producer = Producer(bench, "judged", 5)
    bench.settings[bench.name("judged")] = TableSettings(columns={"n": parse_type("decimal(12,2)")})
    seal(bench, producer.events(SEGMENT_ROWS))
    assert not takes_latest_only(bench, "judged")
