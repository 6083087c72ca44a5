"""The columns and properties of the tables that one logical table is stored as. Iceberg and Delta share them."""

from mainstem.model.names import TableName
from mainstem.tables.parquet import LEVEL_PROPERTY, Codec
from mainstem.tables.settings import TableSettings
from mainstem.tables.types import STRING, ColumnType

_LONG = ColumnType("long")
_TIME = ColumnType("timestamptz")

KEY = "_key"
HLC = "_hlc"
SOURCE = "_source"
POSITION = "_position"
CLOCKS = "_clocks"
# Which log a position is of. Rows from before histories said so have none: see `UNLOGGED_PROPERTY`.
LOG = "_log"

# What follows the row's own columns in a state table.
STATE_COLUMNS: tuple[tuple[str, ColumnType], ...] = (
    (KEY, STRING),
    (HLC, _LONG),
    (SOURCE, STRING),
    (POSITION, _LONG),
    # Null: every column the table had when the row was written has the row's own stamp.
    # Otherwise JSON {column: [hlc, source]} of every column that the row has.
    (CLOCKS, STRING),
)

# The change as it came: a missing column stays missing in `_columns`.
HISTORY_COLUMNS: tuple[tuple[str, ColumnType], ...] = (
    (POSITION, _LONG),
    (HLC, _LONG),
    ("_op", STRING),
    (KEY, STRING),
    ("_columns", STRING),
    ("_before", STRING),
    (SOURCE, STRING),
    ("_batch_sequence", _LONG),
    ("_sequence", _LONG),
    ("_id", STRING),
    ("_time", _TIME),
    ("_source_time", _TIME),
    ("_metadata", STRING),
    (LOG, STRING),
)

DEAD_LETTER_COLUMNS: tuple[tuple[str, ColumnType], ...] = (*HISTORY_COLUMNS, ("_reason", STRING))


# A property of tables: what the values of each inferred column have been.
KINDS_PROPERTY = "mainstem.column-kinds"
# A property of tables in Delta: the types of the rows' columns. It has no uuid, and what is text to it need not be text
# to us.
TYPES_PROPERTY = "mainstem.column-types"
# A property of tables in Delta: what the columns are made from that only partitions have, as [name, column, transform].
PARTITIONS_PROPERTY = "mainstem.partitions"
# Of a history from before its rows said of which log they are: how much it held of each log when they began to.
UNLOGGED_PROPERTY = "mainstem.unlogged"

# Names that Mainstem or Iceberg's metadata columns need in a state table. A row's own column of such a name gets an
# underscore more, and so does one that already looks like that, which keeps the mapping one to one.
_RESERVED = frozenset(
    [name for name, _ in STATE_COLUMNS]
    + ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"]
    + ["_change_type", "_change_ordinal", "_commit_snapshot_id"]
)


def stored_name(column: str) -> str:
    """The name under which the state table keeps a row's column."""
    return column + "_" if _is_reserved(column) else column


def column_name(stored: str) -> str:
    """The row's own name of a stored column."""
    return stored[:-1] if stored.endswith("_") and _is_reserved(stored[:-1]) else stored


def _is_reserved(name: str) -> bool:
    return any(name.startswith(reserved) and not name[len(reserved) :].strip("_") for reserved in _RESERVED)


def state_properties(settings: TableSettings) -> dict[str, str]:
    """Iceberg properties of a state table."""
    return {
        **_common_properties(settings),
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
        "write.delete.distribution-mode": "none",
        "write.update.distribution-mode": "none",
        "write.merge.distribution-mode": "none",
        # One delete file per partition and commit: a batch of random keys touches every data file.
        "write.delete.granularity": "partition",
    }


def log_properties(settings: TableSettings) -> dict[str, str]:
    """Iceberg properties of a history or dead-letter table: mostly JSON text, of which no two values are alike."""
    # Writing it is a third of a large batch's time. A dictionary that is given up late, and a higher level, cost a
    # fifth of that each and save next to nothing.
    quick = {"write.parquet.dict-size-bytes": str(256 * 1024)}
    if settings.parquet.compression is Codec.ZSTD:
        quick[LEVEL_PROPERTY] = "1"
    return quick | _common_properties(settings)


def _common_properties(settings: TableSettings) -> dict[str, str]:
    return {
        "format-version": str(settings.format_version),
        # The writer decides how rows are spread; a shuffle per commit would cost more than it mends.
        "write.distribution-mode": "none",
        "write.spark.fanout.enabled": "true",
        **settings.parquet.properties(),
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "20",
        "commit.retry.num-retries": "10",
        "write.object-storage.enabled": "false",
    }


def delta_path(name: TableName) -> str:
    """Where a table in Delta's format is, below its storage's root."""
    return "/".join((*name.levels, name.table))
