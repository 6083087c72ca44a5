"""Checkpoints for first syncs, as the gateway orders them from the pipeline. JSON over HTTP, files on disk.

A checkpoint is a folder of Parquet files with one row per row of the application: its latest delete and its living
columns, each with clock, source and value as JSON text. The document beside the files is written last.
"""

import msgspec

# The underscore keeps engines from taking it for data.
DOCUMENT = "_checkpoint.json"


class CheckpointOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway wants: the state of a namespace at a position, from its history tables."""

    namespace: str
    tables: tuple[str, ...]
    # The tables cover everything up to here.
    position: int
    # Where to put it, and the one before, which has everything up to its position.
    folder: str
    before_folder: str | None = None
    before_position: int = 0


class CheckpointMade(msgspec.Struct, frozen=True, kw_only=True):
    """The document of a checkpoint that is whole."""

    namespace: str
    position: int
    rows: int
