"""Runs queries for the gateway: asks for one, reads the tables at the snapshots it names, brings the rows.

The statement is the gateway's, checked and written for Spark there. It sees nothing but views of the tables it names.
"""

import logging
import re
import threading
from collections.abc import Iterator
from functools import partial

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from mainstem.model.errors import NotFound
from mainstem.model.names import TableName
from mainstem.pipeline.channel import Channel
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.commit.own_files import BEYOND, own_delta_rows, own_rows
from mainstem.pipeline.passes.aggregate import ANSWER, run_stages
from mainstem.pipeline.session.spark import join_session, own_session
from mainstem.wire.jobs import JobOrder
from mainstem.wire.queries import END, QueryFailed, QueryOrder, frame

log = logging.getLogger(__name__)

THREADS = 2
WAIT_S = 20.0
PAUSE_S = 2.0
WATCH_S = 1.0
ROWS_PER_FRAME = 50_000
ARROW_BYTES_MAX = 16 * 1024 * 1024
_ANSWER_S_MAX = 30.0
_MESSAGE_LENGTH_MAX = 500
_STAGES_ANSWER = from_arrow_schema(ANSWER)
_BLAMED = re.compile(r"\[(DIVIDE_BY_ZERO|CAST_|ARITHMETIC_|INVALID_|NUMERIC_|DATETIME_)")


class QueryRunner:
    """A few threads, each of which runs one query after the other until told to stop."""

    def __init__(self, url: str, token: str | None, lake: Lake) -> None:
        self._gateway = Channel(url, token)
        self._lake = lake
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to ask for queries."""
        for number in range(THREADS):
            threading.Thread(target=self._run, name=f"query-{number}", daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more. Queries in hand die with the process, and the gateway tells their clients."""
        self._stopping.set()

    def _run(self) -> None:
        # Made for the first query: the start of the pipeline has better things to do.
        session: SparkSession | None = None
        while not self._stopping.is_set():
            try:
                body = self._gateway.get(f"?waitS={WAIT_S}", timeout_s=WAIT_S + _ANSWER_S_MAX)
                order = msgspec.json.decode(body, type=QueryOrder) if body else None
            except (OSError, msgspec.DecodeError) as error:
                log.debug("no queries from the gateway: %s", error)
                self._stopping.wait(PAUSE_S)
                continue
            if order is not None:
                session = session or self._session()
                self._answer(session, order)

    def _answer(self, session: SparkSession, order: QueryOrder) -> None:
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(order, done), name="query-watch", daemon=True)
        try:
            session.sparkContext.setJobGroup(order.id, "query", interruptOnCancel=True)
            watcher.start()
            answer = _frame_of(session, self._lake, order)
            if order.stages:
                answer = answer.mapInArrow(partial(run_stages, order.stages), _STAGES_ANSWER)
            rows = answer.limit(order.limit).toArrow()
            done.set()
            self._bring(order, rows)
        except Exception as error:
            # The edge of a query: whatever is wrong with one stays with it.
            is_wrong = isinstance(error, AnalysisException | ParseException) or _is_arithmetic(error)
            log.info("a query failed", extra={"query": order.id}, exc_info=not is_wrong)
            message = str(error).splitlines()[0][:_MESSAGE_LENGTH_MAX] if str(error) else type(error).__name__
            # Spark shows the plan with a statement that it does not take, and the plan has the text of our own check.
            is_denied = not is_wrong and BEYOND in str(error)
            failed = QueryFailed(message=message, is_wrong=is_wrong, is_denied=is_denied)
            self._tell_failed(order, failed)
        finally:
            done.set()
            for view in order.views:
                session.catalog.dropTempView(view.view)

    def _session(self) -> SparkSession:
        session = own_session(self._lake.spark)
        join_session(session)
        # As in the gateway: names have no case.
        session.conf.set("spark.sql.caseSensitive", "false")
        session.conf.set("spark.sql.adaptive.enabled", "true")
        # Documents may be large: executors are given no more of them at once than this.
        session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(ARROW_BYTES_MAX))
        return session

    def _watch(self, order: QueryOrder, done: threading.Event) -> None:
        """Stop the query when its client has left, or when its time is over."""
        waited_s = 0.0
        while not done.wait(WATCH_S):
            waited_s += WATCH_S
            try:
                answer = self._gateway.get(f"/{order.id}", timeout_s=_ANSWER_S_MAX)
                is_wanted = msgspec.json.decode(answer, type=JobOrder).go_on
            except (OSError, msgspec.DecodeError):
                is_wanted = True
            if not is_wanted or waited_s > order.timeout_s:
                self._lake.spark.sparkContext.cancelJobGroup(order.id)
                return

    def _bring(self, order: QueryOrder, rows: pa.Table) -> None:
        try:
            self._gateway.send(f"/{order.id}", _frames(rows), timeout_s=order.timeout_s + _ANSWER_S_MAX)
        except OSError as error:
            # The client has left, or the gateway is away.
            log.info("rows could not be brought: %s", error, extra={"query": order.id})

    def _tell_failed(self, order: QueryOrder, failed: QueryFailed) -> None:
        try:
            self._gateway.post(f"/{order.id}/failed", msgspec.json.encode(failed), timeout_s=_ANSWER_S_MAX)
        except OSError as error:
            log.info("a failure could not be told: %s", error, extra={"query": order.id})


def _frame_of(session: SparkSession, lake: Lake, order: QueryOrder) -> DataFrame:
    for view in order.views:
        if view.delta_location is not None:
            reader = session.read.format("delta").option("versionAsOf", str(view.snapshot_id))
            own_delta_rows(reader.load(view.delta_location), view.delta_location).createOrReplaceTempView(view.view)
            continue
        name = TableName(view.namespace, view.table)
        identifier, table = lake.identifier(name), lake.load(name)
        if table is None:
            raise NotFound(f"table does not exist. got={name}")
        # The session may know the table from before the snapshot.
        session.catalog.refreshTable(identifier)
        reader = session.read
        if view.snapshot_id is not None:
            reader = reader.option("versionAsOf", str(view.snapshot_id))
        own_rows(reader.table(identifier), str(table.java.location())).createOrReplaceTempView(view.view)
    return session.sql(order.sql)


def _frames(rows: pa.Table) -> Iterator[bytes]:
    batches = rows.to_batches(ROWS_PER_FRAME)
    if not batches:
        batches = [pa.RecordBatch.from_arrays([pa.array([], field.type) for field in rows.schema], schema=rows.schema)]
    for batch in batches:
        yield frame(batch)
    yield END


def _is_arithmetic(error: Exception) -> bool:
    """Whether the statement's own values are to blame: a division by zero, a cast that does not fit."""
    # A task's failure reaches us wrapped, with the condition of its cause in the text only.
    return isinstance(error, PySparkException | Py4JJavaError) and _BLAMED.search(str(error)) is not None
