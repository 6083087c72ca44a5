"""Every API of the Kafka door, asked by clients that people have: Kafka's own in Java, in the newest version of each
that it knows, and librdkafka, which is older in some."""

import subprocess
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.compat.kafka_jars import JVM, compile_java, tools_jars
from tests.harness.kafka_told import told_server
from tests.unit.doors.kafka_world import filled_table

# Of logins: `test_kafka_logins`.
SASL = {"SaslHandshake", "SaslAuthenticate"}
# Where Kafka 4.3's clients stop below what the door serves: newer ones are asked of it by nobody yet.
BELOW = {"ApiVersions": 4}


def test_clients_ask_for_all_of_it(tmp_path: Path) -> None:
    jars = tools_jars()
    classes = compile_java("AskEverything.java", jars, tmp_path / "classes")
    with told_server(tmp_path / "data") as (bootstrap, told):
        command = ["java", *JVM, "-cp", f"{jars}/*:{classes}", "AskEverything", bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert done.stdout.split() == ["done"]
        asked = {key: max(versions) for key, versions in told.asked.items()}
        # Java's does not ask for these where transactions have version 2.
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "older"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("older", b"v")
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "older"})
        place = TopicPartition("older", 0, 1)
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 20)
        producer.commit_transaction(20)
        assert consumer.committed([place], 20)[0].offset == 1
        consumer.close()
        del producer
        # Java's has forgotten this one.
        admin = AdminClient({"bootstrap.servers": bootstrap})
        whole = ConfigResource(ConfigResource.Type.TOPIC, "older", set_config={"max.message.bytes": "2000000"})
        (altered,) = admin.alter_configs([whole]).values()
        altered.result(20)
        (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "older")]).values()
        assert described.result(20)["max.message.bytes"].value == "2000000"
    table = {entry.key: entry for entry in filled_table()}
    names = {table[key].name for key in told.asked}
    assert {entry.name for entry in table.values()} - names == SASL
    behind = {
        table[key].name: version
        for key, version in asked.items()
        if version != BELOW.get(table[key].name, table[key].max_version)
    }
    assert behind == {}
