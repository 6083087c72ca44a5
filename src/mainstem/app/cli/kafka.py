"""`mainstem topics` and `mainstem groups`: what the Kafka door has, as tables or JSON."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import rich_click as click

from mainstem.app.cli.options import json_option
from mainstem.app.cli.views import View, print_json, show, tell
from mainstem.client import kafka
from mainstem.client.kafka import KafkaClient, check
from mainstem.model import Invalid, MainstemError, NotFound

P = ParamSpec("P")
_SIMPLE = -1


def _options(command: Callable[Concatenate[KafkaClient, P], None]) -> Callable[..., None]:
    """What every command takes: where to ask, and as whom. It gets the connection first."""

    @click.option(
        "--bootstrap",
        envvar="MAINSTEM_BOOTSTRAP",
        default="127.0.0.1:9092",
        show_default=True,
        help="The Kafka door, host:port; or MAINSTEM_BOOTSTRAP.",
    )
    @click.option("--token", envvar="MAINSTEM_TOKEN", help="A bearer token or user:password, where one is asked for.")
    @click.option("--tls", is_flag=True, help="The door has a certificate.")
    @wraps(command)
    def run(bootstrap: str, token: str | None, tls: bool, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with KafkaClient(bootstrap, token=token, tls=tls) as client:
                command(client, *args, **kwargs)
        except MainstemError as error:
            raise click.ClickException(str(error)) from error

    return run


def _show(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    view = View(*columns)
    for row in rows:
        view.add(*("-" if row[name] is None else row[name] for name in columns))
    show(view)


@click.group()
def topics() -> None:
    """Topics of the Kafka door: list, describe, create, delete."""


@topics.command("list")
@json_option
@_options
def list_topics(client: KafkaClient, as_json: bool) -> None:
    """Show every topic with its number of partitions and records."""
    rows = []
    for topic in sorted(_metadata(client, None), key=lambda each: each.name):
        parts = _ends(client, topic)
        records = sum(last - first for first, last in parts.values())
        rows.append({"topic": topic.name, "partitions": len(parts), "records": records})
    _show(rows, ("topic", "partitions", "records"), as_json=as_json)


@topics.command("describe")
@click.argument("topic")
@json_option
@_options
def describe_topic(client: KafkaClient, topic: str, as_json: bool) -> None:
    """Show the partitions of TOPIC with their first and next offsets."""
    (found,) = _metadata(client, [topic])
    rows = [
        {"partition": index, "first": first, "next": last, "records": last - first}
        for index, (first, last) in sorted(_ends(client, found).items())
    ]
    _show(rows, ("partition", "first", "next", "records"), as_json=as_json)


@topics.command("create")
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option("--config", "config", multiple=True, metavar="NAME=VALUE", help="A setting of the topic; again for more.")
@json_option
@_options
def create_topic(client: KafkaClient, topic: str, partitions: int, config: tuple[str, ...], as_json: bool) -> None:
    """Make TOPIC."""
    settings = [each.partition("=") for each in config]
    wanted = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": name, "value": value} for name, _, value in settings],
    }
    (answer,) = client.ask(kafka.CREATE_TOPICS, {"topics": [wanted], "timeout": 10_000}).topics
    check(answer.error_code, answer.error_message or topic)
    tell(f"made {topic}", {"topic": topic, "made": True}, as_json=as_json)


@topics.command("delete")
@click.argument("topic")
@click.confirmation_option(prompt="Its table stays, its offsets are gone. Delete it?")
@json_option
@_options
def delete_topic(client: KafkaClient, topic: str, as_json: bool) -> None:
    """Delete TOPIC. Its table stays, as the lake's."""
    (answer,) = client.ask(kafka.DELETE_TOPICS, {"topics": [{"name": topic}], "timeout": 10_000}).responses
    check(answer.error_code, topic)
    tell(f"deleted {topic}", {"topic": topic, "deleted": True}, as_json=as_json)


@click.group()
def groups() -> None:
    """Consumer groups of the Kafka door: list, describe, delete, reset offsets."""


@groups.command("list")
@json_option
@_options
def list_groups(client: KafkaClient, as_json: bool) -> None:
    """Show every group with its state and its lag."""
    answer = client.ask(kafka.LIST_GROUPS, {})
    check(answer.error_code, "groups")
    rows = []
    for each in answer.groups:
        lag = sum(row["lag"] or 0 for row in _offsets(client, each.group_id))
        rows.append({"group": each.group_id, "protocol": each.group_type, "state": each.group_state, "lag": lag})
    _show(rows, ("group", "protocol", "state", "lag"), as_json=as_json)


