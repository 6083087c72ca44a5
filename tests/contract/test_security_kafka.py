"""Who may ask what of the Kafka door: one table of every API there is, tried cell by cell.

An API that is added and not entered here fails the first test.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from mainstem.admission import Principal, Role
from mainstem.app.config import Config, PipelineConfig
from mainstem.app.gateway import Gateway
from mainstem.app.kafka.config import KafkaConfig
from mainstem.doors.kafka.authenticating import RECHECK_S, Authentication
from mainstem.doors.kafka.dispatch import Context, Encoded
from mainstem.runtime.clock import ManualClock
from mainstem.wire.kafka.frames import read_head
from mainstem.wire.kafka.messages import answer_head, decode_request, decode_response, encode_request
from tests.harness.kafka import batch_of

WAIT_S = 0.3
CONFIG = Config(pipeline=PipelineConfig(enabled=False), kafka=KafkaConfig(enabled=True, port=0))


def principal(role: Role, *tables: str) -> Principal:
    return Principal(sub=f"{role}-{tables}", role=role, namespaces=("kafka",), tables=tables or None)


PRINCIPALS = {
    "client": principal(Role.CLIENT),
    "elsewhere": Principal(sub="far", role=Role.ADMIN, namespaces=("sales",)),
    "reader of others": principal(Role.READER, "other"),
    "admin of others": principal(Role.ADMIN, "other"),
    "reader": principal(Role.READER, "pay"),
    "writer": principal(Role.WRITER, "pay"),
    "admin": Principal(sub="root", role=Role.ADMIN, namespaces=None),
}
READERS, WRITERS = {"reader", "writer", "admin"}, {"writer", "admin"}
# Whoever may read something is in groups, and whoever may write something makes transactions, under names of its own.
GROUPERS = READERS | {"elsewhere", "reader of others", "admin of others"}
TRANSACTORS = WRITERS | {"elsewhere", "admin of others"}
EVERYBODY = set(PRINCIPALS)
PART, NAMED = {"partition_index": 0}, {"name": "pay"}
OFFSETS = [{**NAMED, "partitions": [{**PART, "committed_offset": 1, "committed_leader_epoch": -1}]}]
RECORDS = batch_of([b"v"])
OF_TOPIC = {"resource_type": 2, "resource_name": "pay"}


def fetch() -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    return {"max_bytes": 1000, "topics": [{"topic": "pay", "partitions": [part]}]}


# (API, version, what is asked, who may)
TABLE: list[tuple[str, int, dict[str, Any], set[str]]] = [
    ("ApiVersions", 3, {}, EVERYBODY),
    ("SaslHandshake", 1, {"mechanism": "PLAIN"}, EVERYBODY),
    ("SaslAuthenticate", 2, {"auth_bytes": b""}, EVERYBODY),
    ("DescribeCluster", 0, {}, EVERYBODY),
    ("ListPartitionReassignments", 0, {}, EVERYBODY),
    ("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["g"]}, EVERYBODY),
    # Lists of what somebody may see, which may be nothing.
    ("ListGroups", 4, {}, EVERYBODY),
    ("ListTransactions", 0, {}, EVERYBODY),
    ("Metadata", 7, {"topics": [NAMED], "allow_auto_topic_creation": False}, READERS),
    ("DescribeTopicPartitions", 0, {"topics": [NAMED], "response_partition_limit": 10}, READERS),
    ("Fetch", 11, fetch(), READERS),
    ("ListOffsets", 4, {"topics": [{**NAMED, "partitions": [{**PART, "timestamp": -1}]}]}, READERS),
    ("OffsetForLeaderEpoch", 4, {"topics": [{"topic": "pay", "partitions": [{"partition": 0, "current_leader_epoch": -1,
                                                                          "leader_epoch": 0}]}]}, READERS),
    ("DescribeConfigs", 4, {"resources": [OF_TOPIC]}, READERS),
    ("DescribeProducers", 0, {"topics": [{**NAMED, "partition_indexes": [0]}]}, READERS),
    ("OffsetCommit", 8, {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": OFFSETS}, READERS),
    ("OffsetDelete", 0, {"group_id": "payers", "topics": [{**NAMED, "partitions": [PART]}]}, READERS),
    # Of a group that has read `pay`.
    ("OffsetFetch", 8, {"groups": [{"group_id": "payers", "topics": [{**NAMED, "partition_indexes": [0]}]}]}, READERS),
    ("DescribeGroups", 5, {"groups": ["payers"]}, READERS),
    ("ConsumerGroupDescribe", 0, {"group_ids": ["payers"]}, set()),
    ("JoinGroup", 7, {"group_id": "payers", "session_timeout": 10_000, "protocol_type": "consumer",
                      "protocols": [{"name": "range", "metadata": b""}]}, READERS),
    ("SyncGroup", 5, {"group_id": "payers", "generation_id": 9, "member_id": "m"}, READERS),
    ("LeaveGroup", 4, {"group_id": "payers", "members": [{"member_id": "m"}]}, READERS),
    ("ConsumerGroupHeartbeat", 0, {"group_id": "newer", "member_id": "", "member_epoch": 0, "rebalance_timeout": 10_000,
                                   "subscribed_topic_names": ["pay"], "topic_partitions": []}, READERS),
    ("Heartbeat", 4, {"group_id": "payers", "generation_id": 9, "member_id": "m"}, GROUPERS),
    ("InitProducerId", 4, {"transaction_timeout": 1000}, TRANSACTORS),
    ("InitProducerId", 4, {"transactional_id": "own", "transaction_timeout": 1000}, TRANSACTORS),
    ("AddPartitionsToTxn", 3, {"v3_and_below_transactional_id": "t", "v3_and_below_topics": [
        {**NAMED, "partitions": [0]}]}, WRITERS),
    ("AddOffsetsToTxn", 3, {"transactional_id": "t", "group_id": "g"}, TRANSACTORS),
    ("TxnOffsetCommit", 3, {"transactional_id": "t", "group_id": "g", "topics": OFFSETS}, WRITERS),
    ("EndTxn", 3, {"transactional_id": "t", "committed": True}, TRANSACTORS),
    ("DescribeTransactions", 0, {"transactional_ids": ["payroll"]}, {"admin"}),
    ("Produce", 9, {"acks": -1, "topic_data": [{**NAMED, "partition_data": [{"index": 0, "records": RECORDS}]}]},
     WRITERS),
    ("CreateTopics", 5, {"topics": [{"name": "pay", "num_partitions": 1, "replication_factor": 1}]}, WRITERS),
    ("CreatePartitions", 3, {"topics": [{**NAMED, "count": 9}], "validate_only": True}, WRITERS),
    ("IncrementalAlterConfigs", 1, {"resources": [{**OF_TOPIC, "configs": []}]}, WRITERS),
    ("DeleteRecords", 2, {"topics": [{**NAMED, "partitions": [{**PART, "offset": 0}]}]}, WRITERS),
    ("DeleteGroups", 2, {"groups_names": ["payers"]}, READERS),
    ("DeleteTopics", 5, {"topic_names": ["pay"]}, WRITERS),
]  # fmt: skip
# Their rights depend on what a group has read: `tests/compat/test_kafka_logins` has a group of others. Making a topic
# that is there is answered before the right is looked at. No cell of these is judged here.
UNTRIED = {
    "OffsetFetch", "OffsetDelete", "DescribeGroups", "ConsumerGroupDescribe", "JoinGroup", "SyncGroup", "LeaveGroup",
    "DeleteGroups", "CreateTopics",
}  # fmt: skip
REFUSED = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
    # What somebody may not see does not exist for it.
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.transactional_id_not_found,
    ErrorCode.group_id_not_found,
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    opened = await Gateway.open(CONFIG, tmp_path)
    yield opened
    await opened.close()


def codes(answer: Any) -> Iterator[ErrorCode]:
    """Every error code that stands anywhere in an answer."""
    if isinstance(answer, ErrorCode):
        yield answer
    elif isinstance(answer, Mapping):
        for each in answer.values():
            yield from codes(each)
    elif isinstance(answer, list | tuple):
        for each in answer:
            yield from codes(each)
    elif is_dataclass(answer):
        for field in fields(answer):
            yield from codes(getattr(answer, field.name))


async def asked(gateway: Gateway, name: str, version: int, request: dict[str, Any], who: Principal) -> Any:
    assert gateway.kafka is not None
    entry = next(entry for entry in gateway.kafka.door.table if entry.name == name)
    frame = encode_request(entry.key, version, 1, request)[4:]
    head = read_head(frame)
    context = Context(peer="here:1", principal=who, is_known=True, version=version, client_id="c")
    try:
        async with asyncio.timeout(WAIT_S):
            answer = await entry.handler(decode_request(head, frame), context)
    except TimeoutError:
        # Let in, and waiting for other members or for records: a refusal is answered at once.
        return ()
    if isinstance(answer, Encoded):
        whole = b"".join([answer_head(entry.key, version, 1), *map(bytes, answer.body)])
        return decode_response(entry.key, version, whole)
    return answer


async def prepared(gateway: Gateway) -> None:
    root = PRINCIPALS["admin"]
    made = {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("pay", "other")]}
    await asked(gateway, "CreateTopics", 5, made, root)
    committed = {"group_id": "payers", "generation_id_or_member_epoch": -1, "topics": OFFSETS}
    await asked(gateway, "OffsetCommit", 8, committed, root)
    begun = {"transactional_id": "payroll", "transaction_timeout": 60_000}
    await asked(gateway, "InitProducerId", 4, begun, root)


async def test_every_api_is_in_the_table(gateway: Gateway) -> None:
    assert gateway.kafka is not None
    there = {entry.name for entry in gateway.kafka.door.table}
    entered = {name for name, _, _, _ in TABLE}
    assert there - entered == set(), "an API that says nowhere who may ask it"
    assert entered - there == set(), "an API that is not there any more"
    # Before a login nothing but these is answered, where one is asked for: see `test_kafka_door`, `test_kafka_logins`.
    before_login = {entry.name for entry in gateway.kafka.door.table if entry.is_open}
    assert before_login == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}


async def test_every_cell_of_the_table(gateway: Gateway) -> None:
    for name, version, request, may in TABLE:
        for who, each in PRINCIPALS.items():
            if name in ("Metadata", "DeleteRecords", "DeleteTopics"):
                await prepared(gateway)
            found = set(codes(await asked(gateway, name, version, request, each)))
            assert ErrorCode.unknown_server_error not in found, (name, who)
            assert name in UNTRIED or bool(found & REFUSED) == (who not in may), (name, who, found)


async def test_lists_show_what_one_may_see(gateway: Gateway) -> None:
    await prepared(gateway)
    shown = {"reader", "writer", "admin"}
    for who, each in PRINCIPALS.items():
        everything = await asked(gateway, "Metadata", 7, {"topics": None}, each)
        assert ("pay" in {topic["name"] for topic in everything["topics"]}) == (who in shown), who
        open_ones = await asked(gateway, "ListTransactions", 0, {}, each)
        names = {each["transactional_id"] for each in open_ones["transaction_states"]}
        assert ("payroll" in names) == (who == "admin"), who


@pytest.mark.parametrize(("owner", "other"), [("admin", "admin of others"), ("writer", "admin of others")])
async def test_nobody_fences_or_ends_the_transaction_of_another(gateway: Gateway, owner: str, other: str) -> None:
    await prepared(gateway)
    begun = {"transactional_id": "wages", "transaction_timeout": 60_000}
    own = await asked(gateway, "InitProducerId", 4, begun, PRINCIPALS[owner])
    mine = {"producer_id": own["producer_id"], "producer_epoch": own["producer_epoch"]}
    topics = [{**NAMED, "partitions": [0]}]
    below = {f"v3_and_below_{name}": value for name, value in mine.items()}
    added = {"v3_and_below_transactional_id": "wages", "v3_and_below_topics": topics, **below}
    assert set(codes(await asked(gateway, "AddPartitionsToTxn", 3, added, PRINCIPALS[owner]))) == {ErrorCode.none}
    # By the same name, and with what can be guessed: the numbers of producers count up.
    theirs = await asked(gateway, "InitProducerId", 4, begun, PRINCIPALS[other])
    assert theirs["error_code"] is ErrorCode.none
    assert theirs["producer_id"] != own["producer_id"]
    ended = {"transactional_id": "wages", "committed": False, **mine}
    assert (await asked(gateway, "EndTxn", 3, ended, PRINCIPALS[other]))["error_code"] is not ErrorCode.none
    assert (await asked(gateway, "EndTxn", 3, {**ended, "committed": True}, PRINCIPALS[owner]))["error_code"] is (
        ErrorCode.none
    )


async def test_a_connection_ends_with_the_key_of_its_token(tmp_path: Path) -> None:
    import base64
    import json

    from mainstem.admission import Authenticator, AuthSettings, Users
    from mainstem.admission.keys import new_secret, secret_key, sign
    from mainstem.doors.kafka.authenticating import _authenticate, _handshake

    secret = new_secret()
    keys = tmp_path / "keys.json"
    encoded = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")

    def write(*kids: str) -> None:
        found = [{"kty": "oct", "kid": kid, "alg": "HS256", "k": encoded} for kid in kids]
        keys.with_suffix(".new").write_text(json.dumps({"keys": found}))
        keys.with_suffix(".new").replace(keys)

    write("old", "kept")
    clock = ManualClock()
    authentication = Authentication(Users(), Authenticator(AuthSettings(jwks_file=str(keys)), clock), clock)
    claims = {"sub": "c", "role": "admin", "namespace": "*", "exp": clock.now_ms() // 1000 + 600}
    contexts = {}
    for kid in ("old", "kept"):
        context = contexts[kid] = Context(peer="here:1")
        request = type("Request", (), {"mechanism": "PLAIN"})
        await _handshake(authentication, request, context)
        said = f"\0token\0{sign(claims, secret_key(kid, secret))}".encode()
        answer = await _authenticate(authentication, type("Request", (), {"auth_bytes": said}), context)
        assert answer["error_code"] is ErrorCode.none
        assert authentication.may_ask(context)
    write("kept", "another")
    clock.advance(RECHECK_S + 1)
    assert {kid: authentication.may_ask(context) for kid, context in contexts.items()} == {"old": False, "kept": True}
