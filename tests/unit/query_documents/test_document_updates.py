"""Updates by pipeline and by bits, upserts, what changed; schemas, bits and positions in filters and projections."""

import random
from typing import Any

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from mainstem.documents import (
    Refused,
    apply_update,
    difference,
    error_code,
    matched_offset,
    matches,
    parse_projection,
    upsert_document,
)
from mainstem.documents.values import identical
from mainstem.model.errors import Invalid


def updated(update: Any, document: dict[str, Any], **given: Any) -> dict[str, Any]:
    return apply_update(update, document, now_ms=0, **given).document


def test_a_pipeline_computes_the_new_document() -> None:
    pipeline = [{"$set": {"total": {"$sum": "$parts"}}}, {"$unset": "parts"}]
    assert updated(pipeline, {"_id": 1, "parts": [1, 2]}) == {"_id": 1, "total": 3}
    assert updated([{"$replaceWith": {"_id": "$_id", "at": "$$NOW"}}], {"_id": 1})["at"].timestamp() == 0
    assert updated([{"$set": {"x": "$$mine"}}], {"_id": 1}, scope={"mine": 5}) == {"_id": 1, "x": 5}


def test_a_pipeline_has_only_stages_that_make_one_document_of_one() -> None:
    with pytest.raises(Refused) as refused:
        updated([{"$match": {}}], {"_id": 1})
    assert refused.value.code == 72


@pytest.mark.parametrize("update", [[{"$set": {"_id": 2}}], [{"$unset": "_id"}], {"$set": {"_id": 2}}, {"_id": 2}])
def test_the_id_stays(update: Any) -> None:
    with pytest.raises(Invalid) as refused:
        updated(update, {"_id": 1})
    assert error_code(refused.value) == 66


def test_bits() -> None:
    assert updated({"$bit": {"a": {"and": 10, "or": 1}}}, {"a": 12}) == {"a": 9}
    assert identical(updated({"$bit": {"a": {"xor": Int64(5)}}}, {"a": 1}), {"a": Int64(4)})
    with pytest.raises(Refused):
        updated({"$bit": {"a": {"or": 1}}}, {"a": 1.5})


@pytest.mark.parametrize(
    ("update", "document", "code"),
    [
        ({"$inc": {"a": 1}}, {"a": "x"}, 14),
        ({"$inc": {"a": "x"}}, {}, 14),
        ({"$push": {"a": 1}}, {"a": 1}, 2),
        ({"$set": {"a.b": 1}}, {"a": 1}, 28),
        ({"$set": {"a": 1, "a.b": 1}}, {}, 40),
        ({"$nope": {"a": 1}}, {}, 9),
        ({"$set": {"a..b": 1}}, {}, 56),
        ({"$set": {"a.$": 1}}, {"a": [1]}, 2),
        ({"$set": {"a.$[x]": 1}}, {"a": [1]}, 2),
    ],
)
def test_codes(update: Any, document: dict[str, Any], code: int) -> None:
    with pytest.raises(Invalid) as refused:
        updated(update, document)
    assert error_code(refused.value) == code


def test_upserts_start_from_what_the_filter_says() -> None:
    filter = {"k": "a", "n": {"$gt": 3}, "$and": [{"sub.x": 1}]}
    made = upsert_document(filter, {"$inc": {"c": 1}, "$setOnInsert": {"new": True}}, now_ms=0, new_id=99)
    assert made == {"_id": 99, "k": "a", "sub": {"x": 1}, "c": 1, "new": True}
    assert upsert_document({"_id": 5, "k": 1}, {"v": 2}, now_ms=0, new_id=99) == {"_id": 5, "v": 2}
    assert upsert_document({"_id": 5}, [{"$set": {"w": "$_id"}}], now_ms=0, new_id=99) == {"_id": 5, "w": 5}


def test_what_changed_is_told_as_paths() -> None:
    long = "a text that is longer than the path to it"
    before = {"_id": 1, "a": [1, long, 3], "b": {"c": 1, "d": long}, "e": 1, "f": [1, 2]}
    after = {"_id": 1, "a": [1, long, 3, 4], "b": {"c": 2, "d": long}, "f": [9, 8], "g": None}
    told = difference(before, after).description()
    assert told == {
        "updatedFields": {"a.3": 4, "b.c": 2, "f": [9, 8], "g": None},
        "removedFields": ["e"],
        "truncatedArrays": [],
    }
    cut = difference({"a": [long, long, 1, 2]}, {"a": [long, long]})
    assert (cut.updated, cut.truncated) == ({}, [("a", 2)])


