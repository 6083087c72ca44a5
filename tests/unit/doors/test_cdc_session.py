"""A CDC connection without a socket: messages in, answers out."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mainstem.admission import Dedup, Gate, Intake, Limits, Pressure
from mainstem.doors.cdc.ports import BufferView, CdcSettings
from mainstem.doors.cdc.session import CdcSession
from mainstem.doors.cdc.ws import CdcDoor
from mainstem.model import LogPosition, MainstemError, OutcomeUnknown, Overloaded
from mainstem.model.batch import Encoding, split_shard
from mainstem.runtime.clock import ManualClock
from tests.harness.memory_lake import MemoryLake


def change(**changed: Any) -> dict[str, Any]:
    return {"operation": "INSERT", "table": "orders", "rowId": "1", "after": {"id": 1}} | changed


def batch(sequence: int, events: list[Any] | None = None, **changed: Any) -> dict[str, Any]:
    message = {"type": "cdc_batch", "sourceDoId": "shop", "sequenceNumber": sequence, "events": events or [change()]}
    return message | changed


class Peer:
    """One connection of a door, with the test at its other end."""

    def __init__(self, world: "World", source: str | None = None, shard: str | None = None) -> None:
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.writable = asyncio.Event()
        self.writable.set()
        self.session = CdcSession(
            intake=world.intake,
            host=world.door,
            flusher=world.lake,
            clock=world.clock,
            settings=world.settings,
            stats=world.door.stats,
            send=self._sent,
            close=self._closed,
            default_source=source,
            default_shard=shard,
        )
        self.task = asyncio.create_task(self.session.run(self._messages()))

    async def _messages(self) -> AsyncIterator[bytes]:
        while (data := await self._inbox.get()) is not None:
            yield data

    async def _sent(self, data: str | bytes) -> None:
        await self.writable.wait()
        self._outbox.put_nowait(json.loads(data))

    async def _closed(self, code: int, reason: str) -> None:
        self._outbox.put_nowait({"closed": code, "reason": reason})
        self._inbox.put_nowait(None)

    def say(self, message: dict[str, Any] | bytes) -> None:
        self._inbox.put_nowait(message if isinstance(message, bytes) else json.dumps(message).encode())

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            return await self._outbox.get()

    async def ask(self, message: dict[str, Any] | bytes) -> dict[str, Any]:
        self.say(message)
        return await self.hear()

    @property
    def silent(self) -> bool:
        return self._outbox.empty()

    @property
    def unread(self) -> int:
        return self._inbox.qsize()

    async def leave(self) -> None:
        self._inbox.put_nowait(None)
        await self.task


class World:
    def __init__(
        self, *, by_hand: bool = False, limits: Limits | None = None, settings: CdcSettings | None = None
    ) -> None:
        self.clock = ManualClock()
        self.settings = settings or CdcSettings()
        self.dedup = Dedup(self.clock)
        self.lake = MemoryLake(self.dedup, self.clock, by_hand=by_hand)
        self.intake = Intake(Gate(self.dedup, limits), self.lake)
        self.door = CdcDoor(
            intake=self.intake, persisted=self.lake, flusher=self.lake, status=self.lake, clock=self.clock
        )

    async def pending(self, count: int) -> None:
        """Wait until so many batches are on their way to the disk."""
        async with asyncio.timeout(60):
            await self.lake.until_pending(count)


async def settle() -> None:
    """Let every callback that is due run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_connect_is_answered_with_where_the_source_stands() -> None:
    peer = Peer(World())
    hello = await peer.ask({"type": "connect", "sourceDoId": "shop", "protocolVersion": 1, "correlationId": "c"})
    assert (hello["type"], hello["status"], hello["sequenceNumber"], hello["correlationId"]) == ("ack", "ok", 0, "c")
    assert hello["details"]["bufferUtilization"] == 0
    status = await peer.hear()
    assert (status["type"], status["state"], status["connectedSources"]) == ("status", "idle", 1)
    await peer.ask(batch(7))
    assert (await peer.ask({"type": "connect", "sourceDoId": "shop"}))["sequenceNumber"] == 7
    await peer.leave()


