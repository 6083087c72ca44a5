"""Who may ask what of the Kafka door: one table of every API there is, tried cell by cell.

An API that is added and not entered here fails the first test.
"""

import asyncio
import struct
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
from mainstem.wire.kafka.subscriptions import topics_of
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
BEAT = {"member_id": "", "member_epoch": 0, "rebalance_timeout": 10_000, "subscribed_topic_names": ["pay"],
        "topic_partitions": []}  # fmt: skip
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
    # Of the topics that somebody may see, which may be none.
    ("DescribeLogDirs", 4, {"topics": None}, EVERYBODY),
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
    ("DescribeGroups", 6, {"groups": ["payers"]}, READERS),
    ("ConsumerGroupDescribe", 0, {"group_ids": ["beating"]}, READERS),
    ("JoinGroup", 7, {"group_id": "payers", "session_timeout": 10_000, "protocol_type": "consumer",
                      "protocols": [{"name": "range", "metadata": b""}]}, READERS),
    ("SyncGroup", 5, {"group_id": "payers", "generation_id": 9, "member_id": "m"}, READERS),
    ("LeaveGroup", 4, {"group_id": "payers", "members": [{"member_id": "m"}]}, READERS),
    ("ConsumerGroupHeartbeat", 0, {**BEAT, "group_id": "newer"}, READERS),
    ("Heartbeat", 4, {"group_id": "payers", "generation_id": 9, "member_id": "m"}, GROUPERS),
    ("InitProducerId", 4, {"transaction_timeout": 1000}, TRANSACTORS),
    ("InitProducerId", 4, {"transactional_id": "own", "transaction_timeout": 1000}, TRANSACTORS),
    ("AddPartitionsToTxn", 3, {"v3_and_below_transactional_id": "t", "v3_and_below_topics": [
        {**NAMED, "partitions": [0]}]}, WRITERS),
    # A group that nobody has been in yet is anybody's.
    ("AddOffsetsToTxn", 3, {"transactional_id": "t", "group_id": "new"}, TRANSACTORS),
    ("TxnOffsetCommit", 3, {"transactional_id": "t", "group_id": "g", "topics": OFFSETS}, WRITERS),
    ("EndTxn", 3, {"transactional_id": "t", "committed": True}, TRANSACTORS),
    ("DescribeTransactions", 0, {"transactional_ids": ["payroll"]}, {"admin"}),
    ("Produce", 9, {"acks": -1, "topic_data": [{**NAMED, "partition_data": [{"index": 0, "records": RECORDS}]}]},
     WRITERS),
    ("CreateTopics", 5, {"topics": [{"name": "pay", "num_partitions": 1, "replication_factor": 1}]}, WRITERS),
    ("CreatePartitions", 3, {"topics": [{**NAMED, "count": 9}], "validate_only": True}, WRITERS),
    ("IncrementalAlterConfigs", 1, {"resources": [{**OF_TOPIC, "configs": []}]}, WRITERS),
    ("AlterConfigs", 2, {"resources": [{**OF_TOPIC, "configs": []}], "validate_only": True}, WRITERS),
    ("DeleteRecords", 2, {"topics": [{**NAMED, "partitions": [{**PART, "offset": 0}]}]}, WRITERS),
    ("DeleteGroups", 2, {"groups_names": ["payers"]}, READERS),
    ("DeleteTopics", 5, {"topic_names": ["pay"]}, WRITERS),
]  # fmt: skip
# What these need is made anew for each cell: an allowed one takes it away, or leaves something behind.
PREPARED = {
    "Metadata", "DeleteRecords", "DeleteTopics", "CreateTopics", "OffsetFetch", "OffsetDelete", "DescribeGroups",
    "ConsumerGroupDescribe", "JoinGroup", "SyncGroup", "LeaveGroup", "DeleteGroups",
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
    assert opened.kafka is not None
    # Commits of offsets and what groups note are durable by this task's work.
    running = asyncio.create_task(opened.kafka.coordination.run())
    yield opened
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
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


async def asked(
    gateway: Gateway, name: str, version: int, request: dict[str, Any], who: Principal, wait_s: float = WAIT_S
) -> Any:
    assert gateway.kafka is not None
    entry = next(entry for entry in gateway.kafka.door.table if entry.name == name)
    frame = encode_request(entry.key, version, 1, request)[4:]
    head = read_head(frame)
    context = Context(peer="here:1", principal=who, is_known=True, version=version, client_id="c")
    try:
        async with asyncio.timeout(wait_s):
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
    await asked(gateway, "CreateTopics", 5, made, root, 30.0)
    committed = {"group_id": "payers", "generation_id_or_member_epoch": -1, "topics": OFFSETS}
    await asked(gateway, "OffsetCommit", 8, committed, root, 30.0)
    # A group of the newer protocol that has committed nothing yet.
    await asked(gateway, "ConsumerGroupHeartbeat", 0, {**BEAT, "group_id": "beating", "member_id": "m"}, root, 30.0)
    begun = {"transactional_id": "payroll", "transaction_timeout": 60_000}
    await asked(gateway, "InitProducerId", 4, begun, root, 30.0)


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
            if name in PREPARED:
                await prepared(gateway)
            found = set(codes(await asked(gateway, name, version, request, each)))
            assert ErrorCode.unknown_server_error not in found, (name, who)
            assert bool(found & REFUSED) == (who not in may), (name, who, found)


async def test_lists_show_what_one_may_see(gateway: Gateway) -> None:
    await prepared(gateway)
    shown = {"reader", "writer", "admin"}
    for who, each in PRINCIPALS.items():
        everything = await asked(gateway, "Metadata", 7, {"topics": None}, each)
        assert ("pay" in {topic["name"] for topic in everything["topics"]}) == (who in shown), who
        folders = await asked(gateway, "DescribeLogDirs", 4, {"topics": None}, each)
        assert ("pay" in {topic["name"] for topic in folders["results"][0]["topics"]}) == (who in shown), who
        open_ones = await asked(gateway, "ListTransactions", 0, {}, each)
        names = {each["transactional_id"] for each in open_ones["transaction_states"]}
        assert ("payroll" in names) == (who == "admin"), who


def subscription(*topics: str) -> bytes:
    """As a Java consumer says it, with user data and owned partitions behind the topics."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


async def test_nobody_enters_a_classic_group_whose_members_read_what_it_may_not(gateway: Gateway) -> None:
    """Also before that group has committed anything: it would be told who they are, and take their partitions."""
    await prepared(gateway)

    def joins(*topics: str) -> dict[str, Any]:
        said = {"name": "range", "metadata": subscription(*topics)}
        lasts = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
        return {"group_id": "fresh", "protocol_type": "consumer", "protocols": [said], **lasts}

    for who, topics, may in (
        ("admin", ("pay",), True),
        ("reader of others", ("other",), False),
        ("reader", ("pay",), True),
    ):
        first = await asked(gateway, "JoinGroup", 7, joins(*topics), PRINCIPALS[who], 5.0)
        refused = ErrorCode.group_authorization_failed in set(codes(first))
        assert refused != may, (who, first)
        if who == "admin":
            again = joins(*topics) | {"member_id": first["member_id"]}
            joined = await asked(gateway, "JoinGroup", 7, again, PRINCIPALS[who], 5.0)
            assert joined["error_code"] is ErrorCode.none
    for who, may in (("admin", True), ("reader", True), ("reader of others", False)):
        listed = await asked(gateway, "ListGroups", 4, {}, PRINCIPALS[who])
        assert ("fresh" in {group["group_id"] for group in listed["groups"]}) == may, who


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription("pay", "other"), {"pay", "other"}),
        (subscription(), set()),
        (b"", set()),
        (b"\0\1\0\0\0\2\0\3pay", set()),
        (b"\0\1\x7f\xff\xff\xff\0\1x", set()),
        (b"\0\1\0\0\0\1\xff\xffpay", set()),
        (b"\0\1\0\0\0\1\0\1\xff", set()),
        (b"\0\1\xff\xff\xff\xff", set()),
    ],
)
def test_what_a_consumer_says_that_it_reads(metadata: bytes, topics: set[str]) -> None:
    assert topics_of(metadata) == topics


OTHER = [{"name": "other", "partitions": [{**PART, "committed_offset": 1, "committed_leader_epoch": -1}]}]
COMMITS: list[tuple[str, int, dict[str, Any]]] = [
    ("OffsetCommit", 8, {"group_id": "payers", "generation_id_or_member_epoch": -1, "topics": OTHER}),
    ("AddOffsetsToTxn", 3, {"transactional_id": "t", "group_id": "payers"}),
    ("TxnOffsetCommit", 3, {"transactional_id": "t", "group_id": "payers", "topics": OTHER}),
]


async def test_nobody_commits_to_a_group_that_reads_what_it_may_not(gateway: Gateway) -> None:
    """With an offset of a topic that its readers may not see, they could not enter their own group any more."""
    await prepared(gateway)
    for name, version, request in COMMITS:
        found = set(codes(await asked(gateway, name, version, request, PRINCIPALS["admin of others"])))
        assert ErrorCode.group_authorization_failed in found, (name, found)
        fetched = {"groups": [{"group_id": "payers", "topics": None}]}
        offsets = await asked(gateway, "OffsetFetch", 8, fetched, PRINCIPALS["admin"])
        assert [topic["name"] for topic in offsets["groups"][0]["topics"]] == ["pay"], name
    beat = {**BEAT, "group_id": "payers", "member_id": "m"}
    assert ErrorCode.group_authorization_failed not in set(
        codes(await asked(gateway, "ConsumerGroupHeartbeat", 0, beat, PRINCIPALS["reader"]))
    )


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


async def test_a_user_that_changed_ends_its_connections(tmp_path: Path) -> None:
    from mainstem.admission import Authenticator, AuthSettings, MadeUser, Role, Users, UserSettings
    from mainstem.admission.scram import derive, to_text
    from mainstem.doors.kafka.authenticating import _authenticate, _handshake

    settings = UserSettings((to_text(derive("secret", iterations=4096)),), Role.WRITER)
    clock = ManualClock()
    users = Users({"root": settings}, tmp_path / "users.json")
    users.change({"ann": MadeUser(settings), "ben": MadeUser(settings)})
    authentication = Authentication(users, Authenticator(AuthSettings(), clock), clock)
    contexts = {}
    for name in ("root", "ann", "ben"):
        context = contexts[name] = Context(peer="here:1")
        await _handshake(authentication, type("Request", (), {"mechanism": "PLAIN"}), context)
        said = f"\0{name}\0secret".encode()
        answer = await _authenticate(authentication, type("Request", (), {"auth_bytes": said}), context)
        assert answer["error_code"] is ErrorCode.none
        assert authentication.may_ask(context)

    def let_in() -> list[str]:
        return [name for name, context in contexts.items() if authentication.may_ask(context)]

    users.change({"cat": MadeUser(settings)})
    assert let_in() == ["root", "ann", "ben"]
    users.change({"ann": None, "ben": MadeUser(UserSettings(settings.credentials, Role.READER))})
    assert let_in() == ["root"]


async def test_a_user_of_the_same_name_does_not_get_the_connections_of_the_one_before(tmp_path: Path) -> None:
    from mainstem.admission import Authenticator, AuthSettings, MadeUser, Role, Users, UserSettings
    from mainstem.admission.scram import derive, to_text
    from mainstem.doors.kafka.authenticating import _authenticate, _handshake

    settings = UserSettings((to_text(derive("secret", iterations=4096)),), Role.WRITER)
    clock = ManualClock()
    users = Users({"root": settings}, tmp_path / "users.json")
    users.change({"ann": MadeUser(settings)})
    authentication = Authentication(users, Authenticator(AuthSettings(), clock), clock)
    context = Context(peer="here:1")
    await _handshake(authentication, type("Request", (), {"mechanism": "PLAIN"}), context)
    await _authenticate(authentication, type("Request", (), {"auth_bytes": b"\0ann\0secret"}), context)
    assert authentication.may_ask(context)
    users.change({"ann": None})
    users.change({"ann": MadeUser(settings)})
    assert not authentication.may_ask(context)
