"""Documents in the order of a key, however many: what is too much for memory goes where the run has room for it."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from mainstem.documents.aggregation.running import Document, Documents, Ledger, Run, Spilled
from mainstem.documents.errors import Refused

# Sorted at once: more would hold up every other thread, for Python sorts without letting go.
RUN_DOCUMENTS = 8_192

KeyOf = Callable[[Document], Any]


def in_order(documents: Documents, key_of: KeyOf, stage: str, given: Run) -> Iterator[Document]:
    """All documents by their key; those with the same one in the order in which they came. Takes them all before it
    gives the first."""
    ledger, held = Ledger(stage, given.memory_bytes_max), _Held(key_of)
    spilled: Spilled | None = None
    try:
        for document in documents:
            try:
                ledger.add(document)
            except Refused:
                if given.spill is None:
                    raise
                spilled = spilled or given.spill(key_of)
                spilled.add(held.in_order())
                ledger, held = Ledger(stage, given.memory_bytes_max), _Held(key_of)
            held.add(document)
        yield from held.in_order() if spilled is None else spilled.merged(held.in_order())
    finally:
        if spilled is not None:
            spilled.close()


class _Held:
    """Documents in memory: short runs, each sorted."""

    def __init__(self, key_of: KeyOf) -> None:
        self._key_of = key_of
        self._runs: list[list[Document]] = []
        self._run: list[Document] = []

    def add(self, document: Document) -> None:
        self._run.append(document)
        if len(self._run) >= RUN_DOCUMENTS:
            self._end_run()

    def _end_run(self) -> None:
        self._run.sort(key=self._key_of)
        self._runs.append(self._run)
        self._run = []

    def in_order(self) -> Iterator[Document]:
        self._end_run()
        return iter(self._runs[0]) if len(self._runs) == 1 else heapq.merge(*self._runs, key=self._key_of)


def begun(documents: Iterator[Document]) -> Iterator[Document]:
    """The same, after the first one was made: whatever that takes in is taken in then."""
    return itertools.chain(list(itertools.islice(documents, 1)), documents)
