"""Pointers that are remembered: never one that was current before what is current now."""

from itertools import permutations

import pytest

from mainstem.catalog import TableIdent
from mainstem.catalog.stores.pointer_cache import PointerCache
from mainstem.catalog.stores.store import Pointer, Swap

T = TableIdent(("ns",), "t")


def pointer(name: str) -> Pointer:
    return Pointer(name, "/w", None, {})


class Database:
    """What a lookup finds, and how often it had to look."""

    def __init__(self, current: str) -> None:
        self.current = current
        self.reads = 0

    def read(self, _: TableIdent) -> Pointer:
        self.reads += 1
        return pointer(self.current)


def test_a_swap_leaves_its_pointer_at_hand() -> None:
    database = Database("a")
    cache = PointerCache(database.read)
    assert cache.find(T) == pointer("a")
    database.current = "b"
    cache.advance([Swap(T, "a", pointer("b"))])
    assert cache.find(T) == pointer("b")
    assert database.reads == 1
    cache.forget([T])
    assert cache.find(T) == pointer("b")
    assert database.reads == 2


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_swaps_told_in_any_order_leave_nothing_old(order: tuple[int, ...]) -> None:
    swaps = [Swap(T, "a", pointer("b")), Swap(T, "b", pointer("c")), Swap(T, "c", pointer("d"))]
    database = Database("a")
    cache = PointerCache(database.read)
    cache.find(T)
    database.current = "d"
    for number in order:
        cache.advance([swaps[number]])
    assert cache.find(T) == pointer("d")


def test_what_was_not_remembered_is_not_guessed() -> None:
    database = Database("c")
    cache = PointerCache(database.read)
    cache.advance([Swap(T, "a", pointer("b")), Swap(T, None, pointer("a"))])
    assert cache.find(T) == pointer("c")
