"""Texts that are ISO times with a zone, where a table asks for it: what a segment's footer says of their columns."""

from pathlib import Path

import msgspec
import pytest

from mainstem.app.config import Config, LogConfig
from mainstem.log.seal.segments import SegmentBuilder
from mainstem.log.settings import TimesRule
from mainstem.model import Hlc, LogPosition, SourceId
from mainstem.model.batch import BatchHeader, Encoding
from mainstem.wire.rows import Mode, RowsHead, pack

TIME = "2026-01-31T23:59:59Z"


def types_of(folder: Path, *values: object, rule: TimesRule | None = None) -> list[str]:
    """What the footer says of a column with these values."""
    rows = [{"id": number, "at": value} for number, value in enumerate(values)]
    builder = SegmentBuilder(rule or TimesRule(default=True))
    header = BatchHeader(
        first=LogPosition(1),
        count=len(rows),
        hlc_first=Hlc(1),
        arrival_ms=1,
        source=SourceId("http/x"),
        sequence=1,
        fingerprint=0,
        encoding=Encoding.ROWS_JSON,
    )
    head = RowsHead(table="web.orders", mode=Mode.UPSERT, key=("id",))
    builder.add(header, pack(head, msgspec.json.encode(rows)), "here")
    footer = builder.write(folder / "segment.parquet")
    return footer.tables["web.orders"].columns["at"]


@pytest.mark.parametrize("text", [TIME, "2026-01-31T23:59:59.123456+02:00", "2024-02-29T00:00:00Z"])
def test_a_time_with_a_zone_is_a_time(tmp_path: Path, text: str) -> None:
    assert types_of(tmp_path, text) == ["time"]


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31",
        "2026-01-31T23:59:59",
        "2026-01-31 23:59:59Z",
        "2026-02-30T00:00:00Z",
        "2025-02-29T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T23:59:60Z",
        "2026-01-31T23:59:59.1234567Z",
        "2026-01-31T23:59:59+15:00",
        f" {TIME}",
        "tomorrow",
        "",
    ],
)
def test_whatever_else_is_a_text(tmp_path: Path, text: str) -> None:
    assert types_of(tmp_path, text) == ["string"]


@pytest.mark.parametrize("place", [0, 100, 290, 399])
def test_one_other_text_among_many_times_is_noticed(tmp_path: Path, place: int) -> None:
    # So many rows are judged by their text, of which a first part is looked at value by value.
    values = [TIME] * 400
    assert types_of(tmp_path, *values) == ["time"]
    values[place] = "2026-02-30T00:00:00Z"
    assert types_of(tmp_path, *values) == ["string", "time"]


def test_numbers_and_nulls_are_what_they_are(tmp_path: Path) -> None:
    assert types_of(tmp_path, None, 5, TIME) == ["int", "null", "time"]


def test_a_table_says_for_itself(tmp_path: Path) -> None:
    assert types_of(tmp_path, TIME, rule=TimesRule()) == ["string"]
    assert types_of(tmp_path, TIME, rule=TimesRule(others=("web.orders",))) == ["time"]
    assert types_of(tmp_path, TIME, rule=TimesRule(default=True, others=("web.orders",))) == ["string"]
    config = Config(log=LogConfig(infer_times=True), tables={"web.orders": {"infer_times": False}, "web.other": {}})
    assert config.times() == TimesRule(default=True, others=("web.orders",))