async def test_connect_waits_for_what_an_earlier_connection_left_under_way() -> None:
    world = World(by_hand=True)
    gone = Peer(world)
    gone.say(batch(5))
    await world.pending(1)
    await gone.leave()
    peer = Peer(world)
    peer.say({"type": "connect", "sourceDoId": "shop"})
    await settle()
    assert peer.silent
    world.lake.make_durable()
    assert (await peer.hear())["sequenceNumber"] == 5
    await peer.leave()


async def test_a_newer_producer_hears_which_version_is_spoken_and_a_senseless_one_is_refused() -> None:
    peer = Peer(World())
    hello = await peer.ask({"type": "connect", "sourceDoId": "shop", "protocolVersion": 2})
    assert (hello["status"], hello["protocolVersion"]) == ("ok", 1)
    assert (await peer.hear())["type"] == "status"
    nack = await peer.ask({"type": "connect", "sourceDoId": "shop", "protocolVersion": 0})
    assert (nack["reason"], nack["shouldRetry"]) == ("invalid_format", False)
    assert "expected=at least 1 got=0" in nack["errorMessage"]
    await peer.leave()


async def test_a_batch_is_acknowledged_when_it_is_durable_and_not_before() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1, [change(), change()], correlationId="x"))
    await world.pending(1)
    await settle()
    assert peer.silent
    world.lake.make_durable()
    ack = await peer.hear()
    assert (ack["status"], ack["sequenceNumber"], ack["batchId"], ack["correlationId"]) == ("ok", 1, "1-2", "x")
    assert ack["details"]["eventsProcessed"] == 2
    taken = world.lake.batches[0]
    assert json.loads(taken.payload) == [change(), change()]
    assert (taken.source, taken.count, {str(table) for table in taken.tables}) == ("shop", 2, {"default.orders"})
    await peer.leave()


async def test_batches_are_pipelined_and_their_acks_leave_in_order() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    for sequence in range(1, 11):
        peer.say(batch(sequence))
    await world.pending(10)
    peer.say({"type": "heartbeat", "sourceDoId": "shop"})
    world.lake.make_durable()
    assert [(await peer.hear())["sequenceNumber"] for _ in range(10)] == list(range(1, 11))
    assert (await peer.hear())["type"] == "status"
    await peer.leave()


async def test_a_full_queue_of_answers_stops_the_reading() -> None:
    world = World(by_hand=True, settings=CdcSettings(replies_max=4))
    peer = Peer(world)
    for sequence in range(1, 11):
        peer.say(batch(sequence))
    await world.pending(4)
    await settle()
    assert len(world.lake.pending) == 4
    assert peer.unread == 5
    for _ in range(10):
        world.lake.make_durable()
        await peer.hear()
        await settle()
    assert len(world.lake.batches) == 10
    await peer.leave()


async def test_a_peer_that_does_not_read_stops_the_reading_too() -> None:
    world = World(settings=CdcSettings(replies_max=4))
    peer = Peer(world)
    peer.writable.clear()
    for sequence in range(1, 21):
        peer.say(batch(sequence))
    await settle()
    assert len(world.lake.batches) <= 6
    peer.writable.set()
    for _ in range(20):
        await peer.hear()
    await peer.leave()


async def test_the_bytes_that_wait_for_an_answer_are_bounded_too() -> None:
    world = World(by_hand=True, settings=CdcSettings(replies_bytes_max=100))
    peer = Peer(world)
    for sequence in range(1, 5):
        peer.say(batch(sequence))
    await settle()
    assert len(world.lake.pending) == 2
    while len(world.lake.batches) < 4:
        world.lake.make_durable()
        await settle()
    await peer.leave()


async def test_a_duplicate_is_told_and_not_appended() -> None:
    world = World()
    peer = Peer(world)
    await peer.ask(batch(1))
    again = await peer.ask(batch(1, isRetry=True))
    assert (again["status"], again["sequenceNumber"]) == ("duplicate", 1)
    assert len(world.lake.batches) == 1
    assert world.door.stats.duplicates == 1
    await peer.leave()


