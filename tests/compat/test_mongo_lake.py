"""What analysts see of collections: typed columns in Delta, one row for each document, whichever door wrote it."""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from bson import Binary, DatetimeMS, Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pyspark.sql import SparkSession

from mainstem.app.config import QueryConfig
from mainstem.client import CdcClient, delete, insert, update
from mainstem.documents.values import identical
from mainstem.feeds.documents.pushing import DOCUMENTS_MIN
from mainstem.wire.mongo.frames import encode_document
from mainstem.wire.mongo.keys import id_of_key
from tests.compat.mongo_server import MongoServer
from tests.unit.doors.test_mongo_hostile_keys import HOSTILE

AT = dt.datetime(2026, 11, 18, 14, 0, 0, 5000, tzinfo=dt.UTC)
FIRST = dt.datetime(1, 1, 1, tzinfo=dt.UTC)
# What the CDC door takes as a key: not nothing, and not too much.
KEYS = [key for key in HOSTILE if 0 < len(key) < 1_000]
IDENTITY = ObjectId("65f000000000000000000000")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    # What reads more rows than this runs on Spark: of the collections here one.
    query = QueryConfig(gateway_rows_max=DOCUMENTS_MIN // 2)
    started = MongoServer(tmp_path_factory.mktemp("mongo-lake"), pipeline=True, query=query)
    asyncio.run(started.start())
    yield started
    asyncio.run(started.stop())


def scan(server: MongoServer, table: str) -> str:
    return f"delta_scan('{server.data}/delta/{table.replace('.', '/')}')"


def rows(sql: str) -> list[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(sql).fetchall()


def types(server: MongoServer, table: str) -> dict[str, str]:
    return {name: kind for name, kind, *_ in rows(f"DESCRIBE SELECT * FROM {scan(server, table)}")}


async def test_columns_have_the_types_of_their_values(server: MongoServer, spark: SparkSession) -> None:
    documents: list[dict[str, Any]] = [
        {
            "_id": 1,
            "made": AT,
            "price": Decimal128("12.50"),
            "n": 1,
            "big": Int64(1),
            "x": 1.5,
            "ok": True,
            "by": IDENTITY,
        },
        {
            "_id": 2,
            "made": FIRST,
            "price": Decimal128("-0.000000000000000001"),
            "n": 1 << 62,
            "big": 1,
            "x": 2,
            "ok": None,
        },
        {
            "_id": 3,
            "made": DatetimeMS(1 << 60),
            "price": Decimal128("NaN"),
            "x": float("inf"),
            "raw": Binary(b"\x00", 5),
        },
        {"_id": 4, "made": None, "price": 3, "nested": {"at": AT, "list": [Decimal128("1.0")]}},
    ]
    with server.client() as client:
        client.lake.typed.insert_many(documents)
        await server.flush()
        found = types(server, "lake.typed")
        wanted = {
            "made": "TIMESTAMP WITH TIME ZONE",
            "price": "DECIMAL(38,18)",
            "n": "BIGINT",
            "big": "BIGINT",
            "x": "DOUBLE",
            "ok": "BOOLEAN",
            "by": "VARCHAR",
            "nested": "VARCHAR",
            "_document": "BLOB",
        }
        assert {name: found[name] for name in wanted} == wanted
        shown = rows(f"SELECT made, price, n, x, ok FROM {scan(server, 'lake.typed')} ORDER BY _id")
        assert shown == [
            (AT, Decimal("12.5"), 1, 1.5, True),
            (FIRST, Decimal("-1E-18"), 1 << 62, 2.0, None),
            (None, None, None, None, None),
            (None, Decimal(3), None, None, None),
        ]
        frame = spark.read.format("delta").load(f"{server.data}/delta/lake/typed")
        assert {name: frame.schema[name].dataType.simpleString() for name in ("made", "price", "n", "x", "ok")} == {
            "made": "timestamp",
            "price": "decimal(38,18)",
            "n": "bigint",
            "x": "double",
            "ok": "boolean",
        }
        assert [row.year for row in frame.selectExpr("year(made) AS year").orderBy("_id").collect()] == [
            2026,
            1,
            None,
            None,
        ]
        raw: Any = client.lake.get_collection("typed", codec_options=CodecOptions(document_class=RawBSONDocument))
        assert [each.raw for each in raw.find().sort("_id")] == [encode_document(each) for each in documents]


async def test_a_field_of_two_types_is_text_from_then_on(server: MongoServer) -> None:
    with server.client() as client:
        client.lake.mixed.insert_many([{"_id": 1, "made": AT, "n": 1}, {"_id": 2, "made": AT, "n": 2}])
        await server.flush()
        assert types(server, "lake.mixed")["made"] == "TIMESTAMP WITH TIME ZONE"
        client.lake.mixed.update_one({"_id": 2}, {"$set": {"made": "soon", "n": Decimal128("2.5")}})
        await server.flush()
        shown = rows(f"SELECT made, n FROM {scan(server, 'lake.mixed')} ORDER BY _id")
        assert [str(made)[:10] for made, _ in shown] == ["2026-11-18", "soon"]
        assert [n for _, n in shown] == [Decimal(1), Decimal("2.5")]
        assert types(server, "lake.mixed")["n"] == "DECIMAL(38,18)"
        assert client.lake.mixed.count_documents({"made": {"$type": "date"}}) == 1


async def test_a_document_of_two_doors_is_one_row(server: MongoServer) -> None:
    """Hostile keys, written by a client and by the CDC door, through the table."""
    with server.client() as client:
        mixed = client.lake.keys
        mixed.insert_many([{"_id": id_of_key(key), "by": "mongo"} for key in KEYS])
        async with CdcClient(server.ws_url, source="keys") as producer:
            changes = [update("lake.keys", key, {"by": "cdc", "nested": {"a": [1]}}) for key in KEYS]
            await (await producer.send(changes)).durable()
            await (await producer.send([insert("lake.rows", key, {"a": {"b": [1]}}) for key in KEYS])).durable()
            await server.flush()
            for key in KEYS:
                assert (
                    client.lake.rows.update_one({"_id": id_of_key(key)}, {"$set": {"by": "mongo"}}).matched_count == 1
                )
            await (await producer.send([delete("lake.rows", "$")])).durable()
        await server.flush()
        # The other table was made by the CDC door: in Iceberg, which is that door's default.
        shown = rows(f'SELECT _key, "by" FROM {scan(server, "lake.keys")}')
        assert sorted(shown) == sorted((key, "cdc") for key in KEYS)
        assert client.lake.rows.count_documents({"a.b": 1, "by": "mongo"}) == len(KEYS) - 1


async def test_spark_answers_for_a_large_collection(server: MongoServer) -> None:
    """By the route that queries have. With the hint the documents answer, so that one server answers both ways."""
    pipelines: list[list[dict[str, Any]]] = [
        [{"$group": {"_id": "$region", "n": {"$sum": 1}, "sum": {"$sum": "$n"}, "least": {"$min": "$long"}}}],
        [{"$match": {"n": {"$gte": 40}, "region": {"$ne": "b"}}}, {"$group": {"_id": None, "mean": {"$avg": "$n"}}}],
        [{"$match": {"long": Int64(1 << 53)}}, {"$count": "n"}],
    ]
    with server.client() as client:
        orders = client.lake.large
        orders.insert_many(
            [
                {"_id": each, "region": "abc"[each % 3], "n": each % 97, "long": Int64((1 << 53) + each % 5)}
                for each in range(DOCUMENTS_MIN + 100)
            ]
        )
        await server.flush()
        for pipeline in pipelines:
            expected = sorted(orders.aggregate(pipeline, hint={"$natural": 1}), key=str)
            # Where Spark is too slow, on a machine with other work, the documents answer.
            for _ in range(10):
                answered = pushed(client)
                assert identical(sorted(orders.aggregate(pipeline), key=str), expected)
                by = pushed(client) - answered
                if by:
                    break
            assert by == {"spark": 1}
        # What the log has beyond the table is laid over it, which the gateway does.
        orders.insert_one({"_id": -1, "region": "d", "n": 1, "long": Int64(1)})
        assert {"_id": "d", "n": 1, "sum": 1, "least": 1} in list(orders.aggregate(pipelines[0]))


def pushed(client: Any) -> Counter[str]:
    """How often a table answered, by engine."""
    return Counter(client.admin.command("serverStatus")["metrics"]["pushDown"])
