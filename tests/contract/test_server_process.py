"""The server as a process: how it starts, what it says, and that nothing of it is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from mainstem.app.config import Config, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert

ALONE = Config(server=ServerConfig(port=0), pipeline=PipelineConfig(enabled=False))
WHOLE = Config(server=ServerConfig(port=0))


def mainstem(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command, as a user types it."""
    command = [sys.executable, "-m", "mainstem.app.cli.main", *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


async def until(condition: Callable[[], bool], seconds: float = 200) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


def family(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def has_java(processes: list[psutil.Process]) -> bool:
    return any("java" in look(process.name, "") for process in processes)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    gone = psutil.STATUS_ZOMBIE
    return [process for process in processes if process.is_running() and look(process.status, gone) != gone]


def look(at: Callable[[], str], else_: str) -> str:
    """What there is to see of a process, which may end at any moment."""
    try:
        return at()
    except psutil.NoSuchProcess:
        return else_


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_no_process_outlives_the_gateway(tmp_path: Path, end: signal.Signals) -> None:
    server = ServerProcess(tmp_path, WHOLE)
    await server.start()
    # Gateway, sealer, the pipeline's Python, its JVM.
    await until(lambda: len(family(server.pid)) >= 4 and has_java(family(server.pid)))
    processes = family(server.pid)
    os.kill(server.pid, end)
    await until(lambda: not alive(processes))
    await server.stop()


async def test_without_java_it_accepts_and_says_in_a_sentence_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    async with ServerProcess(tmp_path, WHOLE) as server:
        async with CdcClient(server.ws_url, source="s") as client:
            await (await client.send([insert("t", "1", {"n": 1})])).durable()
        status = await server.status()
        while status["lastError"] is None:
            await asyncio.sleep(0.1)
            status = await server.status()
        assert "Spark needs Java 17 or 21, and there is none in JAVA_HOME=/nowhere" in status["lastError"]
        assert (status["pipeline"]["state"], status["pipeline"]["restarts"]) == ("down", 0)
        log = (tmp_path / "gateway.log").read_text()
        assert f"console  {server.url}/console" in log and log.count("Spark needs Java") == 1
        assert "died" not in log and "Traceback" not in log


def test_a_data_folder_that_cannot_be_used_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    told = mainstem("serve", "--port", "0", "--data", str(tmp_path / "taken" / "data"))
    assert told.returncode == 1 and "Traceback" not in told.stderr
    assert "the data folder cannot be used: Not a directory" in " ".join(told.stderr.replace("│", " ").split())


async def test_everything_acknowledged_before_a_stop_is_there_after_it(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, ALONE)
    async with server:
        async with CdcClient(server.ws_url, source="s") as client:
            receipts = [await client.send([insert("t", str(n), {"n": n})]) for n in range(100)]
            for receipt in receipts:
                await receipt.durable()
        assert await server.stop() == 0
        await server.start()
        assert (await server.status())["log"]["durable"] == 100
        async with CdcClient(server.ws_url, source="s") as client:
            again = await client.send([insert("t", "7", {"n": 7})], sequence=receipts[7].sequence)
            assert (await again.durable()).duplicate


async def test_health_status_and_metrics(live_server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        status = (await http.get("/status")).json()
        assert {"state", "gateway", "log", "buffer", "pipeline", "tables", "lastError"} <= status.keys()
        metrics = (await http.get("/metrics")).text
        assert "mainstem_log_durable_position" in metrics
        assert (await http.post("/flush", params={"timeoutS": "-1"})).status_code == 400


async def test_a_flush_answers_with_the_snapshots(live_server: ServerProcess) -> None:
    async with CdcClient(live_server.ws_url, source="flushed") as client:
        receipt = await client.send([insert("flushed", "1", {"a": 1})])
        await receipt.durable()
        assert not receipt.is_persisted
        answer = await live_server.flush()
        await asyncio.wait_for(receipt.persisted(), 60)
    assert answer["complete"] is True
    table = answer["tables"]["default.flushed"]
    assert table["snapshotId"] and table["error"] is None
    async with httpx.AsyncClient(base_url=live_server.url, timeout=60) as http:
        loaded = (await http.get("/v1/namespaces/default/tables/flushed")).json()
    assert loaded["metadata"]["current-snapshot-id"] == table["snapshotId"]


async def test_a_flush_without_a_pipeline_says_that_it_is_not_complete(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path, ALONE) as server:
        async with CdcClient(server.ws_url, source="s") as client:
            await (await client.send([insert("t", "1", {"a": 1})])).durable()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            answer = await http.post("/flush", params={"timeoutS": "0.2"})
    assert answer.status_code == 504
    assert answer.headers["Retry-After"]
    assert answer.json()["complete"] is False


async def pipeline_other_than(server: ServerProcess, pid: int | None) -> int:
    """The pipeline's process, once there is one, or another one."""
    async with asyncio.timeout(60):
        while (found := (await server.status())["pipeline"]["pid"]) in (None, pid):
            await asyncio.sleep(0.05)
    return int(found)


async def test_a_pipeline_that_dies_is_told_of_and_started_again(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path, WHOLE) as server:
        pid = await pipeline_other_than(server, None)
        os.kill(pid, signal.SIGKILL)
        await pipeline_other_than(server, pid)
        status = (await server.status())["pipeline"]
        assert (status["restarts"], status["lastExit"]) == (1, "killed by SIGKILL")
        async with CdcClient(server.ws_url, source="s") as client:
            await (await client.send([insert("t", "1", {"a": 1})])).durable()


async def test_two_servers_on_one_folder_are_refused(tmp_path: Path) -> None:
    async with ServerProcess(tmp_path, ALONE):
        second = mainstem("serve", "--data", str(tmp_path), "--port", "0", "--no-pipeline")
    assert second.returncode == 1
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("serve", "--port", "70000"), "70000"),
        (("serve", "--config", "/nowhere.toml"), "/nowhere.toml"),
        (("serve", "--host", "0.0.0.0"), "loopback"),
        (("status", "--url", "http://127.0.0.1:9"), "no answer"),
        (("sevre",), "sevre"),
    ],
)
def test_what_is_typed_wrong_gets_one_clear_sentence(words: tuple[str, ...], complaint: str) -> None:
    answer = mainstem(*words)
    assert answer.returncode != 0
    assert complaint in answer.stderr
    assert "Traceback" not in answer.stderr


def test_help_explains_every_command() -> None:
    text = mainstem("--help").stdout
    for command in ("serve", "demo", "config", "status", "flush"):
        assert command in text
        assert mainstem(command, "--help").returncode == 0


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = mainstem("serve", "--data", str(tmp_path), "--port", str(taken.getsockname()[1]), "--no-pipeline")
    assert answer.returncode == 1
    assert "cannot listen" in answer.stderr and "Traceback" not in answer.stderr


def test_a_missing_java_is_one_sentence(tmp_path: Path) -> None:
    answer = mainstem("demo", JAVA_HOME=str(tmp_path))
    assert answer.returncode == 1
    assert "Java 17 or 21" in answer.stderr and "Traceback" not in answer.stderr


def test_a_java_that_is_too_old_is_one_sentence(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    answer = mainstem("demo", JAVA_HOME=str(tmp_path))
    assert answer.returncode == 1
    assert "is Java 11" in answer.stderr


def test_the_printed_configuration_is_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "mainstem.toml"
    path.write_text(mainstem("config").stdout)
    from mainstem.app.config import load_config

    assert load_config(path) == Config()
