"""Runs queries for the gateway: asks for one, reads the tables at the snapshots it names, brings the rows.

The statement is the gateway's, checked and written for Spark there. It sees nothing but views of the tables it names.
"""

import http.client
import logging
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from mainstem.model.names import TableName
from mainstem.pipeline.commit.lake import Lake
from mainstem.pipeline.session.spark import join_session, own_session
from mainstem.wire.jobs import JobOrder
from mainstem.wire.queries import END, QueryFailed, QueryOrder, frame

log = logging.getLogger(__name__)

THREADS = 2
WAIT_S = 20.0
PAUSE_S = 2.0
WATCH_S = 1.0
ROWS_PER_FRAME = 50_000
_ANSWER_S_MAX = 30.0
_MESSAGE_LENGTH_MAX = 500
_BLAMED = re.compile(r"\[(DIVIDE_BY_ZERO|CAST_|ARITHMETIC_|INVALID_|NUMERIC_|DATETIME_)")


class QueryRunner:
    """A few threads, each of which runs one query after the other until told to stop."""

    def __init__(self, url: str, token: str | None, lake: Lake) -> None:
        self._url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._lake = lake
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin to ask for queries."""
        for number in range(THREADS):
            threading.Thread(target=self._run, name=f"query-{number}", daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more. Queries in hand die with the process; whoever asked is told."""
        self._stopping.set()

    def _run(self) -> None:
        # Made for the first query: the start of the pipeline has better things to do.
        session: SparkSession | None = None
        while not self._stopping.is_set():
            try:
                body = self._ask(f"{self._url}?waitS={WAIT_S}", None, WAIT_S + _ANSWER_S_MAX)
                order = msgspec.json.decode(body, type=QueryOrder) if body else None
            except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
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
            rows = _frame_of(session, self._lake, order).limit(order.limit).toArrow()
            done.set()
            self._bring(order, rows)
        except Exception as error:
            # The edge of a query: whatever is wrong with one stays with it.
            is_wrong = isinstance(error, AnalysisException | ParseException) or _is_arithmetic(error)
            log.info("a query failed", extra={"query": order.id}, exc_info=not is_wrong)
            message = str(error).splitlines()[0][:_MESSAGE_LENGTH_MAX] if str(error) else type(error).__name__
            self._tell_failed(order, QueryFailed(message=message, is_wrong=is_wrong))
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
        return session

    def _watch(self, order: QueryOrder, done: threading.Event) -> None:
        """Stop the query when nobody waits for it any more, or when its time is over."""
        waited_s = 0.0
        while not done.wait(WATCH_S):
            waited_s += WATCH_S
            try:
                answer = self._ask(f"{self._url}/{order.id}", None, _ANSWER_S_MAX)
                is_wanted = msgspec.json.decode(answer, type=JobOrder).go_on
            except (OSError, http.client.HTTPException, msgspec.DecodeError):
                is_wanted = True
            if not is_wanted or waited_s > order.timeout_s:
                self._lake.spark.sparkContext.cancelJobGroup(order.id)
                return

    def _bring(self, order: QueryOrder, rows: pa.Table) -> None:
        parts = urllib.parse.urlsplit(f"{self._url}/{order.id}")
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = connect(parts.netloc, timeout=order.timeout_s + _ANSWER_S_MAX)
        try:
            headers = {**self._headers, "Content-Type": "application/octet-stream", "Transfer-Encoding": "chunked"}
            connection.request("POST", parts.path, _frames(rows), headers, encode_chunked=True)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            # Whoever asked has gone, or the gateway has.
            log.info("rows could not be brought: %s", error, extra={"query": order.id})
        finally:
            connection.close()

    def _tell_failed(self, order: QueryOrder, failed: QueryFailed) -> None:
        try:
            self._ask(f"{self._url}/{order.id}/failed", msgspec.json.encode(failed), _ANSWER_S_MAX)
        except (OSError, http.client.HTTPException) as error:
            log.info("a failure could not be told: %s", error, extra={"query": order.id})

    def _ask(self, url: str, body: bytes | None, timeout_s: float) -> bytes:
        headers = {**self._headers, "Content-Type": "application/json"}
        request = urllib.request.Request(url, body, headers, method="GET" if body is None else "POST")
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content: bytes = answer.read()
            return content


def _frame_of(session: SparkSession, lake: Lake, order: QueryOrder) -> DataFrame:
    for view in order.views:
        if view.delta_location is not None:
            reader = session.read.format("delta").option("versionAsOf", str(view.snapshot_id))
            reader.load(view.delta_location).createOrReplaceTempView(view.view)
            continue
        identifier = lake.identifier(TableName(view.namespace, view.table))
        # The session may know the table from before the snapshot.
        session.catalog.refreshTable(identifier)
        reader = session.read
        if view.snapshot_id is not None:
            reader = reader.option("versionAsOf", str(view.snapshot_id))
        reader.table(identifier).createOrReplaceTempView(view.view)
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
