"""`mainstem migrate` on a real Apache Kafka: killed, run twice, run by two, and taken back."""

import asyncio
import itertools
import random
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from mainstem.app.cli.main import main
from mainstem.app.config import Config, LogConfig
from mainstem.app.folder.backing_up import back_up, restore
from mainstem.app.folder.moving import Plan, bring_back, migrate
from mainstem.app.kafkalog import kafka_settings
from mainstem.catalog import NewTable
from mainstem.catalog.settings import CatalogSettings
from mainstem.log import Log
from mainstem.log.kafka import broker as clients
from mainstem.log.kafka.journal import KafkaJournal
from mainstem.log.kafka.moved import ASIDE, read_moved
from mainstem.log.kafka.moving import Found, Moving
from mainstem.log.kafka.records import Beat, encode_note
from mainstem.model.errors import Conflict, Corrupt, Invalid
from mainstem.model.position import Lineage, LogPosition
from mainstem.runtime.clock import SystemClock
from tests.contract.catalog_client import SCHEMA
from tests.faults.test_kafka_log import judge
from tests.harness.apachekafka import ApacheKafka
from tests.harness.inprocess import CONFIG, gateway_on_socket
from tests.harness.seeds import soak_seed
from tests.unit.log.log_fixtures import Diary, InlineSealer, batch, event, quiet

_names = itertools.count()
KILLS = 10

# Ends by SIGKILL just before it runs a line of the move's for the first time, or says which lines it ran.
RUN = """
import os, signal, sys
from pathlib import Path
import msgspec
from mainstem.app.config import Config
from mainstem.app.folder import moving
from mainstem.log.kafka import moving as _
data, config, at = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Config), sys.argv[3]
seen = {}

def line(frame, event, _):
    if event == "line":
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if place == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen[place] = None
    return line

def trace(frame, event, _):
    return line if frame.f_code.co_filename.endswith(("moving.py", "moved.py", "leaving.py")) else None

sys.settrace(trace)
moving.migrate(data, config, lambda *_: None)
sys.settrace(None)
print(*seen, sep="\\n")
"""


def new_config(broker: ApacheKafka, prefix: str = "") -> Config:
    log = LogConfig(kind="kafka", bootstrap_servers=broker.bootstrap, topic_prefix=prefix or f"move{next(_names)}")
    return Config(log=log)


def move(data: Path, config: Config, *, is_dry_run: bool = False) -> Plan:
    return migrate(data, config, lambda *_: None, is_dry_run=is_dry_run)


async def fill(data: Path, batches: int = 40) -> dict[int, tuple[int, int]]:
    """A log with segments, files of frames and a companion behind both, as a kill leaves it; what was acknowledged."""
    settings = quiet(data / "scratch", file_changes=15)
    log = await Log.open(settings, companion=Diary(), sealer=InlineSealer())
    acknowledged: dict[int, tuple[int, int]] = {}
    for number in range(batches):
        count = number % 3 + 1
        placed = await log.append(batch(number, [event(number * 10 + i) for i in range(count)]))
        acknowledged[number] = (placed.first, count)
        if number == batches // 4:
            await log.flush()
            await log._keep()
        elif number == batches // 2:
            await log.flush()
    # Segments that are being made come and go meanwhile: a start begins them anew.
    shutil.copytree(data / "scratch", data / "log", ignore=shutil.ignore_patterns(".scratch"))
    await log.close()
    shutil.rmtree(data / "scratch")
    newest = max((data / "log" / "wal").iterdir())
    newest.write_bytes(newest.read_bytes() + b"torn")
    return acknowledged


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


async def embedded(folder: Path) -> tuple[Diary, Log]:
    log = await Log.open(quiet(folder), companion=(diary := Diary()), sealer=InlineSealer())
    return diary, log


async def on_kafka(folder: Path, config: Config) -> tuple[Diary, Log]:
    journal = KafkaJournal(kafka_settings(config))
    log = await Log.open(quiet(folder), companion=(diary := Diary()), sealer=InlineSealer(), journal=journal)
    return diary, log


