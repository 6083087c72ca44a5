"""Standing by: wait until a log has no owner, without disturbing the one that it has.

The owner writes something all the time, if only beats. It is taken for dead when nothing came for a whole lease while
Kafka answered. That decides only who begins: the gateway that claims the log fences the other, dead or
not.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from mainstem.log.kafka.broker import Away, Reader, Trimmed, has_topic
from mainstem.log.kafka.records import NOTE, Beat, Claim, Peer, Release, decode_note
from mainstem.log.kafka.settings import KafkaLogSettings
from mainstem.model.errors import Corrupt

logger = logging.getLogger(__name__)


# So far back a start reads to learn whose term it is: an earlier owner may still have written since it was fenced.
_RECORDS_BACK = 8


class Owner:
    """Whether the owner of a log let go of it, by the log's records from any of them on."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._term: bytes | None = None
        # Whether its claim was read, or else whether all records are of one term.
        self._is_known = True
        self._is_claimed = False
        self.is_gone = False

    def take(self, key: bytes, value: bytes) -> None:
        """The next record."""
        note = decode_note(value, self._place) if value.startswith(NOTE) else None
        if isinstance(note, Claim):
            self._term, self._is_known, self._is_claimed = key, True, True
        elif self._term is None:
            self._term = key
        elif key != self._term:
            # One of the two was fenced, and cannot let go of what it does not own.
            self._is_known = self._is_claimed
            self.is_gone = self.is_gone and self._is_known
            return
        self.is_gone = self._is_known and isinstance(note, Release)


class Lead(NamedTuple):
    """Who leads, since which record, and where it takes connections that others pass on."""

    claim: int
    by: str
    peer: Peer


class Leads:
    """The gateway that claimed a log last, and so leads it, as far as its records from any of them on tell."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._claim = -1
        self._is_let_go = False
        self._found: Lead | None = None

    @property
    def lead(self) -> Lead | None:
        """None where that is not known yet, where it let go, or where it takes nothing."""
        return None if self._is_let_go else self._found

    def take(self, offset: int, value: bytes, *, is_gone: bool) -> None:
        """The next record; whether the owner let go with it."""
        note = decode_note(value, self._place) if value.startswith(NOTE) else None
        if isinstance(note, Claim):
            self._follow(offset, note.by, note.peer)
        elif isinstance(note, Beat) and note.claim >= self._claim and note.claim >= 0:
            # One that was fenced may still write what it was about to: its claim is the lower one.
            self._follow(note.claim, note.by, note.peer)
        self._is_let_go = is_gone

    def _follow(self, claim: int, by: str, peer: Peer | None) -> None:
        self._claim, self._found = claim, None if peer is None else Lead(claim, by, peer)


class Standby:
    """One that waits for its turn. Blocks; `stop` is called from another thread.

    `on_lead` hears, in the thread that waits, whenever another one leads than before.
    """

    def __init__(self, settings: KafkaLogSettings, on_lead: Callable[[Lead | None], None] = lambda _: None) -> None:
        self._settings = settings
        self._on_lead = on_lead
        self._leads = Leads(settings.topic)
        self._told: Lead | None = None
        self._stop = threading.Event()
        self._reader = Reader(settings)
        self._next = 0
        self._owner = Owner(settings.topic)
        self._heard_s = 0.0
        # Several that stand by do not all begin at once.
        self._patience_s = settings.lease_s * random.uniform(1.0, 1.2)

    def stop(self) -> None:
        """Give up waiting."""
        self._stop.set()

    def wait(self) -> bool:
        """Return True once the log has no owner, False where it was stopped before."""
        try:
            return self._wait()
        finally:
            self._reader.close()

    def _wait(self) -> bool:
        told = started = False
        while not self._stop.is_set():
            try:
                if not started:
                    if not self._start():
                        return True
                    started = True
                if self._is_free():
                    return True
            except (Away, Trimmed, Corrupt) as error:
                # Silence means nothing now. The owner is given a whole lease again once Kafka answers.
                logger.warning("standing by, and cannot see the log. got=%s", error)
                started = False
                self._stop.wait(self._settings.beat_s)
            if not told:
                told = True
                logger.info("another process owns the log, or did: standing by. topic=%s", self._settings.topic)
        return False

    def _start(self) -> bool:
        """Begin with the last records. False where there is none."""
        if not has_topic(self._settings):
            return False
        low, end = self._reader.bounds()
        self._next, self._owner = max(low, end - _RECORDS_BACK), Owner(self._settings.topic)
        self._reader.seek(self._next)
        self._heard_s = time.monotonic()
        return end > 0

    def _is_free(self) -> bool:
        """Look at what came. True where no gateway owns the log."""
        for offset, key, value in self._reader.poll(self._settings.beat_s / 2):
            self._owner.take(key, value)
            self._leads.take(offset, value, is_gone=self._owner.is_gone)
            self._next = offset + 1
            self._heard_s = time.monotonic()
        if (lead := self._leads.lead) != self._told:
            self._told = lead
            self._on_lead(lead)
        is_silent = time.monotonic() - self._heard_s >= self._patience_s
        if not is_silent and not self._owner.is_gone:
            return False
        # Asked last, and of Kafka itself: a broker that is away says nothing about the owner.
        _, end = self._reader.bounds()
        return end <= self._next
