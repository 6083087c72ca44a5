"""Reading files of Delta tables on the executors: keys and places, old rows, and whole files that are written anew.

The client library's reader knows deletion vectors, partition columns, files of older schemas and all Variants. A job
over a Delta table is a frame with a row per unit of work, which these functions turn into what is wanted.
"""

import base64
import datetime as dt
import decimal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from mainstem.formats.delta.files.engine import FILE, ROW, Source, engine_of, read_errors
from mainstem.formats.delta.log import AddFile, Metadata
from mainstem.formats.delta.schema import schema_of
from mainstem.formats.delta.storage import storage_by_properties
from mainstem.formats.delta.values import variant
from mainstem.model.names import TableName
from mainstem.pipeline.passes.delta_files import write_delta_files
from mainstem.pipeline.passes.plan import OLD_ROW, TOMBSTONE, DeltaTarget
from mainstem.sql import duckdb_name
from mainstem.tables.evolution import Column
from mainstem.tables.layout import CLOCKS, HLC, KEY, POSITION, SOURCE
from mainstem.tables.types import VARIANT

_files = msgspec.json.Decoder(list[AddFile]).decode
_Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class DeltaScan:
    """A table to be read, at one version of it."""

    target: DeltaTarget
    store: Mapping[str, str]
    # What a task makes rows of a pass from.
    table: TableName
    columns: tuple[Column, ...] = ()
    # Columns of which Variants become text.
    texts: frozenset[str] = field(default_factory=frozenset)


def places_task(scan: DeltaScan, batches: _Batches) -> _Batches:
    """The key and place of every live row: `_key`, `path`, `row`."""
    for files in _work(batches):
        for file in files:
            rows = _read(scan, [file], [KEY], ROW)
            paths = pa.array([file.path] * len(rows), pa.string())
            yield from pa.table({KEY: rows[KEY], "path": paths, "row": rows[ROW].cast(pa.int64())}).to_batches()


def old_rows_task(scan: DeltaScan, schema: pa.Schema, batches: _Batches) -> _Batches:
    """Rows of a state as rows of a pass."""
    names = [column.stored for column in scan.columns]
    for files in _work(batches):
        rows = _read(scan, files, [*names, KEY, HLC, SOURCE, POSITION, CLOCKS])
        values = [rows[name].to_pylist() for name in names]
        texts = [_json(scan.columns, row) for row in zip(*values, strict=True)] if names else ["{}"] * len(rows)
        yield from _as_rows(scan, schema, rows, {"columns": pa.array(texts, pa.string()), "clocks": rows[CLOCKS]})


def deletes_task(scan: DeltaScan, hlc_min: int, schema: pa.Schema, batches: _Batches) -> _Batches:
    """Deletes of a history, from a clock on, as rows of a pass."""
    for files in _work(batches):
        rows = _read(scan, files, [KEY, HLC, SOURCE, POSITION], where=f"_op = 'delete' AND {HLC} >= {hlc_min}")
        yield from _as_rows(scan, schema, rows, None)


def rewrite_task(scan: DeltaScan, now_ms: int, batches: _Batches) -> _Batches:
    """Write the live rows of files together, as the target's schema has them; returns `add` actions as JSON."""
    for files in _work(batches):
        schema = schema_of(msgspec.convert(scan.target.metadata, Metadata))
        names = list(schema.fields)
        rows = _read(scan, files, names)
        added = write_delta_files(scan.target, rows, scan.store, now_ms)
        texts = [msgspec.json.encode(file.description).decode() for file in added]
        yield pa.record_batch([pa.array(texts, pa.string())], names=["file"])


def _work(batches: _Batches) -> Iterator[list[AddFile]]:
    for batch in batches:
        for text in batch["files"].to_pylist():
            yield _files(text)


def _read(scan: DeltaScan, files: Sequence[AddFile], names: Sequence[str], *more: str, where: str = "true") -> pa.Table:
    storage = storage_by_properties(scan.target.url, scan.store)
    schema = schema_of(msgspec.convert(scan.target.metadata, Metadata))
    known = [name for name in names if name not in scan.texts]
    wanted = [*known, *more]
    # Variants that become text are read by themselves, with the schema of before. Joins bring rows in any order.
    order = f" ORDER BY {FILE}, {ROW}" if scan.texts else ""
    with engine_of(storage).cursor() as cursor, read_errors(storage, scan.target.path, list(files)):
        every = [*dict.fromkeys([*known, *(["_op", HLC] if where != "true" else [])])]
        relation = Source(cursor, storage, scan.target.path, schema, list(files)).relation(every, places=True)
        listed = ", ".join(map(duckdb_name, wanted))
        rows = cursor.execute(f"SELECT {listed} FROM {relation} WHERE {where}{order}").to_arrow_table()
        for name in scan.texts:
            before = schema_of(msgspec.convert({**scan.target.metadata, "schemaString": scan.target.before}, Metadata))
            relation = Source(cursor, storage, scan.target.path, before, list(files)).relation([name], places=True)
            found = cursor.execute(f"SELECT {duckdb_name(name)} FROM {relation}{order}").to_arrow_table()
            rows = rows.append_column(name, pa.array([_variant_text(each) for each in found[name].to_pylist()]))
    return rows


def _as_rows(scan: DeltaScan, schema: pa.Schema, rows: pa.Table, old: Mapping[str, Any] | None) -> _Batches:
    known = {
        "namespace": pa.array([scan.table.namespace] * len(rows), pa.string()),
        "table": pa.array([scan.table.table] * len(rows), pa.string()),
        "position": rows[POSITION],
        "hlc": rows[HLC],
        "op": pa.array(["delete" if old is None else "read"] * len(rows), pa.string()),
        "key": rows[KEY],
        "source": rows[SOURCE],
        "evidence": pa.array([TOMBSTONE if old is None else OLD_ROW] * len(rows), pa.int8()),
        **(old or {}),
    }
    columns = [known[name] if name in known else pa.nulls(len(rows), schema.field(name).type) for name in schema.names]
    yield from pa.table(columns, schema=schema).to_batches()


def _json(columns: Sequence[Column], values: Sequence[Any]) -> str:
    """A stored row as the JSON of a change."""
    made = {}
    for column, value in zip(columns, values, strict=True):
        if column.type == VARIANT and value is not None:
            made[column.name] = msgspec.Raw(_variant_text(value).encode())  # type: ignore[union-attr]
        else:
            made[column.name] = _plain(value)
    return msgspec.json.encode(made).decode()


def _variant_text(value: Mapping[str, bytes] | None) -> str | None:
    return None if value is None else msgspec.json.encode(variant.decode(value["metadata"], value["value"])).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value
