"""Delta tables: our client beside plain delta-rs and plain DuckDB, on the same table, in one run.

Every question is asked of the three by turns, on handles that are open already, and the answers must have as many
rows each. The median counts. Upserts go to copies of the table: ours with deletion vectors, delta-rs by its own merge.
"""

import asyncio
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension

from benchmarks.report import Figure, Report
from mainstem.client.delta import DeltaTable, create_storage

SIZES = (100_000, 1_000_000, 10_000_000)
FILES = 16
UPSERTS = (1_000, 100_000)
LARGE_RATIO_MAX = 1.3
# An upsert needs a copy of the table each time, and takes seconds on a large one.
TURNS = 5
# Each question is asked for about so long: what takes milliseconds needs many repeats for a steady median.
QUESTION_S = 2.0
REPEATS_MIN, REPEATS_MAX = 3, 25
# Below this many rows a query is mostly its fixed cost, which is no "large work".
LARGE_ROWS = 1_000_000
_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


async def run(report: Report, folder: Path, *, small: bool) -> None:
    """All sizes, or the two smaller ones."""
    await asyncio.to_thread(_run, report, folder, SIZES[:2] if small else SIZES)


def _run(report: Report, folder: Path, sizes: tuple[int, ...]) -> None:
    for rows in sizes:
        table = _made(folder / f"lake-{rows}", rows)
        _queries(report, table, rows)
        for batch in UPSERTS:
            _upserts(report, folder, table, rows, batch)
        shutil.rmtree(folder / f"lake-{rows}")


def _rows(start: int, end: int) -> pa.Table:
    sql = f"""SELECT range AS id, 'key ' || range AS name, 'city ' || (range * 7919) % 1000 AS city,
        ((range * 104729) % 100003) / 7.0 AS amount,
        '{{"a": {{"b": ' || (range * 7919) % 5000 || ', "c": [1, 2]}}}}' AS doc
        FROM range({start}, {end})"""
    return duckdb.connect().execute(sql).to_arrow_table()