async def test_other_changes_under_a_used_sequence_hear_which_one_is_next() -> None:
    peer = Peer(World())
    await peer.ask(batch(3))
    nack = await peer.ask(batch(3, [change(rowId="2")]))
    assert (nack["reason"], nack["shouldRetry"], nack["nextSequence"]) == ("invalid_sequence", False, 4)
    assert "next=4" in nack["errorMessage"]
    await peer.leave()


async def test_a_refused_batch_is_not_remembered_and_its_successors_do_not_overtake_it() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    await world.pending(1)
    world.lake.fail(Overloaded("the disk is full", retry_after_s=0.5, reason="internal_error"))
    nack = await peer.hear()
    assert (nack["reason"], nack["shouldRetry"], nack["retryDelayMs"]) == ("internal_error", True, 500)
    assert nack["errorMessage"] == "the disk is full"
    held = await peer.ask(batch(2))
    assert (held["reason"], held["shouldRetry"], held["retryDelayMs"]) == ("internal_error", True, 500)
    # Another source is not concerned.
    peer.say(batch(2, sourceDoId="other"))
    await world.pending(1)
    world.lake.make_durable()
    assert (await peer.hear())["status"] == "ok"
    # The batch itself may come back at any time, and the others once its time is over.
    peer.say(batch(1))
    await world.pending(1)
    world.clock.advance(0.5)
    peer.say(batch(2))
    await world.pending(2)
    world.lake.make_durable()
    assert [(await peer.hear())["sequenceNumber"] for _ in range(2)] == [1, 2]
    assert [(b.source, b.sequence) for b in world.lake.batches] == [("other", 2), ("shop", 1), ("shop", 2)]
    await peer.leave()


@pytest.mark.parametrize("failure", [OutcomeUnknown("the disk is gone"), RuntimeError("a bug")])
async def test_a_failure_of_ours_may_be_tried_again(failure: Exception) -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    await world.pending(1)
    world.lake.fail(failure)
    nack = await peer.hear()
    assert (nack["reason"], nack["shouldRetry"], nack["retryDelayMs"]) == ("internal_error", True, 1000)
    assert ("bug" in nack["errorMessage"]) is False
    await peer.leave()


async def test_a_log_that_refuses_at_once_is_heard_too() -> None:
    world = World()
    world.lake.refusal = Overloaded("buffer is full", retry_after_s=2.0)
    peer = Peer(world)
    nack = await peer.ask(batch(1))
    assert (nack["reason"], nack["retryDelayMs"]) == ("buffer_full", 2000)
    assert world.door.stats.nacks == {"buffer_full": 1}
    await peer.leave()


@pytest.mark.parametrize(
    ("message", "reason", "sequence"),
    [
        (b"{", "invalid_format", 0),
        (b"\xff", "invalid_format", 0),
        ({"type": "nonsense"}, "invalid_format", 0),
        (batch(4, events=None) | {"events": {}}, "invalid_format", 4),
        (batch(4) | {"events": []}, "invalid_format", 4),
        (batch(4, [change(rowId=True)]), "invalid_format", 4),
        (batch(4, [change(table="a/b")]), "invalid_format", 4),
        (batch(4, [change(table="a_history")]), "invalid_format", 4),
        (batch(4, sourceDoId="a\nb"), "invalid_format", 4),
        (batch(4, sourceDoId=None), "invalid_format", 4),
        (batch(4, [change(after={"x": "y" * 600})]), "payload_too_large", 4),
        (batch(4, [change(after={"x": "y" * 300})]), "event_too_large", 4),
        (batch(4, [change() for _ in range(6)]), "payload_too_large", 4),
        (b'{"type":"cdc_batch","sequenceNumber":4,"events":' + b"[" * 50_000, "invalid_format", 0),
    ],
)
async def test_what_cannot_be_taken_gets_its_reason_and_the_connection_lives(
    message: Any, reason: str, sequence: int
) -> None:
    world = World(limits=Limits(payload_bytes_max=600, event_bytes_max=250, events_max=5))
    peer = Peer(world)
    nack = await peer.ask(message)
    assert (nack["type"], nack["reason"], nack["sequenceNumber"]) == ("nack", reason, sequence)
    assert nack["shouldRetry"] is False
    assert "retryDelayMs" not in nack
    assert ("maxSize" in nack) == reason.endswith("too_large")
    assert not world.lake.batches
    assert (await peer.ask(batch(5)))["status"] == "ok"
    await peer.leave()


