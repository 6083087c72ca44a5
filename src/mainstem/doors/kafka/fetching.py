"""Fetch, ListOffsets and OffsetForLeaderEpoch: the ways out."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.doors.kafka.cluster import Cluster, may_see
from mainstem.doors.kafka.dispatch import Context, Encoded, Table
from mainstem.doors.kafka.errors import code_of
from mainstem.feeds.topics.partition import LEADER_EPOCH, Partition
from mainstem.feeds.topics.reading import Reader
from mainstem.feeds.topics.state import TopicState
from mainstem.feeds.topics.views import View
from mainstem.model.errors import MainstemError
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.fetched import BY_ID, FetchedPartition, FetchedTopic, encode_fetched
from mainstem.wire.kafka.messages import Message

# The most that one answer holds and one request waits, whatever it asks for.
FETCH_BYTES_MAX = 55 * 1024 * 1024
WAIT_S_MAX = 60.0
READ_COMMITTED = 1
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -2, -1, -3, -4, -5


@dataclass(frozen=True, slots=True)
class Fetching:
    """What the handlers need."""

    cluster: Cluster
    reader: Reader
    clock: Clock


def register(table: Table, fetching: Fetching) -> None:
    """Answer these APIs."""
    table.add(1, "Fetch", 4, 18, partial(_fetch, fetching))
    table.add(2, "ListOffsets", 1, 10, partial(_list_offsets, fetching))
    table.add(23, "OffsetForLeaderEpoch", 2, 4, partial(_offset_for_leader_epoch, fetching))


@dataclass(slots=True)
class _Wanted:
    """One partition of a fetch."""

    index: int
    offset: int
    bytes_max: int
    partition: Partition | View | None
    error: ErrorCode


async def _fetch(fetching: Fetching, request: Any, context: Context) -> Encoded:
    # Of the connection's current request only until the first await.
    version = context.version
    if getattr(request, "session_id", 0):
        # We never began one: the client then asks for everything each time.
        return Encoded(encode_fetched(version, (), error_code=ErrorCode.fetch_session_id_not_found))
    by_id = version >= BY_ID
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    groups: list[tuple[Any, list[_Wanted]]] = []
    for each in request.topics:
        cluster = fetching.cluster
        if by_id:
            topic = cluster.topics.by_id(each.topic_id) or cluster.views.by_id(each.topic_id)
        else:
            topic = cluster.topics.get(each.topic) or await cluster.views.get(each.topic)
        named = each.topic_id if by_id else each.topic
        groups.append((named, [_wanted(cluster, topic, part, context, by_id=by_id) for part in each.partitions]))
    every = [wanted for _, parts in groups for wanted in parts]
    bytes_max = min(getattr(request, "max_bytes", FETCH_BYTES_MAX), FETCH_BYTES_MAX)
    wait_s = min(request.max_wait.total_seconds(), WAIT_S_MAX)
    if not any(wanted.error for wanted in every):
        await _wait_for(every, min(request.min_bytes, bytes_max), wait_s, committed=committed)
    answers: list[FetchedTopic] = []
    room = bytes_max
    for named, parts in groups:
        partitions = []
        for wanted in parts:
            answer = await _read(fetching, wanted, room, committed=committed)
            room -= sum(map(len, answer.batches))
            partitions.append(answer)
        answers.append(FetchedTopic(named, partitions))
    return Encoded(encode_fetched(version, answers))


def _wanted(cluster: Cluster, topic: TopicState | None, part: Any, context: Context, *, by_id: bool) -> _Wanted:
    partition = None
    error = ErrorCode.none
    if topic is None:
        error = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    elif not may_see(context.principal, topic):
        error = ErrorCode.topic_authorization_failed
    else:
        partition = cluster.topics.partition(topic, part.partition) or cluster.views.partition(topic, part.partition)
        if partition is None:
            error = ErrorCode.unknown_topic_or_partition
        else:
            error = _epoch_error(getattr(part, "current_leader_epoch", -1))
            if not error and not partition.start <= part.fetch_offset <= partition.end:
                error = ErrorCode.offset_out_of_range
    return _Wanted(part.partition, part.fetch_offset, part.partition_max_bytes, partition, error)


def _epoch_error(epoch: int) -> ErrorCode:
    if epoch > LEADER_EPOCH:
        return ErrorCode.unknown_leader_epoch
    return ErrorCode.fenced_leader_epoch if -1 < epoch < LEADER_EPOCH else ErrorCode.none


async def _wait_for(every: list[_Wanted], min_bytes: int, wait_s: float, *, committed: bool) -> None:
    """Wait until there is enough to read, at most so long."""
    partitions = [(wanted.partition, wanted) for wanted in every if wanted.partition is not None]

    def is_enough() -> bool:
        found = 0
        for partition, wanted in partitions:
            end = partition.stable() if committed else partition.end
            if wanted.offset < end:
                found += partition.bytes_from(wanted.offset, min_bytes)
            elif wanted.offset < partition.start:
                return True
            if found >= min_bytes:
                return True
        return found >= min_bytes

    if wait_s <= 0 or is_enough():
        return
    arrived = asyncio.Event()
    ends = [partition.listen(arrived.set) for partition, _ in partitions]
    try:
        async with asyncio.timeout(wait_s):
            while not is_enough():
                arrived.clear()
                await arrived.wait()
    except TimeoutError:
        pass
    finally:
        for end in ends:
            end()


async def _read(fetching: Fetching, wanted: _Wanted, room: int, *, committed: bool) -> FetchedPartition:
    partition = wanted.partition
    if partition is None:
        return FetchedPartition(wanted.index, wanted.error)
    end, stable = partition.end, partition.stable()
    answer = FetchedPartition(wanted.index, wanted.error, end, stable, partition.start)
    before = stable if committed else end
    if wanted.error or wanted.offset >= before or room <= 0:
        return answer
    try:
        batches = await fetching.reader.read(partition, wanted.offset, min(wanted.bytes_max, room), before=before)
        aborted = fetching.reader.aborted(partition, wanted.offset, batches) if committed else None
    except MainstemError as error:
        return answer._replace(error_code=code_of(error))
    return answer._replace(batches=batches, aborted=aborted)


async def _list_offsets(fetching: Fetching, request: Any, context: Context) -> Message:
    committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    topics: list[Message] = []
    for each in request.topics:
        cluster = fetching.cluster
        topic = cluster.topics.get(each.name) or await cluster.views.get(each.name)
        parts: list[Message] = []
        for part in each.partitions:
            wanted = _wanted_for_listing(cluster, topic, part, context)
            answer: dict[str, Any] = {
                "partition_index": part.partition_index,
                "error_code": wanted if isinstance(wanted, ErrorCode) else ErrorCode.none,
                "timestamp": -1,
                "offset": -1,
                "leader_epoch": -1,
            }
            if not isinstance(wanted, ErrorCode):
                try:
                    answer |= await _listed(fetching, wanted, part.timestamp, committed=committed)
                except MainstemError as error:
                    answer["error_code"] = code_of(error)
            parts.append(answer)
        topics.append({"name": each.name, "partitions": parts})
    return {"topics": topics}


def _wanted_for_listing(
    cluster: Cluster, topic: TopicState | None, part: Any, context: Context
) -> Partition | View | ErrorCode:
    if topic is None:
        return ErrorCode.unknown_topic_or_partition
    if not may_see(context.principal, topic):
        return ErrorCode.topic_authorization_failed
    partition = cluster.topics.partition(topic, part.partition_index) or cluster.views.partition(
        topic, part.partition_index
    )
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    return _epoch_error(getattr(part, "current_leader_epoch", -1)) or partition


async def _listed(
    fetching: Fetching, partition: Partition | View, timestamp: int, *, committed: bool
) -> dict[str, Any]:
    end = partition.stable() if committed else partition.end
    if timestamp == LATEST:
        return {"offset": end, "leader_epoch": LEADER_EPOCH}
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return {"offset": partition.start, "leader_epoch": LEADER_EPOCH}
    if timestamp == LATEST_TIERED:
        return {"offset": -1}
    if timestamp == MAX_TIMESTAMP:
        found = await fetching.reader.newest(partition)
    else:
        found = await fetching.reader.first_at(partition, timestamp, before=end)
    if found is None:
        return {}
    return {"offset": found.offset, "timestamp": found.timestamp, "leader_epoch": LEADER_EPOCH}


async def _offset_for_leader_epoch(fetching: Fetching, request: Any, context: Context) -> Message:
    topics: list[Message] = []
    for each in request.topics:
        cluster = fetching.cluster
        topic = cluster.topics.get(each.topic) or await cluster.views.get(each.topic)
        parts: list[Message] = []
        for part in each.partitions:
            partition = (
                None
                if topic is None
                else (cluster.topics.partition(topic, part.partition) or cluster.views.partition(topic, part.partition))
            )
            if topic is None or partition is None or not may_see(context.principal, topic):
                error = ErrorCode.unknown_topic_or_partition
            else:
                error = _epoch_error(part.current_leader_epoch)
            is_known = partition is not None and not error and part.leader_epoch >= LEADER_EPOCH
            parts.append(
                {
                    "error_code": error,
                    "partition": part.partition,
                    "leader_epoch": LEADER_EPOCH if is_known else -1,
                    "end_offset": partition.end if partition is not None and is_known else -1,
                }
            )
        topics.append({"topic": each.topic, "partitions": parts})
    return {"topics": topics}
