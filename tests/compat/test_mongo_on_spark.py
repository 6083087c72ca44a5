"""Large aggregations of a Mongo client run on Spark's executors, and say what the documents say.

A command with the hint {$natural: 1} is answered from the documents: so one server answers both ways. That executors
read the rows is told by Spark's own event log.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from bson.decimal128 import Decimal128
from pymongo.errors import AutoReconnect, ExecutionTimeout

from mainstem.app.config import QueryConfig
from mainstem.documents.values import identical, order_key
from mainstem.feeds.documents.pushing import DOCUMENTS_MIN
from tests.compat.mongo_server import Client, MongoServer

COUNT = DOCUMENTS_MIN + 500
# None of them is answered by columns: `mixed` has values of several types, `tags` and `deep` are nested.
PIPELINES: list[list[dict[str, Any]]] = [
    [{"$group": {"_id": "$mixed", "n": {"$sum": 1}, "total": {"$sum": "$whole"}, "mean": {"$avg": "$half"}}}],
    [{"$unwind": "$tags"}, {"$group": {"_id": "$tags", "n": {"$count": {}}, "low": {"$min": "$deep.x"}}}],
    [{"$match": {"deep.x": {"$gte": 5}}}, {"$count": "n"}],
    [
        {"$set": {"size": {"$size": "$tags"}}},
        {"$group": {"_id": {"size": "$size", "mixed": "$mixed"}, "high": {"$max": "$mixed"}, "d": {"$sum": "$exact"}}},
        {"$sort": {"_id": 1}},
        {"$limit": 5},
    ],
    [{"$match": {"mixed": "none"}}, {"$group": {"_id": "$tags", "n": {"$sum": 1}}}],
]  # fmt: skip
# Takes minutes.
ENDLESS: list[dict[str, Any]] = [
    {"$match": {"$expr": {"$gt": [{"$sum": {"$map": {"input": {"$range": [0, 20_000]}, "in": "$$this"}}}, 0]}}},
    {"$count": "n"},
]


def made(number: int) -> dict[str, Any]:
    mixed = [number % 7, float(number % 7) + 0.5, f"text {number % 3}", None, [number % 2]][number % 5]
    return {
        "_id": number,
        "mixed": mixed,
        "whole": number,
        "half": number / 2,
        "tags": [f"t{number % 4}", number % 3][: number % 3],
        "deep": {"x": number % 11, "text": "ü" * (number % 4)},
        "exact": Decimal128(f"{number % 10}.10"),
    }


def both_ways(client: Client, pipeline: list[dict[str, Any]]) -> bool:
    """Ask both; whether the table was behind, by `explain`."""
    orders = client.large.orders
    expected = list(orders.aggregate(pipeline, hint={"$natural": 1}))
    told = client.large.command(
        "explain", {"aggregate": "orders", "pipeline": pipeline, "cursor": {}}, verbosity="queryPlanner"
    )["pushDown"]
    assert told["answeredBy"] == "spark", told
    is_sorted = any("$sort" in stage for stage in pipeline)
    if not is_sorted:
        expected = sorted(expected, key=order_key)
    # Where Spark does not ask for queries yet, the documents answer.
    for _ in range(10):
        before = by_spark(client)
        got = list(orders.aggregate(pipeline))
        assert identical(got if is_sorted else sorted(got, key=order_key), expected), (pipeline, got[:3], expected[:3])
        if by_spark(client) > before:
            break
    else:
        raise AssertionError("Spark never answered")
    return bool(told["laysOverTheLog"])


def by_spark(client: Client) -> int:
    return int(client.admin.command("serverStatus")["metrics"]["pushDown"].get("spark", 0))


@pytest.mark.timeout(600)
async def test_large_aggregations_run_on_executors(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    spark = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    low = QueryConfig(gateway_rows_max=1_000)
    async with MongoServer(tmp_path / "data", pipeline=True, query=low, spark=spark) as server:
        with server.client() as client:
            orders = client.large.orders
            orders.insert_many([made(number) for number in range(COUNT)], ordered=False)
            assert (await server.flush(timeout_s=240))["complete"]
            for pipeline in PIPELINES:
                await asyncio.to_thread(both_ways, client, pipeline)
            await asyncio.to_thread(_acknowledged_counts, client)
            await asyncio.to_thread(_is_ended, server, client)
    queries = stages_of_queries(events)
    # Each answer read the table's rows in tasks of its own; what was ended may have read some.
    assert sum(read >= COUNT - 100 for read in queries) >= len(PIPELINES), queries


def _acknowledged_counts(client: Client) -> None:
    """New, changed and deleted documents, before the table has them: until it was behind for once."""
    orders = client.large.orders
    behind = False
    for number in range(30):
        at = COUNT + 10 * number
        orders.insert_many([made(at + each) for each in range(10)])
        orders.update_many({"_id": {"$lt": 5}}, {"$set": {"mixed": f"new {number}"}})
        orders.delete_one({"_id": 100 + number})
        behind = both_ways(client, PIPELINES[number % 2]) or behind
        if behind and number >= 3:
            return
    raise AssertionError("the table was never behind")


def _is_ended(server: MongoServer, client: Client) -> None:
    """By its time limit, and with its connection by killOp. Spark, which runs two at once, is free then."""
    with pytest.raises(ExecutionTimeout):
        client.large.orders.aggregate(ENDLESS, maxTimeMS=2_000)
    own = connections(client)
    with server.client(retryReads=False) as other, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(lambda: list(other.large.orders.aggregate(ENDLESS)))
        while not asked.done():
            for number in connections(client) - own:
                client.admin.command("killOp", op=number)
            wait([asked], timeout=0.5)
        with pytest.raises(AutoReconnect):
            asked.result()
    both_ways(client, PIPELINES[2])


def connections(client: Client) -> set[int]:
    return {each["connectionId"] for each in client.admin.command("currentOp")["inprog"]}


def stages_of_queries(events: Path) -> list[int]:
    """The rows that each stage of a query read."""
    (path,) = events.iterdir()
    read: dict[int, int] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            if (event.get("Properties") or {}).get("spark.job.description") == "query":
                read |= dict.fromkeys(event["Stage IDs"], 0)
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in read:
            metrics = event.get("Task Metrics")
            read[event["Stage ID"]] += metrics["Input Metrics"]["Records Read"] if metrics else 0
    return list(read.values())
