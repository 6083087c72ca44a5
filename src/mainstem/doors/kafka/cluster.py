"""What a client asks first: which versions, which brokers, which topics. There is one broker: this gateway."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from mainstem.admission import Principal
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.errors import code_of
from mainstem.feeds.topics.partition import LEADER_EPOCH
from mainstem.feeds.topics.state import TopicState
from mainstem.feeds.topics.topics import Topics
from mainstem.feeds.topics.views import Views
from mainstem.model.errors import Conflict, MainstemError
from mainstem.model.names import TableName
from mainstem.wire.kafka.messages import Message

PARTITIONS_PER_ANSWER_MAX = 2_000
# What clients ask of a whole cluster before they use it. `transaction.version` 2 is KIP-890: a producer's epoch grows
# with every transaction, and partitions take part with their first record.
FEATURES: Mapping[str, int] = MappingProxyType({"group.version": 1, "transaction.version": 2})
_KNOWS_ZERO = 4
# "Not asked for": the bit mask of what somebody may do is not given.
_NOT_ASKED = -(1 << 31)


@dataclass(slots=True)
class Cluster:
    """The broker as clients know it. `host` and `port` are what is advertised: the port is known once it listens."""

    id: str
    node_id: int
    host: str
    port: int
    topics: Topics
    views: Views
    auto_create: bool = True

    def find(self, name: str) -> TopicState | None:
        """A topic, or a view that somebody asked for since the start (clients ask for metadata before anything)."""
        return self.topics.get(name) or next((each for each in self.views.topics() if each.name == name), None)

    def find_by_id(self, topic_id: UUID | None) -> TopicState | None:
        """The same by its id."""
        return self.topics.by_id(topic_id) or self.views.by_id(topic_id)

    def broker(self, context: Context) -> Message:
        """The one broker, at the address by which this client reaches it."""
        host, port = context.told or (self.host, self.port)
        return {"node_id": self.node_id, "broker_id": self.node_id, "host": host, "port": port, "rack": None}


def register(table: Table, cluster: Cluster) -> None:
    """Answer these APIs."""
    table.add(18, "ApiVersions", 0, 5, partial(_api_versions, table, cluster), is_open=True)
    table.add(3, "Metadata", 0, 13, partial(_metadata, cluster))
    table.add(60, "DescribeCluster", 0, 2, partial(_describe_cluster, cluster))
    table.add(75, "DescribeTopicPartitions", 0, 0, partial(_describe_topic_partitions, cluster))


async def _api_versions(table: Table, cluster: Cluster, request: Any, context: Context) -> Message:
    context.kept["software"] = getattr(request, "client_software_name", None)
    return {
        "error_code": _is_meant(cluster, request),
        "api_keys": table.versions(),
        "supported_features": [
            # Clients of older versions take a feature that begins at 0 for a fault.
            {"name": name, "min_version": 0 if context.version >= _KNOWS_ZERO else 1, "max_version": level}
            for name, level in FEATURES.items()
        ],
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level} for name, level in FEATURES.items()
        ],
    }


def _is_meant(cluster: Cluster, request: Any) -> ErrorCode:
    """Whether a client that says whom it means to speak to (version 5) has come to the right one."""
    cluster_id, node_id = getattr(request, "cluster_id", None), getattr(request, "node_id", -1)
    if (cluster_id is None) != (node_id == -1):
        return ErrorCode.invalid_request
    if cluster_id is not None and (cluster_id, node_id) != (cluster.id, cluster.node_id):
        return ErrorCode.rebootstrap_required
    return ErrorCode.none


async def _metadata(cluster: Cluster, request: Any, context: Context) -> Message:
    wanted = request.topics
    topics: list[Message] = []
    # Version 0 has no other way to ask for all of them.
    if wanted is None or (context.version == 0 and not wanted):
        known = [*cluster.topics.state.topics.values(), *cluster.views.topics()]
        topics = [_described(cluster, topic) for topic in known if may_see(context.principal, topic)]
    else:
        creates = cluster.auto_create and getattr(request, "allow_auto_topic_creation", True)
        for each in wanted:
            topics.append(await _one(cluster, each, context.principal, creates=creates))
    return {
        "brokers": [cluster.broker(context)],
        "cluster_id": cluster.id,
        "controller_id": cluster.node_id,
        "topics": topics,
    }


async def _one(cluster: Cluster, wanted: Any, principal: Principal, *, creates: bool) -> Message:
    name: str | None = wanted.name
    topic_id: UUID | None = getattr(wanted, "topic_id", None)
    if name is None:
        topic = cluster.topics.by_id(topic_id) or cluster.views.by_id(topic_id)
        if topic is None or not may_see(principal, topic):
            return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, **_NO_PARTITIONS}
        return _described(cluster, topic)
    topic = cluster.topics.get(name) or await cluster.views.get(name)
    try:
        if topic is None and creates and not cluster.views.is_view(name):
            table = cluster.topics.check_new(name, cluster.topics.settings.partitions, {})
            principal.check_write([table])
            topic = await _created(cluster, name)
        if topic is not None and not may_see(principal, topic):
            return {"error_code": ErrorCode.topic_authorization_failed, "name": name, **_NO_PARTITIONS}
    except MainstemError as error:
        return {"error_code": code_of(error), "name": name, **_NO_PARTITIONS}
    if topic is None:
        return {"error_code": ErrorCode.unknown_topic_or_partition, "name": name, **_NO_PARTITIONS}
    return _described(cluster, topic)


async def _created(cluster: Cluster, name: str) -> TopicState:
    try:
        return await cluster.topics.create(name, cluster.topics.settings.partitions, {})
    except Conflict:
        # Somebody else was first.
        found = cluster.topics.get(name)
        if found is None:
            raise
        return found


_NO_PARTITIONS: Message = {"is_internal": False, "partitions": (), "topic_authorized_operations": _NOT_ASKED}


def _described(cluster: Cluster, topic: TopicState) -> Message:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.uuid,
        "is_internal": False,
        "partitions": _partitions(cluster, range(len(topic.partitions))),
        "topic_authorized_operations": _NOT_ASKED,
    }


def _partitions(cluster: Cluster, indexes: Sequence[int]) -> list[Message]:
    only = (cluster.node_id,)
    return [
        {
            "error_code": ErrorCode.none,
            "partition_index": index,
            "leader_id": cluster.node_id,
            "leader_epoch": LEADER_EPOCH,
            "replica_nodes": only,
            "isr_nodes": only,
            "offline_replicas": (),
            # Not null: the Java client takes these for lists.
            "eligible_leader_replicas": (),
            "last_known_elr": (),
        }
        for index in indexes
    ]


async def _describe_cluster(cluster: Cluster, request: Any, context: Context) -> Message:
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": getattr(request, "endpoint_type", 1),
        "cluster_id": cluster.id,
        "controller_id": cluster.node_id,
        "brokers": [cluster.broker(context)],
        "cluster_authorized_operations": _NOT_ASKED,
    }


async def _describe_topic_partitions(cluster: Cluster, request: Any, context: Context) -> Message:
    """Page by page: topics by name, and where the answer was cut."""
    names = sorted({each.name for each in request.topics})
    first_partition = 0
    if (cursor := request.cursor) is not None:
        names = [name for name in names if name >= cursor.topic_name]
        first_partition = cursor.partition_index
    room = max(1, min(request.response_partition_limit, PARTITIONS_PER_ANSWER_MAX))
    topics: list[Message] = []
    for name in names:
        first = first_partition if cursor is not None and name == cursor.topic_name else 0
        topic = cluster.topics.get(name) or await cluster.views.get(name)
        if topic is None or not may_see(context.principal, topic):
            topics.append({"error_code": ErrorCode.unknown_topic_or_partition, "name": name, **_NO_PARTITIONS})
            continue
        if room <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": first}}
        indexes = range(first, min(len(topic.partitions), first + room))
        room -= len(indexes)
        topics.append({**_described(cluster, topic), "partitions": _partitions(cluster, indexes)})
        if indexes.stop < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": indexes.stop}}
    return {"topics": topics, "next_cursor": None}


def table_of(topic: TopicState) -> TableName:
    """The table that a topic is, by which rights on it are judged."""
    namespace, _, table = topic.table.rpartition(".")
    return TableName(namespace, table)


def may_see(principal: Principal, topic: TopicState) -> bool:
    """Whether the topic exists for somebody."""
    return principal.may_read(table_of(topic))


def may_write(principal: Principal, topic: TopicState) -> bool:
    """Whether somebody may write a topic."""
    return principal.may_write(table_of(topic))