async def test_the_source_may_come_from_the_headers_or_a_connect() -> None:
    world = World()
    header = Peer(world, source="from-header")
    anonymous = batch(1)
    del anonymous["sourceDoId"]
    await header.ask(anonymous)
    peer = Peer(world)
    await peer.ask({"type": "connect", "sourceDoId": "from-connect"})
    await peer.hear()
    await peer.ask(anonymous)
    assert [b.source for b in world.lake.batches] == ["from-header", "from-connect"]
    await header.leave()
    await peer.leave()


async def test_sources_per_connection_are_bounded() -> None:
    peer = Peer(World(settings=CdcSettings(sources_per_connection_max=2)))
    for source in "ab":
        assert (await peer.ask(batch(1, sourceDoId=source)))["status"] == "ok"
    assert "too many sources" in (await peer.ask(batch(1, sourceDoId="c")))["errorMessage"]
    assert (await peer.ask(batch(2, sourceDoId="b")))["status"] == "ok"
    await peer.leave()


async def test_persisted_is_cumulative_and_reaches_every_connection_of_the_source() -> None:
    world = World()
    first, second, other = Peer(world), Peer(world), Peer(world)
    await second.ask({"type": "connect", "sourceDoId": "shop"})
    await second.hear()
    await other.ask(batch(1, sourceDoId="other"))
    for sequence in (1, 2, 3):
        await first.ask(batch(sequence))
    world.lake.persist(LogPosition(3))
    for peer in (first, second):
        told = await peer.hear()
        assert (told["status"], told["sequenceNumber"]) == ("persisted", 2)
    assert (await other.hear())["status"] == "persisted"
    world.lake.persist(LogPosition(3))
    await settle()
    assert first.silent
    world.lake.persist()
    assert (await first.hear())["sequenceNumber"] == 3
    for peer in (first, second, other):
        await peer.leave()


async def test_persisted_never_comes_before_the_ack() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    peer.say(batch(2))
    await world.pending(2)
    world.lake.make_durable(1)
    world.lake.persist()
    world.lake.make_durable()
    world.lake.persist()
    heard = [await peer.hear() for _ in range(4)]
    assert [(ack["status"], ack["sequenceNumber"]) for ack in heard] == [
        ("ok", 1),
        ("ok", 2),
        ("persisted", 1),
        ("persisted", 2),
    ]
    await peer.leave()


async def test_a_slow_peer_hears_persisted_once_for_many_watermarks() -> None:
    world = World()
    peer = Peer(world)
    for sequence in range(1, 6):
        await peer.ask(batch(sequence))
    peer.writable.clear()
    for position in range(1, 6):
        world.lake.persist(LogPosition(position))
        await settle()
    peer.writable.set()
    heard = [(await peer.hear())["sequenceNumber"]]
    while heard[-1] != 5:
        heard.append((await peer.hear())["sequenceNumber"])
    assert len(heard) <= 3
    await peer.leave()


async def test_a_late_old_batch_is_not_called_persisted_because_newer_ones_are() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(2))
    await world.pending(1)
    world.lake.make_durable()
    assert (await peer.hear())["status"] == "ok"
    peer.say(batch(1))
    await world.pending(1)
    world.lake.persist()
    await settle()
    assert peer.silent
    world.lake.fail(MainstemErrorForGood("no"))
    assert (await peer.hear())["type"] == "nack"
    told = await peer.hear()
    assert (told["status"], told["sequenceNumber"]) == ("persisted", 2)
    await peer.leave()


class MainstemErrorForGood(MainstemError):
    pass


async def test_after_a_reconnect_the_producer_hears_what_the_tables_have() -> None:
    world = World()
    gone = Peer(world)
    await gone.ask(batch(1))
    await gone.ask(batch(2))
    await gone.leave()
    world.lake.persist()
    peer = Peer(world)
    heard = [await peer.ask({"type": "connect", "sourceDoId": "shop"}), await peer.hear(), await peer.hear()]
    assert [m.get("status", m["type"]) for m in heard] == ["ok", "status", "persisted"]
    assert heard[2]["sequenceNumber"] == 2
    # A retry of what the tables have is told so as well.
    assert [(await peer.ask(batch(1)))["status"], (await peer.hear())["status"]] == ["duplicate", "persisted"]
    await peer.leave()


