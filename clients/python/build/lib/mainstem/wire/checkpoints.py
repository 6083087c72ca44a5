"""Checkpoints for first syncs, as the gateway orders them from the pipeline. JSON over HTTP, files on disk.

A checkpoint is a folder of Parquet files with one row per row of the application: its latest delete and its living
columns, each with clock, source and value as JSON text. The document beside the files is written last.
"""

import msgspec

# The underscore keeps engines from taking it for data.
DOCUMENT = "_checkpoint.json"
# Older ones may lack rows (those that repeat a name, those of tables in Delta): they are neither sent nor gone on from.
VERSION = 1

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
