"""Data folders that are copied, moved, backed up and restored: each has its own tables, whole, and harms no other."""

import asyncio
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyiceberg.catalog import load_catalog

from mainstem.app.cli.main import main
from mainstem.app.folder.backing_up import LIST
from mainstem.app.gateway import Gateway
from mainstem.catalog import GenericTable, NewTable, NewView, TableIdent, avro
from mainstem.client import CdcClient, connect_duckdb, insert
from mainstem.model import Corrupt, Invalid
from tests.contract.catalog_client import SCHEMA
from tests.harness.inprocess import CONFIG, gateway_on_socket
from tests.harness.seeds import soak_seeds

ROWS = [(n, f"n{n}") for n in range(1_000) if n % 3]


def command(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def tree(folder: Path) -> dict[str, str]:
    """Everything in a folder, by content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements of DuckDB against a gateway; the rows of the last one."""

    def run() -> list[tuple[Any, ...]]:
        with connect_duckdb(url.replace("ws://", "http://").removesuffix("/ws")) as connection:
            for statement in statements:
                done = connection.execute(statement)
            return done.fetchall()

    return await asyncio.to_thread(run)


async def fill(data: Path) -> int:
    """A table with position deletes and an older snapshot, a view, a Delta table, changes in the log."""
    async with gateway_on_socket(data) as (gateway, url):
        await sql(
            url,
            "CREATE SCHEMA lake.shop",
            "CREATE TABLE lake.shop.t (id BIGINT, name VARCHAR)",
            "INSERT INTO lake.shop.t SELECT i, 'n' || i FROM range(1000) r(i)",
            "DELETE FROM lake.shop.t WHERE id % 3 = 0",
        )
        gateway.catalog.generic.create(("shop",), GenericTable("d", "delta", str(data / "delta" / "shop" / "d")))
        async with CdcClient(url, source="app") as client:
            await (await client.send([insert("orders", n, {"n": n}) for n in range(20)])).durable()
        return int(gateway.status().log.durable)


async def rows(url: str) -> list[tuple[Any, ...]]:
    return await sql(url, "SELECT id, name FROM lake.shop.t ORDER BY id")


async def rows_by_pyiceberg(url: str, first: bool) -> int:
    """How many rows pyiceberg finds, in the oldest snapshot or the newest."""

    def count() -> int:
        uri = url.replace("ws://", "http://").removesuffix("/ws")
        table = load_catalog("lake", type="rest", uri=uri, warehouse="lake").load_table("shop.t")
        snapshot_id = table.metadata.snapshots[0].snapshot_id if first else None
        return len(table.scan(snapshot_id=snapshot_id).to_arrow())

    return await asyncio.to_thread(count)


async def check_whole(data: Path, durable: int) -> None:
    async with gateway_on_socket(data) as (gateway, url):
        assert await rows(url) == ROWS
        assert await rows_by_pyiceberg(url, first=False) == len(ROWS)
        assert await rows_by_pyiceberg(url, first=True) == 1_000
        assert gateway.catalog.generic.every()[0][1].base_location == str(data / "delta" / "shop" / "d")
        assert gateway.status().log.durable == durable
        # And it can be written to.
        await sql(url, "INSERT INTO lake.shop.t VALUES (-1, 'new')", "DELETE FROM lake.shop.t WHERE id = 1")
        assert await rows(url) == [(-1, "new"), *ROWS[1:]]


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "from before it was noted"])
async def test_a_copy_refuses_to_start_until_its_tables_are_its_own(tmp_path: Path, is_noted: bool) -> None:
    original, copy = tmp_path / "original", tmp_path / "copies" / "copy"
    durable = await fill(original)
    shutil.copytree(original, copy)
    if not is_noted:
        (copy / "catalog" / "home").unlink()
    before = tree(original)
    with pytest.raises(Invalid, match=f"copied from {original}.*mainstem relocate --data {copy}"):
        await Gateway.open(CONFIG, copy)
    told = await asyncio.to_thread(command, "relocate", "--data", copy)
    assert told.exit_code == 0, told.output
    assert f"The folder was at {original}" in told.output and "2 tables and views" in told.output
    # Before anything is committed to the copy: whoever reads a table's folder alone reads the copy's own metadata.
    hints = list((copy / "warehouse").rglob("version-hint.text"))
    assert hints
    for hint in hints:
        metadata = next(hint.parent.glob(f"*{hint.read_text().strip()}*.metadata.json"))
        assert str(original) + "/" not in metadata.read_text()
    await check_whole(copy, durable)
    assert tree(original) == before
    # Nothing of it needs the original.
    shutil.rmtree(original)
    async with gateway_on_socket(copy) as (_, url):
        assert await rows(url) == [(-1, "new"), *ROWS[1:]]
    assert "nothing to do" in (await asyncio.to_thread(command, "relocate", "--data", copy)).output


