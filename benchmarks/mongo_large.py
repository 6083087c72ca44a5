"""A collection of a million documents: loaded once by insert_many, read by index, without one, and grouped.

Ours runs with its pipeline, which has carried a small collection before: what is measured is a server at work, not
Spark's start beside it. Reads are measured once the table holds the million, for that is what `$group` reads.
"""

import asyncio
import time
from pathlib import Path

from benchmarks.mongo import COMMAND_DOCUMENTS, Lines, load, peers, reads, server_config, tell
from benchmarks.report import Figure, Report
from mainstem.app.process import ServerProcess, reserve_port

SECTION = "mongo_large"
DOCUMENTS, DOCUMENTS_SMALL = 1_000_000, 50_000
GROUP_MS_MAX = 1_500.0
COVERED_S_MAX = 120.0


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """Ours, then each peer."""
    count = DOCUMENTS_SMALL if small else DOCUMENTS
    with peers(folder, report, SECTION) as others:
        with reserve_port("127.0.0.1") as place:
            port = place.getsockname()[1]
            async with ServerProcess(folder / "data", server_config(port, pipeline=True)) as server:
                url = f"mongodb://127.0.0.1:{port}/"
                ours = Lines("Mainstem")
                await asyncio.to_thread(load, url, "small", COMMAND_DOCUMENTS)
                await server.flush(COVERED_S_MAX)
                rate = await asyncio.to_thread(load, url, "orders", count)
                ours.add("insert_many (documents/s)", rate)
                began_s = time.monotonic()
                await server.flush(COVERED_S_MAX)
                report.add(SECTION, Figure("until the table holds them", time.monotonic() - began_s, "s"))
                await asyncio.to_thread(reads, url, ours, "orders", count, repeats=3)
        theirs = []
        for name, start in others:
            with start(folder / name.split()[0]) as peer_url:
                lines = Lines(name)
                lines.add("insert_many (documents/s)", await asyncio.to_thread(load, peer_url, "orders", count))
                await asyncio.to_thread(reads, peer_url, lines, "orders", count, repeats=2)
                theirs.append(lines)
    bars = {f"$group, {count:,} documents (ms)": (f"≤ {GROUP_MS_MAX:g}", GROUP_MS_MAX)}
    tell(report, SECTION, ours, theirs, bars)
