"""Spark's own Kafka source and sink, from Maven, unmodified."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.downloads import Artifact
from tests.compat.kafka_jars import jars_of
from tests.harness.kafka import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = "org.apache.spark"
# The newest of each that Maven has.
JARS = (
    Artifact(SPARK, "spark-sql-kafka-0-10_2.13", "4.1.3"),
    Artifact(SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
)


def write(server: KafkaServer, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(first, end):
        producer.produce("sparks", key=b"k%d" % number, value=b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0


@pytest.mark.spark
async def test_spark_streams_from_a_topic_and_writes_to_one(spark: "SparkSession", tmp_path: Path) -> None:
    for jar in sorted(jars_of("spark-kafka-4.1.3", *JARS).glob("*.jar")):
        spark.sql(f"ADD JAR '{jar}'")
    async with KafkaServer(tmp_path / "server") as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for made in admin.create_topics([NewTopic("sparks", 2), NewTopic("answers", 1)]).values():
            await asyncio.to_thread(made.result, 20)
        place = {"kafka.bootstrap.servers": server.bootstrap, "startingOffsets": "earliest"}
        stream = spark.readStream.format("kafka").options(**place, subscribe="sparks").load()
        # Each run goes on where the one before it ended: Spark keeps the offsets, by partition, in its checkpoint.
        for first, end in ((0, 100), (100, 150)):
            await asyncio.to_thread(write, server, first, end)
            query = (
                stream.selectExpr("CAST(CAST(value AS STRING) AS INT) AS n", "partition", "offset")
                .writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(tmp_path / "rows"))
            )
            await asyncio.to_thread(query.awaitTermination, 60)
            assert query.exception() is None
            found = spark.read.parquet(str(tmp_path / "rows")).collect()
            assert sorted(row.n for row in found) == list(range(end))
            assert {(row.partition, row.offset) for row in found} == {(n % 2, n // 2) for n in range(end)}
        numbers = spark.range(20).selectExpr("CAST(id AS STRING) AS key", "CAST(id * id AS STRING) AS value")
        numbers.write.format("kafka").options(**place, topic="answers").save()
        answers = spark.read.format("kafka").options(**place, subscribe="answers").load()
        squares = [int(row.value) for row in answers.select("value").collect()]
        assert sorted(squares) == [n * n for n in range(20)]
