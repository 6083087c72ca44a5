"""The supervisor restarts what dies, tells of it, and leaves nothing behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mainstem.app.spark.supervisor import CANNOT_RUN, STOP_REST_S_MAX, STOP_S_MAX, Supervisor
from mainstem.runtime.clock import SystemClock

SLEEPER = [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"]


def _supervisor(command: list[str], tmp_path: Path) -> Supervisor:
    return Supervisor(command, log_path=tmp_path / "child.log", clock=SystemClock())


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_killed_child_is_started_again_and_its_end_is_told(tmp_path: Path) -> None:
    supervisor = _supervisor(SLEEPER, tmp_path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await _until(lambda: supervisor.status().running)
        first = supervisor.status().pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await _until(lambda: supervisor.status().running and supervisor.status().pid != first)
        status = supervisor.status()
        assert status.restarts == 1
        assert status.last_exit == "killed by SIGKILL"
        await supervisor.stop()
    assert not supervisor.status().running


async def test_a_child_that_is_started_anew_did_not_die(tmp_path: Path) -> None:
    supervisor = _supervisor(SLEEPER, tmp_path)
    supervisor.restart()  # Nothing runs yet: there is nothing to do.
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await _until(lambda: supervisor.status().running)
        first = supervisor.status().pid
        supervisor.restart()
        await _until(lambda: supervisor.status().running and supervisor.status().pid != first)
        assert (supervisor.status().restarts, supervisor.status().last_exit) == (0, None)
        await supervisor.stop()


async def test_what_a_child_printed_before_it_died_is_kept(tmp_path: Path) -> None:
    supervisor = _supervisor([sys.executable, "-c", "print('no room'); raise SystemExit(3)"], tmp_path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await _until(lambda: supervisor.status().restarts > 0)
        status = supervisor.status()
        assert status.last_exit == "exit code 3"
        assert "no room" in status.last_lines
        await supervisor.stop()
    assert b"no room" in (tmp_path / "child.log").read_bytes()


async def test_a_child_that_lacks_something_says_so_once_and_did_not_die(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = "mainstem: Spark needs Java 17 or 21, and there is none."
    supervisor = _supervisor([sys.executable, "-c", f"print({words!r}); raise SystemExit({CANNOT_RUN})"], tmp_path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await _until(lambda: supervisor.status().last_exit is not None)
        assert supervisor.status().restarts == 0
        assert (supervisor.status().last_exit or "").endswith("Spark needs Java 17 or 21, and there is none.")
        await supervisor.stop()
    assert [record.message for record in caplog.records] == [supervisor.status().last_exit]


async def test_a_very_long_line_does_not_stop_the_reading(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('x' * 300_000); print('after', flush=True); import sys; sys.stdin.read()"]
    supervisor = _supervisor(command, tmp_path)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        log = tmp_path / "child.log"
        await _until(lambda: log.exists() and log.read_bytes().endswith(b"after\n"))
        await supervisor.stop()
    assert (tmp_path / "child.log").read_bytes().count(b"x") == 300_000


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
async def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    # The child ignores its standard input's end, so that only the kernel's signal can stop it.
    parent = f"""
import asyncio, sys
from pathlib import Path
from mainstem.app.spark.supervisor import STOP_REST_S_MAX, STOP_S_MAX, Supervisor
from mainstem.runtime.clock import SystemClock

async def main():
    child = [sys.executable, "-c", "import signal; signal.pause()"]
    supervisor = Supervisor(child, log_path=Path({str(tmp_path / "c.log")!r}), clock=SystemClock())
    task = asyncio.create_task(supervisor.run())
    while not supervisor.status().running:
        await asyncio.sleep(0.01)
    print(supervisor.status().pid, flush=True)
    await task

asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert psutil.pid_exists(child)
    process.kill()
    process.wait()
    await _until(lambda: _is_gone(child))


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_child_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    started = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('grandchild', flush=True); signal.pause()"
    )
    stubborn = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"print(subprocess.Popen([sys.executable, '-c', {started!r}]).pid, flush=True)\n"
        "signal.pause()"
    )
    supervisor = _supervisor([sys.executable, "-c", stubborn], tmp_path)
    log = tmp_path / "child.log"
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await _until(lambda: log.exists() and b"grandchild" in log.read_bytes())
        grandchild = next(int(line) for line in log.read_text().splitlines() if line.isdigit())
        # Both sleep for ever: without the kills `stop` would not return. How late it does depends on the machine.
        async with asyncio.timeout(10 * (STOP_S_MAX + STOP_REST_S_MAX)):
            await supervisor.stop()
    await _until(lambda: _is_gone(grandchild))
