"""`mainstem migrate`: the log of a data folder goes into a topic of Apache Kafka, and back while that loses nothing.

A crash at any line leaves one of these, and the next run goes on from it:

1. Nothing is said yet: the folder is as it was.
2. `moved.json` says `moving`: no server takes the folder. What is in the topic is void until its `Moved` is there, and
   is put there anew; once that is there, only the folder is left to do.
3. `moved`: the old log's files are in `log/embedded`. What else comes into `log` a gateway on Kafka makes of the topic.

The log goes on at the next position under a new identity: nobody who has a copy of the folder, from a backup or a disk
that was put back, can ever issue positions of the same name.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from mainstem.app.config import Config
from mainstem.app.folder.home import hold
from mainstem.app.folder.vouching import TRIES_MAX, logs_of
from mainstem.app.kafkalog import kafka_settings
from mainstem.app.spark.objectstore import delta_tables, segments_url
from mainstem.catalog import SqliteStore
from mainstem.catalog.settings import catalog_path, open_store
from mainstem.catalog.stores.store import Kind
from mainstem.feeds.cursors import is_told_apart
from mainstem.log import lineage as lineages
from mainstem.log.kafka.moved import ASIDE, MOVED_FILE, MovedLog, read_moved, write_moved
from mainstem.log.kafka.port import DERIVED_FILE, Derived, read_derived
from mainstem.log.leaving import Leaving, records_of, survey
from mainstem.model import Conflict, Corrupt, Invalid, LogId
from mainstem.runtime import durable

if TYPE_CHECKING:
    from mainstem.log.kafka.moving import Found, Moving

# What of it is done, how far that is, and of how much.
Told = Callable[[str, int, int], None]


class Plan(NamedTuple):
    """What a move does, or did."""

    moved: MovedLog
    # What of it the topic had before.
    found: "Found"
    # None where all of it is there, and the folder's files are being put aside.
    leaving: Leaving | None
    # Where segments go; None: into the topic.
    segments_url: str | None
    # So many records were put there, and read again.
    records: int = 0


def migrate(data: Path, config: Config, told: Told, *, is_dry_run: bool = False) -> Plan:
    """Move the log of a data folder whose server is stopped. Raises Conflict while one runs, or where the topic is
    another log's."""
    data = data.absolute()
    folder = _check(data, config)
    lock = hold(data)
    try:
        moved = _check_state(folder, config)
        if moved is not None and moved.state != "moving":
            how = f"was moved to topic {moved.topic} before" if moved.state == "moved" else "is on its way back"
            raise Conflict(f"the log of this folder {how}. got={folder}")
        leaving = None if (folder / ASIDE).exists() else asyncio.run(survey(folder))
        if moved is None:
            assert leaving is not None
            moved = _decided(leaving, config, data)
        with _topic_of(moved, config, told) as topic:
            found = topic.look()
            _check_topic(found, moved, leaving)
            plan = Plan(moved, found, leaving, segments_url(config.catalog, LogId(moved.spans[-1][0])))
            if is_dry_run:
                return plan
            topic.prepare()
            write_moved(folder, moved)
            plan = plan._replace(records=_put(topic, plan, config, told))
        _put_aside(folder, moved)
    finally:
        lock.release()
    return plan


def bring_back(data: Path, config: Config, told: Told) -> MovedLog:
    """Take the log out of the topic again. Raises Conflict where it has taken a change there."""
    from mainstem.log.kafka.moving import Found, move_of

    data = data.absolute()
    folder = _check(data, config)
    lock = hold(data)
    try:
        moved = _check_state(folder, config)
        if moved is None:
            raise Invalid(f"no log was moved from this folder. got={folder}")
        with _topic_of(moved, config, told) as topic:
            found = topic.look()
            if found is Found.OURS:
                topic.void(move_of(moved.spans, moved.last))
            elif moved.state == "moved" and found is not Found.A_PART:
                raise Conflict(f"topic {moved.topic} has {found.value}: what this log took there cannot be told")
        write_moved(folder, msgspec.structs.replace(moved, state="back"))
        _put_back(folder)
    finally:
        lock.release()
    return moved


# Before


def _check(data: Path, config: Config) -> Path:
    """The folder of the log, where the configuration can be one to move to."""
    folder = data / "log"
    if config.log.kind != "kafka":
        raise Invalid(
            'give the configuration that the server is to have afterwards. expected=[log] kind = "kafka" got=embedded'
        )
    if not folder.is_dir():
        raise Invalid(f"no data folder. got={data}")
    if config.catalog.postgres and catalog_path(data).exists() and _has_tables(data):
        raise Invalid(
            "the tables of this folder are in its own catalog, and only the log is moved. "
            "expected=the catalog that the server had got=[catalog] postgres"
        )
    return folder


def _has_tables(data: Path) -> bool:
    store = SqliteStore(catalog_path(data))
    try:
        return any(any(True for _ in store.entries(None, kind)) for kind in Kind)
    finally:
        store.close()


def _check_state(folder: Path, config: Config) -> MovedLog | None:
    """What was done before."""
    moved, topic = read_moved(folder), kafka_settings(config).topic
    if moved is None and (derived := read_derived(folder)) is not None:
        raise Invalid(f"this folder is of a log on Kafka. got=topic {derived.topic}")
    if moved is not None and moved.topic != topic:
        raise Invalid(
            f"this folder's log goes to another topic. expected={moved.topic} at {moved.bootstrap_servers} got={topic}"
        )
    return moved


