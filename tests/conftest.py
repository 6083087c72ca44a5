"""One real server for every test that only needs some server: its start, and Spark's, are paid once."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from mainstem.app.config import Config, LogConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.app.spark.classes import find_archive
from mainstem.app.spark.jars import S3_COORDINATES, ensure_jars
from mainstem.app.spark.java import check_java
from tests.harness.apachekafka import SMALL_JVM, ApacheKafka
from tests.harness.seaweed import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A deadline per example measures the machine's other work, not ours.
settings.register_profile("mainstem", deadline=None)
settings.load_profile("mainstem")


UNITS = Path(__file__).parent / "unit"
_SHARED = {"live_server", "spark", "s3_server", "broker"}
# What `make test` runs besides the units that stand alone: one test or module for each part that only a real server, a
# real Spark, a real reader, a browser or a kill can show. All others are in `make test-all`.
CORE = (
    "browser/test_console.py::test_a_person_sees_the_tables_and_asks_them",
    "contract/test_auth_gate.py",
    "contract/test_bad_input.py",
    "contract/test_catalog_rest.py",
    "contract/test_cdc_client.py",
    "contract/test_log_identity.py",
    "contract/test_sync_door.py",
    "compat/test_live_readers.py::test_three_readers_see_the_same_rows",
    "faults/test_log_kill.py",
    "faults/test_spark_at_work.py",
    "faults/test_spark_faults.py::test_driver_killed_between_the_tasks_and_the_commit",
    "unit/pipeline/test_carrier.py",
    "unit/pipeline/test_merge_vectors.py",
    "unit/pipeline/test_upserts.py",
)
# As the pipeline has it: a table that somebody else has changed must not live on in a cache.
FRESH = {"cache-enabled": "false"}
# Tables that tests of both formats fill, each once more under another name.
IN_DELTA = ("back", "comes", "counted", "hard", "keys", "large", "nulls", "shop", "turns")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what can run beside everything else: `make test` does that, since most of the rest waits for servers."""
    for item in items:
        wanted = _SHARED & set(getattr(item, "fixturenames", ()))
        if UNITS in item.path.parents and not wanted and item.get_closest_marker("spark") is None:
            item.add_marker("alone")
        elif item.nodeid.partition("[")[0].removeprefix("tests/").startswith(CORE):
            item.add_marker("core")


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Gateway and pipeline, as `mainstem serve` starts them. Tests keep apart by their tables' names."""
    config = Config(
        server=ServerConfig(port=0),
        log=LogConfig(flush_interval_s=1.0),
        tables={
            "default.declared": {"columns": {"price": "decimal(10,2)", "day": "date"}},
            "default.letters": {"columns": {"price": "decimal(10,2)"}},
            "default.letters_in_delta": {"columns": {"price": "decimal(10,2)"}, "format": "delta"},
            "default.put_back": {"format": "delta"},
            "console.put_back": {"format": "delta"},
            "cased.rows": {"format": "delta"},
            "cased.typed": {"format": "delta"},
            "console.letters": {"columns": {"price": "decimal(10,2)"}},
            "default.times": {"infer_times": True},
            "default.times_in_delta": {"infer_times": True, "format": "delta"},
            "default.only_state": {"history": False},
            "default.vectors": {"format_version": 3, "history": False},
            "default.own_vectors": {"format_version": 3, "history": False},
            "default.only_state_in_delta": {"history": False, "format": "delta"},
            **{f"default.{name}_in_delta": {"format": "delta"} for name in IN_DELTA},
        },
    )
    server = ServerProcess(tmp_path_factory.mktemp("live"), config)
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """One Spark session for every test that needs one in its own process: starting one takes ten seconds."""
    from mainstem.pipeline.session.spark import SessionSettings, build_session

    session = build_session(
        SessionSettings(
            app="mainstem-tests",
            master="local[2]",
            driver_memory="2g",
            jars=tuple(str(jar) for jar in (*ensure_jars(), *ensure_jars(S3_COORDINATES))),
            python=sys.executable,
            archive=None if (archive := find_archive(check_java())) is None else str(archive),
            catalogs={"lake": {"type": "hadoop", "warehouse": str(tmp_path_factory.mktemp("warehouse")), **FRESH}},
        )
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server. Tests keep apart by their buckets."""
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A real Apache Kafka, which no test stops. Tests keep apart by their topics, and heal its proxy."""
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), jvm=SMALL_JVM, has_proxy=True) as kafka:
        yield kafka
