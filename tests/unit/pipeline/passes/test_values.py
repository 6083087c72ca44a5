"""Typed columns out of JSON rows: what every column gets, which rows have it, and which rows do not fit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.formats.delta.values import variant
from mainstem.pipeline.passes.values import canonical, read_values
from mainstem.tables.evolution import Column
from mainstem.tables.types import BOOLEAN, DOUBLE, LONG, STRING, VARIANT, ColumnType, Kind

N = Column("n", LONG, Kind.INT)
X = Column("x", DOUBLE, Kind.DOUBLE)
B = Column("b", BOOLEAN, Kind.BOOL)
T = Column("t", STRING, Kind.STRING)
J = Column("j", STRING, Kind.JSON)


def read(texts: list[str], *columns: Column, **seen: list[str]) -> Any:
    return read_values([text.encode() for text in texts], columns, seen, {})


def test_a_null_is_there_and_a_missing_column_is_not() -> None:
    found = read(['{"n":1}', '{"n":null}', "{}", '{"other":5}'], N, n=["int", "null"])
    assert found.arrays[0].to_pylist() == [1, None, None, None]
    assert found.present[0].tolist() == [True, True, False, False]
    assert found.errors == [None] * 4


@pytest.mark.parametrize("seen", [["int"], []])
def test_of_a_name_that_stands_twice_the_last_value_counts(seen: list[str]) -> None:
    """As for every JSON parser that clients use. Without types by the footers, value by value, no less."""
    found = read(['{"n":1,"n":2}', '{"n":null,"n":3}', '{"n":4,"n":null}'], N, n=[*seen, "null"])
    assert found.arrays[0].to_pylist() == [2, 3, None]
    assert found.present[0].tolist() == [True] * 3


def test_names_and_texts_of_any_script_and_any_escape() -> None:
    names = ["", "ключ", 'quo"te', "back\\slash", "a.b", "with space", "😀", "\u0000", "select"]
    columns = [Column(name, STRING, Kind.STRING) for name in names]
    row = {name: f"value of {name} ü \ud83d\ude00"[:-2] + "😀" for name in names}
    for text in (json.dumps(row), json.dumps(row, ensure_ascii=False)):
        found = read([text], *columns, **{name: ["string"] for name in names})
        assert {name: array[0].as_py() for name, array in zip(names, found.arrays, strict=True)} == row


def test_numbers_of_thirty_digits_keep_them_all_as_text() -> None:
    big, fraction = str(10**29 + 7), "0." + "123456789" * 3
    found = read([f'{{"t":{big}}}', f'{{"t":{fraction}}}', f'{{"t":-{big}}}'], T, t=["big", "double"])
    assert found.arrays[0].to_pylist() == [big, fraction, f"-{big}"]


def test_declared_decimals_of_thirty_digits_are_exact() -> None:
    column = Column("d", ColumnType("decimal(38,8)"))
    digits = "123456789012345678901234567890.12345678"
    found = read([f'{{"d":{digits}}}', f'{{"d":"{digits}"}}', f'{{"d":{digits}9}}'], column, d=["double"])
    assert [str(each) for each in found.arrays[0].to_pylist()] == [digits, digits, "None"]
    assert found.errors == [None, None, f"d: '{digits}9' is not decimal(38,8)"]


@pytest.mark.parametrize("depth", [100, 500])
def test_deep_nesting_is_kept_as_it_is(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    found = read([f'{{"j":{nested},"n":1}}', f'{{"j":{{"a":{nested}}},"n":2}}'], J, N, j=["array", "object"], n=["int"])
    assert found.arrays[0].to_pylist() == [nested, f'{{"a":{nested}}}']
    assert found.arrays[1].to_pylist() == [1, 2]


def test_footers_that_lie_make_no_value_wrong() -> None:
    """The types by the footers are a shortcut. Where a value is of another, every value is looked at by itself."""
    rows = ['{"n":1,"x":1.5,"b":true,"t":"a"}', '{"n":"7","x":"2.5","b":"false","t":5}']
    told: dict[str, list[str]] = {"n": ["int"], "x": ["double"], "b": ["bool"], "t": ["string"]}
    found = read(rows, N, X, B, T, **told)
    assert [array.to_pylist() for array in found.arrays] == [[1, 7], [1.5, 2.5], [True, False], ["a", "5"]]
    assert found.errors == [None, None]


@pytest.mark.parametrize("value", [str(2**70), "1.5", '"x"', "[1]", "1e30"])
def test_a_value_that_no_footer_spoke_of_is_an_error_of_its_row_alone(value: str) -> None:
    found = read(['{"n":1}', f'{{"n":{value}}}', '{"n":3}'], N, n=["int"])
    assert found.arrays[0].to_pylist() == [1, None, 3]
    assert found.errors[0] is None and found.errors[2] is None
    assert found.errors[1] is not None and "is not long" in found.errors[1]


def test_a_long_value_is_shown_in_part() -> None:
    found = read([json.dumps({"d": "x" * 1000})], Column("d", ColumnType("date")))
    assert found.errors == [f"d: '{'x' * 80}' is not date"]


def test_only_the_first_reason_is_given() -> None:
    columns = [Column("d", ColumnType("date")), Column("u", ColumnType("uuid"))]
    assert read(['{"u":"no","d":"never"}'], *columns).errors == ["d: 'never' is not date"]


def test_a_row_with_a_column_too_many_does_not_fit() -> None:
    texts = [b'{"n":1}', b'{"n":2,"late":null}', b'{"n":3,"LATE":1}']
    found = read_values(texts, [N], {"n": ["int"]}, {"late": "no room"})
    assert found.errors == [None, "no room", None]


def test_variants_hold_any_value() -> None:
    column = Column("v", VARIANT, Kind.JSON)
    values: list[Any] = [{"a": [1, 2.5, None, "ü"]}, [], 2**40, "text", True, None]
    found = read([json.dumps({"v": value}) for value in values], column, v=["object"])
    stored = found.arrays[0].to_pylist()
    assert [None if each is None else variant.decode(each["metadata"], each["value"]) for each in stored] == values


_TYPED = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**53), 2**53),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "t": st.none() | st.text(),
        "j": st.none() | st.lists(st.integers() | st.text(), max_size=3) | st.dictionaries(st.text(), st.integers()),
    },
)


@given(st.lists(_TYPED, max_size=8), st.booleans())
def test_what_goes_in_comes_out(rows: list[dict[str, Any]], by_footers: bool) -> None:
    columns = (N, X, B, T, J)
    told = {"n": ["int"], "x": ["double", "int"], "b": ["bool"], "t": ["string"], "j": ["array", "object"]}
    texts = [json.dumps(row) for row in rows]
    found = read(texts, *columns, **(told if by_footers else {name: ["big"] for name in told}))
    for column, array, present in zip(columns, found.arrays, found.present, strict=True):
        values = array.to_pylist()
        if column is J:
            values = [None if value is None else json.loads(value) for value in values]
        assert values == [row.get(column.name) for row in rows]
        assert present.tolist() == [column.name in row for row in rows]
    assert found.errors == [None] * len(rows)


def test_no_rows_and_no_columns() -> None:
    assert read([], N).arrays[0].to_pylist() == []
    assert read(["{}", '{"a":1}']).errors == [None, None]


def test_the_text_that_decides_ties_does_not_depend_on_spelling() -> None:
    import msgspec

    assert canonical(msgspec.Raw(b'{ "b" : 1, "a" : [ ] }')) == canonical({"a": [], "b": 1}) == b'{"a":[],"b":1}'
