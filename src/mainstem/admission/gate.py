"""The gate: the one place that decides whether a batch gets in, for every door alike.

Order of the questions: who (`auth`, before a door is reached; which tables, here), how much (limits), seen before
(dedup), is there room (pressure). How often is asked before a message is even read, of `rates`.
"""

from collections.abc import Callable, Iterable

import msgspec

from mainstem.admission.dedup import Dedup, Seen
from mainstem.admission.limits import Limits
from mainstem.admission.pressure import Pressure
from mainstem.admission.principal import ANYONE, Principal
from mainstem.admission.rates import Rates
from mainstem.admission.sources import RESERVED_SOURCES
from mainstem.model.batch import Admitted, Batch, Encoding
from mainstem.model.errors import Invalid
from mainstem.model.names import TableName, parse_table_name, refuse_rules
from mainstem.runtime.clock import SystemClock

# The forms whose source the client names.
BY_CLIENTS = frozenset((Encoding.CDC_JSON, Encoding.CDC_JSON_OF_SHARD, Encoding.DELTAS))
# What dedup keeps of a fingerprint.
FINGERPRINT_END = 1 << 32


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The batch is durable already: acknowledge it, append nothing."""

    batch: Batch


class Gate:
    """Answers `Admitted` or `Duplicate`, or raises what the caller must do instead."""

    def __init__(
        self,
        dedup: Dedup,
        limits: Limits | None = None,
        backlog_bytes: Callable[[], int] = lambda: 0,
        *,
        rates: Rates | None = None,
        pressure: Pressure | None = None,
    ) -> None:
        self.dedup = dedup
        self.limits = limits or Limits()
        self.rates = rates or Rates(clock=SystemClock())
        self.pressure = pressure or Pressure(self.rates.settings, clock=self.rates.clock)
        # What is durable and not yet in the tables.
        self._backlog_bytes = backlog_bytes
        self._names: dict[str, TableName] = {}

    def admit(self, batch: Batch) -> Admitted | Duplicate:
        """Decide on a batch. Remembers nothing: a batch counts as seen once the log says that it is durable."""
        self.limits.check_count(batch.count)
        self.limits.check_payload(len(batch.payload))
        if not batch.source or len(batch.source) > self.limits.source_length_max or not batch.source.isprintable():
            raise Invalid(
                f"source. expected=1 to {self.limits.source_length_max} printable characters got={batch.source[:64]!r}"
            )
        if batch.encoding in BY_CLIENTS and batch.source.startswith(RESERVED_SOURCES):
            raise Invalid(
                f"source is reserved for another door. expected=none of {RESERVED_SOURCES} got={batch.source[:64]!r}"
            )
        if not 0 <= batch.fingerprint < FINGERPRINT_END:
            raise Invalid(f"fingerprint. expected=32 bits got={batch.fingerprint}")
        if self.dedup.look(batch.source, batch.sequence, batch.fingerprint) is Seen.SAME:
            return Duplicate(batch)
        # Asked last: a batch that is durable already takes no room, and is told so even when there is none.
        self.pressure.check(batch, self._backlog_bytes() / self.limits.backlog_bytes_max)
        return Admitted(batch)

    def tables(self, names: Iterable[str], principal: Principal = ANYONE) -> frozenset[TableName]:
        """The tables that a batch names. Raises Invalid at the first name that cannot be one, and Denied at the first
        table that the principal may not write."""
        tables = frozenset([self._names.get(name) or self._parse(name) for name in names])
        principal.check_write(tables)
        return tables

    def _parse(self, name: str) -> TableName:
        parsed = refuse_rules(parse_table_name(name))
        if len(self._names) >= self.limits.names_cached_max:
            self._names.clear()
        self._names[name] = parsed
        return parsed