async def test_a_flush_covers_what_was_sent_before_it() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    peer.say({"type": "flush_request", "sourceDoId": "shop", "reason": "manual", "correlationId": "f"})
    await world.pending(1)
    await settle()
    assert world.lake.flushes == 0
    world.lake.make_durable()
    heard = [await peer.hear()]
    while heard[-1].get("correlationId") != "f":
        heard.append(await peer.hear())
    assert heard[0]["status"] == "ok"
    assert (heard[-1]["status"], heard[-1]["sequenceNumber"]) == ("persisted", 1)
    assert (await peer.hear())["type"] == "status"
    await peer.leave()


async def test_a_flush_that_fails_is_told() -> None:
    world = World()

    async def too_slow(timeout_s: float) -> LogPosition:
        raise Overloaded("the tables are behind", retry_after_s=3.0, reason="internal_error")

    world.lake.flush = too_slow  # type: ignore[method-assign]
    peer = Peer(world)
    nack = await peer.ask({"type": "flush_request", "sourceDoId": "shop", "correlationId": "f"})
    assert (nack["reason"], nack["retryDelayMs"], nack["correlationId"]) == ("internal_error", 3000, "f")
    await peer.leave()


async def test_flushes_at_once_are_bounded() -> None:
    world = World(settings=CdcSettings(flushes_max=1))
    never = asyncio.Event()

    async def slow(timeout_s: float) -> LogPosition:
        await never.wait()
        return world.lake.watermark

    world.lake.flush = slow  # type: ignore[method-assign]
    peer = Peer(world, source="shop")
    peer.say({"type": "flush_request"})
    nack = await peer.ask({"type": "flush_request"})
    assert (nack["reason"], nack["shouldRetry"]) == ("buffer_full", True)
    await peer.leave()


async def test_a_goodbye_is_answered_after_everything_else() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    peer.say({"type": "disconnect"})
    peer.say(batch(2))
    await world.pending(1)
    await settle()
    assert peer.silent
    world.lake.make_durable()
    assert (await peer.hear())["status"] == "ok"
    assert (await peer.hear())["closed"] == 1000
    await peer.task
    assert [b.sequence for b in world.lake.batches] == [1]
    assert world.door.source_count == 0


async def test_a_draining_server_answers_what_is_under_way_and_refuses_the_rest() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    await world.pending(1)
    peer.session.drain()
    peer.say(batch(2))
    await settle()
    assert peer.silent
    world.lake.make_durable()
    assert (await peer.hear())["status"] == "ok"
    nack = await peer.hear()
    assert (nack["reason"], nack["shouldRetry"], nack["sequenceNumber"]) == ("shutting_down", True, 2)
    assert nack["retryDelayMs"] > 0
    assert (await peer.hear())["closed"] == 1001
    await peer.task


async def test_a_full_buffer_is_told_with_a_delay_and_then_as_buffered() -> None:
    world = World()
    peer = Peer(world)
    world.lake.buffer = BufferView(utilization=0.82)
    ack = await peer.ask(batch(1))
    assert (ack["status"], ack["details"]["bufferUtilization"]) == ("ok", 0.82)
    assert ack["details"]["suggestedDelayMs"] == Pressure(clock=world.clock).delay_ms(0.82)
    world.lake.buffer = BufferView(utilization=0.86)
    assert (await peer.ask(batch(2)))["status"] == "buffered"
    await peer.leave()


async def test_a_peer_that_is_gone_while_its_batch_is_written_does_not_stop_the_batch() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    await world.pending(1)
    await peer.leave()
    world.lake.make_durable()
    await settle()
    again = Peer(world)
    assert (await again.ask(batch(1)))["status"] == "duplicate"
    await again.leave()
    assert world.door.source_count == 0


