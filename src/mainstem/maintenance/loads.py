"""Loads without the log, as they are asked for: which files may be named, and the job that the pipeline does."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mainstem.maintenance.answers import Wire
from mainstem.maintenance.jobs import Jobs
from mainstem.model import Denied, Invalid, TableName, parse_table_name
from mainstem.tables.places import folder_place_of, is_inside
from mainstem.wire.jobs import LOAD_STEP, Job, LoadOrder

# Below the data folder: files that are put there may be loaded without any setting.
LOAD_FOLDER = "load"
KEY_COLUMNS_MAX = 16


class LoadBody(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files to put into a table: a first load."""

    # The table: `orders`, or with its namespace `shop.orders`.
    table: str
    # A file, or a folder with all that is in it: an absolute path, or `s3://bucket/prefix`.
    place: str
    # The key columns. Not given: those that the table is declared with.
    key: tuple[str, ...] = ()


def load_places(load_from: Sequence[str], data: Path) -> tuple[str, ...]:
    """Where files may be loaded from. Raises Invalid for a setting that names no folder."""
    return (str(data.absolute() / LOAD_FOLDER), *map(folder_place_of, load_from))


class Loads:
    """Queues loads."""

    def __init__(self, jobs: Jobs, places: Sequence[str]) -> None:
        self._jobs = jobs
        self._places = tuple(places)

    async def submit(self, may_write: Callable[[TableName], bool], asked: LoadBody) -> Job:
        """Queue a load. One of the same files that has not ended yet is the same load."""
        place = asked.place.rstrip("/")
        if not any(place == own.rstrip("/") or is_inside(place, own) for own in self._places):
            raise Denied(
                f"files are not loaded from there. expected=below one of {list(self._places)} "
                f"(more: load_from under [pipeline]) got={asked.place!r:.300}"
            )
        name = parse_table_name(asked.table)
        if not may_write(name):
            raise Denied(f"the token does not let you write this table. got={name}")
        if len(asked.key) > KEY_COLUMNS_MAX or len(set(asked.key)) < len(asked.key):
            raise Invalid(f"key. expected=at most {KEY_COLUMNS_MAX} columns, each once got={list(asked.key)[:20]}")
        order = LoadOrder(place=place, key=asked.key)
        return await self._jobs.submit(Job(id="", table=str(name), steps=(LOAD_STEP,), load=order))
