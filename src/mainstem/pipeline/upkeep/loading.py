"""Puts files into a table without the log: a first load of any size, read and written by Spark's executors.

The table's turn is held from the first look to the commit: changes that come through the log meanwhile wait in it, and
are merged with the loaded rows like with any others. A loaded row is older than every change of the log: its clock is
the number of the load. Where the table already has a row or a delete of a key, the loaded row is merged with that by
the rule of every pass. All of it is one commit, which names the load: done again, it finds itself done.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mainstem.model.errors import Conflict, Denied, Invalid, MainstemError, NotFound, OutcomeUnknown
from mainstem.model.names import TableName
from mainstem.model.position import Lineage, LogPosition
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.delta.table import DeltaLake
from mainstem.pipeline.passes.stores import for_spark
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.compaction import own_lake
from mainstem.pipeline.upkeep.load_delta import DeltaLoad
from mainstem.pipeline.upkeep.load_iceberg import IcebergLoad
from mainstem.pipeline.upkeep.load_one import Around, Load
from mainstem.pipeline.upkeep.load_rows import Source
from mainstem.pipeline.upkeep.load_watch import OnLoaded
from mainstem.pipeline.upkeep.steps import Done
from mainstem.runtime.clock import Clock
from mainstem.tables.places import is_inside
from mainstem.tables.settings import Format, TableSettings
from mainstem.wire.jobs import LoadOrder

log = logging.getLogger(__name__)

FILES_MAX = 10_000
ATTEMPTS_MAX = 3
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


# By these a line of what Spark says is known to say why.
_TELLING = ("column=", "line=", "USER_RAISED", "NANOS")


class Loading:
    """Loads files into the states of a lake of its own."""

    def __init__(
        self,
        lake: Lake,
        turns: Turns,
        clock: Clock,
        *,
        places: Sequence[str],
        settings_of: Callable[[TableName], TableSettings],
        kind_of: Callable[[TableName], str],
        covered: Callable[[TableName], LogPosition],
        lineage: Lineage,
        store: Mapping[str, str],
        delta: DeltaLake | None = None,
    ) -> None:
        """`places` are the folders that files may be read from; `covered` is what a table holds of the log."""
        self._lake = own_lake(lake)
        self._turns = turns
        self._places = tuple(places)
        self._settings_of = settings_of
        self._kind_of = kind_of
        self._delta = delta
        spark = self._lake.spark
        self._around = Around(spark, clock, lineage, covered, dict(store))
        spark.conf.set("spark.sql.parquet.mergeSchema", "true")
        # What Spark would take for a whole number are times: they are refused by name instead.
        spark.conf.set("spark.sql.legacy.parquet.nanosAsLong", "false")

    @property
    def spark(self) -> SparkSession:
        """The session that it works in, to be made that of the calling thread."""
        return self._lake.spark

    def run(
        self, name: TableName, order: LoadOrder, *, on_progress: OnLoaded, go_on: Callable[[], bool] = lambda: True
    ) -> Done:
        """Load the files, once: a load of the same files that is in the table already is done."""
        if name != name.logical or self._kind_of(name):
            raise Invalid(f"only a table of rows is loaded without the log. got={name}")
        settings = self._settings_of(name)
        if settings.append or not settings.state:
            raise Invalid(f"only a state is loaded without the log. table={name} expected=a load without --direct")
        look_again = partial(self._source, name, order)
        source = look_again()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            with self._turns.of(name):
                work = self._work(name, settings, order, source, look_again, on_progress, go_on)
                try:
                    return work.run()
                except Conflict:
                    work.discard()
                    if attempt == ATTEMPTS_MAX:
                        raise
                    log.info("a load lost a race, and is done again", extra={"table": str(name)})
                except (PySparkException, Py4JJavaError) as error:
                    # What it wrote stays: should a commit's outcome be unknown, it may be in the table.
                    raise _named(error, source) from error
                except MainstemError:
                    work.discard()
                    raise
        raise AssertionError("the loop returns or raises")

    def _work(self, name: TableName, settings: TableSettings, *more: Any) -> Load[Any]:
        if settings.format is Format.ICEBERG:
            return IcebergLoad(self._lake, self._around, name, settings, *more)
        if self._delta is None:
            raise Invalid(f"no place for Delta tables. table={name} expected=delta_url")
        return DeltaLoad(self._delta, self._around, name, settings, *more)

    def _source(self, name: TableName, order: LoadOrder) -> Source:
        """The files that are there now. Raises Denied for a place that is not one to load from."""
        place = order.place.rstrip("/")
        if not any(place == own.rstrip("/") or is_inside(place, own) for own in self._places):
            raise Denied(f"files are not loaded from there. expected=below one of {list(self._places)} got={place}")
        found: list[tuple[str, int, int]] = []
        for path, size, time_ms in self._files(place):
            file = path.rsplit("/", 1)[1]
            suffix = "." + file.rpartition(".")[2].lower()
            if file.startswith(("_", ".")):
                continue
            if suffix in _SUFFIXES:
                found.append((path, size, time_ms))
        formats = {_SUFFIXES["." + path.rpartition(".")[2].lower()] for path, _, _ in found}
        if len(formats) > 1:
            raise Invalid(
                "files of these kinds are not loaded without the log together. expected=Parquet, CSV or JSON lines "
                f"got={sorted(formats)}"
            )
        if not found:
            raise NotFound(f"there is nothing to load. expected={sorted(_SUFFIXES)} got={place}")
        found.sort()
        text = json.dumps([str(name), order.key, found])
        identity = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return Source(formats.pop(), tuple(each[0] for each in found), sum(each[1] for each in found), identity)

    def _files(self, place: str) -> list[tuple[str, int, int]]:
        """Path, size and time of every file there."""
        jvm: Any = self._lake.jvm
        path = jvm.org.apache.hadoop.fs.Path(for_spark(place))
        found: list[tuple[str, int, int]] = []
        try:
            files = path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()).listFiles(path, True)
            while files.hasNext():
                status = files.next()
                found.append(
                    (str(status.getPath().toString()), int(status.getLen()), int(status.getModificationTime()))
                )
                if len(found) > FILES_MAX:
                    raise Invalid(f"too many files at once. expected=at most {FILES_MAX} got={place}")
        except Py4JJavaError as error:
            raise NotFound(f"the files cannot be listed. place={place} got={error.java_exception}") from error
        return found


def _named(error: Exception, source: Source) -> MainstemError:
    """What Spark says, in one line. Raised values carry our own words."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in _TELLING)]
    # A worker's traceback has the line that raised, before what it said.
    telling = [line for line in telling if not line.startswith("raise ")]
    message = (telling or lines or [type(error).__name__])[0][:400]
    if "commit" in text.lower() and "unknown" in text.lower():
        return OutcomeUnknown(f"whether the load is in the table is not known: load the files again. got={message}")
    return Invalid(f"the files cannot be loaded. got={message}", reason=source.format)
