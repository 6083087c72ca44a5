"""Transactions: InitProducerId with a name, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn, and what
tools ask: DescribeTransactions, ListTransactions, DescribeProducers."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.admission import Principal, Role
from mainstem.doors.kafka.cluster import may_see, may_write
from mainstem.doors.kafka.committing import read_offsets
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.errors import code_of
from mainstem.doors.kafka.grouping import Grouping, may_enter
from mainstem.feeds.groups.matching import match
from mainstem.feeds.groups.modern_values import Topic
from mainstem.feeds.groups.offsets import Committer
from mainstem.feeds.groups.reasons import Refused as GroupRefused
from mainstem.feeds.topics.partition import Partition
from mainstem.feeds.transactions.coordinator import Transactions
from mainstem.feeds.transactions.section import PartitionKey, Transaction, TransactionsSection
from mainstem.feeds.transactions.states import Reason, Refused, State
from mainstem.model.errors import Invalid, MainstemError
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.messages import Message
from mainstem.wire.kafka.records import BatchHead

_MANY_TRANSACTIONS = 4
# From these versions on clients know the code for a producer that another one took the place of.
_KNOWS_FENCED = 2
_INIT_KNOWS_FENCED = 4
# Transactions of version 2 (KIP-890): from these versions on groups take part with their first offsets, and an end
# gives the producer its next epoch. That of Produce is in `joining`.
_OFFSETS_JOIN, _END_BUMPS = 5, 5


@dataclass(frozen=True, slots=True)
class Transacting:
    """What the handlers need."""

    grouping: Grouping
    transactions: Transactions
    section: TransactionsSection
    clock: Clock


def register(table: Table, transacting: Transacting) -> None:
    """Answer these APIs."""
    table.add(22, "InitProducerId", 0, 5, partial(_init, transacting))
    table.add(24, "AddPartitionsToTxn", 0, 5, partial(_add_partitions, transacting))
    table.add(25, "AddOffsetsToTxn", 0, 4, partial(_add_offsets, transacting))
    table.add(26, "EndTxn", 0, 5, partial(_end, transacting))
    table.add(28, "TxnOffsetCommit", 0, 5, partial(_commit_offsets, transacting))
    table.add(61, "DescribeProducers", 0, 0, partial(_describe_producers, transacting))
    table.add(65, "DescribeTransactions", 0, 0, partial(_describe, transacting))
    table.add(66, "ListTransactions", 0, 2, partial(_list, transacting))


def check_transaction(transactions: Transactions, head: BatchHead, partition: Partition) -> None:
    """Whether a batch belongs to an open transaction of its producer. Raises a MainstemError."""
    try:
        key = (partition.topic.id, partition.index)
        # What is on its way is held nowhere yet, and will be part of the transaction all the same.
        size, records = partition.under_way(head.producer_id)
        transactions.check_produce(head.producer_id, head.producer_epoch, key, size + head.size, records + head.records)
    except Refused as refused:
        if refused.reason is Reason.FENCED:
            # Where records are written a producer is told so in the older words, which all clients know.
            raise Invalid(str(refused), reason="fenced_epoch") from refused
        raise


def _may_transact(principal: Principal) -> bool:
    return principal.has(Role.WRITER)


def own_name(principal: Principal, name: str) -> str:
    """The name that a transactional id means. A principal bound to namespaces or tables has names of its own: with
    those of others it could fence their producers, and end what they have open."""
    return name if principal.is_unbounded else _prefix(principal) + name


def _prefix(principal: Principal) -> str:
    if principal.is_unbounded:
        return ""
    bounds = repr((principal.namespaces, principal.tables))
    return f"@{hashlib.blake2b(bounds.encode(), digest_size=8).hexdigest()}/"


def _code(error: MainstemError, *, knows_fenced: bool) -> ErrorCode:
    found = code_of(error)
    if found is ErrorCode.producer_fenced and not knows_fenced:
        return ErrorCode.invalid_producer_epoch
    return found


async def _init(transacting: Transacting, request: Any, context: Context) -> Message:
    name = request.transactional_id
    version = context.version
    nobody = {"producer_id": -1, "producer_epoch": -1}
    try:
        if not _may_transact(context.principal):
            refusal = (
                ErrorCode.transactional_id_authorization_failed if name else ErrorCode.cluster_authorization_failed
            )
            return {"error_code": refusal, **nobody}
        if name is None:
            producer_id, epoch = await transacting.grouping.cluster.topics.new_producer_id(), 0
        else:
            producer_id, epoch = await transacting.transactions.init(
                own_name(context.principal, name),
                int(request.transaction_timeout.total_seconds() * 1000),
                getattr(request, "producer_id", -1),
                getattr(request, "producer_epoch", -1),
            )
    except MainstemError as error:
        return {"error_code": _code(error, knows_fenced=version >= _INIT_KNOWS_FENCED), **nobody}
    return {
        "error_code": ErrorCode.none,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }


async def _add_partitions(transacting: Transacting, request: Any, context: Context) -> Message:
    version, principal = context.version, context.principal
    if version < _MANY_TRANSACTIONS:
        results = await _added(
            transacting,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
            principal,
            knows_fenced=version >= _KNOWS_FENCED,
        )
        return {"results_by_topic_v3_and_below": results}
    found: list[Message] = []
    for each in request.transactions:
        results = await _added(
            transacting,
            each.transactional_id,
            each.producer_id,
            each.producer_epoch,
            each.topics,
            principal,
            knows_fenced=True,
            only_looks=each.verify_only,
        )
        found.append({"transactional_id": each.transactional_id, "topic_results": results})
    return {"error_code": ErrorCode.none, "results_by_transaction": found}


async def _added(
    transacting: Transacting,
    name: str,
    producer_id: int,
    epoch: int,
    topics: Iterable[Any],
    principal: Principal,
    *,
    knows_fenced: bool,
    only_looks: bool = False,
) -> list[Message]:
    """All partitions take part, or none does."""
    keys: list[PartitionKey] = []
    codes: dict[tuple[str, int], ErrorCode] = {}
    for each in topics:
        topic = transacting.grouping.cluster.topics.get(each.name)
        for index in each.partitions:
            if topic is None or not 0 <= index < len(topic.partitions):
                codes[each.name, index] = ErrorCode.unknown_topic_or_partition
            elif not may_write(principal, topic):
                codes[each.name, index] = ErrorCode.topic_authorization_failed
            else:
                codes[each.name, index] = ErrorCode.none
                keys.append((topic.id, index))
    is_wrong = any(codes.values())
    error = ErrorCode.operation_not_attempted if is_wrong else ErrorCode.none
    if not _may_transact(principal):
        error = ErrorCode.transactional_id_authorization_failed
    elif not is_wrong:
        try:
            if only_looks:
                for key in keys:
                    transacting.transactions.check_produce(producer_id, epoch, key, 0)
            else:
                await transacting.transactions.add(own_name(principal, name), producer_id, epoch, partitions=keys)
        except MainstemError as refused:
            error = _code(refused, knows_fenced=knows_fenced)
    return [
        {
            "name": each.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": codes[each.name, index] or error}
                for index in each.partitions
            ],
        }
        for each in topics
    ]


async def _add_offsets(transacting: Transacting, request: Any, context: Context) -> Message:
    version = context.version
    error = ErrorCode.none
    if not _may_transact(context.principal):
        error = ErrorCode.transactional_id_authorization_failed
    elif not may_enter(transacting.grouping, context.principal, request.group_id):
        error = ErrorCode.group_authorization_failed
    else:
        try:
            name = own_name(context.principal, request.transactional_id)
            await transacting.transactions.add(
                name, request.producer_id, request.producer_epoch, groups=[request.group_id]
            )
        except MainstemError as refused:
            error = _code(refused, knows_fenced=version >= _KNOWS_FENCED)
    return {"error_code": error}


async def _commit_offsets(transacting: Transacting, request: Any, context: Context) -> Message:
    answers, good = read_offsets(transacting.grouping, request.group_id, request.topics, context, by_id=False)
    committer = Committer(
        group=request.group_id,
        member_id=getattr(request, "member_id", ""),
        generation=getattr(request, "generation_id", -1),
        instance_id=getattr(request, "group_instance_id", None),
    )
    error = ErrorCode.none
    joins = context.version >= _OFFSETS_JOIN
    if not _may_transact(context.principal):
        error = ErrorCode.transactional_id_authorization_failed
    elif not may_enter(transacting.grouping, context.principal, request.group_id):
        error = ErrorCode.group_authorization_failed
    else:
        try:
            name = own_name(context.principal, request.transactional_id)
            producer = (name, request.producer_id, request.producer_epoch)
            if joins:
                await transacting.transactions.add(*producer, groups=[request.group_id])
            transacting.transactions.check_offsets(*producer, request.group_id)
            offsets = [offset for offset, _ in good]
            await transacting.grouping.offsets.commit_later(committer, request.producer_id, offsets)
        except (Refused, GroupRefused) as refused:
            error = _code(refused, knows_fenced=False)
    for _, answer in good:
        answer["error_code"] = error
    return {"topics": answers}


async def _end(transacting: Transacting, request: Any, context: Context) -> Message:
    version = context.version
    error = ErrorCode.none
    producer_id, epoch = -1, -1
    if not _may_transact(context.principal):
        error = ErrorCode.transactional_id_authorization_failed
    else:
        try:
            producer_id, epoch = await transacting.transactions.end(
                own_name(context.principal, request.transactional_id),
                request.producer_id,
                request.producer_epoch,
                commits=request.committed,
                bumps=version >= _END_BUMPS,
            )
        except MainstemError as refused:
            error = _code(refused, knows_fenced=version >= _KNOWS_FENCED)
    return {"error_code": error, "producer_id": producer_id, "producer_epoch": epoch}


# What tools ask


def _sees(transacting: Transacting, principal: Principal, transaction: Transaction) -> bool:
    """Whether somebody may know of a transaction: it is one of its own, and every topic in it exists for it."""
    if not _may_transact(principal) or not transaction.name.startswith(_prefix(principal)):
        return False
    topics = transacting.grouping.cluster.topics.state.by_id
    found = [topics.get(bytes.fromhex(topic_id)) for topic_id, _ in transaction.partitions]
    return principal.is_unbounded or all(topic is not None and may_see(principal, topic) for topic in found)


async def _describe(transacting: Transacting, request: Any, context: Context) -> Message:
    states: list[Message] = []
    for name in request.transactional_ids:
        known = transacting.transactions.get(own_name(context.principal, name))
        if known is None or not _sees(transacting, context.principal, known):
            states.append(
                {
                    "error_code": ErrorCode.transactional_id_not_found,
                    "transactional_id": name,
                    "transaction_state": "",
                    "transaction_start_time": -1,
                }
            )
            continue
        topics: dict[str, list[int]] = {}
        by_id = transacting.grouping.cluster.topics.state.by_id
        for topic_id, index in known.partitions:
            topic = by_id.get(bytes.fromhex(topic_id))
            if topic is not None:
                topics.setdefault(topic.name, []).append(index)
        states.append(
            {
                "error_code": ErrorCode.none,
                "transactional_id": name,
                "transaction_state": str(known.state),
                "transaction_timeout": known.timeout_ms,
                "transaction_start_time": known.started_ms if known.state is State.ONGOING else -1,
                "producer_id": known.producer_id,
                "producer_epoch": known.epoch,
                "topics": [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()],
            }
        )
    return {"transaction_states": states}


async def _list(transacting: Transacting, request: Any, context: Context) -> Message:
    wanted = set(request.state_filters)
    producers = set(request.producer_id_filters)
    longer_ms = getattr(request, "duration_filter", -1)
    pattern = getattr(request, "transactional_id_pattern", None)
    now_ms = transacting.clock.now_ms()
    found = [
        each
        for each in transacting.transactions.all()
        if (not wanted or each.state in wanted)
        and (not producers or each.producer_id in producers)
        and (longer_ms < 0 or (each.state is State.ONGOING and now_ms - each.started_ms > longer_ms))
        and _sees(transacting, context.principal, each)
    ]
    prefix = _prefix(context.principal)
    if pattern:
        try:
            names = match(pattern, {each.name.removeprefix(prefix): Topic("", 0) for each in found})
        except GroupRefused as refused:
            return {"error_code": code_of(refused)}
        found = [each for each in found if each.name.removeprefix(prefix) in names]
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": sorted(wanted - set(map(str, State))),
        "transaction_states": [
            {
                "transactional_id": each.name.removeprefix(prefix),
                "producer_id": each.producer_id,
                "transaction_state": str(each.state),
            }
            for each in found
        ],
    }


async def _describe_producers(transacting: Transacting, request: Any, context: Context) -> Message:
    topics: list[Message] = []
    for each in request.topics:
        topic = transacting.grouping.cluster.topics.get(each.name)
        is_seen = topic is not None and may_see(context.principal, topic)
        parts: list[Message] = []
        for index in each.partition_indexes:
            if topic is None or not is_seen or not 0 <= index < len(topic.partitions):
                parts.append({"partition_index": index, "error_code": ErrorCode.unknown_topic_or_partition})
                continue
            part = transacting.section.parts.get((topic.id, index))
            firsts = {} if part is None else part.firsts
            parts.append(
                {
                    "partition_index": index,
                    "error_code": ErrorCode.none,
                    "active_producers": [
                        {
                            "producer_id": producer_id,
                            "producer_epoch": producer.epoch,
                            "last_sequence": producer.batches[-1].last_sequence if producer.batches else -1,
                            "last_timestamp": producer.batches[-1].timestamp if producer.batches else -1,
                            "coordinator_epoch": 0,
                            "current_txn_start_offset": firsts.get(producer_id, -1),
                        }
                        for producer_id, producer in topic.partitions[index].producers.items()
                    ],
                }
            )
        topics.append({"name": each.name, "partitions": parts})
    return {"topics": topics}
