"""Checkpoints of many namespaces, made one after the other: one that cannot be made holds no other up."""

from typing import Any

from mainstem.pipeline.upkeep.checkpoints import CheckpointLoop
from mainstem.runtime.clock import ManualClock
from mainstem.wire.checkpoints import CheckpointOrder


class NoLake:
    spark = None


def order(namespace: str) -> CheckpointOrder:
    return CheckpointOrder(namespace=namespace, tables=(), position=1, folder="", before_folder=None, before_position=0)


def test_one_that_fails_is_tried_again_later_and_holds_no_other_up() -> None:
    clock, made, broken = ManualClock(), list[str](), {"bad"}

    def make(spark: Any, lake: Any, asked: CheckpointOrder) -> None:
        made.append(asked.namespace)
        if asked.namespace in broken:
            raise RuntimeError("a file of a history is gone")

    lake: Any = NoLake()
    loop = CheckpointLoop(lake, "http://127.0.0.1:1", None, make=make, clock=clock)
    for wanted in (["bad", "good"], ["good"], ["good"]):
        loop.make([order("bad"), order("good")])
        assert made == wanted
        made.clear()
    # Each time later than the time before, and at once when it was made.
    clock.advance(1.0)
    loop.make([order("bad")])
    assert made == ["bad"]
    clock.advance(1.0)
    loop.make([order("bad")])
    assert made == ["bad"]
    broken.clear()
    clock.advance(1.0)
    for _ in range(2):
        loop.make([order("bad")])
    assert made == ["bad"] * 3
