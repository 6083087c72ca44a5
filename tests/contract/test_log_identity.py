"""A position belongs to a log: what tables say of another log, or of a log that is gone, is never taken for ours."""

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstem.app.config import Config
from mainstem.app.gateway import Gateway
from mainstem.app.serve import _supervise
from mainstem.catalog import Commit, GenericTable, NewTable, TableIdent
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import CdcClient, insert
from mainstem.client.delta import DeltaTable
from mainstem.feeds.cursors import is_told_apart
from mainstem.formats.delta.storage import LocalStorage
from mainstem.model import LogId, LogPosition
from mainstem.pipeline.settings import PipelineSettings
from mainstem.tables.layout import delta_path
from mainstem.tables.marks import position_mark
from tests.contract.catalog_client import SCHEMA, new_database
from tests.harness.inprocess import CONFIG, gateway_on_socket
from tests.harness.seeds import soak_seeds

TABLES = [TableIdent(("default",), name) for name in ("orders_history", "orders")]


def commit(gateway: Gateway, log: LogId, position: int) -> None:
    """As a pipeline does: a snapshot with its own log's mark, the marks of other logs carried forward."""
    if ("default",) not in gateway.catalog.list_namespaces(()):
        gateway.catalog.create_namespace(("default",), {})
    for ident in TABLES:
        if not gateway.catalog.table_exists(ident):
            gateway.catalog.create_table(ident.namespace, ident.name, NewTable(SCHEMA))
        document = gateway.catalog.load_table(ident).stored.document
        number = len(document["snapshots"]) + 1
        marks = {**gateway.catalog.marks(ident.table_name), log: position}
        summary = {position_mark(each): str(at) for each, at in marks.items()}
        snapshot = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 1_800_000_000_000 + number,
            "manifest-list": f"{document['location']}/metadata/snap.avro",
            "summary": {"operation": "append", **summary},
            "schema-id": 0,
        } | ({"parent-snapshot-id": number - 1} if number > 1 else {})
        updates: list[dict[str, Any]] = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
        ]
        gateway.catalog.commit_table(Commit(ident, [], updates))


async def send(url: str, count: int, source: str) -> int:
    """Send so many changes; the position of the last one."""
    async with CdcClient(url, source=source) as client:
        receipt = await client.send([insert("orders", f"{source}-{n}", {"n": n}) for n in range(count)])
        _, last = (await receipt.durable()).positions or (0, 0)
    return last


async def is_complete(gateway: Gateway) -> bool:
    return (await gateway.flush(0.05)).complete


async def test_another_logs_mark_does_not_make_our_changes_persisted(tmp_path: Path) -> None:
    catalog = CatalogSettings(postgres=new_database(), warehouse=str(tmp_path / "warehouse"))
    config = msgspec.structs.replace(CONFIG, catalog=catalog)
    async with (
        gateway_on_socket(tmp_path / "one", gateway_config=config) as (one, one_url),
        gateway_on_socket(tmp_path / "two", gateway_config=config) as (two, two_url),
    ):
        assert one.lineage.log != two.lineage.log
        assert await send(one_url, 200, "a") == 200
        commit(one, one.lineage.log, 200)
        assert await is_complete(one)
        # The second begins at 1. Its 100 changes are in no table, though both tables have a mark of 200.
        assert await send(two_url, 100, "b") == 100
        assert not await is_complete(two)
        assert two.carried.watermark == 0 and two.status().tables["default.orders"].covered == 0
        commit(two, two.lineage.log, 100)
        assert (await two.flush(60)).complete
        assert two.carried.watermark == 100
        # And the first one's is as it was.
        assert await is_complete(one) and one.carried.watermark == 200
        assert one.catalog.marks(TABLES[1].table_name) == {one.lineage.log: 200, two.lineage.log: 100}