async def test_all_of_it_is_there_under_a_new_name_and_goes_on(tmp_path: Path, broker: ApacheKafka) -> None:
    data, config = tmp_path / "data", new_config(broker)
    acknowledged = await fill(data)
    before = files(data / "log")
    dry = await asyncio.to_thread(move, data, config, is_dry_run=True)
    assert dry.leaving is not None and dry.leaving.torn is not None and dry.leaving.torn.bytes == 4
    assert not clients.has_topic(kafka_settings(config))
    assert before.items() <= files(data / "log").items()
    plan = await asyncio.to_thread(move, data, config)
    assert plan.records > len(acknowledged) - 15
    # As it was, but elsewhere.
    kept = files(data / "log" / ASIDE)
    assert kept.keys() == {path for path in before if path.name != "lock"}
    assert all(before[path] == content for path, content in kept.items())
    with pytest.raises(Invalid, match=r"was moved to topic"):
        await embedded(data / "log")
    with pytest.raises(Conflict, match="before"):
        await asyncio.to_thread(move, data, config)
    # On another machine, and here; twice, as the first one may have forgotten what it read.
    await judge(tmp_path / "elsewhere", kafka_settings(config), acknowledged)
    diary, log = await on_kafka(data / "log", config)
    last = max(first + count - 1 for first, count in acknowledged.values())
    assert log.durable == last and log.lineage.spans[-1].first == last + 1
    assert (await log.append(batch(1_000))).first == last + 1
    await log.close()
    assert len(diary.seen) == len(acknowledged) + 1
    seen = await judge(data / "log", kafka_settings(config), acknowledged | {1_000: (last + 1, 1)})
    assert len(seen.seen) == len(acknowledged) + 1


def run(data: Path, config: Config, at: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", RUN, str(data), msgspec.json.encode(config).decode(), at]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.timeout(900)
async def test_killed_at_any_line_it_goes_on(tmp_path: Path, broker: ApacheKafka) -> None:
    acknowledged = await fill(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "whole")
    told = await asyncio.to_thread(run, tmp_path / "whole", new_config(broker), "")
    assert told.returncode == 0, told.stderr
    lines = told.stdout.split()
    assert len(lines) > 100
    chance = random.Random(soak_seed())
    for number, line in enumerate(chance.sample(lines, KILLS)):
        data, config = tmp_path / str(number), new_config(broker)
        shutil.copytree(tmp_path / "data", data)
        killed = await asyncio.to_thread(run, data, config, line)
        assert killed.returncode == -9, (line, killed.stderr)
        # Until it is there no server takes it, neither here nor there.
        moved = read_moved(data / "log")
        if moved is not None and moved.state == "moving":
            with pytest.raises(Invalid, match="on its way"):
                await embedded(data / "log")
            with pytest.raises(Invalid, match="on its way"):
                await on_kafka(data / "log", config)
        if moved is None or moved.state != "moved":
            again = await asyncio.to_thread(run, data, config, "")
            assert again.returncode == 0, (line, again.stderr)
        await judge(tmp_path / f"judge{number}", kafka_settings(config), acknowledged)
        await judge(data / "log", kafka_settings(config), acknowledged)


async def test_a_part_of_a_log_is_no_log_wherever_it_is_served(tmp_path: Path, broker: ApacheKafka) -> None:
    """And a gateway that begins while it is moved ends the move, without a loss."""
    data, config = tmp_path / "data", new_config(broker)
    acknowledged = await fill(data)
    asked: list[str] = []

    def interfere(what: str, done: int, total: int) -> None:
        if what == "reading it again" and not asked:
            asked.append(what)
            with pytest.raises(Invalid, match="not all of it is there"):
                KafkaJournal(kafka_settings(config)).open(settings)

    settings = quiet(tmp_path / "elsewhere")
    for folder in (settings.wal_folder, settings.segments_folder, settings.scratch_folder):
        folder.mkdir(parents=True)
    with pytest.raises(Conflict, match="somebody else wrote"):
        await asyncio.to_thread(migrate, data, config, interfere)
    assert (await asyncio.to_thread(move, data, config)).found.value == "a part"
    await judge(tmp_path / "judge", kafka_settings(config), acknowledged)


async def test_what_is_refused_and_left_alone(tmp_path: Path, broker: ApacheKafka) -> None:
    data, config = tmp_path / "data", new_config(broker)
    await fill(data)
    before = files(data)
    taken = new_config(broker)
    _, other = await on_kafka(tmp_path / "other", taken)
    await other.append(batch(1))
    # Also while its owner lives, which goes on.
    for is_dry_run in (True, False):
        with pytest.raises(Conflict, match="has another log"):
            await asyncio.to_thread(move, data, taken, is_dry_run=is_dry_run)
    await other.append(batch(2))
    await other.close()
    with pytest.raises(Invalid, match="configuration"):
        await asyncio.to_thread(move, data, Config())
    with pytest.raises(Invalid, match="no data folder"):
        await asyncio.to_thread(move, tmp_path / "nothing", config)
    with pytest.raises(Invalid, match="no log was moved"):
        await asyncio.to_thread(bring_back, data, config, lambda *_: None)
    _, log = await embedded(tmp_path / "open" / "log")
    with pytest.raises(Conflict, match="open in another process"):
        await asyncio.to_thread(move, tmp_path / "open", config)
    await log.close()
    assert {path: content for path, content in files(data).items() if path.name != "lock"} == {
        path: content for path, content in before.items() if path.name != "lock"
    }
    newest = max((data / "log" / "wal").iterdir(), key=lambda path: path.stat().st_size)
    newest.write_bytes(newest.read_bytes()[:100] + b"x" + newest.read_bytes()[101:])
    with pytest.raises(Corrupt):
        await asyncio.to_thread(move, data, config)
    assert not clients.has_topic(kafka_settings(config))
    with pytest.raises(Invalid, match="of a log on Kafka"):
        await asyncio.to_thread(move, _as_data(tmp_path / "other"), config)


def _as_data(folder: Path) -> Path:
    """A folder of a log as that of a data folder."""
    data = folder.with_name(f"{folder.name}-data")
    data.mkdir()
    folder.rename(data / "log")
    return data


async def test_tables_of_the_folders_own_catalog_are_not_left_behind(tmp_path: Path, broker: ApacheKafka) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=CONFIG) as (gateway, _):
        gateway.catalog.create_namespace(("default",), {})
        gateway.catalog.create_table(("default",), "t", NewTable(SCHEMA))
    config = new_config(broker)
    elsewhere = msgspec.structs.replace(config, catalog=CatalogSettings(postgres="postgresql://nowhere/x"))
    with pytest.raises(Invalid, match="own catalog"):
        await asyncio.to_thread(move, tmp_path, elsewhere)
    await asyncio.to_thread(move, tmp_path, config)


