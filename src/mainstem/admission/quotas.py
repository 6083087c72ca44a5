"""How much somebody may send and fetch over time, where a protocol can answer "later" instead of "no".

A principal past its quota is served, and told how long to be silent; the door hears nothing from that connection until
then. So nothing is refused, and over time no user gets more than its quota. Kept by principal, in bounded memory.
"""

from collections import Counter, OrderedDict
from enum import StrEnum
from typing import Annotated

import msgspec

from mainstem.admission.principal import Principal
from mainstem.runtime.clock import Clock

Rate = Annotated[int, msgspec.Meta(ge=0)]

# What a quota lets through at once: this many seconds' worth. Kafka's own measures over several such windows.
BURST_S = 1.0
# No connection is silenced for longer at once: clients give up on a request after 30 s.
DELAY_S_MAX = 15.0
PRINCIPALS_MAX = 10_000


class Quota(StrEnum):
    """What is counted."""

    PRODUCE = "produce_bytes_per_s"
    FETCH = "fetch_bytes_per_s"
    REQUESTS = "requests_per_s"


class QuotaSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of one principal. 0: as much as it likes."""

    # Bytes of the requests with which it produces.
    produce_bytes_per_s: Rate = 0
    # Bytes of the answers with which it fetches.
    fetch_bytes_per_s: Rate = 0
    # Requests of any kind, logins apart.
    requests_per_s: Rate = 0


class QuotasSettings(QuotaSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[kafka.quotas]`: how much each principal may send and fetch. One that is past it is slowed down. 0: no bound."""

    # Those who have their own, by user name or by the subject of a token, each with the same three keys.
    users: dict[str, QuotaSettings] = {}


class _Debt:
    """What somebody took, less what came back to it since."""

    __slots__ = ("amount", "at_s")

    def __init__(self, at_s: float) -> None:
        self.amount = 0.0
        self.at_s = at_s


class Quotas:
    """Belongs to the event loop."""

    def __init__(self, settings: QuotasSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._debts: OrderedDict[tuple[str, Quota], _Debt] = OrderedDict()
        self.is_on = any(_is_set(each) for each in (settings, *settings.users.values()))
        # How often somebody was past which quota, since the start.
        self.throttled: Counter[str] = Counter()

    def charge(self, principal: Principal, client: str, taken: dict[Quota, int]) -> float:
        """Somebody took this much: for how many seconds it has to be silent now. A client that need not log in is known
        by what it calls its client."""
        if not self.is_on:
            return 0.0
        who = principal.sub if principal.is_authenticated else f"client {client}"
        own = self._settings.users.get(principal.sub, self._settings) if principal.is_authenticated else self._settings
        return max(self._charge(who, quota, amount, getattr(own, quota)) for quota, amount in taken.items())

    def _charge(self, who: str, quota: Quota, amount: int, per_s: int) -> float:
        if per_s == 0 or amount == 0:
            return 0.0
        now_s = self._clock.monotonic_s()
        key = (who, quota)
        debt = self._debts.get(key)
        if debt is None:
            debt = self._debts[key] = _Debt(now_s)
            if len(self._debts) > PRINCIPALS_MAX * len(Quota):
                self._debts.popitem(last=False)
        else:
            self._debts.move_to_end(key)
        debt.amount = max(0.0, debt.amount - (now_s - debt.at_s) * per_s) + amount
        debt.at_s = now_s
        # One request may be far larger than a quota: it is paid off, but its sender does not wait for ever.
        debt.amount = min(debt.amount, per_s * (BURST_S + DELAY_S_MAX))
        delay_s = debt.amount / per_s - BURST_S
        if delay_s <= 0:
            return 0.0
        self.throttled[quota] += 1
        return delay_s


def _is_set(each: QuotaSettings) -> bool:
    return any(getattr(each, quota) for quota in Quota)
