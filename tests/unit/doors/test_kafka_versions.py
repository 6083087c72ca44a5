"""What the Kafka door says that it speaks: everything that clients send today, and each version can be read and
answered."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from kio.serial import entity_writer

from mainstem.doors.kafka.dispatch import Context, Entry, Table
from mainstem.wire.kafka.frames import read_head
from mainstem.wire.kafka.messages import decode_request, decode_response, encode_request, encode_response
from mainstem.wire.kafka.newer import request_schema, response_schema
from tests.unit.doors.kafka_world import filled_table

GUIDES = Path(__file__).parents[3] / "docs" / "guides"
# By API: the versions that clients of today send, and which therefore have to be there.
WANTED = {
    "Produce": (7, 13),
    "Fetch": (11, 18),
    "ListOffsets": (2, 10),
    "Metadata": (4, 13),
    "OffsetCommit": (3, 9),
    "OffsetFetch": (3, 9),
    "FindCoordinator": (1, 6),
    "JoinGroup": (5, 9),
    "Heartbeat": (3, 4),
    "LeaveGroup": (1, 5),
    "SyncGroup": (3, 5),
    "DescribeGroups": (6, 6),
    "ListGroups": (5, 5),
    "SaslHandshake": (0, 1),
    "ApiVersions": (0, 5),
    "CreateTopics": (4, 7),
    "DeleteTopics": (4, 6),
    "DeleteRecords": (0, 2),
    "InitProducerId": (4, 5),
    "OffsetForLeaderEpoch": (4, 4),
    "AddPartitionsToTxn": (0, 5),
    "AddOffsetsToTxn": (0, 4),
    "EndTxn": (1, 5),
    "TxnOffsetCommit": (3, 5),
    "DescribeConfigs": (4, 4),
    "SaslAuthenticate": (0, 2),
    "CreatePartitions": (0, 3),
    "DeleteGroups": (2, 2),
    "IncrementalAlterConfigs": (1, 1),
    "ListPartitionReassignments": (0, 0),
    "OffsetDelete": (0, 0),
    "DescribeCluster": (2, 2),
    "DescribeProducers": (0, 0),
    "DescribeTransactions": (0, 0),
    "ListTransactions": (0, 2),
    "ConsumerGroupHeartbeat": (1, 1),
    "ConsumerGroupDescribe": (1, 1),
    "DescribeTopicPartitions": (0, 0),
}


@pytest.fixture(scope="module")
def table() -> Table:
    return filled_table()


def test_everything_that_clients_send_is_answered(table: Table) -> None:
    told = {entry.name: (entry.min_version, entry.max_version) for entry in table}
    missing = {
        name: told.get(name)
        for name, (low, high) in WANTED.items()
        if name not in told or told[name][0] > low or told[name][1] < high
    }
    assert missing == {}


def test_every_version_of_every_api_can_be_read_and_answered(table: Table) -> None:
    """A request of nothing but defaults through our reader, and an answer of nothing but defaults through theirs."""
    for entry in table:
        for version in range(entry.min_version, entry.max_version + 1):
            frame = encode_request(entry.key, version, 7, {})[4:]
            head = read_head(frame)
            assert (head.api_key, head.version, head.correlation_id) == (entry.key, version, 7)
            schema = request_schema(entry.key, version)
            request = decode_request(head, frame)
            assert isinstance(request, schema)
            assert frame.endswith(_bytes(schema, request))
            answer = decode_response(entry.key, version, encode_response(entry.key, version, 7, {})[4:])
            assert isinstance(answer, response_schema(entry.key, version)), (entry.name, version)


def test_the_guides_tell_the_same_versions(table: Table) -> None:
    told: dict[str, str] = {}
    for guide in ("kafka.md", "kafka-groups.md"):
        text = (GUIDES / guide).read_text()
        for row in re.findall(r"^\| ([A-Z][A-Za-z, ]+) \| ([0-9–, ]+) \|", text, re.M):
            names, versions = (cell.split(", ") for cell in row)
            # One range may stand for all of them.
            told |= dict(zip(names, versions * len(names) if len(versions) == 1 else versions, strict=True))
    known = {
        each.name: f"{each.min_version}–{each.max_version}"
        if each.min_version < each.max_version
        else f"{each.max_version}"
        for each in table
    }
    assert told == known


def _bytes(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, value)
    return buffer.getvalue()


async def _asked(table: Table, key: int, version: int, request: dict[str, Any]) -> Any:
    entry: Entry | None = table.get(key)
    assert entry is not None
    frame = encode_request(key, version, 1, request)[4:]
    answer = await entry.handler(decode_request(read_head(frame), frame), Context(peer="", version=version))
    assert isinstance(answer, dict)
    return decode_response(key, version, encode_response(key, version, 1, answer)[4:])


@pytest.mark.parametrize("version", range(6))
async def test_the_versions_are_told_in_every_version(table: Table, version: int) -> None:
    told = await _asked(table, 18, version, {"client_software_name": "me", "client_software_version": "1"})
    assert {each.api_key: (each.min_version, each.max_version) for each in told.api_keys} == {
        entry.key: (entry.min_version, entry.max_version) for entry in table
    }
    if version >= 3:
        assert {each.name: each.max_version_level for each in told.finalized_features}["transaction.version"] == 2


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"), [("c", 1, 0), (None, -1, 0), ("other", 1, 129), ("c", 2, 129), ("c", -1, 42)]
)
async def test_a_client_that_means_another_broker_is_told_so(
    table: Table, cluster_id: str | None, node_id: int, code: int
) -> None:
    asked = {"client_software_name": "me", "client_software_version": "1", "cluster_id": cluster_id, "node_id": node_id}
    assert (await _asked(table, 18, 5, asked)).error_code.value == code
