"""What tools ask of groups: FindCoordinator, ListGroups, DescribeGroups, DeleteGroups, ConsumerGroupDescribe."""

from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from mainstem.admission import Principal
from mainstem.doors.kafka.cluster import may_see
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.grouping import Grouping, code, may_group, topics_of
from mainstem.feeds.groups.classic_values import State
from mainstem.feeds.groups.modern import ModernGroup
from mainstem.feeds.groups.modern_values import pack
from mainstem.feeds.groups.reasons import Refused
from mainstem.wire.kafka.messages import Message

_NOT_ASKED = -(1 << 31)
_MANY_KEYS = 4
GROUP, TRANSACTION, SHARE = range(3)


def register(table: Table, grouping: Grouping) -> None:
    """Answer these APIs."""
    table.add(10, "FindCoordinator", 0, 6, partial(_find, grouping))
    table.add(16, "ListGroups", 0, 5, partial(_list, grouping))
    table.add(15, "DescribeGroups", 0, 6, partial(_describe, grouping))
    table.add(42, "DeleteGroups", 0, 2, partial(_delete, grouping))
    table.add(69, "ConsumerGroupDescribe", 0, 1, partial(_describe_new, grouping))


async def _find(grouping: Grouping, request: Any, context: Context) -> Message:
    """There is one coordinator: this broker."""
    kind = getattr(request, "key_type", GROUP)
    error = ErrorCode.none if kind in (GROUP, TRANSACTION) else ErrorCode.invalid_request
    broker = grouping.cluster.broker(context)
    where = {"node_id": broker["node_id"], "host": broker["host"], "port": broker["port"]}
    if error:
        where = {"node_id": -1, "host": "", "port": -1}
    if context.version >= _MANY_KEYS:
        return {"coordinators": [{"key": key, **where, "error_code": error} for key in request.coordinator_keys]}
    return {**where, "error_code": error}


def may_see_group(grouping: Grouping, principal: Principal, group: str) -> bool:
    """Whether a group exists for somebody: who is bound to tables sees the groups that read nothing else."""
    if not may_group(principal):
        return False
    if principal.is_unbounded:
        return True
    topics = [grouping.cluster.find(name) for name in topics_of(grouping, group)]
    return bool(topics) and all(topic is not None and may_see(principal, topic) for topic in topics)


async def _list(grouping: Grouping, request: Any, context: Context) -> Message:
    states = {each.lower() for each in getattr(request, "states_filter", ())}
    kinds = {each.lower() for each in getattr(request, "types_filter", ())}
    groups = [
        {
            "group_id": each.group,
            "protocol_type": each.protocol_type,
            "group_state": each.state,
            "group_type": each.kind,
        }
        for each in grouping.groups.overview()
        if (not states or each.state.lower() in states)
        and (not kinds or each.kind in kinds)
        and may_see_group(grouping, context.principal, each.group)
    ]
    return {"error_code": ErrorCode.none, "groups": groups}


async def _describe(grouping: Grouping, request: Any, context: Context) -> Message:
    return {"groups": [_described(grouping, name, context) for name in request.groups]}


def _described(grouping: Grouping, name: str, context: Context) -> Message:
    group = grouping.groups.get(name)
    answer: dict[str, Any] = {
        "error_code": ErrorCode.none,
        "group_id": name,
        "group_state": str(State.DEAD),
        "protocol_type": "",
        "protocol_data": "",
        "members": (),
        "authorized_operations": _NOT_ASKED,
    }
    is_hidden = not may_see_group(grouping, context.principal, name)
    if is_hidden or isinstance(group, ModernGroup) or not grouping.groups.exists(name):
        # Older versions have no code for a group that is not there: it is dead.
        if context.version >= 6:
            answer["error_code"] = ErrorCode.group_id_not_found
            answer["error_message"] = f"no such group of the classic protocol: {name}"
        return answer
    if group is None:
        return {**answer, "group_state": str(State.EMPTY)}
    is_stable = group.state is State.STABLE
    return {
        **answer,
        "group_state": str(group.state),
        "protocol_type": group.protocol_type or "",
        "protocol_data": (group.protocol or "") if is_stable else "",
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.host,
                "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                "member_assignment": member.assignment if is_stable else b"",
            }
            for member in group.members.values()
        ],
    }


async def _delete(grouping: Grouping, request: Any, context: Context) -> Message:
    results: list[Message] = []
    principal = context.principal
    for name in request.groups_names:
        error = ErrorCode.none
        if not may_group(principal) or (grouping.groups.exists(name) and not may_see_group(grouping, principal, name)):
            error = ErrorCode.group_authorization_failed
        else:
            try:
                await grouping.groups.delete(name)
            except Refused as refused:
                error = code(refused)
        results.append({"group_id": name, "error_code": error})
    return {"results": results}


async def _describe_new(grouping: Grouping, request: Any, context: Context) -> Message:
    return {"groups": [_described_new(grouping, name, context) for name in request.group_ids]}


def _described_new(grouping: Grouping, name: str, context: Context) -> Message:
    group = grouping.groups.get(name)
    if not isinstance(group, ModernGroup) or not may_see_group(grouping, context.principal, name):
        return {
            "error_code": ErrorCode.group_id_not_found,
            "error_message": f"no such group of the newer protocol: {name}",
            "group_id": name,
            "group_state": "",
            "assignor_name": "",
            "authorized_operations": _NOT_ASKED,
        }
    names = {topic.id.hex(): topic.name for topic in grouping.cluster.topics.state.topics.values()}

    def shown(assignment: frozenset[tuple[str, int]]) -> Message:
        return {
            "topic_partitions": [
                {
                    "topic_id": UUID(hex=each.topic_id),
                    "topic_name": names.get(each.topic_id, ""),
                    "partitions": each.partitions,
                }
                for each in pack(assignment)
            ]
        }

    return {
        "error_code": ErrorCode.none,
        "group_id": name,
        "group_state": str(group.state),
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "authorized_operations": _NOT_ASKED,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "rack_id": member.rack,
                "member_epoch": member.epoch,
                "client_id": member.client_id,
                "client_host": member.host,
                "subscribed_topic_names": member.topics,
                "subscribed_topic_regex": member.regex,
                "assignment": shown(member.assigned),
                "target_assignment": shown(group.target.get(member.member_id, frozenset())),
                "member_type": 1,
            }
            for member in group.members.values()
        ],
    }
