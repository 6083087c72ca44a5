"""Rows of files that are loaded without the log: Parquet and CSV as Spark reads them, JSON lines as the log does."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from mainstem.log.settings import TimesRule
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName
from mainstem.pipeline.passes.lines import FILE, FOUND, LINE, judge_lines, keyed_lines, lines_schema, typed_lines
from mainstem.pipeline.passes.plan import CHANGE, TableTask
from mainstem.pipeline.plan.evidence import history_as_rows, old_rows_as_evidence
from mainstem.pipeline.plan.loaded import as_column, check_type, key_column, no_column, seen_types, typed_csv
from mainstem.tables.evolution import Column
from mainstem.tables.layout import KEY

_CSV_NULL = "\x01null\x01"
_BLANKS = r" \t\r\n"


@dataclass(frozen=True, slots=True)
class Source:
    """The files, and what tells them from any others."""

    format: str
    paths: tuple[str, ...]
    bytes: int
    identity: str


class FileRows(Protocol):
    """Rows of files, and what they are for a table."""

    # What a segment's footer would call the values of each column.
    seen: Mapping[str, frozenset[str]]
    # Whether `int` may be whole numbers that a double does not keep.
    is_vague: bool

    def as_columns(self, columns: Sequence[Column]) -> DataFrame:
        """The table's columns as they are stored, and `_key`."""

    def as_changes(self, task: TableTask, own: Sequence[str]) -> DataFrame:
        """Rows of a pass: what a file, or a line, does not have is no null of it. `own` are Mainstem's columns."""


def read_rows(
    spark: SparkSession,
    source: Source,
    name: TableName,
    key: tuple[str, ...],
    *,
    known: Iterable[str],
    infers_times: bool,
) -> FileRows:
    """The files' rows. CSV's `known` columns keep their texts."""
    # The second is Spark's own word for: these are files, and no patterns (`a[1].parquet`).
    reader = spark.read.option("recursiveFileLookup", "true").option("__globPaths__", "false")
    paths = list(source.paths)
    if source.format == "parquet":
        return TypedRows(reader.parquet(*paths), key)
    if source.format == "json":
        # Lines end where they end for the log.
        lines = reader.option("lineSep", "\n").text(paths)
        return LineRows(lines, name, key, infers_times=infers_times)
    options = {"header": "true", "escape": '"', "multiLine": "true", "mode": "FAILFAST", "enforceSchema": "false"}
    # An empty field is a null, and "" an empty text: Spark takes both for its word for null, which is empty too.
    rows = reader.options(**options, nullValue=_CSV_NULL).csv(paths)
    return TypedRows(typed_csv(rows, known, infers_times=infers_times), key)


class TypedRows:
    """Rows whose columns have types of Spark's."""

    is_vague = True

    def __init__(self, rows: DataFrame, key: tuple[str, ...]) -> None:
        self._rows = rows
        self._types = seen_types(rows.schema)
        self._key = key_column(key, self._types)
        self.seen: Mapping[str, frozenset[str]] = {column: frozenset([kind]) for column, kind in self._types.items()}

    def as_columns(self, columns: Sequence[Column]) -> DataFrame:
        """See `FileRows`."""
        made = [
            as_column(column, self._types[column.name]) if column.name in self._types else no_column(column)
            for column in columns
        ]
        names = [column.stored for column in columns]
        aliased = [each.alias(name) for each, name in zip(made, names, strict=True)]
        return self._rows.select(*aliased, sf.expr(self._key).alias(KEY))

    def as_changes(self, task: TableTask, own: Sequence[str]) -> DataFrame:
        """See `FileRows`."""
        has = [column for column in task.columns if column.name in self._types]
        rows = old_rows_as_evidence(self.as_columns(has).selectExpr("*", *own), task)
        return rows.withColumn("evidence", sf.expr(f"CAST({CHANGE} AS tinyint)"))


class LineRows:
    """JSON lines: every one with the columns that it has, and with values as they are written."""

    is_vague = False

    def __init__(self, lines: DataFrame, name: TableName, key: tuple[str, ...], *, infers_times: bool) -> None:
        self._key = key
        trimmed = lines.selectExpr(
            f"CAST(trim(BOTH '{_BLANKS}' FROM value) AS binary) AS {LINE}", f"_metadata.file_name AS {FILE}"
        )
        self._lines = trimmed.where(f"length({LINE}) > 0")
        judge = partial(judge_lines, name, TimesRule(default=infers_times))
        found = self._lines.mapInArrow(judge, from_arrow_schema(FOUND)).toArrow()
        seen: dict[str, set[str]] = {}
        for text in found["found"].to_pylist():
            for column, kinds in json.loads(text).items():
                seen.setdefault(column, set()).update(kinds)
        self.seen: Mapping[str, frozenset[str]] = {column: frozenset(kinds) for column, kinds in seen.items()}
        if missing := [column for column in key if column not in seen]:
            raise Invalid(f"the key columns are not there. expected={missing} got={sorted(seen)[:20]}", reason="no_key")

    def as_columns(self, columns: Sequence[Column]) -> DataFrame:
        """See `FileRows`."""
        for column in columns:
            check_type(column.type)
        schema = from_arrow_schema(lines_schema(columns), prefer_timestamp_ntz=True)
        return self._lines.mapInArrow(partial(typed_lines, tuple(columns), self.seen, self._key), schema)

    def as_changes(self, task: TableTask, own: Sequence[str]) -> DataFrame:
        """See `FileRows`."""
        lines = self._lines.mapInArrow(partial(keyed_lines, self._key), f"{KEY} string, {LINE} string")
        rows = lines.selectExpr(KEY, "'read' AS _op", f"{LINE} AS _columns", *own)
        return history_as_rows(rows, task.table)