async def test_what_was_on_the_wire_for_long_does_not_overtake_either() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    await world.pending(1)
    world.lake.fail(Overloaded("the disk is full", retry_after_s=0.5, reason="internal_error"))
    await peer.hear()
    # Sent before the nack was heard, read long after.
    world.clock.advance(3)
    assert (await peer.ask(batch(2)))["shouldRetry"] is True
    for sequence in (1, 2):
        peer.say(batch(sequence))
    await world.pending(2)
    world.lake.make_durable()
    assert [(await peer.hear())["sequenceNumber"] for _ in range(2)] == [1, 2]
    assert [b.sequence for b in world.lake.batches] == [1, 2]
    await peer.leave()


async def test_a_batch_that_was_given_up_is_not_waited_for_for_ever() -> None:
    world = World(by_hand=True)
    peer = Peer(world)
    peer.say(batch(1))
    await world.pending(1)
    world.lake.fail(Overloaded("the disk is full", retry_after_s=0.5, reason="internal_error"))
    await peer.hear()
    world.clock.advance(0.5 + world.settings.hold_s_max)
    peer.say(batch(2))
    await world.pending(1)
    world.lake.make_durable()
    assert (await peer.hear())["status"] == "ok"
    await peer.leave()


@pytest.mark.parametrize(
    ("first", "last", "sequences", "is_right"),
    [
        (5, 7, [5, 6, 7], True),
        (5, None, [5, 6], True),
        (None, 7, [6, 7], True),
        (5, 7, [None, None], True),
        (5, 5, [5], True),
        (4, 7, [5, 6, 7], False),
        (5, 8, [5, 6, 7], False),
        (7, 5, [None], False),
        (7, 5, [7, 5], False),
    ],
)
async def test_a_batch_says_rightly_which_events_it_has(
    first: int | None, last: int | None, sequences: list[int | None], is_right: bool
) -> None:
    events = [change() | ({} if each is None else {"sequence": each}) for each in sequences]
    told = {"firstEventSequence": first, "lastEventSequence": last}
    peer = Peer(World())
    answer = await peer.ask(batch(1, events, **{name: each for name, each in told.items() if each is not None}))
    assert answer["type"] == ("ack" if is_right else "nack"), answer
    if not is_right:
        assert (answer["reason"], answer["shouldRetry"]) == ("invalid_format", False)
    await peer.leave()


async def test_what_was_agreed_on_is_kept() -> None:
    peer = Peer(World())
    small = {"maxBatchSize": 2, "maxMessageSize": 400}
    # What comes behind it is on the wire before the answer is there.
    peer.say({"type": "connect", "sourceDoId": "shop", "capabilities": small})
    peer.say(batch(1, [change()] * 2))
    peer.say(batch(2, [change()] * 3))
    peer.say(batch(3, [change(after={"id": "x" * 400})]))
    hello = await peer.hear()
    assert {name: hello["capabilities"][name] for name in small} == small
    assert [(await peer.hear())["type"] for _ in range(2)] == ["status", "ack"]
    for size in small.values():
        nack = await peer.hear()
        assert (nack["reason"], nack["maxSize"], nack["shouldRetry"]) == ("payload_too_large", size, False)
    # Another connect agrees on something else.
    peer.say({"type": "connect", "sourceDoId": "shop"})
    peer.say(batch(2, [change()] * 3))
    assert [(await peer.hear())["type"] for _ in range(3)] == ["ack", "status", "ack"]
    await peer.leave()


@pytest.mark.parametrize("way", ["batch", "connect", "header", "none"])
async def test_the_shard_goes_with_the_batch(way: str) -> None:
    world = World()
    peer = Peer(world, shard="shard-1" if way == "header" else None)
    if way == "connect":
        await peer.ask({"type": "connect", "sourceDoId": "shop", "sourceShardName": "shard-1"})
        await peer.hear()
    named = batch(1, sourceShardName="shard-1") if way == "batch" else batch(1)
    assert (await peer.ask(named))["status"] == "ok"
    (taken,) = world.lake.batches
    if way == "none":
        assert taken.encoding is Encoding.CDC_JSON
    else:
        assert taken.encoding is Encoding.CDC_JSON_OF_SHARD
        assert split_shard(taken.payload)[0] == "shard-1"
    # The same changes are the same batch, whatever the connection says of its shard.
    other = Peer(world, shard="another")
    assert (await other.ask(batch(1)))["status"] == "duplicate"
    await other.leave()
    await peer.leave()
