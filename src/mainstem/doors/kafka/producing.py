"""Produce. The hot way in: a batch is checked, gets its offsets, and is the log's."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.doors.kafka.cluster import Cluster, may_write
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.errors import code_of
from mainstem.feeds.topics.partition import Accepted, Partition
from mainstem.feeds.topics.state import TopicState
from mainstem.model.errors import Invalid, MainstemError
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.messages import Message
from mainstem.wire.kafka.records import BatchHead, read_batch

# Raises a MainstemError where a producer may not write a batch of its transaction into a partition.
CheckTransaction = Callable[[BatchHead, Partition], None]


def _none_open(head: BatchHead, partition: Partition) -> None:
    raise Invalid("records of a transaction. expected=an open one got=none", reason="invalid")


def register(table: Table, cluster: Cluster, clock: Clock, check_transaction: CheckTransaction = _none_open) -> None:
    """Answer these APIs."""
    produce = partial(_produce, cluster, clock, check_transaction)
    table.add(0, "Produce", 3, 13, produce, pipelined=True)


async def _produce(
    cluster: Cluster, clock: Clock, check: CheckTransaction, request: Any, context: Context
) -> Message | None:
    acks: int = request.acks
    by_id = context.version >= 13
    now_ms = clock.now_ms()
    topics: list[dict[str, Any]] = []
    waiting: list[tuple[dict[str, Any], Accepted]] = []
    # All of it before the first await: requests of one connection are appended in the order in which they came.
    for each in request.topic_data:
        topic = cluster.topics.by_id(each.topic_id) if by_id else cluster.topics.get(each.name)
        answers: list[dict[str, Any]] = []
        for part in each.partition_data:
            answer, accepted = _append(cluster, check, topic, part, acks, now_ms, context, by_id=by_id)
            answers.append(answer)
            if accepted is not None:
                waiting.append((answer, accepted))
        topics.append(
            {
                "name": None if by_id else each.name,
                "topic_id": each.topic_id if by_id else None,
                "partition_responses": answers,
            }
        )
    if acks == 0:
        return None
    for answer, accepted in waiting:
        await _durable(answer, accepted)
    return {"responses": topics}


def _append(
    cluster: Cluster,
    check: CheckTransaction,
    topic: TopicState | None,
    part: Any,
    acks: int,
    now_ms: int,
    context: Context,
    *,
    by_id: bool,
) -> tuple[dict[str, Any], Accepted | None]:
    answer: dict[str, Any] = {"index": part.index, "error_code": ErrorCode.none, "base_offset": -1}
    partition: Partition | None = None
    if topic is not None:
        partition = cluster.topics.partition(topic, part.index)
    if topic is None or partition is None:
        unknown = ErrorCode.unknown_topic_id if by_id and topic is None else ErrorCode.unknown_topic_or_partition
        return {**answer, "error_code": unknown}, None
    if not may_write(context.principal, topic):
        return {**answer, "error_code": ErrorCode.topic_authorization_failed}, None
    if acks not in (0, 1, -1):
        return {**answer, "error_code": ErrorCode.invalid_required_acks}, None
    try:
        records = bytes(part.records or b"")
        head = read_batch(records)
        if head.is_control:
            raise Invalid("control records are the server's own", reason="invalid")
        if head.is_transactional:
            check(head, partition)
        accepted = partition.append(head, records, now_ms)
    except MainstemError as error:
        return _refused(answer, error), None
    answer["base_offset"] = accepted.base_offset
    answer["log_append_time"] = accepted.append_time_ms
    answer["log_start_offset"] = partition.start
    return answer, accepted


async def _durable(answer: dict[str, Any], accepted: Accepted) -> None:
    """Wait until a batch is durable. acks=1 waits as well: there is no other replica that could be behind."""
    if accepted.outcome is None:
        return
    if not accepted.outcome.done():
        await asyncio.wait([accepted.outcome])
    error = accepted.outcome.exception()
    if isinstance(error, MainstemError):
        answer |= _refused({**answer, "base_offset": -1}, error)
    elif error is not None:
        raise error


def _refused(answer: dict[str, Any], error: MainstemError) -> dict[str, Any]:
    return {**answer, "error_code": code_of(error), "error_message": str(error)}
