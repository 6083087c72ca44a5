"""The Python client against the real door, over real sockets that break."""

import asyncio
import json
import random
import socket as sockets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from litestar import Litestar
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from mainstem.admission import Dedup, Gate, Intake, Limits
from mainstem.client import Backoff, CdcClient, delete, insert, read, update
from mainstem.doors.cdc.ports import BufferView, CdcSettings
from mainstem.doors.cdc.ws import SERVER_FRAME_BYTES_MAX, CdcDoor, cdc_route
from mainstem.model import Denied, Invalid, LogPosition, OutcomeUnknown, Overloaded
from mainstem.runtime.clock import ManualClock, SystemClock
from tests.harness.memory_lake import MemoryLake


class Site:
    """A place where servers come and go; what is durable stays."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self.clock = SystemClock()
        self.dedup = Dedup(self.clock)
        self.lake = MemoryLake(self.dedup, self.clock, by_hand=by_hand)
        self.listener = sockets.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self.listener.getsockname()[1]}/ws"
        self.door: CdcDoor | None = None
        self._server: uvicorn.Server | None = None

    @asynccontextmanager
    async def serving(self, settings: CdcSettings | None = None) -> AsyncIterator["Site"]:
        self.door = CdcDoor(
            intake=Intake(Gate(self.dedup, Limits(events_max=1_000)), self.lake),
            persisted=self.lake,
            flusher=self.lake,
            status=self.lake,
            clock=self.clock,
            settings=settings,
        )
        config = uvicorn.Config(
            Litestar([cdc_route(self.door)], openapi_config=None),
            ws="websockets-sansio",
            ws_max_size=SERVER_FRAME_BYTES_MAX,
            ws_per_message_deflate=True,
            log_level="critical",
            lifespan="off",
        )
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self.listener.dup()])
        try:
            yield self
        finally:
            await self.door.drain(5)
            await self._server.shutdown()

    def cut(self) -> None:
        """Break every connection, as a network does."""
        assert self._server is not None
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()

    def rows(self) -> list[Any]:
        return [event["after"]["n"] for batch in self.lake.batches for event in json.loads(batch.payload)]


WAYS: dict[str, dict[str, Any]] = {
    "json": {},
    "json, deflate": {"compression": "deflate"},
    "json, zstd": {"compression": "zstd"},
    "msgpack": {"encoding": "msgpack"},
    "msgpack, zstd": {"encoding": "msgpack", "compression": "zstd"},
}
_way: dict[str, Any] = {}


@pytest.fixture(autouse=True, params=WAYS)
def way(request: pytest.FixtureRequest) -> None:
    """Every test here runs over each way to write a message."""
    _way.clear()
    _way.update(WAYS[request.param])


def quick(site: Site, source: str = "shop", **changed: Any) -> CdcClient:
    return CdcClient(site.url, source, backoff=Backoff(wait_s_min=0.001, wait_s_max=0.01), **_way, **changed)


def numbered(number: int) -> list[Any]:
    return [insert("orders", number, {"n": number})]


async def test_a_client_whose_server_is_down_says_so_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with sockets.socket() as taken:
        # Bound, and nobody listens: a connection is refused.
        taken.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}/ws"
        with pytest.raises(Overloaded, match="connection refused"):
            async with CdcClient(url, source="early", open_timeout_s=1.0, backoff=Backoff(wait_s_min=0.01)):
                pass
    (told,) = [record for record in caplog.records if record.name == "mainstem.client.cdc"]
    assert told.levelname == "WARNING"
    assert told.message == f"no connection to {url}: connection refused (is the server up?). Trying again."


async def test_send_durable_persisted() -> None:
    async with Site().serving() as site, quick(site) as client:
        receipt = await client.send(
            [
                insert("orders", 1, {"n": 1}),
                update("orders", "1", {"n": 2}, before={"n": 1}),
                delete("orders", 1, timestamp=5),
                read("orders", 2, {"n": 3}, metadata={"snapshot": True}),
                {"operation": "INSERT", "table": "x.y", "rowId": 9, "after": {"n": None}},
            ]
        )
        durable = await receipt.durable()
        assert (durable.sequence, durable.positions, durable.duplicate) == (1, (1, 5), False)
        assert not receipt.is_persisted
        site.lake.persist()
        await receipt.persisted()
        assert json.loads(site.lake.batches[0].payload)[1] == {
            "operation": "UPDATE",
            "table": "orders",
            "rowId": "1",
            "before": {"n": 1},
            "after": {"n": 2},
        }


async def test_the_next_client_of_a_source_counts_on() -> None:
    async with Site().serving() as site:
        async with quick(site) as client:
            await client.send(numbered(1), sequence=41)
        async with quick(site) as client:
            assert (await client.send(numbered(2))).sequence == 42
    assert site.rows() == [1, 2]


async def test_a_batch_that_is_sent_twice_under_its_own_sequence_counts_once() -> None:
    async with Site().serving() as site:
        for _ in range(2):
            async with quick(site) as client:
                last = await (await client.send(numbered(1), sequence=7)).durable()
    assert last.duplicate
    assert site.rows() == [1]


async def test_leaving_the_client_waits_for_what_was_sent() -> None:
    async with Site().serving() as site:
        async with quick(site) as client:
            for number in range(200):
                await client.send(numbered(number))
        assert site.rows() == list(range(200))


async def test_the_window_bounds_what_is_on_its_way() -> None:
    site = Site(by_hand=True)
    async with site.serving(), quick(site, window_batches_max=3) as client:
        for number in range(3):
            await client.send(numbered(number))
        fourth = asyncio.ensure_future(client.send(numbered(3)))
        await site.lake.until_pending(3)
        assert not fourth.done()
        site.lake.make_durable(1)
        assert (await fourth).sequence == 4
        await site.lake.until_pending(3)
        site.lake.make_durable()


async def test_a_final_refusal_comes_out_at_its_receipt_and_nothing_else_is_hurt() -> None:
    async with Site().serving() as site, quick(site) as client:
        good = await client.send(numbered(1))
        bad = await client.send([insert("no/such", 1, {"n": 1})])
        large = await client.send(numbered(2) * 1_001)
        after = await client.send(numbered(3))
        await good.durable()
        with pytest.raises(Invalid, match="not allowed") as caught:
            await bad.durable()
        assert caught.value.reason == "invalid_format"
        with pytest.raises(Invalid) as caught:
            await large.persisted()
        assert caught.value.reason == "payload_too_large"
        await after.durable()
    assert site.rows() == [1, 3]


async def test_a_connection_that_breaks_at_any_time_loses_and_doubles_nothing() -> None:
    rng = random.Random(7)
    async with Site().serving() as site, quick(site) as client:
        receipts = []
        for number in range(1, 401):
            receipts.append(await client.send(numbered(number)))
            if rng.random() < 0.05:
                await receipts[rng.randrange(len(receipts))].durable()
                site.cut()
        for receipt in receipts:
            await receipt.durable()
        assert client.connections > 3
    assert site.rows() == list(range(1, 401))


async def test_an_answer_that_was_lost_is_a_duplicate_the_next_time() -> None:
    site = Site(by_hand=True)
    async with site.serving(), quick(site) as client:
        receipt = await client.send(numbered(1))
        await site.lake.until_pending(1)
        site.cut()
        site.lake.make_durable()
        assert (await receipt.durable()).duplicate
        site.lake.persist()
        await receipt.persisted()
    assert site.rows() == [1]


async def test_persisted_is_heard_after_a_reconnect() -> None:
    async with Site().serving() as site, quick(site) as client:
        receipt = await client.send(numbered(1))
        await receipt.durable()
        site.cut()
        site.lake.persist()
        await receipt.persisted()


async def test_a_server_that_stops_and_comes_back_is_resumed() -> None:
    site = Site()
    first = site.serving()
    await first.__aenter__()
    async with quick(site) as client:
        for number in range(50):
            await client.send(numbered(number))
        await first.__aexit__(None, None, None)
        for number in range(50, 60):
            await client.send(numbered(number))
        async with site.serving():
            await client.flush()
    assert site.rows() == list(range(60))


async def test_a_refusal_for_now_is_obeyed_and_the_order_is_kept() -> None:
    async with Site().serving() as site, quick(site) as client:
        site.lake.refusal = Overloaded("the disk is full", retry_after_s=0.02)
        receipts = [await client.send(numbered(number)) for number in range(20)]

        waits: list[float] = []
        real_sleep = asyncio.sleep

        async def sleep(delay_s: float) -> None:
            waits.append(delay_s)
            site.lake.refusal = None
            await real_sleep(delay_s)

        client._sleep = sleep
        for receipt in receipts:
            await receipt.durable()
        assert waits
        # Batches behind the refused one are held until it has come back: the door asks for 0.05 s at least then.
        assert max(waits) <= 0.05
    assert site.rows() == list(range(20))


async def test_the_server_may_ask_for_a_slower_pace() -> None:
    waits: list[float] = []
    clock = ManualClock()

    async def sleep(delay_s: float) -> None:
        waits.append(delay_s)
        site.lake.buffer = BufferView(utilization=0.1)
        clock.advance(delay_s)

    site = Site()
    async with site.serving(), quick(site, sleep=sleep, clock=clock) as client:
        site.lake.buffer = BufferView(utilization=1.0)
        await (await client.send(numbered(1))).durable()
        await (await client.send(numbered(2))).durable()
    assert waits == [pytest.approx(5.0)]


async def test_flush_brings_everything_sent_before_into_the_tables() -> None:
    async with Site().serving() as site, quick(site) as client:
        receipts = [await client.send(numbered(number)) for number in range(5)]
        assert await client.flush() == 5
        assert all(receipt.is_persisted for receipt in receipts)
        assert site.lake.watermark == 5


async def test_a_flush_survives_a_broken_connection() -> None:
    async with Site().serving() as site, quick(site) as client:
        await client.send(numbered(1))
        real, tries = site.lake.flush, 0

        async def flush(timeout_s: float) -> LogPosition:
            nonlocal tries
            tries += 1
            if tries == 1:
                site.cut()
                await asyncio.Event().wait()
            return await real(timeout_s)

        site.lake.flush = flush  # type: ignore[method-assign]
        assert await client.flush() == 1
        assert tries == 2


async def test_a_flush_that_takes_too_long_says_so() -> None:
    async with Site().serving() as site, quick(site) as client:

        async def flush(timeout_s: float) -> LogPosition:
            raise Overloaded("the tables are behind", retry_after_s=3, reason="internal_error")

        site.lake.flush = flush  # type: ignore[method-assign]
        with pytest.raises(Overloaded, match="behind") as caught:
            await client.flush()
        assert caught.value.retry_after_s == 3


async def test_where_no_server_is_the_client_says_so_in_time() -> None:
    site = Site()
    with pytest.raises(Overloaded, match="no connection"):
        await quick(site, open_timeout_s=0.05).__aenter__()


async def test_a_server_that_comes_up_late_is_found() -> None:
    site = Site()
    failed = asyncio.Event()

    async def sleep(delay_s: float) -> None:
        failed.set()
        await asyncio.sleep(delay_s)

    async def produce() -> None:
        async with quick(site, sleep=sleep) as client:
            await client.send(numbered(1))

    async with asyncio.TaskGroup() as group:
        producing = group.create_task(produce())
        await failed.wait()
        async with site.serving():
            await producing
    assert site.rows() == [1]


async def test_a_full_server_is_tried_again() -> None:
    site = Site()
    async with site.serving(CdcSettings(connections_max=1)):
        waits: list[float] = []
        occupant = await connect(site.url)

        async def sleep(delay_s: float) -> None:
            waits.append(delay_s)
            await occupant.close()

        async with quick(site, sleep=sleep) as client:
            await client.send(numbered(1))
        assert waits[0] == 5.0


async def test_a_client_that_leaves_by_an_error_tells_its_receipts() -> None:
    site = Site(by_hand=True)
    async with site.serving():
        receipts = []
        with pytest.raises(ZeroDivisionError):
            async with quick(site) as client:
                receipts.append(await client.send(numbered(1)))
                raise ZeroDivisionError
        with pytest.raises(OutcomeUnknown):
            await receipts[0].durable()
        with pytest.raises(OutcomeUnknown):
            await client.send(numbered(2))
        site.lake.make_durable()


async def test_a_client_that_leaves_before_its_answers_says_so() -> None:
    site = Site(by_hand=True)
    async with site.serving():
        with pytest.raises(OutcomeUnknown, match="got=none to 2"):
            async with quick(site, close_timeout_s=0.05) as client:
                receipts = [await client.send(numbered(number)) for number in range(2)]
        for receipt in receipts:
            with pytest.raises(OutcomeUnknown):
                await receipt.durable()
        site.lake.make_durable()


async def left_behind(site: Site) -> CdcClient:
    """A client that had an answer to its first batch, and whose server is gone."""
    client = quick(site)
    async with site.serving():
        await client.__aenter__()
        await (await client.send(numbered(1))).durable()
    return client


@asynccontextmanager
async def refusing(site: Site) -> AsyncIterator[None]:
    """In the place of the server one that lets nobody in."""

    async def nobody(_: ServerConnection) -> None:
        raise AssertionError("somebody was let in")

    async with serve(nobody, sock=site.listener.dup(), process_request=lambda one, _: one.respond(401, "no")):
        yield


async def test_a_client_that_is_let_in_no_more_says_so_when_it_leaves() -> None:
    site = Site()
    client = await left_behind(site)
    receipt = await client.send(numbered(2))
    async with refusing(site):
        with pytest.raises(Denied, match="does not let us in"):
            await client.__aexit__(None, None, None)
    with pytest.raises(Denied):
        await receipt.durable()


async def test_a_client_that_has_all_its_answers_leaves_in_peace_even_if_it_is_let_in_no_more() -> None:
    site = Site()
    client = await left_behind(site)
    async with refusing(site):
        async with asyncio.timeout(60):
            with pytest.raises(Denied):
                await client.flush()
        await client.__aexit__(None, None, None)
