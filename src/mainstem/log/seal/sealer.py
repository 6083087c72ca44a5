"""Sealing, in a process of its own: `python -m mainstem.log.seal.sealer`.

Expanding a batch is all Python; in the gateway it would take the interpreter away from the doors. The child loads what
sealing needs, and then forks: once for each socket that it is sent on stdin. Each fork reads one JSON request per line
from its socket, answers each there, and ends when the socket does or its parent dies. It keeps no state: a request that
was not answered can be sent again to the next one.
"""

import gc
import importlib
import mmap
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import msgspec
import pyarrow as pa

from mainstem.log import frames
from mainstem.log.seal.children import SealAnswer, SealRequest
from mainstem.log.seal.segments import SegmentBuilder
from mainstem.model.errors import Corrupt, MainstemError
from mainstem.model.position import LogId
from mainstem.runtime import durable
from mainstem.runtime.lifetime import die_with_parent


def seal(request: SealRequest) -> None:
    """Write the segment and make it durable. The caller names it: names are given in log order."""
    builder = SegmentBuilder(request.times)
    for file in request.files:
        for frame in frames.decode_all(_mapped(Path(file)), file):
            builder.add(frame.header, frame.payload, f"{file}:position {frame.header.first}")
    scratch = Path(request.scratch)
    builder.write(scratch, more=request.more, log=LogId(request.log))
    durable.sync(scratch)


def _mapped(path: Path) -> memoryview:
    """A file's bytes where they are: in the system's cache, since they were just written."""
    # Nothing cannot be mapped.
    if not path.stat().st_size:
        return memoryview(b"")
    # Page by page where the system knows no better.
    at_once = getattr(mmap, "MAP_POPULATE", 0)
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | at_once, prot=mmap.PROT_READ))


def answer(line: bytes) -> SealAnswer:
    """Deal with one request. Whatever goes wrong is the answer: the parent decides when to try again."""
    try:
        seal(msgspec.json.decode(line, type=SealRequest))
    except Corrupt as error:
        return SealAnswer(error=str(error), corrupt_place=error.place)
    except (MainstemError, OSError, pa.ArrowException, msgspec.MsgspecError, MemoryError) as error:
        return SealAnswer(error=f"{type(error).__name__}: {error}")
    return SealAnswer()


class _NoPandas(MetaPathFinder):
    """The first array makes pyarrow import pandas, which takes a second and 40 MB, and is of no use here."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ImportError(fullname)


def main() -> None:
    """The child's life. Its argument is the parent's process id."""
    die_with_parent(int(sys.argv[1]))
    # Ctrl-C reaches the whole group; when to end is the parent's word.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The forks are not waited for: let the system remove them when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Rows are many short-lived values without cycles.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    # Arrow's own pool takes fresh pages of two megabytes, and to clear them is a third of a first segment's time.
    pa.set_memory_pool(pa.system_memory_pool())
    sys.meta_path.insert(0, _NoPandas())
    pa.array(["warm"], pa.string())
    importlib.import_module("pyarrow.compute")
    mother = os.getpid()
    with socket.socket(fileno=sys.stdin.fileno()) as control:
        while True:
            nice, fds, _, _ = socket.recv_fds(control, 16, 1)
            if not fds:
                return
            if os.fork() == 0:
                control.close()
                _live(fds[0], int(nice), mother)
            os.close(fds[0])


def _live(fd: int, nice: int, mother: int) -> NoReturn:
    """The life of a fork, which stands back by `nice`."""
    die_with_parent(mother)
    os.nice(nice)
    encode = msgspec.json.Encoder().encode
    with socket.socket(fileno=fd) as connection, connection.makefile("rwb") as lines:
        lines.write(b"%d\n" % os.getpid())
        lines.flush()
        for line in lines:
            lines.write(encode(answer(line)) + b"\n")
            lines.flush()
        # The end of the socket is to mean the end of the process.
        os._exit(0)


if __name__ == "__main__":
    main()
