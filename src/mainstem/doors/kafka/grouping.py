"""Being in a group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and the newer ConsumerGroupHeartbeat."""

from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from mainstem.admission import Principal, Role
from mainstem.doors.kafka.cluster import Cluster, may_see
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.feeds.groups.assignors import Assignment
from mainstem.feeds.groups.classic_values import Join, Protocol
from mainstem.feeds.groups.coordinator import Coordinator
from mainstem.feeds.groups.modern import ModernGroup
from mainstem.feeds.groups.modern_values import Beat, pack
from mainstem.feeds.groups.offsets import Offsets
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.wire.kafka import subscriptions
from mainstem.wire.kafka.messages import Message

# From these versions on a client knows that its first join is answered with an id, and that a leader may skip.
_KNOWS_MEMBER_IDS, _CAN_SKIP = 4, 9
_MEMBERS_OF_A_LEAVE = 3


@dataclass(frozen=True, slots=True)
class Grouping:
    """What the handlers need."""

    cluster: Cluster
    groups: Coordinator
    offsets: Offsets


def register(table: Table, grouping: Grouping) -> None:
    """Answer these APIs."""
    table.add(11, "JoinGroup", 2, 9, partial(_join, grouping))
    table.add(14, "SyncGroup", 1, 5, partial(_sync, grouping))
    table.add(12, "Heartbeat", 0, 4, partial(_heartbeat, grouping))
    table.add(13, "LeaveGroup", 0, 5, partial(_leave, grouping))
    table.add(68, "ConsumerGroupHeartbeat", 0, 1, partial(_beat, grouping))


def code(refused: Refused) -> ErrorCode:
    """A coordinator's reasons have the protocol's names."""
    return ErrorCode[refused.reason]


def may_group(principal: Principal) -> bool:
    """Whether a principal may be in groups at all: one that may read may."""
    return principal.has(Role.READER)


def may_enter(grouping: Grouping, principal: Principal, group: str) -> bool:
    """Whether somebody may take part in a group: who is bound to topics may not in one that has read others. As a
    member it would be told what the others read, and could take their work away from them."""
    if not may_group(principal):
        return False
    if principal.is_unbounded:
        return True
    topics = [grouping.cluster.find(name) for name in topics_of(grouping, group)]
    return all(topic is None or may_see(principal, topic) for topic in topics)


def topics_of(grouping: Grouping, group: str) -> frozenset[str]:
    """The topics that a group has offsets of, and those that its members name."""
    names = {name for name, _ in grouping.offsets.all_of(group)}
    known = grouping.groups.get(group)
    if isinstance(known, ModernGroup):
        names |= {name for member in known.members.values() for name in member.topics}
    elif known is not None and known.protocol_type == subscriptions.CONSUMER:
        said = {each.metadata for member in known.members.values() for each in member.protocols}
        names = names.union(*map(subscriptions.topics_of, said))
    return frozenset(names)


async def _join(grouping: Grouping, request: Any, context: Context) -> Message:
    if not may_enter(grouping, context.principal, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "generation_id": -1, "protocol_name": ""}
    version = context.version
    asked = Join(
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        session_timeout_ms=_ms(request.session_timeout),
        rebalance_timeout_ms=_ms(request.rebalance_timeout),
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(each.name, bytes(each.metadata)) for each in request.protocols),
        client_id=context.client_id or "",
        host=host_of(context),
        knows_member_ids=version >= _KNOWS_MEMBER_IDS,
        can_skip=version >= _CAN_SKIP,
    )
    try:
        joined = await grouping.groups.join(request.group_id, asked)
    except Refused as refused:
        # The id to join with is all that such a refusal says.
        member_id = str(refused) if refused.reason is Reason.MEMBER_ID_REQUIRED else request.member_id
        return {
            "error_code": code(refused),
            "generation_id": -1,
            "protocol_name": None if version >= 7 else "",
            "member_id": member_id,
        }
    return {
        "error_code": ErrorCode.none,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol,
        "leader": joined.leader,
        "skip_assignment": joined.skips_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
            for each in joined.members
        ],
    }