async def test_a_backup_that_was_restored_twice_becomes_two_logs(tmp_path: Path, broker: ApacheKafka) -> None:
    await fill(tmp_path / "data")
    await asyncio.to_thread(back_up, tmp_path / "data", tmp_path / "backup", SystemClock())
    lineages: list[Lineage] = []
    configs = [new_config(broker), new_config(broker)]
    for number, config in enumerate(configs):
        await asyncio.to_thread(restore, tmp_path / "backup", tmp_path / str(number))
        await asyncio.to_thread(move, tmp_path / str(number), config)
        _, log = await on_kafka(tmp_path / str(number) / "log", config)
        lineages.append(log.lineage)
        assert (await log.append(batch(1_000))).first == lineages[0].spans[-1].first
        await log.close()
    assert lineages[0].spans[:-1] == lineages[1].spans[:-1] and lineages[0].log != lineages[1].log
    # The folder of one is not taken for one of the other.
    with pytest.raises(Invalid, match="made from another log"):
        await on_kafka(tmp_path / "0" / "log", configs[1])
    # Nor does the one's place become the other's.
    await asyncio.to_thread(restore, tmp_path / "backup", tmp_path / "2")
    with pytest.raises(Conflict, match="has another log"):
        await asyncio.to_thread(move, tmp_path / "2", configs[0])


async def test_two_that_move_copies_to_one_topic_do_not_both_succeed(tmp_path: Path, broker: ApacheKafka) -> None:
    acknowledged = await fill(tmp_path / "0")
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    config = new_config(broker)
    ends = await asyncio.gather(
        *(asyncio.to_thread(move, tmp_path / str(number), config) for number in range(2)), return_exceptions=True
    )
    for _ in range(5):
        if not all(isinstance(end, BaseException) for end in ends):
            break
        # Each ended the other's.
        with suppress(Conflict):
            ends = [await asyncio.to_thread(move, tmp_path / "0", config)]
    assert sum(isinstance(end, Plan) for end in ends) == 1, ends
    assert all(isinstance(end, Plan | Conflict) for end in ends), ends
    await judge(tmp_path / "judge", kafka_settings(config), acknowledged)


