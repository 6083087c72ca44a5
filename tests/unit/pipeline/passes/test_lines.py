"""JSON lines that are loaded without the log, as an executor reads them."""

import datetime as dt
import decimal
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from mainstem.log.settings import TimesRule
from mainstem.model import TableName
from mainstem.pipeline.passes.lines import FILE, LINE, judge_lines, keyed_lines, typed_lines
from mainstem.tables.evolution import plan_evolution
from mainstem.tables.layout import KEY
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import ColumnType

TABLE = TableName("default", "orders")


def batches(*lines: str | bytes, size: int = 2) -> Any:
    raw = [line.encode() if isinstance(line, str) else line for line in lines]
    for first in range(0, len(raw), size):
        some = raw[first : first + size]
        yield pa.record_batch([pa.array(some, pa.binary()), pa.array(["a.jsonl"] * len(some))], names=[LINE, FILE])


def judged(*lines: str | bytes, infers_times: bool = False) -> dict[str, list[str]]:
    (found,) = judge_lines(TABLE, TimesRule(default=infers_times), batches(*lines))
    return dict(json.loads(found["found"][0].as_py()))


def typed(*lines: str, key: Sequence[str] = ("id",), **declared: str) -> list[dict[str, Any]]:
    seen = {name: frozenset(kinds) for name, kinds in judged(*lines).items()}
    settings = TableSettings(columns={name: ColumnType(kind) for name, kind in declared.items()})
    columns = plan_evolution((), seen, settings).columns
    return [row for batch in typed_lines(columns, seen, tuple(key), batches(*lines)) for row in batch.to_pylist()]


def test_columns_have_the_types_that_the_log_would_see_in_the_order_of_the_lines() -> None:
    lines = ['{"id":1,"n":9007199254740993,"t":"2026-01-31T00:00:00Z"}', '{"id":2,"x":null,"n":1.5}', '{"id":3,"o":{}}']
    assert list(judged(*lines).items()) == [
        ("id", ["int"]), ("n", ["double", "long"]), ("t", ["string"]), ("x", ["null"]), ("o", ["object"])
    ]  # fmt: skip
    assert judged(*lines, infers_times=True)["t"] == ["time"]


def test_values_are_what_is_written() -> None:
    rows = typed(
        '{"id": "a", "mixed": 1.10, "doc": {"b": [1, 2.50]}, "large": 123456789012345678901234567890, "e": 1e2}',
        '{"id": "b", "mixed": "x", "doc": null, "large": 1, "price": 0.1, "day": "2026-01-31", "at": 1700000000123}',
        price="decimal(20,4)", day="date", at="timestamptz",
    )  # fmt: skip
    first, second = rows
    assert first["mixed"] == "1.10" and first["doc"] == '{"b":[1,2.50]}' and first["e"] == 100.0
    assert first["large"] == "123456789012345678901234567890" and first["price"] is None
    assert second["price"] == decimal.Decimal("0.1000") and second["day"] == dt.date(2026, 1, 31)
    assert second["at"] == dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC)
    assert [row[KEY] for row in rows] == ["a", "b"]


def test_keys_are_the_log_s() -> None:
    lines = ['{"b": 2, "a\\"": "x", "n": 1.50}', '{"n": true, "b": 3, "a\\"": "ü"}']
    (found,) = keyed_lines(('a"', "b", "n"), batches(*lines))
    assert found[KEY].to_pylist() == ['{"a\\"":"x","b":2,"n":1.5}', '{"a\\"":"ü","b":3,"n":true}']
    assert found[LINE].to_pylist() == lines


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"id": 1}', "[1]"], r"an object per line file=a.jsonl .*line=\[1\]"),
        (['{"id": 1', '"b": 2}'], "an object per line"),
        # Joined with commas these would be three rows in three lines.
        (['{"id":1},{"id":2}', '{"id":3', '"b":4}'], 'line={"id":1},{"id":2}'),
        (['{"id": 1} {"id": 2}'], "an object per line"),
        (["null"], "line=null"),
        (['{"id": 1e999}'], "a line is no row"),
        (['{"": 1}'], "empty name"),
        ([b'{"id": "\xff"}'], "not UTF-8"),
        (["\ufeff{}"], "a line is no row"),
    ],
)
def test_what_the_log_would_not_take_ends_the_load(lines: list[str | bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judged(*lines)


def test_a_row_without_a_key_or_with_a_value_that_does_not_fit_ends_the_load() -> None:
    with pytest.raises(ValueError, match=r"lacks its key. column=id got=nothing"):
        typed('{"id": 1}', '{"n": 1}')
    with pytest.raises(ValueError, match=r"column=at: 'soon' is not timestamptz"):
        typed('{"id": 1, "at": "soon"}', at="timestamptz")


def test_too_many_columns_end_the_load() -> None:
    with pytest.raises(ValueError, match="too many columns"):
        judged(*(json.dumps({f"c{number}_{each}": 1 for each in range(200)}) for number in range(6)))