async def _sync(grouping: Grouping, request: Any, context: Context) -> Message:
    if not may_enter(grouping, context.principal, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "assignment": b""}
    try:
        synced = await grouping.groups.sync(
            request.group_id,
            request.member_id,
            request.generation_id,
            getattr(request, "group_instance_id", None),
            [(each.member_id, bytes(each.assignment)) for each in request.assignments],
            protocol_type=getattr(request, "protocol_type", None),
            protocol=getattr(request, "protocol_name", None),
        )
    except Refused as refused:
        return {"error_code": code(refused), "assignment": b""}
    return {
        "error_code": ErrorCode.none,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def _heartbeat(grouping: Grouping, request: Any, context: Context) -> Message:
    error = ErrorCode.none
    if not may_group(context.principal):
        error = ErrorCode.group_authorization_failed
    else:
        try:
            instance_id = getattr(request, "group_instance_id", None)
            grouping.groups.heartbeat(request.group_id, request.member_id, request.generation_id, instance_id)
        except Refused as refused:
            error = code(refused)
    return {"error_code": error}


async def _leave(grouping: Grouping, request: Any, context: Context) -> Message:
    if not may_enter(grouping, context.principal, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed, "members": ()}
    if context.version < _MEMBERS_OF_A_LEAVE:
        members = [(request.member_id, None)]
    else:
        members = [(each.member_id, each.group_instance_id) for each in request.members]
    try:
        answers = grouping.groups.leave(request.group_id, members)
    except Refused as refused:
        return {"error_code": code(refused), "members": ()}
    codes = [ErrorCode.none if each is None else code(each) for each in answers]
    return {
        "error_code": codes[0] if context.version < _MEMBERS_OF_A_LEAVE else ErrorCode.none,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
            for (member_id, instance_id), error in zip(members, codes, strict=True)
        ],
    }


async def _beat(grouping: Grouping, request: Any, context: Context) -> Message:
    principal = context.principal
    if not may_enter(grouping, principal, request.group_id):
        return {"error_code": ErrorCode.group_authorization_failed}
    regex = getattr(request, "subscribed_topic_regex", None)
    if regex and not principal.is_unbounded:
        why = "an expression could match topics of others: subscribe to names"
        return {"error_code": ErrorCode.group_authorization_failed, "error_message": why}
    names = request.subscribed_topic_names
    for name in names or ():
        topic = grouping.cluster.find(name)
        if topic is not None and not may_see(principal, topic):
            return {"error_code": ErrorCode.topic_authorization_failed, "error_message": f"topic {name}"}
    timeout_ms = _ms(request.rebalance_timeout)
    owned = request.topic_partitions
    beat = Beat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack=request.rack_id,
        rebalance_timeout_ms=None if timeout_ms < 0 else timeout_ms,
        topics=None if names is None else tuple(names),
        regex=regex,
        assignor=request.server_assignor,
        owned=None if owned is None else _owned(owned),
        client_id=context.client_id or "",
        host=host_of(context),
    )
    try:
        told = await grouping.groups.beat(request.group_id, beat)
    except Refused as refused:
        return {"error_code": code(refused), "error_message": str(refused)}
    assignment = None if told.assignment is None else {"topic_partitions": topic_partitions(told.assignment)}
    return {
        "error_code": ErrorCode.none,
        "member_id": told.member_id,
        "member_epoch": told.epoch,
        "heartbeat_interval": grouping.groups.settings.heartbeat_interval_ms,
        "assignment": assignment,
    }


def _owned(topics: Any) -> Assignment:
    return frozenset((each.topic_id.hex, index) for each in topics if each.topic_id for index in each.partitions)


def topic_partitions(assignment: Assignment) -> list[Message]:
    """An assignment by topic id, as answers have it."""
    return [{"topic_id": UUID(hex=each.topic_id), "partitions": each.partitions} for each in pack(assignment)]


def host_of(context: Context) -> str:
    """Where a member is, as tools show it."""
    return "/" + context.peer.rpartition(":")[0]


def _ms(delta: Any) -> int:
    return int(delta.total_seconds() * 1000)
