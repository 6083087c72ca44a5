"""Offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.doors.kafka.cluster import may_see
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.grouping import Grouping, code, may_enter, may_group
from mainstem.feeds.groups.classic import ClassicGroup
from mainstem.feeds.groups.entries import Offset
from mainstem.feeds.groups.offsets import Committer
from mainstem.feeds.groups.reasons import Refused
from mainstem.feeds.topics.state import TopicState
from mainstem.wire.kafka.messages import Message

_KNOWS_EPOCHS, _BY_GROUP, _BY_ID = 9, 8, 10


def register(table: Table, grouping: Grouping) -> None:
    """Answer these APIs."""
    table.add(8, "OffsetCommit", 2, 10, partial(_commit, grouping))
    table.add(9, "OffsetFetch", 1, 10, partial(_fetch, grouping))
    table.add(47, "OffsetDelete", 0, 0, partial(_delete, grouping))


def read_offsets(
    grouping: Grouping, group: str, topics: Iterable[Any], context: Context, *, by_id: bool
) -> tuple[list[dict[str, Any]], list[tuple[Offset, dict[str, Any]]]]:
    """The answer as far as it is known, topic by topic, and the offsets that can be committed, each with its place in
    that answer. A note that is too long or a partition that is not there refuses that offset alone."""
    answers: list[dict[str, Any]] = []
    good: list[tuple[Offset, dict[str, Any]]] = []
    for each in topics:
        topic, missing = _find(grouping, each, context, by_id=by_id)
        parts: list[dict[str, Any]] = []
        for part in each.partitions:
            answer = {"partition_index": part.partition_index, "error_code": missing}
            metadata = part.committed_metadata or ""
            if topic is not None and not 0 <= part.partition_index < len(topic.partitions):
                answer["error_code"] = ErrorCode.unknown_topic_or_partition
            elif len(metadata.encode()) > grouping.groups.settings.offset_metadata_bytes_max:
                answer["error_code"] = ErrorCode.offset_metadata_too_large
            elif topic is not None and not missing:
                offset = Offset(
                    group=group,
                    topic=topic.name,
                    partition=part.partition_index,
                    offset=part.committed_offset,
                    leader_epoch=getattr(part, "committed_leader_epoch", -1),
                    metadata=metadata,
                )
                good.append((offset, answer))
            parts.append(answer)
        answers.append({**_named(each, by_id=by_id), "partitions": parts})
    return answers, good


def _find(grouping: Grouping, each: Any, context: Context, *, by_id: bool) -> tuple[TopicState | None, ErrorCode]:
    cluster = grouping.cluster
    topic = cluster.find_by_id(each.topic_id) if by_id else cluster.find(each.name)
    if topic is None:
        return None, ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    if not may_see(context.principal, topic):
        return None, ErrorCode.topic_authorization_failed
    return topic, ErrorCode.none


def _named(each: Any, *, by_id: bool) -> dict[str, Any]:
    return {"topic_id": each.topic_id} if by_id else {"name": each.name}


async def _look_up_views(grouping: Grouping, topics: Iterable[Any] | None) -> None:
    """After a restart no client may have asked for a view yet: this finds it."""
    for each in topics or ():
        if grouping.cluster.views.is_view(getattr(each, "name", "")):
            await grouping.cluster.views.get(each.name)


async def _commit(grouping: Grouping, request: Any, context: Context) -> Message:
    await _look_up_views(grouping, request.topics)
    by_id = context.version >= _BY_ID
    answers, good = read_offsets(grouping, request.group_id, request.topics, context, by_id=by_id)
    generation = getattr(request, "generation_id_or_member_epoch", None)
    committer = Committer(
        group=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id if generation is None else generation,
        instance_id=getattr(request, "group_instance_id", None),
        knows_epochs=context.version >= _KNOWS_EPOCHS,
    )
    error = ErrorCode.none
    if not may_enter(grouping, context.principal, request.group_id):
        # An offset of a topic that its readers may not see would shut them out of their own group.
        error = ErrorCode.group_authorization_failed
    else:
        try:
            await grouping.offsets.commit(committer, [offset for offset, _ in good])
        except Refused as refused:
            error = code(refused)
    for _, answer in good:
        answer["error_code"] = error
    return {"topics": answers}


async def _fetch(grouping: Grouping, request: Any, context: Context) -> Message:
    stable = getattr(request, "require_stable", False)
    if context.version < _BY_GROUP:
        await _look_up_views(grouping, request.topics)
        return {**_fetched(grouping, request, context, stable=stable)}
    for each in request.groups:
        await _look_up_views(grouping, each.topics)
    groups = [_fetched(grouping, each, context, stable=stable) for each in request.groups]
    return {"groups": groups}


def _fetched(grouping: Grouping, asked: Any, context: Context, *, stable: bool) -> dict[str, Any]:
    group: str = asked.group_id
    by_id = context.version >= _BY_ID
    answer: dict[str, Any] = {"group_id": group, "topics": (), "error_code": ErrorCode.none}
    if not may_group(context.principal):
        return {**answer, "error_code": ErrorCode.group_authorization_failed}
    epoch = getattr(asked, "member_epoch", -1)
    if getattr(asked, "member_id", None) and epoch >= 0:
        known = grouping.groups.get(group)
        if known is not None and not isinstance(known, ClassicGroup):
            try:
                known.check_commit(asked.member_id, epoch, 0.0, is_new_enough=True)
            except Refused as refused:
                return {**answer, "error_code": code(refused)}
    unstable = grouping.offsets.unstable(group) if stable else frozenset()
    known_offsets = grouping.offsets.all_of(group)
    wanted: list[tuple[TopicState | None, dict[str, Any], list[int], ErrorCode]] = []
    if asked.topics is None:
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(known_offsets):
            by_topic.setdefault(name, []).append(index)
        for name, indexes in by_topic.items():
            topic = grouping.cluster.find(name)
            if topic is not None and may_see(context.principal, topic):
                wanted.append((topic, {"name": name, "topic_id": topic.uuid}, indexes, ErrorCode.none))
    else:
        for each in asked.topics:
            topic, missing = _find(grouping, each, context, by_id=by_id)
            # A topic that is not there was never committed to: that is no error of the group's.
            if missing is ErrorCode.unknown_topic_or_partition:
                missing = ErrorCode.none
            wanted.append((topic, _named(each, by_id=by_id), list(each.partition_indexes), missing))
    answer["topics"] = [
        {
            **named,
            "partitions": [_one(grouping, group, topic, index, missing, unstable=unstable) for index in indexes],
        }
        for topic, named, indexes, missing in wanted
    ]
    return answer


def _one(
    grouping: Grouping,
    group: str,
    topic: TopicState | None,
    index: int,
    missing: ErrorCode,
    *,
    unstable: frozenset[tuple[str, int]],
) -> Message:
    answer: dict[str, Any] = {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": missing,
    }
    if topic is None or missing:
        return answer
    if (topic.name, index) in unstable:
        # A transaction may yet move it: come again when it has ended.
        return {**answer, "error_code": ErrorCode.unstable_offset_commit}
    found = grouping.offsets.get(group, (topic.name, index))
    if found is not None:
        answer |= {
            "committed_offset": found.offset,
            "committed_leader_epoch": found.leader_epoch,
            "metadata": found.metadata,
        }
    return answer


async def _delete(grouping: Grouping, request: Any, context: Context) -> Message:
    group = grouping.groups.get(request.group_id)
    if not may_group(context.principal):
        return {"error_code": ErrorCode.group_authorization_failed, "topics": ()}
    if not grouping.groups.exists(request.group_id):
        return {"error_code": ErrorCode.group_id_not_found, "topics": ()}
    subscribed: frozenset[str] | None = frozenset()
    if isinstance(group, ClassicGroup):
        # What members of a classic group are subscribed to is in bytes of their own: all of it counts.
        subscribed = None if group.members else frozenset()
    elif group is not None:
        subscribed = frozenset(name for member in group.members.values() for name in member.topics)
    topics: list[Message] = []
    places: list[tuple[str, int]] = []
    for each in request.topics:
        is_taken = subscribed is None or each.name in subscribed
        topic = grouping.cluster.find(each.name)
        error = ErrorCode.group_subscribed_to_topic if is_taken else ErrorCode.none
        if topic is None or not may_see(context.principal, topic):
            error = ErrorCode.unknown_topic_or_partition
        topics.append(
            {
                "name": each.name,
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": error} for part in each.partitions
                ],
            }
        )
        if not error:
            places += [(each.name, part.partition_index) for part in each.partitions]
    try:
        await grouping.offsets.forget(request.group_id, places)
    except Refused as refused:
        return {"error_code": code(refused), "topics": ()}
    return {"error_code": ErrorCode.none, "topics": topics}
