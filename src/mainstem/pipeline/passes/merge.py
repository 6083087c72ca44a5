"""The merge rule in columns: what changes, old rows and deletes of many keys make of each key's row.

The same rule as `mainstem.model.merge`, against the same test vectors, but column by column over all keys at once.
Every row of evidence has a key and a stamp (clock, source). A column keeps the value with its latest stamp, unless a
delete of the key is as new. A row of which no column is left is not there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mainstem.pipeline.passes.values import Mask, Values, canonical
from mainstem.tables.evolution import Column
from mainstem.tables.types import Kind

Longs = npt.NDArray[np.int64]

_NONE = -1
_clocks = msgspec.json.Decoder(dict[str, tuple[int, str]]).decode
_json = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of some keys, row by row. `positions` of old rows and earlier deletes do not count."""

    keys: pa.Array
    hlcs: Longs
    sources: Sequence[str]
    positions: Longs
    is_change: Mask
    is_delete: Mask
    # Of old rows, where their columns do not all have the row's own stamp: JSON {column: [hlc, source]}.
    clocks: Sequence[str | None]
    values: Values


@dataclass(frozen=True, slots=True)
class Merged:
    """The rows that are there now: one each for some of the keys."""

    keys: pa.Array
    columns: list[pa.Array]
    hlcs: pa.Array
    sources: pa.Array
    positions: pa.Array
    clocks: pa.Array


def merge_rows(evidence: Evidence, columns: Sequence[Column], told_until: int = -1) -> Merged:
    """Merge all keys at once. Rows up to the clock `told_until` say the clocks of their columns, see `tables.since`."""
    keys = evidence.keys.dictionary_encode()
    codes = keys.indices.to_numpy().astype(np.int64)
    count = len(keys.dictionary)
    clocked = {number: _clocks(text) for number, text in enumerate(evidence.clocks) if text is not None}
    names = sorted({*evidence.sources, *(source for stamps in clocked.values() for _, source in stamps.values())})
    rank_of = {name: rank for rank, name in enumerate(names)}
    ranks = np.fromiter((rank_of[name] for name in evidence.sources), np.int64, len(evidence.sources))

    dead = _latest(codes, evidence.hlcs, ranks, np.flatnonzero(evidence.is_delete), count)
    dead_hlcs, dead_ranks = _stamps(dead, evidence.hlcs, ranks)
    top_hlcs, top_ranks = np.full(count, _NONE, np.int64), np.full(count, _NONE, np.int64)
    winners: list[Longs] = []
    stamps: list[tuple[Longs, Longs]] = []
    for number, column in enumerate(columns):
        hlcs, sources = _column_stamps(column.name, evidence.hlcs, ranks, clocked, rank_of)
        there = np.flatnonzero(evidence.values.present[number] & ~evidence.is_delete)
        latest = _latest(codes, hlcs, sources, there, count)
        _break_ties(latest, codes, hlcs, sources, there, column, evidence.values.arrays[number])
        at_hlcs, at_ranks = _stamps(latest, hlcs, sources)
        latest[~_is_later(at_hlcs, at_ranks, dead_hlcs, dead_ranks)] = _NONE
        at_hlcs, at_ranks = _stamps(latest, hlcs, sources)
        later = _is_later(at_hlcs, at_ranks, top_hlcs, top_ranks)
        top_hlcs, top_ranks = np.where(later, at_hlcs, top_hlcs), np.where(later, at_ranks, top_ranks)
        winners.append(latest)
        stamps.append((at_hlcs, at_ranks))

    alive = np.flatnonzero(top_hlcs != _NONE)
    positions = np.zeros(count, np.int64)
    np.maximum.at(positions, codes[evidence.is_change], evidence.positions[evidence.is_change])
    uniform = top_hlcs > told_until
    for at_hlcs, at_ranks in stamps:
        uniform &= (at_hlcs == top_hlcs) & (at_ranks == top_ranks)
    clocks = [None if uniform[key] else _clocks_text(key, columns, stamps, names) for key in alive.tolist()]
    return Merged(
        keys=keys.dictionary.take(pa.array(alive)),
        columns=[_taken(array, winners[number][alive]) for number, array in enumerate(evidence.values.arrays)],
        hlcs=pa.array(top_hlcs[alive]),
        sources=pa.array([names[rank] for rank in top_ranks[alive].tolist()], pa.string()),
        positions=pa.array(positions[alive]),
        clocks=pa.array(clocks, pa.string()),
    )


def last_of_each(codes: Longs, positions: Longs) -> Longs:
    """The row with the highest position of each code, in the order of the codes."""
    order = np.lexsort((positions, codes))
    ends = np.flatnonzero(np.append(codes[order][1:] != codes[order][:-1], True)) if len(order) else order
    return order[ends]


def _latest(codes: Longs, hlcs: Longs, ranks: Longs, rows: Longs, count: int) -> Longs:
    """By key: which of some rows has the latest stamp; _NONE where the key has none of them."""
    found = np.full(count, _NONE, np.int64)
    order = rows[np.lexsort((ranks[rows], hlcs[rows], codes[rows]))]
    # Of several entries for one key the last one stays.
    found[codes[order]] = order
    return found


def _stamps(rows: Longs, hlcs: Longs, ranks: Longs) -> tuple[Longs, Longs]:
    is_there = rows != _NONE
    return np.where(is_there, hlcs[rows], _NONE), np.where(is_there, ranks[rows], _NONE)


def _is_later(hlcs: Longs, ranks: Longs, other_hlcs: Longs, other_ranks: Longs) -> Mask:
    later: Mask = (hlcs > other_hlcs) | ((hlcs == other_hlcs) & (ranks > other_ranks))
    return later


def _column_stamps(
    name: str,
    hlcs: Longs,
    ranks: Longs,
    clocked: Mapping[int, Mapping[str, tuple[int, str]]],
    rank_of: Mapping[str, int],
) -> tuple[Longs, Longs]:
    """The stamps of one column: each row's own, except where an old row says otherwise."""
    if not clocked:
        return hlcs, ranks
    hlcs, ranks = hlcs.copy(), ranks.copy()
    for row, stamps in clocked.items():
        if name in stamps:
            hlcs[row], ranks[row] = stamps[name][0], rank_of[stamps[name][1]]
    return hlcs, ranks


def _break_ties(
    latest: Longs, codes: Longs, hlcs: Longs, ranks: Longs, rows: Longs, column: Column, values: pa.Array
) -> None:
    """One source never writes a column twice with one clock; if it does, the greater JSON text wins everywhere."""
    of_key = latest[codes[rows]]
    tied = rows[(hlcs[rows] == hlcs[of_key]) & (ranks[rows] == ranks[of_key]) & (rows != of_key)]
    for row in tied.tolist():
        best = int(latest[codes[row]])
        if _text(values[row], column) > _text(values[best], column):
            latest[codes[row]] = row


def _text(value: pa.Scalar, column: Column) -> bytes:
    plain = value.as_py()
    return canonical(_json(plain) if column.kind is Kind.JSON and plain is not None else plain)


def _taken(array: pa.Array, rows: Longs) -> pa.Array:
    return array.take(pa.array(rows, mask=rows == _NONE))


def _clocks_text(
    key: int, columns: Sequence[Column], stamps: Sequence[tuple[Longs, Longs]], names: Sequence[str]
) -> str:
    clocks = {
        column.name: (int(hlcs[key]), names[int(ranks[key])])
        for column, (hlcs, ranks) in zip(columns, stamps, strict=True)
        if hlcs[key] != _NONE
    }
    return msgspec.json.encode(clocks).decode()
