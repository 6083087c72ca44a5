"""CSV as an Arrow table. Fields are read as texts first, so that none is changed by a guess; then a column becomes

    whole numbers   where every field is one: no leading zero or plus, at most 18 digits
    floats          where every field is a number as JSON has it
    booleans        where every field is `true` or `false`
    timestamps      where that is asked for, and every field is an ISO time with its zone
    texts           otherwise

An empty field without quotes is null; `""` is an empty text.
"""

import csv
import io
from typing import Any

import pyarrow as pa

from mainstem.model.errors import Invalid

WHOLE = r"^-?(?:0|[1-9][0-9]{0,17})$"
NUMBER = r"^-?(?:0|[1-9][0-9]{0,16})(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,2})?$"
BOOLEAN = r"^(?:true|false)$"
MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})$"
_HEADER_BYTES_MAX = 1 << 20
_COLUMNS_MAX = 1_000


def read_csv(body: bytes, *, infers_times: bool = False) -> pa.Table:
    """The table. Raises Invalid, with the line's number where a line is to blame."""
    import pyarrow.csv as pacsv

    names = _names(body)
    bad: list[str] = []

    def refuse(row: Any) -> str:
        place = "a line" if row.number is None else f"line {row.number}"
        bad.append(f"{place} has another number of fields. expected={row.expected_columns} got={row.actual_columns}")
        return "error"

    options = pacsv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    try:
        table = pacsv.read_csv(
            io.BytesIO(body),
            # In one thread: only then are lines counted.
            pacsv.ReadOptions(use_threads=False, block_size=len(body) + 1),
            pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=refuse),
            options,
        )
    except (pa.ArrowException, UnicodeDecodeError, ValueError) as error:
        raise Invalid(f"the CSV cannot be read. {bad[0] if bad else f'got={error}'}") from error
    return typed_columns(table, infers_times=infers_times)


def typed_columns(table: pa.Table, *, infers_times: bool = False) -> pa.Table:
    """Columns of texts as what their texts are."""
    arrays = [_typed(column, infers_times=infers_times) for column in table.columns]
    return pa.table(arrays, names=table.column_names)


def _names(body: bytes) -> list[str]:
    try:
        head = body[:_HEADER_BYTES_MAX].decode("utf-8-sig", "ignore")
        names = next(csv.reader(io.StringIO(head)), [])
    except csv.Error as error:
        raise Invalid(f"line 1 is no header. got={error}") from error
    if not names:
        raise Invalid("there are no rows. expected=a header and at least 1 row got=0", reason="no_rows")
    if len(names) > _COLUMNS_MAX:
        raise Invalid(f"too many columns. expected=at most {_COLUMNS_MAX} got={len(names)}")
    return names


def _typed(column: pa.ChunkedArray, *, infers_times: bool) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return column.cast(pa.null())
    kinds: list[tuple[str, pa.DataType]] = [(WHOLE, pa.int64()), (NUMBER, pa.float64()), (BOOLEAN, pa.bool_())]
    if infers_times:
        kinds.append((MOMENT, pa.timestamp("us", "UTC")))
    for pattern, kind in kinds:
        if pc.all(pc.match_substring_regex(column, pattern)).as_py():
            try:
                return column.cast(kind)
            except pa.ArrowInvalid:
                return column
    return column
