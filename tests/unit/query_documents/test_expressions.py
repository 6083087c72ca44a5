"""Expressions, one line each: source, document, value (its type counts) or the code of the refusal."""

# ruff: noqa: E501 - tables of cases, one to a line.

import datetime as dt
import math
from typing import Any

import pytest
from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from mainstem.documents import Refused, code_name
from mainstem.documents.expressions import OPERATORS, evaluate, parse_expression
from mainstem.documents.values import MISSING, identical

AT = dt.datetime(2024, 2, 29, 13, 14, 15, 678_000, tzinfo=dt.UTC)
ITEM = ObjectId("65e08a57f1d2c3b4a5968778")
D = Decimal128


VALUES: list[tuple[Any, dict[str, Any], Any]] = [
    # Arithmetic: which type a result has.
    ({"$add": [1, 2]}, {}, 3),
    ({"$add": [2147483647, 1]}, {}, Int64(2147483648)),
    ({"$add": [Int64(1), 1]}, {}, Int64(2)),
    ({"$add": [Int64(9223372036854775807), 1]}, {}, 9223372036854775808.0),
    ({"$add": [1, 2.5]}, {}, 3.5),
    ({"$add": [1, D("2.50")]}, {}, D("3.50")),
    ({"$add": [0.1, D("0.2")]}, {}, D("0.3")),
    ({"$add": ["$t", 1000]}, {"t": AT}, AT + dt.timedelta(seconds=1)),
    ({"$add": ["$no", 1]}, {}, None),
    ({"$subtract": ["$t", "$t"]}, {"t": AT}, Int64(0)),
    ({"$multiply": [65536, 65536]}, {}, Int64(4294967296)),
    ({"$divide": [6, 3]}, {}, 2.0),
    ({"$divide": [D("1"), 4]}, {}, D("0.25")),
    ({"$mod": [-7, 3]}, {}, -1),
    ({"$mod": [7.5, 2]}, {}, 1.5),
    ({"$abs": Int64(-3)}, {}, Int64(3)),
    ({"$ceil": 1.2}, {}, 2.0),
    ({"$floor": -1.2}, {}, -2.0),
    ({"$floor": 3}, {}, 3),
    ({"$round": [2.5]}, {}, 2.0),
    ({"$round": [1250, -2]}, {}, 1200),
    ({"$trunc": [-2.78, 1]}, {}, -2.7),
    ({"$pow": [2, 10]}, {}, 1024),
    ({"$pow": [2, -1]}, {}, 0.5),
    ({"$pow": [2, 40]}, {}, Int64(1 << 40)),
    ({"$sqrt": 16}, {}, 4.0),
    ({"$log10": 100}, {}, 2.0),
    ({"$exp": 0}, {}, 1.0),
    ({"$sin": 0}, {}, 0.0),
    ({"$atan2": [0, -1]}, {}, math.pi),
    ({"$bitAnd": [12, 10]}, {}, 8),
    ({"$bitNot": 0}, {}, -1),
    # Comparison is by the order of all values.
    ({"$gt": ["a", 5]}, {}, True),
    ({"$eq": ["$no", None]}, {}, False),
    ({"$lt": ["$no", None]}, {}, True),
    ({"$cmp": [1, 1.0]}, {}, 0),
    ({"$eq": [{"$literal": float("nan")}, {"$literal": float("nan")}]}, {}, True),
    ({"$and": [1, "x", True]}, {}, True),
    ({"$or": [0, None, False]}, {}, False),
    ({"$not": [[]]}, {}, False),
    ({"$cond": {"if": "$no", "then": 1, "else": 2}}, {}, 2),
    ({"$ifNull": ["$no", None, 5]}, {}, 5),
    ({"$switch": {"branches": [{"case": {"$gt": ["$a", 1]}, "then": "x"}], "default": "y"}}, {"a": 2}, "x"),
    # Text.
    ({"$concat": ["a", "b", "$no"]}, {}, None),
    ({"$toUpper": "straße"}, {}, "STRAßE"),
    ({"$substrBytes": ["hallo", 1, 3]}, {}, "all"),
    ({"$substrCP": ["hällo", 1, 3]}, {}, "äll"),
    ({"$strLenBytes": "ü"}, {}, 2),
    ({"$strLenCP": "ü"}, {}, 1),
    ({"$split": ["a-b-c", "-"]}, {}, ["a", "b", "c"]),
    ({"$indexOfCP": ["hällo", "l"]}, {}, 2),
    ({"$indexOfBytes": ["hällo", "l"]}, {}, 3),
    ({"$trim": {"input": "  x\n"}}, {}, "x"),
    ({"$ltrim": {"input": "xxyx", "chars": "x"}}, {}, "yx"),
    ({"$replaceOne": {"input": "aaa", "find": "a", "replacement": "b"}}, {}, "baa"),
    ({"$replaceAll": {"input": "aaa", "find": "a", "replacement": "b"}}, {}, "bbb"),
    ({"$regexMatch": {"input": "Hello", "regex": "^h", "options": "i"}}, {}, True),
    ({"$regexFind": {"input": "ab12", "regex": Regex(r"([a-z])(\d)")}}, {}, {"match": "b1", "idx": 1, "captures": ["b", "1"]}),
    ({"$regexFindAll": {"input": "a1", "regex": "x"}}, {}, []),
    ({"$strcasecmp": ["ABC", "abd"]}, {}, -1),
    # Dates and time zones.
    ({"$year": "$t"}, {"t": AT}, 2024),
    ({"$hour": {"date": "$t", "timezone": "America/New_York"}}, {"t": AT}, 8),
    ({"$hour": {"date": "$t", "timezone": "+05:30"}}, {"t": AT}, 18),
    ({"$dayOfWeek": "$t"}, {"t": AT}, 5),
    ({"$isoWeek": "$t"}, {"t": AT}, 9),
    ({"$week": "$t"}, {"t": AT}, 8),
    ({"$dateToString": {"date": "$t"}}, {"t": AT}, "2024-02-29T13:14:15.678Z"),
    ({"$dateToString": {"date": "$t", "format": "%d.%m.%Y %j %u %z %%", "timezone": "Europe/Berlin"}}, {"t": AT}, "29.02.2024 060 4 +0100 %"),
    ({"$dateToString": {"date": "$no", "onNull": "-"}}, {}, "-"),
    ({"$dateFromString": {"dateString": "2024-02-29T13:14:15.678Z"}}, {}, AT),
    ({"$dateFromString": {"dateString": "29/02/2024", "format": "%d/%m/%Y"}}, {}, dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
    ({"$dateFromString": {"dateString": "2024-07-01", "timezone": "Europe/Berlin"}}, {}, dt.datetime(2024, 6, 30, 22, tzinfo=dt.UTC)),
    ({"$dateFromString": {"dateString": "never", "onError": 0}}, {}, 0),
    ({"$dateAdd": {"startDate": "$t", "unit": "year", "amount": 1}}, {"t": AT}, AT.replace(year=2025, day=28)),
    ({"$dateAdd": {"startDate": "$t", "unit": "month", "amount": 12}}, {"t": AT}, AT.replace(year=2025, day=28)),
    ({"$dateSubtract": {"startDate": "$t", "unit": "day", "amount": 29}}, {"t": AT}, AT.replace(month=1, day=31)),
    ({"$dateDiff": {"startDate": dt.datetime(2023, 12, 31), "endDate": "$t", "unit": "month"}}, {"t": AT}, Int64(2)),
    ({"$dateDiff": {"startDate": dt.datetime(2024, 2, 24), "endDate": "$t", "unit": "week"}}, {"t": AT}, Int64(1)),
    ({"$dateTrunc": {"date": "$t", "unit": "hour", "binSize": 6}}, {"t": AT}, dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)),
    ({"$dateTrunc": {"date": "$t", "unit": "quarter"}}, {"t": AT}, dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    ({"$dateTrunc": {"date": "$t", "unit": "week", "startOfWeek": "monday"}}, {"t": AT}, dt.datetime(2024, 2, 26, tzinfo=dt.UTC)),
    ({"$dateFromParts": {"year": 2024, "month": 14, "day": 0}}, {}, dt.datetime(2025, 1, 31, tzinfo=dt.UTC)),
    ({"$dateToParts": {"date": "$t", "iso8601": True}}, {"t": AT},
     {"isoWeekYear": 2024, "isoWeek": 9, "isoDayOfWeek": 4, "hour": 13, "minute": 14, "second": 15, "millisecond": 678}),
    ({"$tsSecond": Timestamp(7, 9)}, {}, Int64(7)),
    # Arrays and sets.
    ({"$arrayElemAt": [[1, 2, 3], -1]}, {}, 3),
    ({"$arrayElemAt": [[1], 5]}, {}, MISSING),
    ({"$first": "$a"}, {"a": [4, 5]}, 4),
    ({"$concatArrays": [[1], [2]]}, {}, [1, 2]),
    ({"$slice": [[1, 2, 3], -2, 1]}, {}, [2]),
    ({"$range": [5, 0, -2]}, {}, [5, 3, 1]),
    ({"$zip": {"inputs": [[1, 2], [3]], "useLongestLength": True, "defaults": [0, 9]}}, {}, [[1, 3], [2, 9]]),
    ({"$map": {"input": "$a", "as": "x", "in": {"$add": ["$$x", "$b"]}}}, {"a": [1, 2], "b": 10}, [11, 12]),
    ({"$filter": {"input": [1, 2, 3, 4], "cond": {"$gt": ["$$this", 1]}, "limit": 2}}, {}, [2, 3]),
    ({"$reduce": {"input": [1, 2, 3], "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}, {}, 6),
    ({"$sortArray": {"input": [3, 1, 2], "sortBy": -1}}, {}, [3, 2, 1]),
    ({"$sortArray": {"input": [{"a": 2}, {"a": 1}], "sortBy": {"a": 1}}}, {}, [{"a": 1}, {"a": 2}]),
    ({"$maxN": {"n": 2, "input": [1, None, 5, 3]}}, {}, [5, 3]),
    ({"$in": [1.0, [1, 2]]}, {}, True),
    ({"$indexOfArray": [["a", "b"], "b"]}, {}, 1),
    ({"$setUnion": [[3, 1], [1, 2]]}, {}, [1, 2, 3]),
    ({"$setDifference": [[1, 2, 2], [1]]}, {}, [2]),
    ({"$setIsSubset": [[1], [1.0, 2]]}, {}, True),
    ({"$sum": "$a"}, {"a": [1, "x", 2.5]}, 3.5),
    ({"$avg": [1, 2]}, {}, 1.5),
    ({"$median": {"input": [3, 1, 2], "method": "approximate"}}, {}, 2.0),
    # Objects, variables, types.
    ({"$objectToArray": {"a": 1}}, {}, [{"k": "a", "v": 1}]),
    ({"$arrayToObject": [[["a", 1], ["b", 2]]]}, {}, {"a": 1, "b": 2}),
    ({"$mergeObjects": ["$a", {"y": 2}]}, {"a": {"x": 1, "y": 1}}, {"x": 1, "y": 2}),
    ({"$getField": "a.b"}, {"a.b": 7}, 7),
    ({"$setField": {"field": "$x", "input": {"a": 1}, "value": "$$REMOVE"}}, {"x": "a"}, {}),
    ({"$let": {"vars": {"a": 1, "b": "$$ROOT.c"}, "in": {"$add": ["$$a", "$$b"]}}}, {"c": 2}, 3),
    ("$a.b", {"a": [{"b": 1}, {"c": 2}, {"b": 3}, 4]}, [1, 3]),
    ({"x": "$no", "y": ["$no"]}, {}, {"y": [None]}),
    ({"$type": "$no"}, {}, "missing"),
    ({"$toInt": "42"}, {}, 42),
    ({"$toLong": 4.9}, {}, Int64(4)),
    ({"$toDouble": D("1.5")}, {}, 1.5),
    ({"$toString": 2.0}, {}, "2"),
    ({"$toString": ITEM}, {}, str(ITEM)),
    ({"$toDate": ITEM}, {}, ITEM.generation_time),
    ({"$toBool": "false"}, {}, True),
    ({"$convert": {"input": "x", "to": "int", "onError": -1}}, {}, -1),
    ({"$binarySize": Binary(b"abc")}, {}, 3),
]  # fmt: skip


@pytest.mark.parametrize(("source", "document", "value"), VALUES, ids=[str(case[0])[:60] for case in VALUES])
def test_value(source: Any, document: dict[str, Any], value: Any) -> None:
    found = evaluate(parse_expression(source), document)
    assert found is value if value is MISSING else identical(found, value), found


REFUSALS: list[tuple[Any, int]] = [
    ({"$nope": 1}, 168),
    ({"$function": {}}, 115),
    ({"$add": ["a"]}, 14),
    ({"$divide": [1, 0]}, 2),
    ({"$mod": [1, 0]}, 16610),
    ({"$eq": [1]}, 16020),
    ("$$nobody", 17276),
    ("$a..b", 15998),
    ("$", 16872),
    ({"a": 1, "$b": 2}, 16410),
    ({"$add": 1, "$abs": 2}, 15983),
    ({"$size": "x"}, 17124),
    ({"$concat": [1]}, 16702),
    ({"$arrayElemAt": ["x", 0]}, 28689),
    ({"$toInt": "x"}, 241),
    ({"$sqrt": -1}, 28714),
    ({"$switch": {"branches": [{"case": False, "then": 1}]}}, 40066),
    ({"$year": "x"}, 16006),
    ({"$hour": {"date": AT, "timezone": "Mars"}}, 40485),
    ({"$mergeObjects": [1]}, 40400),
    ({"$range": [0, 3, 0]}, 34449),
    ({"$map": {"input": 1, "in": 1}}, 16883),
]


@pytest.mark.parametrize(("source", "code"), REFUSALS, ids=[str(case[0])[:60] for case in REFUSALS])
def test_refusal(source: Any, code: int) -> None:
    with pytest.raises(Refused) as refused:
        evaluate(parse_expression(source), {})
    assert refused.value.code == code
    assert code_name(code)


def test_nesting_is_bounded() -> None:
    source: Any = 1
    for _ in range(150):
        source = {"$abs": source}
    with pytest.raises(Refused, match="too deep"):
        parse_expression(source)


def test_most_operators_are_in_the_tables_above() -> None:
    text = str(VALUES) + str(REFUSALS)
    missing = [name for name in OPERATORS if f"'{name}'" not in text]
    assert len(missing) < 0.5 * len(OPERATORS), missing
