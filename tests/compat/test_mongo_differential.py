"""MongoDB's languages beside a reference server, by random cases. Each difference is explained or is a bug."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.compat.mongo_server import MongoServer
from tests.harness.mongo_known import KNOWN, reason_of
from tests.harness.mongo_random import Maker
from tests.harness.mongo_reference import reference_server
from tests.harness.mongo_subjects import Ours, OverWire, Subject, alike
from tests.harness.seeds import soak_seeds

CASES_PER_SEED = 25


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverWire]:
    with reference_server(tmp_path_factory.mktemp("reference")) as port:
        subject = OverWire(port)
        yield subject
        subject.client.close()


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverWire]:
    server = MongoServer(tmp_path_factory.mktemp("door"))
    asyncio.run(server.start())
    subject = OverWire(server.port)
    yield subject
    subject.client.close()
    asyncio.run(server.stop())


def compare(ours: Subject, theirs: Subject, seed: int) -> Counter[str]:
    """Run a seed's cases on both. Returns how often each known difference was met."""
    maker = Maker(seed)
    collections = {"main": maker.documents(), "other": maker.documents(5)}
    ours.load(collections)
    theirs.load(collections)
    met: Counter[str] = Counter()
    for number in range(CASES_PER_SEED):
        case = maker.case()
        one, other = ours.answer(case), theirs.answer(case)
        if not alike(case, one, other):
            reason = reason_of(case, one, other)
            assert reason is not None, (
                f"seed={seed} case={number} {case.kind} {case.arguments}\n  ours={one.shown()}\ntheirs={other.shown()}"
            )
            met[reason] += 1
        else:
            met["alike"] += 1
        if case.kind == "update":
            ours.load(collections)
            theirs.load(collections)
    return met


def test_answers_are_those_of_the_reference(reference: OverWire) -> None:
    met: Counter[str] = Counter()
    for seed in range(60):
        met += compare(Ours(), reference, seed)
    # The list of theirs may not become a rug: most answers are the same, byte by byte.
    assert met["alike"] > 0.85 * met.total(), met
    assert set(met) - {"alike"} <= {known.reason for known in KNOWN}


def test_the_door_answers_as_the_reference(door: OverWire, reference: OverWire) -> None:
    """Two servers, asked by the same driver."""
    met: Counter[str] = Counter()
    for seed in range(60, 80):
        met += compare(door, reference, seed)
    assert met["alike"] > 0.85 * met.total(), met


@pytest.mark.soak
def test_many_answers_are_those_of_the_reference(reference: OverWire) -> None:
    for seed in soak_seeds(1_000, 3_000):
        compare(Ours(), reference, seed)