def _decided(leaving: Leaving, config: Config, data: Path) -> MovedLog:
    """Under which name it goes on: one that is told apart from all that the tables know."""
    known = {span.log for span in leaving.lineage.spans}
    if config.catalog.postgres or config.catalog.uri or catalog_path(data).exists():
        store = open_store(config.catalog, data)
        try:
            known |= logs_of(store, partial(delta_tables, config.catalog, data))
        finally:
            store.close()
    lineage = lineages.renew(leaving.lineage, leaving.last)
    for _ in range(TRIES_MAX):
        if is_told_apart(lineage.log, known):
            break
        lineage = lineages.renew(leaving.lineage, leaving.last)
    return MovedLog(
        state="moving",
        topic=kafka_settings(config).topic,
        bootstrap_servers=config.log.bootstrap_servers,
        spans=[(span.log, span.first) for span in lineage.spans],
        last=leaving.last,
    )


def _check_topic(found: "Found", moved: MovedLog, leaving: Leaving | None) -> None:
    if found.name == "OTHERS":
        raise Conflict(f"topic {moved.topic} has another log. Choose another [log] topic_prefix, or another cluster.")
    if found.name != "OURS" and leaving is None:
        raise Conflict(f"topic {moved.topic} does not have the log that was moved there. got={found.value}")


# The topic


@contextmanager
def _topic_of(moved: MovedLog, config: Config, told: Told) -> "Iterator[Moving]":
    # Here and below, not above: it needs a client for Kafka, and `kafka_settings` says so where there is none.
    settings = kafka_settings(config)
    from mainstem.log.kafka.moving import Moving
    from mainstem.log.kafka.records import lineage_of

    topic = Moving(settings, lineage_of(moved.spans), lambda why: told(f"waits: {why}", 0, 0))
    try:
        yield topic
    finally:
        topic.close()


def _put(topic: "Moving", plan: Plan, config: Config, told: Told) -> int:
    """Write everything, read it again, and only then say that it is there; the number of records."""
    from mainstem.log.kafka.moving import Found
    from mainstem.log.kafka.records import lineage_of

    leaving, location = plan.leaving, plan.segments_url
    if plan.found is Found.OURS or leaving is None:
        return 0
    if location is not None:
        _put_segments(leaving, location, config.catalog.io, told)
    lineage, with_segments = lineage_of(plan.moved.spans), location is None
    total = leaving.bytes(with_segments=with_segments)
    topic.claim((Found.NOTHING, Found.A_PART))
    values = records_of(leaving, lineage, with_segments=with_segments)
    count = topic.put(values, _counting(told, "writing", total))
    again = records_of(leaving, lineage, with_segments=with_segments)
    topic.verify(again, count, leaving.last, _counting(told, "reading it again", total))
    topic.finish(leaving.last)
    return count


def _put_segments(leaving: Leaving, location: str, io: Mapping[str, str], told: Told) -> None:
    """Into the store, where gateways on Kafka look for them: each in one step, and read again."""
    from mainstem.pipeline.passes import stores

    segments = [*leaving.segments, *leaving.planned]
    count = _counting(told, "putting segments into the store", sum(one.bytes for one in segments))
    for one in segments:
        target = f"{location}/{one.path.name}"
        stores.put_file(one.path, target, io)
        if stores.read_file(target, io) != one.path.read_bytes():
            raise Corrupt("a segment is not as it was written", place=target)
        count(one.bytes)


def _counting(told: Told, what: str, total: int) -> Callable[[int], None]:
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done = min(done + size, total)
        told(what, done, total)

    return count


# The folder


def _files_of_the_log(folder: Path) -> list[Path]:
    """A log's own files, and not what is beside them in any case."""
    names = ("wal", "segments", lineages.FILE)
    return [path for path in sorted(folder.iterdir()) if path.name in names or path.name.startswith("companion-")]


def _put_aside(folder: Path, moved: MovedLog) -> None:
    """The old log's files go out of the way, as they are; whatever else comes is made of the topic."""
    aside = folder / ASIDE
    aside.mkdir(exist_ok=True)
    for path in _files_of_the_log(folder):
        if (aside / path.name).exists():
            # Ours is there since an earlier run. A server that was refused meanwhile made an empty one.
            path.rmdir()
        else:
            path.rename(aside / path.name)
    durable.sync(aside)
    durable.sync(folder)
    derived = Derived(moved.topic, [log for log, _ in moved.spans])
    durable.replace(folder / DERIVED_FILE, msgspec.json.encode(derived))
    write_moved(folder, msgspec.structs.replace(moved, state="moved"))


def _put_back(folder: Path) -> None:
    """What was made of the topic goes, then the old log's files come back, and then nothing was ever moved."""
    if (folder / DERIVED_FILE).exists():
        for path in _files_of_the_log(folder):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        (folder / DERIVED_FILE).unlink()
        durable.sync(folder)
    if (aside := folder / ASIDE).exists():
        for path in sorted(aside.iterdir()):
            path.rename(folder / path.name)
        aside.rmdir()
    durable.sync(folder)
    (folder / MOVED_FILE).unlink()
    durable.sync(folder)