def test_what_changed_leads_from_the_old_document_to_the_new() -> None:
    chance = random.Random(3)

    def value(depth: int) -> Any:
        kind = chance.random()
        if depth < 3 and kind < 0.3:
            return {name: value(depth + 1) for name in chance.sample("abcd", chance.randrange(4))}
        if depth < 3 and kind < 0.5:
            return [value(depth + 1) for _ in range(chance.randrange(4))]
        return chance.choice([1, 2, "a long text " * 3, None])

    for _ in range(300):
        before = {name: value(0) for name in chance.sample("abcd", 3)}
        after = {name: before[name] if name in before and chance.random() < 0.3 else value(0) for name in "abcd"}
        told = difference(before, after)
        update: dict[str, Any] = {}
        if told.updated:
            update["$set"] = told.updated
        if told.removed:
            update["$unset"] = dict.fromkeys(told.removed, "")
        done = updated(update, before) if update else before
        for path, size in told.truncated:
            done = updated({"$push": {path: {"$each": [], "$slice": size}}}, done)
        # Fields of the top level that moved are in another order; their values are the same.
        assert {name: done[name] for name in sorted(done)} == {name: after[name] for name in sorted(after)}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"bsonType": "object", "required": ["a"]}, {"a": 1}, {}),
        ({"properties": {"a": {"bsonType": ["int", "long"], "minimum": 3}}}, {"a": 3}, {"a": 2}),
        ({"properties": {"a": {"type": "string", "pattern": "^x", "maxLength": 3}}}, {"a": "xy"}, {"a": "xyzz"}),
        ({"properties": {"a": {"enum": [1, "b"]}}}, {"a": "b"}, {"a": 2}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, {"a": 1, "b": 1}),
        ({"properties": {"a": {"items": {"bsonType": "int"}, "uniqueItems": True}}}, {"a": [1, 2]}, {"a": [1, 1.0]}),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"b": 1}, {"c": 1}),
        ({"not": {"required": ["a"]}}, {}, {"a": 1}),
        ({"properties": {"a": {"multipleOf": 0.5}}}, {"a": 1.5}, {"a": 1.3}),
        ({"patternProperties": {"^n": {"bsonType": "number"}}}, {"n1": 2.5, "x": "y"}, {"n1": "y"}),
        ({"dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    ],
)
def test_schemas(schema: Any, valid: Any, invalid: Any) -> None:
    assert matches({"$jsonSchema": schema}, valid)
    assert not matches({"$jsonSchema": schema}, invalid)


@pytest.mark.parametrize("schema", [{"nope": 1}, {"bsonType": "nope"}, {"required": []}, 5, {"minimum": "x"}])
def test_schemas_are_checked_when_they_are_read(schema: Any) -> None:
    with pytest.raises(Refused):
        matches({"$jsonSchema": schema}, {})


def test_bits_in_filters() -> None:
    assert matches({"a": {"$bitsAllSet": [0, 2]}}, {"a": 5})
    assert not matches({"a": {"$bitsAllSet": 7}}, {"a": 5})
    assert matches({"a": {"$bitsAnyClear": [0, 1]}}, {"a": 5})
    assert matches({"a": {"$bitsAllSet": [63, 200]}}, {"a": -1})
    assert matches({"a": {"$bitsAllSet": Binary(b"\x01")}}, {"a": Binary(b"\x03")})
    assert not matches({"a": {"$bitsAllClear": 1}}, {"a": 1.5})


def test_a_projection_takes_the_element_that_matched() -> None:
    projection, filter, document = parse_projection({"l.$": 1}), {"l": {"$gt": 1}}, {"_id": 1, "l": [1, 2, 3], "x": 1}
    found = projection.apply(document, offset=matched_offset(filter, document))
    assert projection.positional and found == {"_id": 1, "l": [2]}


def test_a_projection_computes() -> None:
    projection = parse_projection({"n": {"$size": "$l"}, "x": 1, "_id": 0})
    assert projection.apply({"_id": 1, "l": [1, 2], "x": 3}) == {"x": 3, "n": 2}
    with pytest.raises(Refused):
        parse_projection({"x": 0, "n": {"$size": "$l"}})
