"""Large collections: what a table's columns answer is what the documents answer, with whatever is not in the table yet.

A command with the hint {$natural: 1} is answered from the documents. So one server answers both ways.
"""

import math
import random
from pathlib import Path
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId

from mainstem.documents.values import identical, order_key
from mainstem.feeds.documents.pushing import DOCUMENTS_MIN
from tests.compat.mongo_server import Client, MongoServer

COUNT = DOCUMENTS_MIN + 500
# Whether a column says exactly what the documents say at a field, for `$group` by it.
FIELDS = {
    "text": True, "whole": True, "long": True, "flag": True, "nullable": False, "mixed": False, "double": False,
    "nan": False, "array": False, "Case": False, "gone": False, "_key": False, "sparse": True, "a?b'c\"d": True,
}  # fmt: skip


def made(chance: random.Random, number: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "_id": number,
        "text": chance.choice(["", "a", "B", "ü", "a\x00b", "it's", "\U0001f600"]),
        "whole": chance.randrange(-4, 5),
        "long": Int64(chance.choice([1, 1 << 53, (1 << 53) + 1, -(1 << 62), 1 << 62])),
        "flag": chance.random() < 0.5,
        "nullable": chance.choice([None, 1, 2]),
        "mixed": chance.choice([1, 1.0, Int64(1), "1", True, Decimal128("1"), None, [1]]),
        "double": chance.choice([0.1, -0.0, 0.0, 1.0, 1e300, 2.5]),
        "nan": chance.choice([math.nan, math.inf, 1.5]),
        "array": chance.choice([[], [1, 2], 3]),
        "Case": 1,
        "case": 2,
        "_key": "k",
        "a?b'c\"d": chance.choice(["?", "'", '"']),
    }
    if chance.random() < 0.5:
        document["sparse"] = chance.randrange(3)
    return document


GROUPS: list[list[dict[str, Any]]] = [
    *[[{"$group": {"_id": f"${name}", "n": {"$sum": 1}}}] for name in FIELDS],
    *[[{"$group": {"_id": None, "s": {"$sum": f"${name}"}, "a": {"$avg": f"${name}"}}}] for name in FIELDS],
    *[[{"$group": {"_id": "$flag", "l": {"$min": f"${name}"}, "h": {"$max": f"${name}"}}}] for name in FIELDS],
    [{"$match": {"whole": {"$gte": 1.5}, "text": {"$ne": "a"}}}, {"$count": "n"}],
    [{"$match": {"whole": Int64(2)}}, {"$group": {"_id": {"t": "$text", "f": "$flag"}, "n": {"$sum": 2}}}],
    [{"$match": {"double": 0}}, {"$count": "n"}],
    [{"$match": {"double": {"$lt": Decimal128("2.4")}}}, {"$count": "n"}],
    [{"$match": {"long": 2.0**53}}, {"$count": "n"}],
    [{"$match": {"sparse": None}}, {"$count": "n"}],
    [{"$match": {"sparse": {"$exists": False}}}, {"$count": "n"}],
    [{"$match": {"nullable": None}}, {"$count": "n"}],
    [{"$match": {"nullable": {"$exists": True}}}, {"$count": "n"}],
    [{"$match": {"mixed": 1}}, {"$count": "n"}],
    [{"$match": {"nan": math.nan}}, {"$count": "n"}],
    [{"$match": {"text": "a\x00b"}}, {"$count": "n"}],
    [{"$match": {"text": {"$in": ["it's", "ü"]}}}, {"$count": "n"}],
    [{"$match": {"a?b'c\"d": "?"}}, {"$count": "n"}],
    [{"$match": {"case": 2}}, {"$count": "n"}],
    [{"$match": {"whole": 99}}, {"$count": "n"}],
    [{"$group": {"_id": "$whole", "n": {"$sum": 1}}}, {"$sort": {"_id": -1}}, {"$limit": 3}],
    [{"$group": {"_id": 1, "n": {"$sum": 1}}}],
    [{"$sort": {"whole": 1}}, {"$limit": 5}, {"$group": {"_id": None, "s": {"$sum": "$whole"}}}],
]


def answers(client: Client, pipeline: list[dict[str, Any]], **options: Any) -> list[Any]:
    found = list(client.large.orders.aggregate(pipeline, **options))
    return found if any("$sort" in stage for stage in pipeline) else sorted(found, key=order_key)


def check_all(client: Client, pushed_min: int) -> None:
    """Every pipeline both ways; `pushed_min`: that so many of them were answered by columns at all."""
    pushed = 0
    for pipeline in GROUPS:
        expected = answers(client, pipeline, hint={"$natural": 1})
        got = answers(client, pipeline)
        assert identical(got, expected), (pipeline, got[:5], expected[:5])
        told = client.large.command("explain", {"aggregate": "orders", "pipeline": pipeline, "cursor": {}})
        pushed += told["pushDown"]["answeredBy"] == "columns"
    assert pushed >= pushed_min, pushed


def check_finds(client: Client) -> None:
    """Finds that no index serves, both ways."""
    filters: list[dict[str, Any]] = [
        {"long": 1 << 53},
        {"a?b'c\"d": "'", "flag": True, "sparse": 2},
        {"long": {"$gt": 5}, "sparse": {"$exists": False}, "double": 0.1},
        {"mixed": 1, "flag": True},
        {"text": "a\x00b", "sparse": 1},
    ]
    orders = client.large.orders
    for filter in filters:
        for sort in ({}, {"long": -1, "_id": 1}):
            expected = list(orders.find(filter, sort=sort or None, hint={"$natural": 1}))
            assert [each["_id"] for each in orders.find(filter, sort=sort or None)] == [
                each["_id"] for each in expected
            ]
            assert expected


def pushes(client: Client, pipeline: list[dict[str, Any]]) -> str:
    told = client.large.command(
        "explain", {"aggregate": "orders", "pipeline": pipeline, "cursor": {}}, verbosity="queryPlanner"
    )
    return str(told["pushDown"]["reason"])


async def test_columns_answer_as_documents_do(tmp_path: Path) -> None:
    chance = random.Random(17)
    async with MongoServer(tmp_path / "data", pipeline=True) as server:
        with server.client() as client:
            await _answered_both_ways(server, client, chance)


async def _answered_both_ways(server: MongoServer, client: Client, chance: random.Random) -> None:
    orders = client.large.orders
    orders.insert_many([made(chance, number) for number in range(COUNT)], ordered=False)
    assert "behind" in pushes(client, GROUPS[0]) or "no table" in pushes(client, GROUPS[0])
    await server.flush()
    check_all(client, 20)

    # What is acknowledged is counted, before it is in the table: new, changed and deleted documents.
    orders.insert_many([made(chance, COUNT + number) for number in range(50)])
    orders.update_many({"_id": {"$lt": 100}}, {"$set": {"text": "new", "whole": 77}, "$unset": {"sparse": ""}})
    orders.delete_many({"_id": {"$gte": 100, "$lt": 200}})
    told = client.large.command("explain", {"aggregate": "orders", "pipeline": GROUPS[0], "cursor": {}})
    assert told["pushDown"]["laysOverTheLog"]
    check_all(client, 20)
    assert client.large.command("count", "orders", query={"whole": 77})["n"] == 100
    check_finds(client)

    # The first value of another type, and no column of that field is taken for its documents any more.
    orders.insert_one({"_id": COUNT + 1_000, "whole": 2.5, "text": ObjectId()})
    check_all(client, 5)
    assert answers(client, [{"$match": {"whole": 2.5}}, {"$count": "n"}]) == [{"n": 1}]