def _made(folder: Path, rows: int) -> DeltaTable:
    """A table of files that are sorted by id, as a log makes them."""
    table = DeltaTable(create_storage(str(folder)), "t")
    schema = _rows(0, 1).schema
    kinds = {"doc": {"mainstem.kind": "json"}}
    stated = pa.schema([field.with_metadata(kinds.get(field.name)) for field in schema])
    table.create(stated, deletion_vectors=True)
    step = -(-rows // FILES)
    for start in range(0, rows, step):
        table.write(_rows(start, min(rows, start + step)).cast(stated))
    table.checkpoint()
    return table


def _by_turns(asks: Mapping[str, Callable[[], int]]) -> tuple[dict[str, float], set[int]]:
    """The median seconds of each, and how many rows they found. By turns: what else the machine does hits all."""
    found = {ask() for ask in asks.values()}
    seconds: dict[str, list[float]] = {who: [] for who in asks}
    ends_s = time.perf_counter() + QUESTION_S
    for turn in range(REPEATS_MAX):
        if turn >= REPEATS_MIN and time.perf_counter() > ends_s:
            break
        for who, ask in asks.items():
            began_s = time.perf_counter()
            ask()
            seconds[who].append(time.perf_counter() - began_s)
    return {who: statistics.median(taken) for who, taken in seconds.items()}, found


def _queries(report: Report, table: DeltaTable, rows: int) -> None:
    middle, percent = rows // 2, rows // 100
    json_b = "json_extract(doc, '$.a.b')"
    questions: list[tuple[str, dict[str, Any], str, str | None, bool]] = [
        ("point", {"id": middle}, f"id = {middle}", f"id = {middle}", True),
        (
            "range of 1 %",
            {"id": {"$gte": middle, "$lt": middle + percent}},
            f"id >= {middle} AND id < {middle + percent}",
            f"id >= {middle} AND id < {middle + percent}",
            True,
        ),
        ("filter, 0.1 %", {"city": "city 7"}, "city = 'city 7'", "city = 'city 7'", False),
        # delta-rs has no way into JSON text.
        ("nested path", {"doc.a.b": 17}, f"{json_b} = 17", None, False),
        ("full scan", {}, "true", "true", False),
    ]
    reader = duckdb.connect()
    import_extension("delta", con=reader)
    reader.load_extension("delta")
    opened = table.delta_rs()
    for name, filter, in_duckdb, in_delta_rs, skips in questions:
        sql = f"SELECT * FROM delta_scan('{table.uri}') WHERE {in_duckdb}"
        asks = {"mainstem": partial(_ours, table, filter), "duckdb": partial(_duckdb, reader, sql)}
        if in_delta_rs is not None:
            asks["delta-rs"] = partial(_scanned, opened, in_delta_rs)
        peers, counts = _by_turns(asks)
        assert len(counts) == 1, (name, counts)
        ours_s = peers.pop("mainstem")
        best, best_s = min(peers.items(), key=lambda item: item[1])
        found = table.find(filter).statistics
        others = ", ".join(f"{peer} {peer_s * 1000:.1f}" for peer, peer_s in peers.items())
        bar, met = None, None
        if skips:
            bar, met = f"faster than {best}", ours_s <= best_s
        elif rows >= LARGE_ROWS:
            bar, met = f"{LARGE_RATIO_MAX} x {best}", ours_s <= LARGE_RATIO_MAX * best_s
        report.add(
            "delta",
            Figure(
                f"{name}, {rows:,} rows", ours_s * 1000, "ms", best_s * 1000, best, bar, met,
                f"{others}; {found.files_skipped} of {found.files} files skipped",
            ),
        )  # fmt: skip
    reader.close()


def _ours(table: DeltaTable, filter: dict[str, Any]) -> int:
    return int(table.query_arrow(filter).num_rows)


def _duckdb(reader: duckdb.DuckDBPyConnection, sql: str) -> int:
    return int(reader.execute(sql).to_arrow_table().num_rows)


def _scanned(opened: deltalake.DeltaTable, where: str) -> int:
    predicate = None if where == "true" else where
    # As the other two do: see what was committed since.
    opened.update_incremental()
    found = pa.RecordBatchReader.from_stream(opened.scan(predicate=predicate)).read_all()
    # And the answer is the same: text, where delta-rs by itself gives views of it.
    plain = pa.schema([(field.name, _PLAIN.get(field.type, field.type)) for field in found.schema])
    return int(found.cast(plain).num_rows)


def _upserts(report: Report, folder: Path, table: DeltaTable, rows: int, batch: int) -> None:
    # A tenth of the keys is new, the others are spread over the whole table.
    step = max(1, rows // batch)
    sql = f"""SELECT id, 'key ' || id AS name, 'city 1' AS city, 1.5 AS amount, '{{}}' AS doc FROM
        (SELECT CASE WHEN range % 10 = 0 THEN {rows} + range ELSE (range * {step}) % {rows} END AS id
         FROM range({batch}))"""
    source = duckdb.connect().execute(sql).to_arrow_table()
    seconds: dict[str, list[float]] = {"mainstem": [], "delta-rs": []}
    counts: dict[str, int] = {}
    # By turns: what else the machine does hits both.
    for who in (*seconds,) * (TURNS if rows <= LARGE_ROWS else 1):
        copy = folder / f"copy-{who}"
        shutil.copytree(table.uri, copy / "t")
        target = DeltaTable(create_storage(str(copy)), "t")
        opened = target.delta_rs()
        # Both are open, and know the table.
        assert target.version == opened.version() and not target.query({"id": -1})
        began_s = time.perf_counter()
        if who == "mainstem":
            target.upsert(source, "id")
        else:
            merger = opened.merge(source, "t.id = s.id", "s", "t")
            merger.when_matched_update_all().when_not_matched_insert_all().execute()
        seconds[who].append(time.perf_counter() - began_s)
        counts[who] = target.query_arrow({}, projection=["id"]).num_rows
        shutil.rmtree(copy)
    assert len(set(counts.values())) == 1, counts
    ours_s, theirs_s = (statistics.median(taken) for taken in seconds.values())
    report.add(
        "delta",
        Figure(
            f"upsert of {batch:,} into {rows:,}", ours_s * 1000, "ms", theirs_s * 1000, "delta-rs merge",
            f"{LARGE_RATIO_MAX} x delta-rs", ours_s <= LARGE_RATIO_MAX * theirs_s,
        ),
    )  # fmt: skip
