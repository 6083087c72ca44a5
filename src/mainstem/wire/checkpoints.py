"""Checkpoints for first syncs, as the gateway orders them from the pipeline. JSON over HTTP, files on disk.

A checkpoint is a folder of Parquet files with one row per row of the application: its latest delete and its living
columns, each with clock, source and value as JSON text. The document beside the files is written last.
"""

import msgspec

from mainstem.model.position import Lineage, LogId, LogPosition, Span

# The underscore keeps engines from taking it for data.
DOCUMENT = "_checkpoint.json"
# Older ones may lack rows (that repeat a name, of Delta tables, of other logs): they are neither sent nor gone on from.
VERSION = 2

_columns = msgspec.json.Decoder(dict[str, msgspec.Raw])


def split_columns(text: str | bytes | None) -> dict[str, bytes]:
    """A stored row's columns, each with its JSON text as it was written. Of a name that stands twice, the last counts.

    Pulls and checkpoints both read rows by this, so that they say the same. Raises msgspec.MsgspecError or
    UnicodeDecodeError where the text is no JSON object.
    """
    return {name: bytes(value) for name, value in _columns.decode(text or b"{}").items()}


class CheckpointOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway wants: the state of a namespace at a position, from its history tables."""

    namespace: str
    tables: tuple[str, ...]
    # Where the history of a table is that is kept in Delta; the catalog has the others.
    delta: dict[str, str] = {}
    # The tables cover everything up to here.
    position: int
    # The log that the position is of.
    log: str = ""
    # Which positions are of this log. What another one wrote is in a checkpoint as well, at whichever position.
    lineage: tuple[Span, ...] = Lineage().spans
    # By table: how much its history holds of each log, and how much it held when its rows began to say which that is.
    held: dict[str, dict[LogId, LogPosition]] = {}
    unlogged: dict[str, dict[LogId, LogPosition]] = {}
    # Where to put it, and the one before, which has everything up to its position.
    folder: str
    before_folder: str | None = None
    before_position: int = 0


class CheckpointMade(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a checkpoint that is whole."""

    namespace: str
    position: int
    rows: int
    version: int = 0
    log: str = ""
    # By table: how much of each log its history held at the least. The next checkpoint goes on from there.
    held: dict[str, dict[LogId, LogPosition]] = {}