@groups.command("describe")
@click.argument("group")
@json_option
@_options
def describe_group(client: KafkaClient, group: str, as_json: bool) -> None:
    """Show how far GROUP is in each partition."""
    rows = _offsets(client, group)
    if not rows and group not in {each.group_id for each in client.ask(kafka.LIST_GROUPS, {}).groups}:
        raise NotFound(f"no such group: {group}")
    _show(rows, ("topic", "partition", "offset", "next", "lag", "metadata"), as_json=as_json)


@groups.command("delete")
@click.argument("group")
@click.confirmation_option(prompt="Its offsets are gone then. Delete it?")
@json_option
@_options
def delete_group(client: KafkaClient, group: str, as_json: bool) -> None:
    """Delete GROUP. It must have no members."""
    (answer,) = client.ask(kafka.DELETE_GROUPS, {"groups_names": [group]}).results
    check(answer.error_code, group)
    tell(f"deleted {group}", {"group": group, "deleted": True}, as_json=as_json)


@groups.command("reset")
@click.argument("group")
@click.option("--topic", required=True, help="The topic whose offsets are set.")
@click.option("--to", "target", default="earliest", show_default=True, metavar="earliest|latest|OFFSET")
@json_option
@_options
def reset_group(client: KafkaClient, group: str, topic: str, target: str, as_json: bool) -> None:
    """Set the offsets of GROUP for every partition of a topic. The group must have no members."""
    (found,) = _metadata(client, [topic])
    rows = []
    for index, (first, last) in sorted(_ends(client, found).items()):
        if target not in ("earliest", "latest") and not target.isdecimal():
            raise Invalid(f"--to. expected=earliest, latest or an offset got={target}")
        wanted = {"earliest": first, "latest": last}.get(target)
        rows.append({"partition": index, "offset": min(max(int(target), first), last) if wanted is None else wanted})
    parts = [
        {"partition_index": row["partition"], "committed_offset": row["offset"], "committed_leader_epoch": -1}
        for row in rows
    ]
    request = {
        "group_id": group,
        "generation_id_or_member_epoch": _SIMPLE,
        "member_id": "",
        "topics": [{"name": topic, "partitions": parts}],
    }
    answer = client.ask(kafka.OFFSET_COMMIT, request)
    for each in answer.topics[0].partitions:
        check(each.error_code, f"{group} (is somebody in it?)")
    _show(rows, ("partition", "offset"), as_json=as_json)


def _metadata(client: KafkaClient, names: list[str] | None) -> list[Any]:
    wanted = None if names is None else [{"name": name} for name in names]
    answer = client.ask(kafka.METADATA, {"topics": wanted, "allow_auto_topic_creation": False})
    for topic in answer.topics:
        check(topic.error_code, topic.name)
    return list(answer.topics)


def _ends(client: KafkaClient, topic: Any) -> dict[int, tuple[int, int]]:
    """The first and the next offset of each partition."""
    found: list[dict[int, int]] = []
    for moment in (kafka.EARLIEST, kafka.LATEST):
        parts = [
            {"partition_index": each.partition_index, "current_leader_epoch": -1, "timestamp": moment}
            for each in topic.partitions
        ]
        request = {"replica_id": -1, "topics": [{"name": topic.name, "partitions": parts}]}
        (answer,) = client.ask(kafka.LIST_OFFSETS, request).topics
        found.append({each.partition_index: each.offset for each in answer.partitions})
    return {index: (found[0][index], found[1][index]) for index in found[0]}


def _offsets(client: KafkaClient, group: str) -> list[dict[str, Any]]:
    (answer,) = client.ask(kafka.OFFSET_FETCH, {"groups": [{"group_id": group, "topics": None}]}).groups
    check(answer.error_code, group)
    rows: list[dict[str, Any]] = []
    for topic in answer.topics:
        (known,) = _metadata(client, [topic.name])
        ends = _ends(client, known)
        for part in sorted(topic.partitions, key=lambda each: each.partition_index):
            last = ends.get(part.partition_index, (0, None))[1]
            rows.append(
                {
                    "topic": topic.name,
                    "partition": part.partition_index,
                    "offset": part.committed_offset,
                    "next": last,
                    "lag": None if last is None else max(0, last - part.committed_offset),
                    "metadata": part.metadata or None,
                }
            )
    return rows
