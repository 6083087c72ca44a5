"""What the routes of this door share: a body read in pieces, and a batch taken in, durable when it is answered."""

import asyncio
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from mainstem.admission import Intake, OutOfSequence, Principal, Ticket, TooLarge
from mainstem.model import Conflict, Invalid, Overloaded
from mainstem.model.batch import Batch, Encoding
from mainstem.model.change import SourceId
from mainstem.model.checksum import crc32
from mainstem.model.names import TableName

T = TypeVar("T")

MIB = 1 << 20
# Bodies that are being read or checked, all together.
BODIES_BYTES_MAX = 160 * MIB
# A smaller one is checked at once: handing it to a thread would take longer.
_THREAD_BYTES_MIN = 64 * 1024
_KEY_LENGTH_MAX = 255
_SUB_LENGTH_MAX = 120


class Taken(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The rows are durable. `duplicate`: they were before, under the same key, and count once.

    `first` and `last` are their positions in the log; not known of a duplicate whose first request is long over.
    """

    rows: int
    duplicate: bool
    first: int | None = None
    last: int | None = None


class IngestStats:
    """What went through the door since the start, by format; for the metrics."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.duplicates: Counter[str] = Counter()


class Taking:
    """Takes bodies and batches in."""

    def __init__(self, intake: Intake, body_bytes_max: int) -> None:
        self.intake = intake
        self.stats = IngestStats()
        self._body_bytes_max = body_bytes_max
        self._bodies_bytes = 0
        # Batches without a key: each is its own, and is not remembered.
        self._unkeyed = itertools.count(-1, -1)

    async def with_body(self, request: Any, work: Callable[[bytes], T]) -> tuple[bytes, T]:
        """Read the body, and do something with it that may take a while. Raises TooLarge, Overloaded or Invalid."""
        told = request.headers.get("content-length", "")
        if told.isascii() and told.isdigit() and int(told[:18]) > self._body_bytes_max:
            raise TooLarge("body", "bytes", self._body_bytes_max, int(told[:18]), reason="payload_too_large")
        if request.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise Invalid("the body is encoded. expected=no Content-Encoding", reason="unsupported_encoding")
        held = 0
        parts: list[bytes] = []
        try:
            async for part in request.stream():
                held += len(part)
                self._bodies_bytes += len(part)
                if held > self._body_bytes_max:
                    raise TooLarge("body", "bytes", self._body_bytes_max, held, reason="payload_too_large")
                if self._bodies_bytes > BODIES_BYTES_MAX:
                    raise Overloaded("too many bodies at once. expected=less at a time", retry_after_s=1.0)
                parts.append(part)
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if len(body) < _THREAD_BYTES_MIN:
                return body, work(body)
            return body, await asyncio.to_thread(work, body)
        finally:
            self._bodies_bytes -= held

    async def take(self, batch: Batch, label: str) -> Taken:
        """Let a batch in, and wait until it is durable. Raises Conflict where its key was used for something else."""
        return await self.end(*self.begin(batch), label)

    def begin(self, batch: Batch) -> tuple[Ticket, Batch]:
        """Let a batch in. Batches of one source are appended in the order of these calls."""
        try:
            return self.intake.take(batch), batch
        except OutOfSequence as error:
            raise Conflict("the key was used for other rows. expected=a new key, or the same request again") from error

    async def end(self, ticket: Ticket, batch: Batch, label: str) -> Taken:
        """Wait until a batch is durable."""
        first = last = None
        if ticket.outcome is not None:
            # Waited for, not awaited: a client that goes away must not cancel it for others.
            await asyncio.wait([ticket.outcome])
            appended = ticket.outcome.result()
            first, last = int(appended.first), int(appended.last)
        stats = self.stats
        stats.requests[label] += 1
        if ticket.duplicate:
            stats.duplicates[label] += 1
        else:
            stats.rows[label] += batch.count
            stats.bytes[label] += len(batch.payload)
        return Taken(rows=batch.count, duplicate=ticket.duplicate, first=first, last=last)

    def batch(
        self,
        source: SourceId,
        *,
        key: str | None,
        count: int,
        encoding: Encoding,
        payload: bytes,
        tables: frozenset[TableName],
        fingerprint: int | None = None,
    ) -> Batch:
        """A batch that is known by its key, where it has one. `fingerprint` where it is not the payload's."""
        return Batch(
            source=source,
            sequence=next(self._unkeyed) if key is None else key_number(source, key),
            count=count,
            encoding=encoding,
            payload=payload,
            fingerprint=crc32(payload) if fingerprint is None else fingerprint,
            tables=tables,
        )


def key_number(source: str, key: str) -> int:
    """The number under which a key is remembered: 63 bits of a hash."""
    digest = hashlib.blake2b(f"{source}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def source_of(principal: Principal, door: str) -> SourceId:
    """Whose rows they are: each caller has keys of its own. Two tenants may well have an `app` each."""
    name = principal.source(principal.sub)
    if not name.isprintable() or len(name) > _SUB_LENGTH_MAX:
        name = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return SourceId(f"{door}/{name}")


def idempotency_key(headers: Any) -> str | None:
    """What the client named its request, if it did."""
    key: str | None = headers.get("idempotency-key")
    if key is None:
        return None
    key = key.strip().strip('"')
    if not key or len(key) > _KEY_LENGTH_MAX or not key.isprintable():
        raise Invalid(f"Idempotency-Key. expected=1 to {_KEY_LENGTH_MAX} printable characters got={key[:64]!r}")
    return key
