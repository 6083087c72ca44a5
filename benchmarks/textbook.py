"""What everybody writes first, as a floor of freshness: a streaming query over a folder into which a segment falls
every second, whose `foreachBatch` appends state and history of each table, every one with a commit of its own.

It looks no old row up, so its states are wrong as soon as a key comes twice, and there is no gateway beside it.
"""

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.load import make_events

_SEGMENT = "position long, `table` string, key string, columns string"
_ROW = "id long, name string, qty long, price double, ok boolean, city string, ts long, note string"
_AT_ONCE = 10
# The first ones compile what the others use.
_COLD = 5


def run_textbook(spark: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Seconds from each segment's fall to the last commit of its rows."""
    from pyspark.sql import functions as sf

    from mainstem.pipeline.source.stream import file_names

    tables, rows, seconds = arguments["tables"], arguments["rows"], arguments["seconds"] + _COLD
    folder = Path(arguments["folder"])
    segments, made = folder / "segments", folder / "made"
    for each in (segments, made):
        each.mkdir(parents=True)
    _make(made, tables, rows, arguments["keys"], seconds)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.textbook")
    for table in tables:
        spark.sql(f"CREATE TABLE lake.textbook.{table} (key string, {_ROW}) USING iceberg")
        spark.sql(f"CREATE TABLE lake.textbook.{table}_history ({_SEGMENT}) USING iceberg")
    fell, taken = dict[str, float](), dict[str, float]()

    def carry(changes: Any, _: int) -> None:
        # Asked before the rows are kept: those know nothing of files.
        names = file_names(changes)
        changes.persist()
        appends: list[Future[None]] = []
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for table in tables:
                mine = changes.where(f"`table` = '{table}'")
                latest = sf.expr(f"from_json(max_by(columns, position), '{_ROW}') AS row")
                state = mine.groupBy("key").agg(latest).select("key", "row.*")
                appends.append(threads.submit(state.writeTo(f"lake.textbook.{table}").append))
                appends.append(threads.submit(mine.writeTo(f"lake.textbook.{table}_history").append))
        for each in appends:
            each.result()
        changes.unpersist()
        taken.update(dict.fromkeys(names, time.monotonic()))

    query = (
        spark.readStream.schema(_SEGMENT).parquet(str(segments)).writeStream.foreachBatch(carry)
        .option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="50 milliseconds").start()
    )  # fmt: skip
    for path in sorted(made.iterdir()):
        fell[path.name] = time.monotonic()
        path.rename(segments / path.name)
        threading.Event().wait(1.0)
    query.processAllAvailable()
    query.stop()
    return {"seconds": [taken[name] - fell[name] for name in sorted(fell)[_COLD:]]}


def _make(folder: Path, tables: Sequence[str], rows: int, keys: int, count: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw, position = random.Random(7), 0
    for number in range(count):
        found = []
        for table in tables:
            for event in make_events(draw, rows, keys, table):
                position += 1
                columns = msgspec.json.encode(event["after"]).decode()
                found.append({"position": position, "table": table, "key": event["rowId"], "columns": columns})
        pq.write_table(pa.Table.from_pylist(found), folder / f"{number:05d}.parquet", compression="zstd")