async def test_a_lost_log_begins_anew_and_its_changes_are_not_taken_for_old_ones(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (gateway, url):
        await send(url, 50, "a")
        old = gateway.lineage.log
        commit(gateway, old, 50)
        assert await is_complete(gateway)
    shutil.rmtree(tmp_path / "log")
    async with gateway_on_socket(tmp_path) as (gateway, url):
        assert old not in {span.log for span in gateway.lineage.spans}
        assert await send(url, 10, "b") == 10
        assert not await is_complete(gateway)
        commit(gateway, gateway.lineage.log, 10)
        assert (await gateway.flush(60)).complete


async def test_a_log_that_the_tables_are_ahead_of_goes_on_as_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk of the log was rolled back to position 30; the tables have 50 of it."""
    async with gateway_on_socket(tmp_path) as (gateway, url):
        await send(url, 30, "a")
        old = gateway.lineage
        commit(gateway, old.log, 50)
    async with gateway_on_socket(tmp_path) as (gateway, url):
        assert gateway.lineage.spans[:-1] == old.spans
        assert gateway.lineage.spans[-1].first == 31 and gateway.lineage.log != old.log
        assert any("goes on as the log" in record.getMessage() for record in caplog.records)
        # What the table has of the old log beyond 30 says nothing of what comes now.
        assert await send(url, 10, "b") == 40
        assert not await is_complete(gateway)
        assert gateway.carried.watermark <= 30
        commit(gateway, gateway.lineage.log, 40)
        assert (await gateway.flush(60)).complete
        renewed = gateway.lineage
    async with gateway_on_socket(tmp_path) as (gateway, _):
        assert gateway.lineage == renewed


async def test_a_new_log_takes_no_identity_whose_cursors_pass_for_a_known_logs(tmp_path: Path) -> None:
    """Cursors have twelve bits for it: a log that was lost, or another gateway's, has the same one time in 4,095."""
    async with gateway_on_socket(tmp_path) as (gateway, _):
        first = gateway.lineage.log
        other = next(
            log
            for log in (LogId(f"{n:016x}") for n in range(10**6))
            if log != first and not is_told_apart(first, [log])
        )
        commit(gateway, other, 50)
    async with gateway_on_socket(tmp_path) as (gateway, url):
        assert gateway.lineage.log != first and is_told_apart(gateway.lineage.log, [other])
        assert await send(url, 3, "a") == 3
        kept = gateway.lineage
    async with gateway_on_socket(tmp_path) as (gateway, _):
        assert gateway.lineage == kept


async def test_a_log_begins_where_every_cursor_passes_for_another_logs(tmp_path: Path) -> None:
    """More logs than cursors can tell apart: somebody made them up. The server starts all the same."""
    async with gateway_on_socket(tmp_path) as (gateway, _):
        commit(gateway, gateway.lineage.log, 9)
        others = {f"{position_mark(LogId(f'{n:016x}'))}": "1" for n in range(2 * 4_096)}
        table = GenericTable("others", "delta", str(tmp_path / "others"), properties=others)
        gateway.catalog.generic.create(("default",), table)
    async with gateway_on_socket(tmp_path) as (gateway, url):
        assert await send(url, 3, "a") == 3


async def test_a_delta_table_ahead_of_the_log_counts_as_well(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (gateway, url):
        await send(url, 3, "a")
        old = gateway.lineage.log
        gateway.catalog.create_namespace(("default",), {})
        storage = LocalStorage(tmp_path / "delta")
        path = delta_path(TABLES[1].table_name)
        table = DeltaTable(storage, path)
        table.write([{"n": 1}], transaction=(position_mark(old), 9))
        gateway.catalog.generic.create(("default",), GenericTable("orders", "delta", storage.uri(path)))
    async with gateway_on_socket(tmp_path) as (gateway, _):
        assert gateway.lineage.log != old
        renewed = gateway.lineage
    async with gateway_on_socket(tmp_path) as (gateway, _):
        assert gateway.lineage == renewed


async def test_the_pipeline_is_told_the_lineage(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path) as (gateway, _):
        lineage = gateway.lineage
    seen = tmp_path / "pipeline" / "checkpoints" / "another-log"
    seen.mkdir(parents=True)
    _supervise(Config(), tmp_path, "http://127.0.0.1:1", "t", lineage)
    document = msgspec.json.decode((tmp_path / "pipeline" / "settings.json").read_bytes())
    # For the process itself, before it makes its settings.
    assert document.pop("logging") is not None and document.pop("maven_mirror") == ""
    settings = PipelineSettings.from_document({**document, "jars": []})
    assert settings.lineage == lineage
    # What the stream has seen of another log would hide segments of the same names.
    assert settings.checkpoint_dir.name == lineage.log and not seen.exists()


class World:
    """Two gateways over one catalog, and what must be in its tables. The pipeline is played by `carry`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        catalog = CatalogSettings(postgres=new_database(), warehouse=str(folder / "warehouse"))
        self.config = msgspec.structs.replace(CONFIG, catalog=catalog)
        # The keys of what stands at each position of a folder's log, and of its backup.
        self.logs: dict[str, dict[int, str]] = {"one": {}, "two": {}}
        self.backups: dict[str, dict[int, str]] = {}
        self.stored: set[str] = set()

    def lose(self, name: str) -> None:
        shutil.rmtree(self.folder / name / "log", ignore_errors=True)
        self.logs[name] = {}

    def back_up(self, name: str) -> None:
        if (self.folder / name / "log").exists():
            shutil.rmtree(self.folder / f"{name}.bak", ignore_errors=True)
            shutil.copytree(self.folder / name / "log", self.folder / f"{name}.bak")
            self.backups[name] = dict(self.logs[name])

    def restore(self, name: str) -> None:
        if name in self.backups:
            self.lose(name)
            shutil.copytree(self.folder / f"{name}.bak", self.folder / name / "log")
            self.logs[name] = dict(self.backups[name])

    async def write(self, name: str, url: str, source: str, count: int) -> None:
        last = await send(url, count, source)
        keys = [f"{source}-{n}" for n in range(count)]
        self.logs[name] |= dict(zip(range(last - count + 1, last + 1), keys, strict=True))

    def check(self, name: str, gateway: Gateway) -> int:
        """Nothing counts as covered that is in no table."""
        covered = gateway.lineage.covered(gateway.catalog.marks(TABLES[1].table_name))
        assert gateway.carried.watermark <= covered
        claimed = {key for position, key in self.logs[name].items() if position <= covered}
        assert claimed <= self.stored, "told persisted, and in no table"
        return covered

    def carry(self, name: str, gateway: Gateway) -> None:
        covered, last = self.check(name, gateway), max(self.logs[name], default=0)
        if covered < last:
            self.stored |= {key for position, key in self.logs[name].items() if position > covered}
            commit(gateway, gateway.lineage.log_at(LogPosition(last)), last)


async def _random_lives(folder: Path, seed: int, steps: int) -> None:
    """Gateways over one catalog that lose their logs and restore old ones, by copies as an operator makes them."""
    chance = random.Random(seed)
    world = World(folder)
    for step in range(steps):
        name = chance.choice(sorted(world.logs))
        happening = chance.choice([world.lose, world.back_up, world.restore, world.back_up, None])
        if happening is not None:
            happening(name)
        async with gateway_on_socket(folder / name, gateway_config=world.config) as (gateway, url):
            for part in range(chance.randint(1, 3)):
                await world.write(name, url, f"{name}-{step}-{part}", chance.randint(1, 20))
                world.check(name, gateway)
                if chance.random() < 0.6:
                    world.carry(name, gateway)
            if chance.random() < 0.5:
                world.carry(name, gateway)
                assert (await gateway.flush(60)).complete
    for name, log in world.logs.items():
        async with gateway_on_socket(folder / name, gateway_config=world.config) as (gateway, _):
            world.carry(name, gateway)
        assert set(log.values()) <= world.stored


@pytest.mark.parametrize("seed", range(2))
async def test_logs_that_are_lost_restored_and_doubled(tmp_path: Path, seed: int) -> None:
    await _random_lives(tmp_path, seed, steps=8)


@pytest.mark.soak
@pytest.mark.parametrize("seed", soak_seeds(100, 20))
async def test_logs_that_are_lost_restored_and_doubled_for_long(tmp_path: Path, seed: int) -> None:
    await _random_lives(tmp_path, seed, steps=30)
