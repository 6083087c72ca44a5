"""JSON lines on the executors: judged as the log judges rows when it seals them, typed as every pass types them.

A line that the log would not take ends the load, with its file and the reason: there are no dead letters here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import msgspec
import pyarrow as pa

from mainstem.log.seal.expand import Expander
from mainstem.log.settings import TimesRule
from mainstem.model.names import TableName
from mainstem.pipeline.passes.values import arrow_type, read_values
from mainstem.tables.evolution import TABLE_COLUMNS_MAX, Column
from mainstem.tables.layout import KEY
from mainstem.wire.rows import key_of_row

# A line, and the name of its file.
LINE, FILE = "line", "file"
# What one task has found: the JSON types of each column, in the order in which it met them, as JSON.
FOUND = pa.schema([("found", pa.string())])
_SHOWN_MAX = 120


class _Object(msgspec.Struct):
    """Any object: no field of it is looked at."""


_object = msgspec.json.Decoder(_Object).decode


def judge_lines(table: TableName, times: TimesRule, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Look at every line, and say what a segment's footer would say of the columns."""
    expander = Expander(times=times)
    for batch in batches:
        if not batch.num_rows:
            continue
        lines = _texts(batch)
        # Each by itself: of several that are joined it could not be told where one ends.
        for number, line in enumerate(lines.cast(pa.binary()).to_pylist()):
            try:
                _object(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(_refused(batch, number, str(error))) from error
        if errors := expander.judge(table, lines):
            number, reason = min(errors.items())
            raise ValueError(_refused(batch, number, reason))
        if len(expander.shape(table).columns) > TABLE_COLUMNS_MAX:
            raise ValueError(f"too many columns. expected=at most {TABLE_COLUMNS_MAX} file={batch[FILE][0].as_py()}")
    found = msgspec.json.encode(expander.shape(table).columns).decode()
    yield pa.record_batch([pa.array([found], pa.string())], schema=FOUND)


def keyed_lines(key: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Lines with their keys, as changes have them."""
    keys_of = _keys(key)
    for batch in batches:
        lines = _texts(batch)
        keys = pa.array(keys_of(lines.cast(pa.binary()).to_pylist()), pa.string())
        yield pa.record_batch([keys, lines], names=[KEY, LINE])


def typed_lines(
    columns: Sequence[Column],
    seen: Mapping[str, frozenset[str]],
    key: tuple[str, ...],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Lines as the columns of the table, by the converters of every pass, and their keys."""
    keys_of, schema = _keys(key), lines_schema(columns)
    for batch in batches:
        texts = _texts(batch).cast(pa.binary()).to_pylist()
        values = read_values(texts, columns, seen, {})
        misfit = next(filter(None, values.errors), None)
        if misfit is not None:
            raise ValueError(f"a value does not fit its column. column={misfit}")
        yield pa.record_batch([*values.arrays, pa.array(keys_of(texts), pa.string())], schema=schema)


def lines_schema(columns: Sequence[Column]) -> pa.Schema:
    """What `typed_lines` gives."""
    return pa.schema([*((column.stored, arrow_type(column.type)) for column in columns), (KEY, pa.string())])


def _texts(batch: pa.RecordBatch) -> pa.StringArray:
    try:
        return batch[LINE].cast(pa.string())
    except pa.ArrowInvalid as error:
        raise ValueError("a line is not UTF-8. line=?") from error


def _refused(batch: pa.RecordBatch, number: int, reason: str) -> str:
    line = str(batch[LINE][number].as_py()[:_SHOWN_MAX], "utf-8", "replace")
    return (
        f"a line is no row. expected=an object per line file={batch[FILE][number].as_py()} reason={reason} line={line}"
    )


def _keys(key: tuple[str, ...]) -> Callable[[Sequence[bytes]], list[str]]:
    """Makes the keys of rows, by the rule of the log. Raises ValueError for a row without one."""
    # Made here: its fields have the names of the key's columns, whatever they are. Others are passed over.
    make: Any = TypedDict
    row_type: Any = make("Key", dict.fromkeys(key, Any), total=False)
    decode: Callable[[bytes], list[dict[str, Any]]] = msgspec.json.Decoder(list[row_type]).decode

    def keys_of(texts: Sequence[bytes]) -> list[str]:
        rows = decode(b"[" + b",".join(texts) + b"]")
        for row in rows:
            for name in key:
                if row.get(name) is None:
                    raise ValueError(f"a row lacks its key. column={name} got={'null' if name in row else 'nothing'}")
        return [key_of_row(row, key) for row in rows]

    return keys_of
