"""A real Spark cluster for tests: a standalone master and workers out of pyspark's jars, on free ports of loopback."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from mainstem.app.process import reserve_port
from mainstem.runtime.lifetime import die_with_parent

START_S_MAX = 120.0
_HOST = "127.0.0.1"
_POLL_S = 0.1


class SparkCluster:
    """A master and some workers with one core each. A context manager; `url` is what `master` is set to."""

    def __init__(self, folder: Path, *, workers: int = 2, memory: str = "1g") -> None:
        self._folder = folder
        self._count = workers
        self._memory = memory
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        # Each keeps its port for the master.
        self._places: list[socket.socket] = []

    @property
    def url(self) -> str:
        """The master's address."""
        return f"spark://{_HOST}:{self._places[0].getsockname()[1]}"

    @property
    def events(self) -> Path:
        """The folder of Spark's event logs."""
        return self._folder / "events"

    def settings(self) -> dict[str, str]:
        """What `[pipeline.spark]` says: where the workers find the driver, how much they give, and an event log."""
        return {
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.executor.memory": "512m",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{self.events}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }

    def __enter__(self) -> Self:
        self.events.mkdir(parents=True, exist_ok=True)
        self._places = [reserve_port(_HOST) for _ in range(2)]
        port, page = (str(place.getsockname()[1]) for place in self._places)
        self._master = self._start("master", "master.Master", "--host", _HOST, "--port", port, "--webui-port", page)
        try:
            self._wait_for(0)
            for _ in range(self._count):
                self.add_worker()
            self._wait_for(self._count)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in filter(None, (*self.workers, self._master)):
            _kill(process)
        for place in self._places:
            place.close()

    def add_worker(self) -> None:
        """Start one more."""
        number = len(self.workers)
        arguments = ("--host", _HOST, "--cores", "1", "--memory", self._memory, "--webui-port", "0", self.url)
        work = ("--work-dir", str(self._folder / f"work-{number}"))
        self.workers.append(self._start(f"worker-{number}", "worker.Worker", *work, *arguments))

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker and its executors; their shuffle files go with them."""
        _kill(self.workers[number])
        shutil.rmtree(self._local(f"worker-{number}"), ignore_errors=True)

    def kill_executor(self, number: int) -> None:
        """SIGKILL to a worker's executor alone, and its Python workers. The worker starts another one."""
        worker = self.workers[number % len(self.workers)]
        for child in psutil.Process(worker.pid).children():
            with suppress(psutil.NoSuchProcess):
                if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                    child.kill()

    def _local(self, name: str) -> Path:
        return self._folder / f"local-{name}"

    def _start(self, name: str, part: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_LOCAL_DIRS": str(self._local(name)),
            "SPARK_DAEMON_MEMORY": "192m",
        }
        self._local(name).mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 — it only makes one system call
            )  # fmt: skip

    def _wait_for(self, workers: int) -> None:
        began_s = time.monotonic()
        while time.monotonic() - began_s < START_S_MAX:
            if any(process.poll() is not None for process in filter(None, (*self.workers, self._master))):
                break
            try:
                if self._state()["aliveworkers"] >= workers:
                    return
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(_POLL_S)
        logs = "\n".join(path.read_text(errors="replace")[-1500:] for path in self._folder.glob("*.log"))
        raise AssertionError(f"the Spark cluster did not start: {logs}")

    def _state(self) -> dict[str, Any]:
        page = self._places[1].getsockname()[1]
        with urllib.request.urlopen(f"http://{_HOST}:{page}/json/", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
        return state


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class EventLog:
    """Follows the event log of the one application that writes to a folder, as far as it is written."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._offset = 0
        self.seen: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """What came since the last look."""
        found = []
        for path in self._events.iterdir():
            with path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            # The last line may be half written.
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            found += [json.loads(line) for line in whole.splitlines()]
        self.seen += found
        return found

    def shuffled(self, *, in_arrow: bool = False) -> dict[str, int]:
        """The rows that tasks took out of a shuffle, by executor; of those tasks alone that write them, in Arrow."""
        rows: dict[str, int] = {}
        writing = {event["Stage Info"]["Stage ID"] for event in self.seen if _maps_in_arrow(event)}
        for event in self.seen:
            if in_arrow and event.get("Stage ID") not in writing:
                continue
            if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                read = event["Task Metrics"]["Shuffle Read Metrics"]["Total Records Read"]
                executor = event["Task Info"]["Executor ID"]
                rows[executor] = rows.get(executor, 0) + read
        return rows

    def failures(self) -> list[str]:
        """Why tasks ended that did not end well."""
        ends = [event for event in self.seen if event["Event"] == "SparkListenerTaskEnd"]
        reasons = [event["Task End Reason"]["Reason"] for event in ends]
        return [reason for reason in reasons if reason != "Success"]


def _maps_in_arrow(event: dict[str, Any]) -> bool:
    """Whether a stage has ended in which Python workers are given rows as Arrow."""
    if event["Event"] != "SparkListenerStageCompleted":
        return False
    scopes = [json.loads(rdd.get("Scope", "{}")).get("name", "") for rdd in event["Stage Info"]["RDD Info"]]
    return any(name.startswith("MapInArrow") for name in scopes)
