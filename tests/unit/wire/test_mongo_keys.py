"""Keys of rows and ids of documents: one to one, for every id and for every text that a door may send as a key."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId, json_util
from hypothesis import example, given
from hypothesis import strategies as st

from mainstem.documents.values import order_key
from mainstem.wire.mongo.frames import decode_document, encode_document
from mainstem.wire.mongo.keys import id_of_key, key_bytes, key_text
from mainstem.wire.mongo.ordered import ordered
from tests.unit.wire.test_mongo_ordered import values

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "mongo_keys.json").read_text())

# Ids as documents may have them: MongoDB refuses arrays and regular expressions.
ids = values.filter(lambda value: not isinstance(value, list) and type(value).__name__ != "Regex")
# Texts that look like keys of ours, are nearly some, or are some.
marks = st.lists(st.sampled_from(["$s:", "$", "$$", "$n:", "$x:", "$oid:", "$b:", "$uuid:", ":"]), max_size=3).map(
    "".join
)
lookalikes = st.builds(
    str.__add__, marks, st.one_of(ids.map(key_text), st.text(max_size=6), st.from_regex("[0-9a-f]*"))
)
keys = st.one_of(st.text(max_size=12), lookalikes)


@given(st.one_of(ids, keys), st.one_of(ids, keys))
@example("$n:1", 1)
@example("$s:$n:1", "$n:1")
@example(-(1 << 63), -(2.0**63))
@example("65f000000000000000000000", ObjectId("65f000000000000000000000"))
@example(uuid.UUID(int=1), Binary(bytes(15) + b"\x01", 4))
def test_a_key_is_shared_by_equal_ids_and_no_others(left: Any, right: Any) -> None:
    assert (key_text(left) == key_text(right)) == (ordered(left) == ordered(right))


@given(st.one_of(ids, keys))
def test_a_key_leads_back_to_the_id(value: Any) -> None:
    assert key_bytes(key_text(value)) == ordered(value)


@given(keys, keys)
@example("$x:ff", "$")
@example("$n:1e999999999", "$n:1.0e1")
@example("$n:٤٢", "$n:42")
@example("$s:" * 400 + "$b:true", "$b:true")
def test_every_text_is_the_key_of_one_id(left: str, right: str) -> None:
    assert key_text(id_of_key(left)) == left
    assert (left == right) == (key_bytes(left) == key_bytes(right))
    # BSON holds the id as it is: a document is found by what it says of itself.
    kept = decode_document(encode_document({"_id": id_of_key(left)}))["_id"]
    assert ordered(kept) == key_bytes(left)


@pytest.mark.parametrize("vector", VECTORS, ids=[each["key"] for each in VECTORS])
def test_keys_in_stored_tables_stay_what_they_are(vector: dict[str, Any]) -> None:
    identity = json_util.loads(json.dumps(vector["id"]), json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert key_text(identity) == vector["key"]
    assert order_key(id_of_key(vector["key"])) == order_key(identity)


@pytest.mark.parametrize(
    "key", ["", "$", "$$", "$price", "$s:", "$s:$", "42", "$n:042", "$oid:nonsense", "$b:x", "$x:zz"]
)
def test_a_text_that_is_no_key_of_ours_stands_for_itself(key: str) -> None:
    assert id_of_key(key) == key
    assert key_text(key) == key


def test_numbers_of_every_width_have_one_key() -> None:
    assert {key_text(each) for each in (1, Int64(1), 1.0, Decimal128("1.00"))} == {"$n:1"}
    assert id_of_key("$n:1.5e0") == 1.5
    assert id_of_key("$n:1.0e-1") == Decimal128("0.1")
