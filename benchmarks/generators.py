"""Starts load generators, lets them begin together, and adds up what they measured."""

import asyncio
import sys

import msgspec

from benchmarks.load import Plan, Result


class Generators:
    """Several generator processes. They make their frames first; the clock starts when all of them are ready."""

    def __init__(self, plans: list[Plan]) -> None:
        self._plans = plans
        self._processes: list[asyncio.subprocess.Process] = []

    async def prepare(self) -> None:
        """Return when all are ready to send."""
        for plan in self._plans:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "benchmarks.load",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 28,
            )
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(plan) + b"\n")
            self._processes.append(process)
        for process in self._processes:
            assert process.stdout is not None
            ready = await process.stdout.readline()
            assert ready == b"ready\n", ready

    async def run(self) -> Result:
        """Go; the sum of all results."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        results = []
        for process in self._processes:
            assert process.stdout is not None
            line = await process.stdout.readline()
            if await process.wait() != 0 or not line:
                raise RuntimeError(f"a load generator ended early. exit code={process.returncode}")
            results.append(msgspec.json.decode(line, type=Result))
        return Result(
            changes=sum(r.changes for r in results),
            began_s=min(r.began_s for r in results),
            ended_s=max(r.ended_s for r in results),
            ack_ms=[ms for r in results for ms in r.ack_ms],
            persisted_ms=[ms for r in results for ms in r.persisted_ms],
            nacks=sum(r.nacks for r in results),
            cpu_s=sum(r.cpu_s for r in results),
        )


async def send(plans: list[Plan]) -> Result:
    """Prepare and run."""
    generators = Generators(plans)
    await generators.prepare()
    return await generators.run()
