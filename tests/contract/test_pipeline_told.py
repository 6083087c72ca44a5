"""What is told of the pipeline: why it ended, until it runs again; of a new process, nothing that the old one said."""

from pathlib import Path

import msgspec

from mainstem.app.config import Config
from mainstem.app.spark.supervisor import ChildStatus
from mainstem.runtime.clock import SystemClock
from mainstem.wire.reports import PipelineReport
from tests.harness.inprocess import gateway_on_socket

KILLED = "killed by SIGKILL"


def child(running: bool, ended_ms: int | None) -> ChildStatus:
    last_exit = None if ended_ms is None else KILLED
    return ChildStatus(
        running=running, pid=1, restarts=0, last_exit=last_exit, last_exit_ms=ended_ms, last_lines=["no room"]
    )


async def test_why_it_ended_is_told_until_it_runs_again(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path, gateway_config=Config()) as (gateway, _):
        now = child(running=True, ended_ms=None)
        gateway.pipeline.attach(lambda: now, lambda config: None)

        def told() -> tuple[str, str | None]:
            status = gateway.status()
            return status.pipeline.state, status.last_error

        assert told() == ("starting", None)
        gateway.pipeline.told(PipelineReport(state="running"))
        assert told() == ("running", None)
        now = child(running=False, ended_ms=SystemClock().now_ms() + 1)
        assert told() == ("down", KILLED)
        # Another process, which has said nothing yet.
        now = msgspec.structs.replace(now, running=True)
        assert told() == ("starting", KILLED)
        now = msgspec.structs.replace(now, last_exit_ms=SystemClock().now_ms() - 1)
        gateway.pipeline.told(PipelineReport(state="warming"))
        assert told() == ("warming", KILLED)
        gateway.pipeline.told(PipelineReport(state="running"))
        assert told() == ("running", None)
        # It is not forgotten: it stands in the pipeline's own part.
        assert gateway.status().pipeline.last_exit == KILLED
