"""What is remembered of every source: which of its batches are durable, and which are in the tables.

The state is a function of the log: the log calls `record` for each batch once it is durable, and for each batch it
finds when it opens. `dump` and `load` carry the state over the part of the log that is gone. So a batch that was
refused or lost is never remembered, and a restart forgets nothing that was acknowledged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from mainstem.admission.keyed import KeyedBatches, is_keyed
from mainstem.admission.limits import OutOfSequence
from mainstem.admission.recent import RecentBatches
from mainstem.admission.sequences import SequenceSet
from mainstem.admission.unpersisted import Unpersisted
from mainstem.model.batch import BatchHeader
from mainstem.model.change import SourceId
from mainstem.model.errors import Corrupt, Overloaded
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.runtime.clock import Clock

_VERSION = 1
_RETRY_AFTER_S = 5.0
# The bound of intervals in states that do not say whether any were blurred.
_INTERVALS_ONCE = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings:
    """How much is remembered."""

    sources_max: int = 100_000
    # A source that sent something within this time is never forgotten: its retries may be under way.
    idle_ms: int = 300_000
    # Gaps between a source's sequences, shared as the newest batches below are.
    intervals_max: int = 65_536
    intervals_total_max: int = 1 << 20
    intervals_min: int = 1_024
    recent_max: int = 4_096
    # With many sources each gets an equal share of this, and at least `recent_min`.
    recent_total_max: int = 1 << 20
    recent_min: int = 64
    # Batches that are known by a key (`keyed`), and how long each is remembered at least.
    keys_max: int = 500_000
    keys_idle_ms: int = 60_000


class Seen(Enum):
    """What is known of a sequence."""

    NEVER = 0
    # Durable; with the same content, as far as that is still known.
    SAME = 1


class Heard(NamedTuple):
    """What an operator sees of a source."""

    lowest: int
    highest: int
    persisted: int | None
    # Batches that are durable and not yet in the tables, as far as they are told apart.
    waiting: int
    seen_ms: int


class _StoredSource(msgspec.Struct, array_like=True, frozen=True):
    source: str
    starts: list[int]
    ends: list[int]
    recent_sequences: bytes
    recent_fingerprints: bytes
    unpersisted: list[tuple[int, int, int]]
    seen_ms: int


class _StoredBlurred(_StoredSource, array_like=True, frozen=True):
    """Of a source that had more gaps than are kept. The others are stored as they always were."""

    blurred: int | None = None


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    version: int
    # The last position whose batch is part of the state.
    last: int
    sources: list[msgspec.Raw]


class _StoredWithKeys(_Stored, array_like=True, frozen=True):
    """Where batches with keys were seen. The others are stored as they always were."""

    key_sequences: bytes = b""
    key_values: bytes = b""


class _Source:
    """One source's state, and its stored form while that is current."""

    __slots__ = ("recent", "seen_ms", "sequences", "stored", "unpersisted")

    def __init__(self, sequences: SequenceSet, recent: RecentBatches, unpersisted: Unpersisted, seen_ms: int) -> None:
        self.sequences = sequences
        self.recent = recent
        self.unpersisted = unpersisted
        self.seen_ms = seen_ms
        self.stored: bytes | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_StoredWithKeys)
_source_decoder = msgspec.msgpack.Decoder(_StoredBlurred)


