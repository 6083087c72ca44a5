"""From a checkpoint's file to what a client is sent: every stamp, every delete, and nothing of what is hidden."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mainstem.feeds.checkpoints import Checkpoint, pieces_of
from mainstem.model.position import LogPosition
from mainstem.wire import sync

STAMP = [("hlc", pa.int64()), ("source", pa.string())]
CELL = pa.struct([("column", pa.string()), ("value", pa.string()), *STAMP])
SCHEMA = pa.schema(
    [("table", pa.string()), ("row_id", pa.string()), ("tombstone", pa.struct(STAMP)), ("cells", pa.list_(CELL))]
)
COUNT = 2_500


def row(number: int) -> dict[str, Any]:
    """One stamp, several stamps, a delete before the row, a delete alone."""
    cells = [
        {
            "column": f"c{index}",
            # One that is too long for what is encoded many at a time.
            "value": f'"é{number}"' if number != 2_100 else f'"{"x" * 20_000}"',
            "hlc": 10 + (index if number % 5 == 0 else 0),
            "source": "ada" if index < 2 or number % 3 else "bob",
        }
        for index in range(4)
    ]
    return {
        "table": "notes",
        "row_id": f"r{number}",
        "tombstone": {"hlc": 5, "source": "eve"} if number % 7 == 0 else None,
        "cells": [] if number % 77 == 0 else cells,
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    rows = [row(number) for number in range(COUNT)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "part-0.parquet", row_group_size=900)
    return Checkpoint(tmp_path, LogPosition(42), COUNT)


def said(deltas: list[sync.RowDelta]) -> set[Any]:
    return {
        (each.op, each.hlc, each.client_id, frozenset((one.column, one.value) for one in each.columns))
        for each in deltas
    }


def test_pieces_say_what_the_rows_are(checkpoint: Checkpoint) -> None:
    pieces = [sync.decode_response(piece) for piece in pieces_of(checkpoint)]
    assert [piece.has_more for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert {piece.server_hlc for piece in pieces} == {42}
    found: dict[str, list[sync.RowDelta]] = {}
    for piece in pieces:
        for delta in piece.deltas:
            assert (delta.table, delta.delta_id) == ("notes", "")
            found.setdefault(delta.row_id, []).append(delta)
    for number in range(COUNT):
        expected = row(number)
        stamps: dict[tuple[int, str], set[Any]] = {}
        for cell in expected["cells"]:
            stamps.setdefault((cell["hlc"], cell["source"]), set()).add((cell["column"], cell["value"].encode()))
        wanted = {(sync.Op.INSERT, hlc, source, frozenset(cells)) for (hlc, source), cells in stamps.items()}
        if expected["tombstone"]:
            wanted.add((sync.Op.DELETE, 5, "eve", frozenset()))
        assert said(found.get(expected["row_id"], [])) == wanted


def test_hidden_rows_are_in_no_piece(checkpoint: Checkpoint) -> None:
    pieces = list(pieces_of(checkpoint, lambda each: each.value("c0") == b'"\xc3\xa93"'))
    assert {delta.row_id for piece in pieces for delta in sync.decode_response(piece).deltas} == {"r3"}
    assert b"r4" not in b"".join(pieces)