async def test_a_claim_behind_the_last_note_does_not_undo_a_move(
    tmp_path: Path, broker: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged = await fill(tmp_path / "0")
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    config = new_config(broker)
    finish = Moving.finish
    late: list[Conflict] = []

    def finish_beside_a_claim(topic: Moving, last: LogPosition) -> None:
        release = topic.release

        def release_late() -> None:
            # The other one claims between our `Moved` and our `Release`.
            rival = Moving(kafka_settings(config), topic._lineage, lambda why: None)
            with pytest.raises(Conflict, match="has ours by now") as refused:
                rival.claim((Found.NOTHING, Found.A_PART))
            late.append(refused.value)
            rival.close()
            release()

        topic.release = release_late  # type: ignore[method-assign]
        finish(topic, last)

    with monkeypatch.context() as patched:
        patched.setattr(Moving, "finish", finish_beside_a_claim)
        plan = await asyncio.to_thread(move, tmp_path / "0", config)
    assert plan.records > 0 and len(late) == 1
    with pytest.raises(Conflict, match="has another log"):
        await asyncio.to_thread(move, tmp_path / "1", config)
    await judge(tmp_path / "judge", kafka_settings(config), acknowledged)


async def test_a_late_record_of_an_ended_term_does_not_undo_a_move(
    tmp_path: Path, broker: ApacheKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged = await fill(tmp_path / "0")
    config = new_config(broker)
    settings = kafka_settings(config)
    finish = Moving.finish
    late: list[list[int] | None] = []

    def rivalled_claim(topic: Moving, expected: tuple[Found, ...]) -> None:
        # The other one claims before us, and writes once more when all but our `Moved` is written.
        rival = Moving(settings, topic._lineage, lambda why: None)
        claim(rival, expected)

        def finish_behind_it(topic: Moving, last: LogPosition) -> None:
            assert rival._sender is not None
            late.append(rival._sender.send([encode_note(Beat())], lambda: False, lambda why: None))
            rival.close()
            finish(topic, last)

        patched.setattr(Moving, "finish", finish_behind_it)
        claim(topic, expected)

    claim = Moving.claim
    with monkeypatch.context() as patched:
        patched.setattr(Moving, "claim", rivalled_claim)
        plan = await asyncio.to_thread(move, tmp_path / "0", config)
    assert plan.records > 0 and len(late) == 1 and late[0] is not None
    await judge(tmp_path / "judge", settings, acknowledged)


async def test_it_comes_back_until_something_new_was_taken(tmp_path: Path, broker: ApacheKafka) -> None:
    data, config = tmp_path / "data", new_config(broker)
    acknowledged = await fill(data)
    plan = await asyncio.to_thread(move, data, config)
    # Served, and sealed by the gateway on Kafka; nothing is taken.
    _, log = await on_kafka(data / "log", config)
    await log.flush()
    await log.close()
    await asyncio.to_thread(bring_back, data, config, lambda *_: None)
    with pytest.raises(Invalid, match="not all of it is there"):
        await on_kafka(tmp_path / "late", config)
    diary, log = await embedded(data / "log")
    assert {sequence: (first, count) for _, sequence, first, count in diary.seen} == acknowledged
    assert plan.moved.spans[-1][0] not in {span.log for span in log.lineage.spans}
    placed = await log.append(batch(1_000))
    await log.close()
    # And there again, with what came meanwhile.
    await asyncio.to_thread(move, data, config)
    diary, log = await on_kafka(data / "log", config)
    assert log.durable == placed.last
    await log.append(batch(1_001))
    await log.close()
    with pytest.raises(Conflict, match="has taken changes"):
        await asyncio.to_thread(bring_back, data, config, lambda *_: None)
    await judge(data / "log", kafka_settings(config), acknowledged | {1_000: (placed.first, 1)})


def test_the_command_says_what_it_did(tmp_path: Path, broker: ApacheKafka) -> None:
    asyncio.run(fill(tmp_path / "data"))
    config = new_config(broker)
    (tmp_path / "new.toml").write_bytes(msgspec.toml.encode(msgspec.to_builtins(config)))
    words = ["migrate", "--data", str(tmp_path / "data"), "--config", str(tmp_path / "new.toml")]
    dry = CliRunner().invoke(main, [*words, "--dry-run"])
    assert dry.exit_code == 0 and "would go" in dry.output and "torn tail of 4 bytes" in dry.output, dry.output
    told = CliRunner().invoke(main, [*words, "--json"])
    facts = msgspec.json.decode(told.stdout)
    assert told.exit_code == 0 and facts["records"] and facts["topic"] == f"{config.log.topic_prefix}.log", told.output
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 1 and "before" in again.output
    back = CliRunner().invoke(main, [*words, "--back"])
    assert back.exit_code == 0 and "again" in back.output