async def test_an_interrupted_relocation_begins_again(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "original" / "copy"
    durable = await fill(original)
    # Inside the original: the old place is the beginning of the new one.
    shutil.copytree(original, tmp_path / "aside")
    shutil.move(tmp_path / "aside", copy)
    (damaged,) = list(copy.rglob("*-deletes.parquet"))
    kept = damaged.read_bytes()
    damaged.write_bytes(b"no Parquet")
    failed = await asyncio.to_thread(command, "relocate", "--data", copy)
    assert failed.exit_code == 1 and "delete file cannot be read" in failed.output
    damaged.write_bytes(kept)
    assert (await asyncio.to_thread(command, "relocate", "--data", copy)).exit_code == 0
    await check_whole(copy, durable)


async def test_a_folder_by_another_name_is_the_same_folder(tmp_path: Path) -> None:
    await fill(tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    async with gateway_on_socket(tmp_path / "link") as (_, url):
        assert await rows(url) == ROWS


async def test_a_folder_that_was_also_started_through_a_link_takes_its_copys_tables_nowhere(tmp_path: Path) -> None:
    """Tables that were made through the link are named by it. A copy that moves one name alone writes into them."""
    original, link, copy = tmp_path / "data", tmp_path / "link", tmp_path / "copy"
    await fill(original)
    link.symlink_to(original)
    async with gateway_on_socket(link) as (gateway, _):
        gateway.catalog.create_namespace(("linked",), {})
        gateway.catalog.create_table(("linked",), "by_link", NewTable(SCHEMA))
        made = gateway.catalog.load_table(TableIdent(("linked",), "by_link")).stored.document["location"]
        assert made.startswith(f"{link}/")
    shutil.copytree(original, copy)
    before = tree(original)
    with pytest.raises(Invalid, match=f"mainstem relocate --data {copy}"):
        await Gateway.open(CONFIG, copy)
    assert (await asyncio.to_thread(command, "relocate", "--data", copy)).exit_code == 0
    async with gateway_on_socket(copy) as (gateway, url):
        document = gateway.catalog.load_table(TableIdent(("linked",), "by_link")).stored.document
        assert document["location"].startswith(f"{copy}/"), document["location"]
        assert await rows(url) == ROWS
    assert tree(original) == before
    # The link leads to the copy now: what is named by it is the copy's.
    link.unlink()
    link.symlink_to(copy)
    with pytest.raises(Invalid, match=f"moved or copied from {link}"):
        await Gateway.open(CONFIG, original)


async def test_a_copy_whose_warehouse_is_a_link_to_the_originals_is_refused(tmp_path: Path) -> None:
    original, copy = tmp_path / "data", tmp_path / "copy"
    await fill(original)
    (original / "warehouse").rename(tmp_path / "large-disk")
    (original / "warehouse").symlink_to(tmp_path / "large-disk")
    shutil.copytree(original, copy, symlinks=True)
    refused = await asyncio.to_thread(command, "relocate", "--data", copy)
    assert refused.exit_code == 1 and "is a link to that of" in refused.output.replace("\n", " ")
    # A folder that was moved is nobody else's.
    shutil.rmtree(copy)
    original.rename(copy)
    assert (await asyncio.to_thread(command, "relocate", "--data", copy)).exit_code == 0


async def test_views_move_too(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path / "one") as (gateway, _):
        gateway.catalog.create_namespace(("shop",), {})
        version = {
            "version-id": 1,
            "timestamp-ms": 1,
            "schema-id": 0,
            "summary": {},
            "default-namespace": ["shop"],
            "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
        }
        gateway.catalog.views.create(("shop",), "v", NewView(SCHEMA, version))
    (tmp_path / "one").rename(tmp_path / "two")
    assert (await asyncio.to_thread(command, "relocate", "--data", tmp_path / "two")).exit_code == 0
    async with gateway_on_socket(tmp_path / "two") as (gateway, _):
        loaded = gateway.catalog.views.load(TableIdent(("shop",), "v"))
        for location in (loaded.metadata_location, loaded.stored.document["location"]):
            assert location.startswith(f"{tmp_path / 'two'}/")


async def test_what_was_backed_up_is_restored_elsewhere(tmp_path: Path) -> None:
    data, backup, other = tmp_path / "data", tmp_path / "backup", tmp_path / "other"
    durable = await fill(data)
    made = await asyncio.to_thread(command, "backup", backup, "--data", data)
    assert made.exit_code == 0, made.output
    async with gateway_on_socket(data) as (gateway, _):
        old = gateway.lineage
    done = await asyncio.to_thread(command, "restore", backup, "--data", other)
    assert done.exit_code == 0, done.output
    async with gateway_on_socket(other) as (gateway, url):
        assert gateway.lineage.spans[:-1] == old.spans and gateway.lineage.log != old.log
        # What it accepted before is a duplicate, what is new is not.
        async with CdcClient(url, source="app") as client:
            receipt = await client.send([insert("orders", 99, {"n": 99})])
            assert ((await receipt.durable()).positions or (0,))[0] == durable + 1
    await check_whole(other, durable + 1)
    # The backup is as it was, and serves again, also in the place of what is lost.
    shutil.rmtree(data)
    assert (await asyncio.to_thread(command, "restore", backup, "--data", data)).exit_code == 0
    await check_whole(data, durable)


async def test_what_cannot_be_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    await fill(data)
    async with gateway_on_socket(data):
        running = await asyncio.to_thread(command, "backup", backup, "--data", data)
        assert running.exit_code == 1 and "open in another process" in running.output
        assert (await asyncio.to_thread(command, "relocate", "--data", data)).exit_code == 1
    assert not backup.exists()

    def refused(*words: str | Path) -> str:
        told = command(*words)
        assert told.exit_code == 1, told.output
        return told.output

    def check() -> None:
        assert "no data folder" in refused("backup", backup, "--data", tmp_path / "none")
        assert "must lie apart" in refused("backup", data / "backup", "--data", data)
        assert command("backup", backup, "--data", data).exit_code == 0
        assert "the place is taken" in refused("backup", backup, "--data", data)
        assert "the place is taken" in refused("restore", backup, "--data", data)
        assert "no backup" in refused("restore", data, "--data", tmp_path / "other")
        victim = next(path for path in sorted(backup.rglob("*.parquet")))
        kept = victim.read_bytes()
        victim.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        assert "not as it was" in refused("restore", backup, "--data", tmp_path / "other")
        victim.unlink()
        assert "a file is missing" in refused("restore", backup, "--data", tmp_path / "other")
        (backup / LIST).write_bytes(b"{")
        assert "cannot be read" in refused("restore", backup, "--data", tmp_path / "other")

    await asyncio.to_thread(check)
    assert not (tmp_path / "other").exists()


def test_an_avro_file_is_as_it_was_but_for_what_is_changed(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path))
    manifests = list(tmp_path.rglob("*.avro"))
    assert len(manifests) >= 4
    for path in manifests:
        data = path.read_bytes()
        records = avro.read(data, path.name)
        assert records
        again = avro.rewrite(data, lambda record: record, path.name)
        assert avro.read(again, path.name) == records
        with pytest.raises(Corrupt, match="Avro file cannot be read"):
            avro.read(data[:-20], path.name)


async def test_a_folder_that_is_moved_thirty_times(tmp_path: Path) -> None:
    """No move makes the names of the tables' files longer: a file's name has 255 bytes at most."""
    data = tmp_path / "0"
    durable = await fill(data)

    def wander() -> set[int]:
        lengths = set()
        place = data
        for number in range(1, 31):
            place = place.rename(tmp_path / str(number))
            told = command("relocate", "--data", place)
            assert told.exit_code == 0, told.output
            newest = max(place.rglob("*.metadata.json"), key=lambda path: path.name)
            lengths.add(
                max(len(Path(each["manifest-list"]).name) for each in json.loads(newest.read_text())["snapshots"])
            )
        return lengths

    lengths = await asyncio.to_thread(wander)
    assert len(lengths) == 1
    await check_whole(tmp_path / "30", durable)


async def _random_lives(folder: Path, seed: int, steps: int) -> None:
    """A folder that is written to, copied, moved, backed up and restored: at each place the rows are what they were."""
    chance = random.Random(seed)
    data = folder / "d0"
    async with gateway_on_socket(data) as (_, url):
        await sql(url, "CREATE SCHEMA lake.shop", "CREATE TABLE lake.shop.t (id BIGINT, name VARCHAR)")
    expected: dict[int, str] = {}
    saved: tuple[Path, dict[int, str]] | None = None
    for step in range(1, steps + 1):
        async with gateway_on_socket(data) as (_, url):
            assert dict(await rows(url)) == expected, f"seed {seed}, step {step}"
            low, modulus = chance.randrange(500), chance.randint(2, 9)
            await sql(
                url,
                f"DELETE FROM lake.shop.t WHERE id % {modulus} = 0 OR id BETWEEN {low} AND {low + 50}",
                f"INSERT INTO lake.shop.t SELECT i, 'step {step}' FROM range({low}, {low + 50}) r(i)",
            )
            expected = {n: v for n, v in expected.items() if n % modulus and not low <= n <= low + 50}
            expected |= dict.fromkeys(range(low, low + 50), f"step {step}")
        following = folder / f"d{step}"
        match chance.randrange(4):
            case 0:
                await asyncio.to_thread(shutil.copytree, data, following)
                assert (await asyncio.to_thread(command, "relocate", "--data", following)).exit_code == 0
                shutil.rmtree(data)
                data = following
            case 1:
                data.rename(following)
                assert (await asyncio.to_thread(command, "relocate", "--data", following)).exit_code == 0
                data = following
            case 2:
                saved = (folder / f"backup{step}", dict(expected))
                assert (await asyncio.to_thread(command, "backup", saved[0], "--data", data)).exit_code == 0
            case 3 if saved is not None:
                assert (await asyncio.to_thread(command, "restore", saved[0], "--data", following)).exit_code == 0
                data, expected = following, dict(saved[1])


async def test_folders_that_wander(tmp_path: Path) -> None:
    await _random_lives(tmp_path, seed=3, steps=5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", soak_seeds(100, 10))
async def test_folders_that_wander_for_long(tmp_path: Path, seed: int) -> None:
    await _random_lives(tmp_path, seed, steps=40)
