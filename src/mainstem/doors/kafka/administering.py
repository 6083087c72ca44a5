"""Topics and their settings: made, changed, looked at and deleted."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.doors.kafka.cluster import Cluster, may_see, may_write, table_of
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.doors.kafka.errors import code_of
from mainstem.feeds.topics.config import SETTINGS, check_config
from mainstem.feeds.topics.state import TopicState
from mainstem.model.errors import Denied, Invalid, MainstemError, NotFound
from mainstem.wire.kafka.messages import Message

BROKER, TOPIC = 4, 2
# Where a setting's value is from, as DescribeConfigs numbers it.
_OF_TOPIC, _OF_SERVER, _DEFAULT = 1, 4, 5
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
# The settings of a topic from those that it has and what a request says of them.
_Change = Callable[[Mapping[str, str], Any], dict[str, str]]


def register(table: Table, cluster: Cluster) -> None:
    """Answer these APIs."""
    table.add(19, "CreateTopics", 2, 7, partial(_create_topics, cluster))
    table.add(20, "DeleteTopics", 1, 6, partial(_delete_topics, cluster))
    table.add(21, "DeleteRecords", 0, 2, partial(_delete_records, cluster))
    table.add(32, "DescribeConfigs", 1, 4, partial(_describe_configs, cluster))
    table.add(33, "AlterConfigs", 0, 2, partial(_alter_configs, cluster, lambda _, wanted: _whole(wanted)))
    table.add(35, "DescribeLogDirs", 1, 4, partial(_describe_log_dirs, cluster))
    table.add(37, "CreatePartitions", 0, 3, partial(_create_partitions, cluster))
    table.add(44, "IncrementalAlterConfigs", 0, 1, partial(_alter_configs, cluster, _altered))
    table.add(46, "ListPartitionReassignments", 0, 0, _no_reassignments)


def _answer(error: MainstemError | None) -> dict[str, Any]:
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": code_of(error), "error_message": str(error)}


async def _create_topics(cluster: Cluster, request: Any, context: Context) -> Message:
    names = [each.name for each in request.topics]
    topics: list[Message] = []
    for each in request.topics:
        answer: dict[str, Any] = {"name": each.name, "num_partitions": -1, "replication_factor": -1, "configs": ()}
        try:
            if names.count(each.name) > 1:
                raise Invalid(f"a topic stands twice in the request. got={each.name!r:.80}", reason="invalid_request")
            made = await _created(cluster, each, context, validate_only=request.validate_only)
            answer |= _answer(None)
            config = {setting.name: setting.value for setting in each.configs if setting.value is not None}
            answer["num_partitions"], answer["replication_factor"] = _partitions_of(cluster, each), 1
            answer["configs"] = [_setting(cluster, config, name) for name in SETTINGS]
            if made is not None:
                answer["topic_id"] = made.uuid
        except MainstemError as error:
            answer |= _answer(error)
        topics.append(answer)
    return {"topics": topics}


async def _created(cluster: Cluster, wanted: Any, context: Context, *, validate_only: bool) -> TopicState | None:
    config = {each.name: each.value for each in wanted.configs if each.value is not None}
    # First: who may not make a topic is not told whether it is there.
    context.principal.check_write([cluster.topics.table_for(wanted.name)])
    if wanted.assignments and any(tuple(each.broker_ids) != (cluster.node_id,) for each in wanted.assignments):
        raise Invalid(f"replicas. expected=broker {cluster.node_id} alone", reason="invalid_assignment")
    if not wanted.assignments and wanted.replication_factor not in (-1, 1):
        raise Invalid(
            f"replication factor. expected=1 or -1 got={wanted.replication_factor}", reason="invalid_replication"
        )
    if cluster.views.is_view(wanted.name):
        raise Invalid(f"the name is one of a table's changes. got={wanted.name}", reason="invalid_topic")
    partitions = _partitions_of(cluster, wanted)
    cluster.topics.check_new(wanted.name, partitions, config)
    return None if validate_only else await cluster.topics.create(wanted.name, partitions, config)


def _partitions_of(cluster: Cluster, wanted: Any) -> int:
    if wanted.assignments:
        return len(wanted.assignments)
    return int(cluster.topics.settings.partitions if wanted.num_partitions == -1 else wanted.num_partitions)


async def _delete_topics(cluster: Cluster, request: Any, context: Context) -> Message:
    wanted = [(each.name, each.topic_id) for each in getattr(request, "topics", ())]
    wanted += [(name, None) for name in getattr(request, "topic_names", ())]
    answers: list[Message] = []
    for name, topic_id in wanted:
        topic = cluster.topics.get(name) if name is not None else cluster.topics.by_id(topic_id)
        answer: dict[str, Any] = {"name": name, "topic_id": topic_id, **_answer(None)}
        if topic is None:
            unknown = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
            answer["error_code"] = unknown
        else:
            answer |= {"name": topic.name, "topic_id": topic.uuid}
            try:
                context.principal.check_write([table_of(topic)])
                await cluster.topics.delete(topic.name)
            except MainstemError as error:
                answer |= _answer(error)
        answers.append(answer)
    return {"responses": answers}


async def _create_partitions(cluster: Cluster, request: Any, context: Context) -> Message:
    results: list[Message] = []
    for each in request.topics:
        try:
            topic = _topic(cluster, each.name, context, writes=True)
            if not request.validate_only:
                await cluster.topics.grow(topic.name, each.count)
            elif each.count <= len(topic.partitions):
                raise Invalid(
                    f"partitions. expected=more than {len(topic.partitions)} got={each.count}",
                    reason="invalid_partitions",
                )
            results.append({"name": each.name, **_answer(None)})
        except MainstemError as error:
            results.append({"name": each.name, **_answer(error)})
    return {"results": results}


async def _delete_records(cluster: Cluster, request: Any, context: Context) -> Message:
    topics: list[Message] = []
    for each in request.topics:
        parts: list[Message] = []
        for part in each.partitions:
            answer: dict[str, Any] = {
                "partition_index": part.partition_index,
                "low_watermark": -1,
                "error_code": ErrorCode.none,
            }
            try:
                topic = _topic(cluster, each.name, context, writes=True)
                if not 0 <= part.partition_index < len(topic.partitions):
                    raise NotFound(f"no such partition. got={part.partition_index}")
                state = topic.partitions[part.partition_index]
                await cluster.topics.cut(topic, part.partition_index, state.end if part.offset == -1 else part.offset)
                answer["low_watermark"] = state.start
            except MainstemError as error:
                answer["error_code"] = code_of(error)
            parts.append(answer)
        topics.append({"name": each.name, "partitions": parts})
    return {"topics": topics}


def _topic(cluster: Cluster, name: str, context: Context, *, writes: bool) -> TopicState:
    topic = cluster.topics.get(name)
    if topic is None or not may_see(context.principal, topic):
        raise NotFound(f"no such topic. got={name!r:.80}")
    if writes and not may_write(context.principal, topic):
        raise Denied(f"the topic is not yours to change. got={name}")
    return topic


async def _describe_configs(cluster: Cluster, request: Any, context: Context) -> Message:
    results: list[Message] = []
    for each in request.resources:
        result: dict[str, Any] = {
            "resource_type": each.resource_type,
            "resource_name": each.resource_name,
            "configs": (),
            **_answer(None),
        }
        try:
            if each.resource_type == TOPIC:
                topic = cluster.topics.get(each.resource_name) or await cluster.views.get(each.resource_name)
                if topic is None or not may_see(context.principal, topic):
                    raise NotFound(f"no such topic. got={each.resource_name!r:.80}")
                wanted = each.configuration_keys
                names = [name for name in SETTINGS if wanted is None or name in wanted]
                documented = getattr(request, "include_documentation", False)
                result["configs"] = [_setting(cluster, topic.config, name, documented=documented) for name in names]
            elif each.resource_type == BROKER:
                if each.resource_name not in ("", str(cluster.node_id)):
                    raise Invalid(f"broker. expected={cluster.node_id} got={each.resource_name!r:.20}")
                result["configs"] = _broker_configs(cluster)
            else:
                raise Invalid(f"kind of resource. expected={TOPIC} or {BROKER} got={each.resource_type}")
        except MainstemError as error:
            result |= _answer(error)
        results.append(result)
    return {"results": results}


def _setting(cluster: Cluster, config: Mapping[str, str], name: str, *, documented: bool = False) -> Message:
    setting = SETTINGS[name]
    of_server = cluster.topics.settings.config
    source = _OF_TOPIC if name in config else _OF_SERVER if name in of_server else _DEFAULT
    return {
        "name": name,
        "value": config.get(name, of_server.get(name, setting.default)),
        "read_only": False,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": (),
        "config_type": setting.kind,
        "documentation": setting.text if documented else None,
    }


def _broker_configs(cluster: Cluster) -> list[Message]:
    told = {
        "broker.id": str(cluster.node_id),
        "node.id": str(cluster.node_id),
        "num.partitions": str(cluster.topics.settings.partitions),
        "default.replication.factor": "1",
        "auto.create.topics.enable": str(cluster.auto_create).lower(),
        "transaction.state.log.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
    }
    return [
        {
            "name": name,
            "value": value,
            "read_only": True,
            "config_source": _OF_SERVER,
            "is_sensitive": False,
            "synonyms": (),
            "config_type": 2,
        }
        for name, value in told.items()
    ]


async def _alter_configs(cluster: Cluster, change: _Change, request: Any, context: Context) -> Message:
    responses: list[Message] = []
    for each in request.resources:
        response: dict[str, Any] = {"resource_type": each.resource_type, "resource_name": each.resource_name}
        try:
            if each.resource_type != TOPIC:
                raise Invalid(f"kind of resource. expected={TOPIC} got={each.resource_type}")
            topic = _topic(cluster, each.resource_name, context, writes=True)
            config = change(topic.config, each.configs)
            check_config(config)
            if not request.validate_only:
                await cluster.topics.configure(topic.name, config)
            response |= _answer(None)
        except MainstemError as error:
            response |= _answer(error)
        responses.append(response)
    return {"responses": responses}


def _whole(wanted: Any) -> dict[str, str]:
    """The older way to change settings: those that are not named go back to their defaults."""
    if any(each.value is None for each in wanted):
        raise Invalid("topic settings. expected=values got=none", reason="invalid_config")
    return {each.name: each.value for each in wanted}


def _altered(config: Mapping[str, str], changes: Any) -> dict[str, str]:
    altered = dict(config)
    for each in changes:
        if each.config_operation == _DELETE:
            altered.pop(each.name, None)
            continue
        if each.value is None:
            raise Invalid(f"topic setting {each.name}. expected=a value got=none", reason="invalid_config")
        if each.config_operation == _SET:
            altered[each.name] = each.value
        elif each.name in SETTINGS and each.config_operation in (_APPEND, _SUBTRACT):
            words = [word for word in altered.get(each.name, SETTINGS[each.name].default).split(",") if word]
            named = each.value.split(",")
            words = [word for word in words if word not in named]
            altered[each.name] = ",".join(words + named if each.config_operation == _APPEND else words)
        else:
            raise Invalid(f"topic setting {each.name!r:.80}. expected=one that there is", reason="invalid_config")
    return altered


async def _describe_log_dirs(cluster: Cluster, request: Any, context: Context) -> Message:
    """One folder with everything that somebody may see. Sizes are of the batches as they came, without those that are
    past their retention: what tools for Kafka show as the size of a topic."""
    wanted = None if request.topics is None else {each.topic: set(each.partitions) for each in request.topics}
    topics: list[Message] = []
    for topic in list(cluster.topics.state.topics.values()):
        if may_see(context.principal, topic) and (wanted is None or topic.name in wanted):
            numbers = range(len(topic.partitions)) if wanted is None else sorted(wanted[topic.name])
            parts = [_size(topic, number) for number in numbers if 0 <= number < len(topic.partitions)]
            topics.append({"name": topic.name, "partitions": parts})
    return {"results": [{"error_code": ErrorCode.none, "log_dir": "/mainstem", "topics": topics}]}


def _size(topic: TopicState, number: int) -> Message:
    state = topic.partitions[number]
    kept = state.bytes * (state.end - state.start) // max(1, state.end)
    return {"partition_index": number, "partition_size": kept, "offset_lag": 0, "is_future_key": False}


async def _no_reassignments(request: Any, context: Context) -> Message:
    """There is one replica, and nowhere for it to go."""
    return {"error_code": ErrorCode.none, "topics": ()}
