"""`make bench`: measure everything, print it, write `out/bench.json` and `out/bench.png`."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks import (
    catalog,
    cluster,
    compaction,
    delta,
    endtoend,
    fairness,
    firstload,
    freshness,
    http,
    idle,
    ingest,
    kafka,
    kafka_rows,
    kafka_scale,
    mongo,
    mongo_large,
    queries,
    s3,
    scale,
    sizing,
    start,
    sync,
    upserts,
)
from benchmarks.report import Report

SECTIONS = {
    "ingest": ingest,
    "start": start,
    "upserts": upserts,
    "endtoend": endtoend,
    "freshness": freshness,
    "s3": s3,
    "cluster": cluster,
    "catalog": catalog,
    "delta": delta,
    "queries": queries,
    "compaction": compaction,
    "firstload": firstload,
    "fairness": fairness,
    "idle": idle,
    "sync": sync,
    "http": http,
    "kafka": kafka,
    "mongo": mongo,
    "mongo_large": mongo_large,
    "kafkascale": kafka_scale,
    "kafkarows": kafka_rows,
    "scale": scale,
    "sizing": sizing,
}


def main() -> int:
    """Exit code 1 where a bar is missed: the table says which."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="which ones; all by default")
    parser.add_argument("--small", action="store_true", help="a quick look, with less data")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the results go")
    arguments = parser.parse_args()
    report = Report()
    for name in arguments.sections or SECTIONS:
        with tempfile.TemporaryDirectory(prefix=f"mainstem-bench-{name}-") as folder:
            asyncio.run(SECTIONS[name].run(report, Path(folder), small=arguments.small))
    report.print()
    report.write(arguments.out)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