class Dedup:
    """The durable batches of every source. Belongs to the event loop; is the log's companion."""

    def __init__(self, clock: Clock, settings: DedupSettings | None = None) -> None:
        self._clock = clock
        self._settings = settings or DedupSettings()
        # From the source that was heard least recently to the one heard last.
        self._sources: dict[str, _Source] = {}
        self._keyed = KeyedBatches()
        self._last = NOWHERE

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __reversed__(self) -> Iterator[str]:
        """From the source that was heard last."""
        return reversed(self._sources)

    def heard(self, name: str, watermark: LogPosition) -> Heard:
        """What is known of a source, where the tables cover the log up to `watermark`."""
        source = SourceId(name)
        self.settle(source, watermark)
        known = self._sources[name]
        persisted = self.persisted(source)
        return Heard(self.lowest(source), self.highest(source), persisted, len(known.unpersisted.runs), known.seen_ms)

    def look(self, source: SourceId, sequence: int, fingerprint: int) -> Seen:
        """Whether this batch is durable already.

        A fingerprint is compared as long as it is known; after that the sequence decides. Raises OutOfSequence where
        the sequence was used for other changes, or where it is not known any more whether it was used at all (far
        below, in a source with more gaps than are kept). Raises Overloaded where a new source finds no room.
        """
        if is_keyed(source):
            return self._look_for_key(source, sequence, fingerprint)
        known = self._sources.get(source)
        if known is None:
            self._make_room()
            return Seen.NEVER
        if sequence not in known.sequences:
            return Seen.NEVER
        remembered = known.recent.find(sequence)
        if remembered == fingerprint or (remembered is None and known.sequences.is_certain(sequence)):
            return Seen.SAME
        trouble = "is older than what is remembered" if remembered is None else "was used for other changes"
        raise OutOfSequence(
            f"sequence {trouble}. source={source} got={sequence}", sequence_next=self.highest(source) + 1
        )

    def _look_for_key(self, source: SourceId, sequence: int, fingerprint: int) -> Seen:
        if sequence < 0:
            return Seen.NEVER
        remembered = self._keyed.find(sequence)
        if remembered is None:
            self._make_room_for_key()
            return Seen.NEVER
        if remembered != fingerprint:
            raise OutOfSequence(f"the key was used for other changes. source={source}", sequence_next=0)
        return Seen.SAME

    def has(self, source: SourceId, sequence: int) -> bool:
        """Whether a batch of this sequence is durable, whatever it held."""
        known = self._sources.get(source)
        return known is not None and sequence in known.sequences

    def names(self, prefix: str) -> list[str]:
        """The sources whose names begin so. Looks at every source."""
        return [name for name in self._sources if name.startswith(prefix)]

    def highest(self, source: SourceId) -> int:
        """The highest durable sequence of a source; 0 where there is none."""
        known = self._sources.get(source)
        return (known.sequences.highest or 0) if known else 0

    def resume_from(self, source: SourceId, last_ack: int) -> int:
        """The lowest sequence above a source's last ack that is not durable: everything in between is."""
        known = self._sources.get(source)
        return known.sequences.lowest_missing_above(last_ack) if known else last_ack + 1

    def lowest(self, source: SourceId) -> int:
        """The lowest durable sequence of a source; 0 where there is none below."""
        known = self._sources.get(source)
        return min(0, known.sequences.lowest or 0) if known else 0

    def settle(self, source: SourceId, watermark: LogPosition) -> bool:
        """The tables cover the log up to `watermark`: whether more of this source's batches are in them now."""
        known = self._sources.get(source)
        if known is None or not known.unpersisted.settle(watermark):
            return False
        known.stored = None
        return True

    def persisted(self, source: SourceId, below: int | None = None) -> int | None:
        """The sequence up to which every durable batch of the source is in the tables; None where there is none.

        Only sequences under `below` are looked at, where that is given.
        """
        known = self._sources.get(source)
        if known is None:
            return None
        bounds = [bound for bound in (known.unpersisted.lowest, below) if bound is not None]
        return known.sequences.highest_below(min(bounds)) if bounds else known.sequences.highest

    def record(self, header: BatchHeader) -> None:
        """A batch is durable. Called in the log's order; a batch that the state has already changes nothing."""
        if header.last <= self._last:
            return
        self._last = header.last
        if is_keyed(header.source):
            self._keyed.add(header.sequence, header.fingerprint, header.arrival_ms, self._settings.keys_max)
            return
        # Taken out and put back: the dict's order is the order in which sources were heard last.
        source = self._sources.pop(header.source, None)
        if source is None:
            source = _Source(SequenceSet(), RecentBatches(), Unpersisted(), 0)
        self._sources[header.source] = source
        source.sequences.add(header.sequence, self._intervals_max())
        source.recent.add(header.sequence, header.fingerprint, self._recent_max())
        source.unpersisted.add(header.sequence, header.last)
        source.seen_ms = header.arrival_ms
        source.stored = None

    def dump(self) -> bytes:
        """The whole state. What a quiet source looks like is kept, so this costs little with many sources."""
        sources = []
        for name, source in self._sources.items():
            if source.stored is None:
                blurred = source.sequences.blurred
                if blurred is None and len(source.sequences) >= _INTERVALS_ONCE:
                    # Nothing of it is blurred, which has to be said of a set of this size.
                    blurred = (source.sequences.lowest or 0) - 1
                fields = (
                    name,
                    *source.sequences.intervals,
                    *source.recent.dump(),
                    source.unpersisted.runs,
                    source.seen_ms,
                )
                source.stored = _encoder.encode(
                    _StoredSource(*fields) if blurred is None else _StoredBlurred(*fields, blurred)
                )
            sources.append(msgspec.Raw(source.stored))
        if self._keyed:
            return _encoder.encode(_StoredWithKeys(_VERSION, self._last, sources, *self._keyed.dump()))
        return _encoder.encode(_Stored(_VERSION, self._last, sources))

    def load(self, data: bytes) -> None:
        """Become what `dump` wrote. Raises Corrupt where it is not that, and stays as it was."""
        try:
            stored = _decoder.decode(data)
            if stored.version != _VERSION:
                raise Corrupt(f"dedup state. expected=version {_VERSION} got={stored.version}", place="companion")
            sources = {source.source: self._revive(source) for source in map(_source_decoder.decode, stored.sources)}
            keyed = KeyedBatches.load(stored.key_sequences, stored.key_values)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise Corrupt(f"dedup state cannot be read. got={error}", place="companion") from error
        self._sources = sources
        self._keyed = keyed
        self._last = LogPosition(stored.last)

    def _revive(self, stored: _StoredBlurred) -> _Source:
        if len(stored.starts) != len(stored.ends):
            raise ValueError(f"intervals. expected={len(stored.starts)} got={len(stored.ends)}")
        blurred = stored.blurred
        if blurred is None and len(stored.starts) >= _INTERVALS_ONCE:
            # Perhaps written before this was kept: a set at its bound may have a gap that counts as seen.
            blurred = stored.ends[0]
        return _Source(
            SequenceSet(stored.starts, stored.ends, blurred),
            RecentBatches.load(stored.recent_sequences, stored.recent_fingerprints),
            Unpersisted(stored.unpersisted),
            stored.seen_ms,
        )

    def _recent_max(self) -> int:
        settings = self._settings
        share = settings.recent_total_max // max(1, len(self._sources))
        return min(settings.recent_max, max(settings.recent_min, share))

    def _intervals_max(self) -> int:
        settings = self._settings
        share = settings.intervals_total_max // max(1, len(self._sources))
        return min(settings.intervals_max, max(settings.intervals_min, share))

    def _make_room(self) -> None:
        if len(self._sources) < self._settings.sources_max:
            return
        oldest = next(iter(self._sources))
        idle_ms = self._clock.now_ms() - self._sources[oldest].seen_ms
        if idle_ms <= self._settings.idle_ms:
            raise Overloaded(
                f"too many sources. expected=at most {self._settings.sources_max} active within "
                f"{self._settings.idle_ms} ms",
                retry_after_s=max(_RETRY_AFTER_S, (self._settings.idle_ms - idle_ms) / 1000),
                reason="load_shedding",
            )
        del self._sources[oldest]

    def _make_room_for_key(self) -> None:
        if len(self._keyed) < self._settings.keys_max:
            return
        young_ms = self._settings.keys_idle_ms - (self._clock.now_ms() - self._keyed.oldest_ms())
        if young_ms > 0:
            raise Overloaded(
                f"too many keys. expected=at most {self._settings.keys_max} within {self._settings.keys_idle_ms} ms",
                retry_after_s=max(_RETRY_AFTER_S, young_ms / 1000),
                reason="load_shedding",
            )
