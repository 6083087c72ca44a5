"""Reads records that only segments and tables have, in processes of their own.

To open rows and to put them into batches is all Python: in the gateway it would take the interpreter away from
consumers at the tail, who are served from memory. So a consumer gigabytes behind costs the gateway one message each way
per fetch. A process is started when it is first needed, ends when it was not needed for a while, and keeps nothing but
caches.
"""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol

import pyarrow as pa

from mainstem.feeds.topics.partition import LEADER_EPOCH
from mainstem.feeds.topics.segments import SegmentFile, SegmentRecords
from mainstem.model.errors import Overloaded
from mainstem.model.names import TableName
from mainstem.runtime.children import python_module
from mainstem.runtime.lifetime import die_with_parent
from mainstem.wire.kafka.opening import Record, build_batch

# Records of one batch that is made of rows.
BATCH_ROWS = 500
LANES = 2
# Lower than the gateway's and the pipeline's: a consumer that is gigabytes behind is in no hurry.
NICE = 5
IDLE_S = 60.0
# How an answer begins: batches, or why there are none.
_FOUND, _GONE, _FAILED = b"\0", b"\1", b"\2"


class TableRows(Protocol):
    """Where a table has the records of a partition from an offset on. It can be sent to another process."""

    def records(self, offset: int, before: int, bytes_max: int) -> list[Record]:
        """The first of them, in order, of about so many bytes. Blocks."""


class SealedRead(NamedTuple):
    """What is to be read, and where to look for it."""

    table: TableName
    partition: int
    offset: int
    before: int
    bytes_max: int
    segments: Sequence[SegmentFile]
    # Records of transactions are in segments where those were committed, behind others.
    is_sorted: bool
    rows: TableRows | None


def read_sealed(job: SealedRead, known: SegmentRecords) -> bytes:
    """Batches from segments, and from the table what is before them. Empty where neither has the offset. Raises
    FileNotFoundError where a segment was dropped meanwhile."""
    table, partition, offset, before, bytes_max, segments, is_sorted, rows = job
    records = known.records(segments, table, partition, offset, before, bytes_max, is_sorted=is_sorted)
    if rows is not None and (not records or records[0].offset > offset):
        older = rows.records(offset, records[0].offset if records else before, bytes_max)
        if older:
            records = older
    return batches_of(records, bytes_max) if records else b""


def batches_of(records: Sequence[Record], bytes_max: int) -> bytes:
    """Records as batches: at least one, then up to a size."""
    found: list[bytes] = []
    size = 0
    for start in range(0, len(records), BATCH_ROWS):
        batch = build_batch(records[start : start + BATCH_ROWS], leader_epoch=LEADER_EPOCH)
        if found and size + len(batch) > bytes_max:
            break
        found.append(batch)
        size += len(batch)
    return b"".join(found)


class SealedReaders:
    """The processes, each at the end of a thread of ours. Blocking: `threads` is where to call `read`."""

    def __init__(self, lanes: int = LANES) -> None:
        self.threads = ThreadPoolExecutor(lanes, "kafka-sealed")
        self._own = threading.local()

    def close(self) -> None:
        """Take nothing more. The processes end with their threads."""
        self.threads.shutdown(wait=False, cancel_futures=True)

    def read(self, job: SealedRead) -> bytes:
        """See `read_sealed`. Called in one of `threads`. Raises Overloaded where no process answers."""
        # It may have ended by itself since the last time.
        for _ in range(2):
            lane: _Lane = getattr(self._own, "lane", None) or _Lane()
            self._own.lane = lane
            try:
                return lane.ask(job)
            except (EOFError, ConnectionError):
                self._own.lane = None
                lane.close()
        raise Overloaded("the reader of sealed records died twice", retry_after_s=1.0, reason="internal_error")


class _Lane:
    """One process. It dies with the thread that started it, and that with the gateway."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # No request and no answer is on it yet.
            command = python_module("mainstem.feeds.topics.sealed", str(os.getpid()), str(theirs.fileno()))
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
        self._pipe = Connection(ours.detach())

    def ask(self, job: SealedRead) -> bytes:
        self._pipe.send(job)
        answer = self._pipe.recv_bytes()
        if answer[:1] == _FOUND:
            return answer[1:]
        text = answer[1:].decode()
        if answer[:1] == _GONE:
            raise FileNotFoundError(text)
        raise Overloaded(f"sealed records cannot be read. got={text}", retry_after_s=1.0, reason="internal_error")

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()


def _answer(job: SealedRead, known: SegmentRecords) -> bytes:
    try:
        return _FOUND + read_sealed(job, known)
    except FileNotFoundError as error:
        return _GONE + str(error).encode()
    # The process' edge: whatever went wrong is the answer, and the client asks again.
    except Exception as error:
        return _FAILED + repr(error).encode()


def main() -> None:
    """The child's life. Its arguments are the parent's process id and the descriptor of its socket."""
    die_with_parent(int(sys.argv[1]))
    os.nice(NICE)
    # Threads of Arrow's would take several processors at once.
    pa.set_cpu_count(1)
    known = SegmentRecords()
    with Connection(int(sys.argv[2])) as pipe:
        try:
            while pipe.poll(IDLE_S):
                pipe.send_bytes(_answer(pipe.recv(), known))
        except (EOFError, ConnectionError):
            pass


if __name__ == "__main__":
    main()
