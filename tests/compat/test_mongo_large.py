"""Large collections: what a table's columns answer is what the documents answer, with whatever is not in the table yet.

A command with the hint {$natural: 1} is answered from the documents. So one server answers both ways.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from bson.objectid import ObjectId

from mainstem.documents.values import identical, order_key
from mainstem.feeds.documents.pushing import DOCUMENTS_MIN
from tests.compat.mongo_server import Client, MongoServer
from tests.harness.mongo_dirty import GROUPS, made

COUNT = DOCUMENTS_MIN + 500


def answers(client: Client, pipeline: list[dict[str, Any]], **options: Any) -> list[Any]:
    found = list(client.large.orders.aggregate(pipeline, **options))
    return found if any("$sort" in stage for stage in pipeline) else sorted(found, key=order_key)


def check_all(client: Client, pushed_min: int, step: int = 1) -> None:
    """Every pipeline both ways; `pushed_min`: that so many of them were answered by columns at all."""
    pushed = 0
    for pipeline in GROUPS[::step]:
        expected = answers(client, pipeline, hint={"$natural": 1})
        got = answers(client, pipeline)
        assert identical(got, expected), (pipeline, got[:5], expected[:5])
        pushed += pushes(client, pipeline)["answeredBy"] == "columns"
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


def pushes(client: Client, pipeline: list[dict[str, Any]]) -> dict[str, Any]:
    told = client.large.command(
        "explain", {"aggregate": "orders", "pipeline": pipeline, "cursor": {}}, verbosity="queryPlanner"
    )
    return dict(told["pushDown"])


# A busy machine takes minutes: every pipeline is answered from 20,000 documents as well.
@pytest.mark.soak
@pytest.mark.timeout(1_800)
async def test_columns_answer_as_documents_do(tmp_path: Path) -> None:
    chance = random.Random(17)
    async with MongoServer(tmp_path / "data", pipeline=True) as server:
        with server.client() as client:
            await _answered_both_ways(server, client, chance)


async def _answered_both_ways(server: MongoServer, client: Client, chance: random.Random) -> None:
    orders = client.large.orders
    orders.insert_many([made(chance, number) for number in range(COUNT)], ordered=False)
    assert (await server.flush())["complete"]
    check_all(client, 15)

    # What is acknowledged is counted, before it is in the table: new, changed and deleted documents.
    orders.insert_many([made(chance, COUNT + number) for number in range(50)])
    orders.update_many({"_id": {"$lt": 100}}, {"$set": {"text": "new", "whole": 77}, "$unset": {"sparse": ""}})
    orders.delete_many({"_id": {"$gte": 100, "$lt": 200}})
    check_all(client, 15)
    # The pipeline may have carried them into the table meanwhile; what is written now it has not.
    for number in range(50):
        orders.insert_one(made(chance, COUNT + 100 + number))
        expected = answers(client, GROUPS[0], hint={"$natural": 1})
        laid_over = pushes(client, GROUPS[0]).get("laysOverTheLog")
        assert identical(answers(client, GROUPS[0]), expected)
        if laid_over:
            break
    else:
        raise AssertionError("nothing was ever laid over the table")
    assert client.large.command("count", "orders", query={"whole": 77})["n"] == 100
    check_finds(client)

    # The first value of another type, and no column of that field is taken for its documents any more.
    orders.insert_one({"_id": COUNT + 1_000, "whole": 2.5, "text": ObjectId()})
    check_all(client, 1, step=4)
    assert answers(client, [{"$match": {"whole": 2.5}}, {"$count": "n"}]) == [{"n": 1}]
