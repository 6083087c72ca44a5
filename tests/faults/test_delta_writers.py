"""Sixteen processes append to and update one table, and are killed: versions are dense, nothing is lost or doubled."""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, create_storage
from tests.harness.seaweed import ACCESS_KEY, REGION, SECRET_KEY
from tests.harness.seeds import soak_seed

WRITERS = 16
Place = dict[str, Any]


def work(place: Place, writer: int, life: int, rounds: int, told: str) -> None:
    """One process: every round a row of its own and an increment of two counters; each is told once acknowledged."""
    table = DeltaTable(create_storage(**place), "t")
    with Path(told).open("a") as out:
        for number in range(rounds):
            name = f"row-{writer}-{life}-{number}"
            table.write([{"_id": name, "n": 0}])
            out.write(f"{name}\n")
            out.flush()
            table.update({"_id": {"$in": [f"counter-{writer}", "shared"]}}, {"$inc": {"n": 1}})
            out.write(f"counter-{writer}\n")
            out.flush()


def run(place: Place, folder: Path, *, rounds: int, kills: int, vectors: bool) -> None:
    table = DeltaTable(create_storage(**place), "t")
    table.create(pa.schema([("_id", pa.string()), ("n", pa.int64())]), deletion_vectors=vectors)
    table.write([{"_id": f"counter-{writer}", "n": 0} for writer in range(WRITERS)] + [{"_id": "shared", "n": 0}])
    # Forked from a process that has only imported, so that sixteen starts cost little.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.test_delta_writers"])
    told = [folder / f"told-{writer}" for writer in range(WRITERS)]
    rng = random.Random(soak_seed(7))

    def start(writer: int, life: int) -> Any:
        process = context.Process(target=work, args=(place, writer, life, rounds, str(told[writer])))
        process.start()
        return process

    running = {writer: start(writer, 0) for writer in range(WRITERS)}
    killed: Counter[int] = Counter()
    for victim in rng.sample(range(WRITERS), kills):
        _until(partial(_has_told, told[victim]))
        process = running[victim]
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            killed[victim] += 1
        process.join()
        running[victim] = start(victim, 1)
    for process in running.values():
        process.join(600)
        assert process.exitcode == 0
    judge(place, told, killed)


def judge(place: Place, told: list[Path], killed: Counter[int]) -> None:
    table = DeltaTable(create_storage(**place), "t")
    versions = [entry["version"] for entry in table.history()]
    assert versions == list(range(table.version, -1, -1)), "versions are dense"
    rows = table.query()
    assert len({row["_id"] for row in rows}) == len(rows), "nothing is doubled"
    # Another reader sees the same.
    assert pa.RecordBatchReader.from_stream(table.delta_rs().scan()).read_all().num_rows == len(rows)
    value = {row["_id"]: row["n"] for row in rows}
    acknowledged = Counter(line for path in told for line in path.read_text().splitlines())
    for name, count in acknowledged.items():
        if name.startswith("counter"):
            # A kill may come between the commit and the telling of it.
            assert count <= value[name] <= count + killed[int(name.partition("-")[2])]
        else:
            assert name in value, "what was acknowledged is there"
    unacknowledged = [name for name in value if name.startswith("row-") and name not in acknowledged]
    assert len(unacknowledged) <= killed.total()
    assert value["shared"] == sum(value[name] for name in value if name.startswith("counter-"))


def _has_told(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _until(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 600
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def s3_place(server: Any, bucket: str) -> Place:
    server.make_bucket(bucket)
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return {"url": f"s3://{bucket}/lake", "endpoint": server.url, "region": REGION, **keys}


def in_step(place: Place, barrier: Any, numbers: int, told: str) -> None:
    """One of several processes that all write the same numbered batches, each at the same moment as the others."""
    table = DeltaTable(create_storage(**place), "once")
    with Path(told).open("a") as out:
        for number in range(numbers):
            barrier.wait(600)
            # The first write makes the table, the others bring a column now and then.
            row = {"_id": number, "process": told, **({f"c{number // 10}": 1} if number % 10 == 5 else {})}
            version = table.write([row], transaction=("app", number))
            out.write(f"{number} {version}\n")


def run_in_step(place: Place, folder: Path, *, processes: int, numbers: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.test_delta_writers"])
    barrier = context.Barrier(processes)
    told = [str(folder / f"step-{process}") for process in range(processes)]
    running = [context.Process(target=in_step, args=(place, barrier, numbers, path)) for path in told]
    for process in running:
        process.start()
    for process in running:
        process.join(600)
        assert process.exitcode == 0
    table = DeltaTable(create_storage(**place), "once")
    assert Counter(row["_id"] for row in table.query()) == Counter(range(numbers)), "each number once"
    # Whoever was told of a version finds the batch in it, written by itself or by another.
    for path in told:
        for line in Path(path).read_text().splitlines():
            number, version = map(int, line.split())
            assert table.snapshot(version).transactions["app"] >= number
    assert table.version == numbers - 1, "a batch that is there already is no commit"
    assert len(list(Path(table.uri).glob("*.parquet"))) == numbers, "and leaves no file"


@pytest.mark.timeout(900)
def test_four_processes_in_step_write_each_number_once(tmp_path: Path) -> None:
    run_in_step({"url": str(tmp_path / "lake")}, tmp_path, processes=4, numbers=40)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_for_long_in_step(tmp_path: Path) -> None:
    run_in_step({"url": str(tmp_path / "lake")}, tmp_path, processes=8, numbers=1_000)


@pytest.mark.timeout(900)
def test_on_disk(tmp_path: Path) -> None:
    run({"url": str(tmp_path / "lake")}, tmp_path, rounds=3, kills=4, vectors=True)


@pytest.mark.timeout(900)
def test_on_s3(tmp_path: Path, s3_server: Any) -> None:
    run(s3_place(s3_server, "delta-writers"), tmp_path, rounds=1, kills=3, vectors=False)


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("vectors", [False, True])
def test_for_long_on_disk(tmp_path: Path, vectors: bool) -> None:
    run({"url": str(tmp_path / "lake")}, tmp_path, rounds=20, kills=12, vectors=vectors)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_for_long_on_s3(tmp_path: Path, s3_server: Any) -> None:
    run(s3_place(s3_server, "delta-writers-long"), tmp_path, rounds=10, kills=12, vectors=True)
