"""Segments on a real S3 server: put there in log order, whole, again after an outage or a crash, and removed with the
log's own. Read there as the pipeline reads them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mainstem.app.config import Config, LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.app.spark.shipping import Shipper
from mainstem.catalog.settings import CatalogSettings
from mainstem.client import CdcClient, insert
from mainstem.log import Log
from mainstem.pipeline.passes.stores import list_files, open_file
from mainstem.pipeline.source.segments import SegmentFolder
from tests.harness.proxy import FlakyProxy
from tests.harness.seaweed import S3Server
from tests.unit.log.log_fixtures import InlineSealer, batch, quiet

WAIT_S_MAX = 60.0
POLL_S = 0.02


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FlakyProxy]:
    with FlakyProxy(s3_server.url) as proxy:
        yield proxy


@asynccontextmanager
async def shipping(log: Log, location: str, store: Mapping[str, str]) -> AsyncIterator[Shipper]:
    shipper = Shipper(log, location, store)
    running = asyncio.create_task(shipper.run())
    try:
        yield shipper
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def seal(log: Log, sequence: int) -> str:
    """One more segment; returns its name."""
    await log.append(batch(sequence))
    await log.flush()
    return log.segments()[-1].path.name


async def until_there(location: str, store: Mapping[str, str], names: set[str]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while set(await asyncio.to_thread(list_files, location, store)) != names:
            await asyncio.sleep(POLL_S)


async def test_a_segment_is_put_there_whole_and_read_as_in_the_log(tmp_path: Path, s3_server: S3Server) -> None:
    location, store = s3_server.make_bucket("shipped") + "/w/segments", s3_server.io()
    log = await Log.open(quiet(tmp_path / "log"), sealer=InlineSealer())
    async with shipping(log, location, store):
        names = {await seal(log, sequence) for sequence in range(1, 4)}
        await until_there(location, store, names)
    for segment in log.segments():
        with open_file(f"{location}/{segment.path.name}", store) as stored:
            assert stored.read() == segment.path.read_bytes()
    there, here = SegmentFolder(location, store).list(), SegmentFolder(tmp_path / "log" / "segments").list()
    assert [(one.name, one.first, one.last, one.size_bytes, one.tables) for one in there] == [
        (one.name, one.first, one.last, one.size_bytes, one.tables) for one in here
    ]
    assert len(there) == 3
    await log.close()


async def test_an_outage_leaves_no_gap_and_holds_back_no_seal(
    tmp_path: Path, s3_server: S3Server, proxy: FlakyProxy
) -> None:
    location, store = s3_server.make_bucket("outage") + "/segments", s3_server.io()
    log = await Log.open(quiet(tmp_path / "log"), sealer=InlineSealer())
    async with shipping(log, location, s3_server.io(proxy.url)) as shipper:
        names = {await seal(log, 1)}
        await until_there(location, store, names)
        proxy.break_down()
        # The log goes on: what is sealed meanwhile waits on its own disk.
        names |= {await seal(log, sequence) for sequence in range(2, 6)}
        async with asyncio.timeout(WAIT_S_MAX):
            while shipper.error is None:
                await asyncio.sleep(POLL_S)
        assert len(list_files(location, store)) == 1
        proxy.heal()
        async with asyncio.timeout(WAIT_S_MAX):
            while (found := sorted(list_files(location, store))) != sorted(names):
                # In log order: one that is there means that all before it are.
                assert found == sorted(names)[: len(found)]
                await asyncio.sleep(POLL_S)
            while shipper.error is not None:
                await asyncio.sleep(POLL_S)
    await log.close()


async def test_what_a_crash_kept_from_the_store_is_put_there_at_the_next_start(
    tmp_path: Path, s3_server: S3Server
) -> None:
    location, store = s3_server.make_bucket("crashed") + "/segments", s3_server.io()
    log = await Log.open(quiet(tmp_path / "log"), sealer=InlineSealer())
    # Sealed while nobody shipped, as if the process had died between the two.
    names = {await seal(log, sequence) for sequence in range(1, 4)}
    await log.close()
    log = await Log.open(quiet(tmp_path / "log"), sealer=InlineSealer())
    async with shipping(log, location, store):
        await until_there(location, store, names)
    # And the other way round: dropped from the log while nobody removed it there.
    (dropped, *_) = await log.drop_segments(lambda segment: segment.last == 1, 0)
    async with shipping(log, location, store) as shipper:
        await until_there(location, store, names - {dropped.path.name})
        (dropped, *_) = await log.drop_segments(lambda segment: segment.last == 2, 0)
        shipper.wake()
        await until_there(location, store, {max(names)})
    await log.close()


async def test_the_server_ships_to_a_folder_of_its_own_log(tmp_path: Path, s3_server: S3Server) -> None:
    """Two gateways on one warehouse have the same positions, and never the same files."""
    catalog = CatalogSettings(warehouse=s3_server.make_bucket("gateways") + "/w", io=s3_server.io())
    config = Config(
        server=ServerConfig(port=0),
        log=LogConfig(flush_interval_s=0.2),
        pipeline=PipelineConfig(enabled=False),
        catalog=catalog,
    )
    logs = set()
    for name in ("one", "other"):
        async with ServerProcess(tmp_path / name, config) as server:
            async with CdcClient(server.ws_url, source="app") as client:
                await (await client.send([insert("t", "k", {"n": 1}, sequence=1)])).durable()
            log = (await server.status())["log"]["id"]
            location = f"{catalog.warehouse}/_mainstem/{log}/segments"
            await until_there(location, catalog.io, {f"{1:020d}-{1:020d}.parquet"})
            logs.add(log)
    assert len(logs) == 2
