"""What a client holds until it hears of it: order is kept, nothing is lost, nothing is told too early."""

import gc
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.client.outbox import Outbox
from mainstem.client.receipt import Durable, Receipt
from mainstem.model.errors import Invalid, OutcomeUnknown
from mainstem.runtime.backoff import Backoff


def filled(*sequences: int) -> tuple[Outbox, dict[int, Receipt]]:
    outbox, receipts = Outbox(), {sequence: Receipt(sequence, 1) for sequence in sequences}
    for receipt in receipts.values():
        outbox.put(b"[]", receipt)
    return outbox, receipts


def drain(outbox: Outbox) -> list[int]:
    sent = []
    while (parcel := outbox.next()) is not None:
        sent.append(parcel.sequence)
    return sent


def durable(sequence: int) -> Durable:
    return Durable(sequence, None, False)


async def test_everything_is_sent_once_in_order() -> None:
    outbox, _ = filled(5, 1, 9)
    assert drain(outbox) == [5, 1, 9]
    assert drain(outbox) == []
    assert (len(outbox), outbox.in_flight, outbox.size_bytes) == (3, 3, 6)


async def test_a_lost_connection_sends_again_what_has_no_answer() -> None:
    outbox, receipts = filled(1, 2, 3, 4)
    for _ in range(3):
        outbox.next()
    outbox.acknowledge(durable(2))
    outbox.rewind()
    assert drain(outbox) == [1, 3, 4]
    assert receipts[2].is_durable
    assert not receipts[1].is_durable
    assert outbox.size_bytes == 6


async def test_a_batch_refused_for_now_waits_for_every_other_answer() -> None:
    outbox, _ = filled(1, 2, 3, 4)
    for _ in range(3):
        outbox.next()
    outbox.postpone(1)
    assert outbox.next() is None
    outbox.postpone(2)
    assert outbox.next() is None
    outbox.acknowledge(durable(3))
    assert drain(outbox) == [1, 2, 4]


async def test_a_batch_refused_for_good_tells_its_receipt_alone() -> None:
    outbox, receipts = filled(1, 2)
    drain(outbox)
    outbox.refuse(1, Invalid("too large", reason="payload_too_large"))
    for wait in (receipts[1].durable, receipts[1].persisted):
        with pytest.raises(Invalid, match="too large"):
            await wait()
    assert len(outbox) == 1


async def test_persisted_reaches_only_what_is_durable() -> None:
    outbox, receipts = filled(1, 2, 3)
    drain(outbox)
    outbox.acknowledge(durable(1))
    outbox.acknowledge(durable(3))
    outbox.persisted(2)
    outbox.acknowledge(durable(2))
    assert [receipts[s].is_persisted for s in (1, 2, 3)] == [True, False, False]
    outbox.persisted(3)
    assert all(receipt.is_persisted for receipt in receipts.values())


async def test_receipts_that_nobody_holds_are_forgotten() -> None:
    outbox, receipts = filled(1, 2)
    drain(outbox)
    outbox.acknowledge(durable(1))
    outbox.acknowledge(durable(2))
    del receipts[1]
    gc.collect()
    assert list(outbox._unpersisted) == [2]


async def test_an_answer_to_something_unknown_is_nothing() -> None:
    outbox, _ = filled(1)
    outbox.acknowledge(durable(7))
    outbox.refuse(7, Invalid("x"))
    outbox.postpone(7)
    assert drain(outbox) == [1]


async def test_one_sequence_is_not_on_its_way_twice() -> None:
    outbox, _ = filled(1)
    with pytest.raises(Invalid, match="on its way already"):
        outbox.put(b"[]", Receipt(1, 1))
    drain(outbox)
    outbox.acknowledge(durable(1))
    outbox.put(b"[]", Receipt(1, 1))


async def test_the_end_tells_every_receipt() -> None:
    outbox, receipts = filled(1, 2, 3)
    outbox.next()
    outbox.acknowledge(durable(1))
    outbox.next()
    outbox.abandon(OutcomeUnknown("closed"))
    assert (await receipts[1].durable()).sequence == 1
    for wait in (receipts[1].persisted, receipts[2].durable, receipts[3].durable):
        with pytest.raises(OutcomeUnknown):
            await wait()
    assert len(outbox) == 0


@given(st.lists(st.sampled_from(["send", "ack", "nack", "lose", "put"]), max_size=60), st.integers(0, 2**32))
def test_a_server_that_answers_in_order_gets_every_batch_in_order(steps: list[str], seed: int) -> None:
    """Against a server that refuses what follows a refused batch until that batch is back, as ours does."""
    rng, outbox, put = random.Random(seed), Outbox(), 0
    wire: list[int] = []
    log: list[int] = []

    def answer(refuse: bool) -> None:
        sequence = wire.pop(0)
        if sequence in log:
            outbox.acknowledge(durable(sequence))
        elif refuse or sequence != len(log) + 1:
            outbox.postpone(sequence)
        else:
            log.append(sequence)
            if rng.random() < 0.8:
                outbox.acknowledge(durable(sequence))
            else:
                # The answer is lost, with the connection.
                wire.clear()
                outbox.rewind()

    for step in (*steps, *["send", "ack"] * 200):
        if step == "put":
            put += 1
            outbox.put(b"x", Receipt(put, 1))
        elif step == "send" and (parcel := outbox.next()) is not None:
            wire.append(parcel.sequence)
        elif step == "lose":
            wire.clear()
            outbox.rewind()
        elif step in ("ack", "nack") and wire:
            answer(step == "nack")
    assert log == list(range(1, put + 1))


def test_waiting_grows_to_its_bound_and_starts_again() -> None:
    backoff = Backoff(rng=random.Random(4))
    waits = [backoff.next_s() for _ in range(2_000)]
    assert waits[0] == 0.1
    assert all(0.1 <= wait <= min(30, 0.1 * 2**n) for n, wait in enumerate(waits[:12]))
    assert max(waits) <= 30
    assert max(waits) > 25
    backoff.reset()
    assert backoff.next_s() == 0.1
    assert backoff.next_s(at_least_s=7) == 7
