"""How often somebody may come: connections by source, address and subnet, messages of a connection, requests.

Every bound is inclusive: exactly the maximum passes. Clients from an exempt range are under none of them. The
sizes of batches are in `limits`, and what happens while the tables are behind is in `pressure`; this module knows
neither. State is bounded: what is remembered of an address goes when it is neither connected nor was refused lately.
"""

import math
from collections import Counter, OrderedDict, deque
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from random import Random
from typing import Annotated

import msgspec

from mainstem.model.errors import Invalid, Overloaded
from mainstem.runtime.backoff import doubled
from mainstem.runtime.clock import Clock

Positive = Annotated[int, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]

PRIVATE = ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7", "fe80::/10")
ADDRESSES_MAX = 65_536
WINDOW_S = 1.0
_SUBNET_BITS = {4: 24, 6: 64}
# Tenths do not add up to whole tokens exactly.
_ROUNDING = 1e-6


class RateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The `[limits]` section of the configuration. Defaults are DoLake's."""

    # New connections, of all addresses together.
    connections_per_s: Positive = 20
    # Of one connection, heartbeats included.
    messages_per_s: Positive = 100
    # Tokens of one connection: how many it may have, and how many come back per second. A batch takes one.
    burst: Positive = 50
    # Tokens that come back to a connection per second.
    refill_per_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    # What a heartbeat takes of them.
    heartbeat_tokens: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    # Connections of one source (a producer, by its name).
    connections_per_source: Positive = 5
    # Connections of one address.
    connections_per_address: Positive = 30
    # Of one /24, or of one /64 of IPv6.
    connections_per_subnet: Positive = 100
    # Of one address, over HTTP.
    requests_per_s: Positive = 100
    # Ranges without any of these limits.
    exempt: tuple[str, ...] = PRIVATE
    # Of one batch, and of one change in it. A frame carries 16 MiB.
    payload_bytes_max: Annotated[int, msgspec.Meta(gt=0, le=16 * 1024 * 1024)] = 4 * 1024 * 1024
    # The largest change in a batch.
    event_bytes_max: Annotated[int, msgspec.Meta(gt=0, le=16 * 1024 * 1024)] = 1024 * 1024
    # Oversized messages until a connection is closed.
    oversized_max: Positive = 3
    # How full the buffer may be before producers are slowed down.
    pressure_threshold: Share = 0.8
    # The shortest time to wait that a refused producer is told; it doubles with every refusal.
    retry_ms_min: Positive = 100
    # The longest one.
    retry_ms_max: Positive = 30_000

    def __post_init__(self) -> None:
        networks(self.exempt)
        if self.retry_ms_max < self.retry_ms_min:
            raise ValueError(f"retry_ms_max. expected=at least {self.retry_ms_min} got={self.retry_ms_max}")


def networks(ranges: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Ranges as networks. Raises ValueError at the first that is none."""
    return tuple(ip_network(each, strict=False) for each in ranges)


def retry_ms(refusals: int, settings: RateSettings, rng: Random) -> int:
    """When to come back after so many refusals in a row: doubling, with jitter, from the least to the most."""
    ceiling = doubled(refusals, settings.retry_ms_min, settings.retry_ms_max)
    return round(rng.uniform(max(settings.retry_ms_min, ceiling / 2), ceiling))


class Window:
    """At most so many in any one second."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def left(self, limit: int, now_s: float) -> int:
        """How many more fit now."""
        while self._times and self._times[0] <= now_s - WINDOW_S:
            self._times.popleft()
        return max(0, limit - len(self._times))

    def add(self, now_s: float) -> None:
        """One came."""
        self._times.append(now_s)

    def wait_s(self, now_s: float) -> float:
        """How long until one more fits, where none does now."""
        return max(0.0, self._times[0] + WINDOW_S - now_s) if self._times else 0.0


class Rates:
    """All limits of one process. Belongs to the event loop."""

    def __init__(self, settings: RateSettings | None = None, *, clock: Clock, rng: Random | None = None) -> None:
        self.settings = settings or RateSettings()
        self.clock = clock
        self.rng = rng or Random()
        self._exempt = networks(self.settings.exempt)
        self._known: dict[str, bool] = {}
        self._arrivals = Window()
        self._by_address: Counter[str] = Counter()
        self._by_subnet: Counter[str] = Counter()
        self._refusals: OrderedDict[str, int] = OrderedDict()
        self._requests: OrderedDict[str, Window] = OrderedDict()
        # What was refused since the start, by the setting that it was too much for.
        self.refused: Counter[str] = Counter()

    def retune(self, settings: RateSettings) -> None:
        """Other limits, from now on, also for connections that are open."""
        self.settings = settings
        self._exempt = networks(settings.exempt)
        self._known.clear()

    def is_exempt(self, address: str) -> bool:
        """Whether an address is under no limit."""
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= ADDRESSES_MAX:
                self._known.clear()
            known = self._known[address] = self._look_up(address)
        return known

    def _look_up(self, address: str) -> bool:
        try:
            ip = ip_address(address)
        except ValueError:
            # A socket of this machine has no address.
            return True
        mapped = getattr(ip, "ipv4_mapped", None) or ip
        return any(mapped in network for network in self._exempt if network.version == mapped.version)

    def connect(self, address: str) -> "Meter | None":
        """A connection comes from an address: its meter, or None where it needs none. Raises Overloaded.

        A connection that got a meter says `leave` at the end.
        """
        if self.is_exempt(address):
            return None
        address = _plain(address)
        settings, now_s, subnet = self.settings, self.clock.monotonic_s(), subnet_of(address)
        if self._by_address[address] >= settings.connections_per_address:
            raise self._refused(address, "connections of an address", "connections_per_address", "ip_limit")
        if self._by_subnet[subnet] >= settings.connections_per_subnet:
            raise self._refused(address, "connections of a subnet", "connections_per_subnet", "ip_limit")
        if not self._arrivals.left(settings.connections_per_s, now_s):
            raise self._refused(address, "new connections per second", "connections_per_s", "rate_limited")
        self._arrivals.add(now_s)
        self._refusals.pop(address, None)
        self._by_address[address] += 1
        self._by_subnet[subnet] += 1
        return Meter(self, address)

    def leave(self, meter: "Meter | None") -> None:
        """A connection ended."""
        if meter is None:
            return
        for counter, name in ((self._by_address, meter.address), (self._by_subnet, subnet_of(meter.address))):
            counter[name] -= 1
            if counter[name] <= 0:
                del counter[name]

    def request(self, address: str) -> "RateView":
        """A request over HTTP: what is left. Raises RateExceeded."""
        limit, now_s = self.settings.requests_per_s, self.clock.monotonic_s()
        # Our own pipeline comes from this machine, whatever the settings say of others.
        if self.is_exempt(address) or ip_address(address).is_loopback:
            return RateView(limit, limit, 0.0)
        address = _plain(address)
        window = self._requests.pop(address, None) or Window()
        self._requests[address] = window
        if len(self._requests) > ADDRESSES_MAX:
            self._requests.popitem(last=False)
        left = window.left(limit, now_s)
        if not left:
            view = RateView(limit, 0, window.wait_s(now_s))
            raise RateExceeded(f"too many requests. expected=at most {limit} per second", view)
        window.add(now_s)
        return RateView(limit, left - 1, window.wait_s(now_s))

    def check_source(self, source: str, connections: int) -> None:
        """A connection begins to send for a source that so many others send for. Raises Overloaded."""
        if connections >= self.settings.connections_per_source:
            who = f"source {source}"
            raise self._refused(who, "connections of a source", "connections_per_source", "connection_limit")

    def _refused(self, who: str, what: str, setting: str, reason: str) -> Overloaded:
        self.refused[setting] += 1
        refusals = self._refusals.pop(who, 0) + 1
        self._refusals[who] = refusals
        if len(self._refusals) > ADDRESSES_MAX:
            self._refusals.popitem(last=False)
        return Overloaded(
            f"too many {what}. expected=at most {getattr(self.settings, setting)}",
            retry_after_s=retry_ms(refusals, self.settings, self.rng) / 1000,
            reason=reason,
        )


class RateView(msgspec.Struct, frozen=True, gc=False):
    """A limit, what is left of it, and in how many seconds there is more."""

    limit: int
    remaining: int
    reset_s: float


class RateExceeded(Overloaded):
    """Too many requests; `view` says how it stands."""

    def __init__(self, message: str, view: RateView) -> None:
        super().__init__(message, retry_after_s=view.reset_s, reason="rate_limited")
        self.view = view


class Meter:
    """The messages of one connection: a window of a second, and a bucket of tokens that fills by itself."""

    __slots__ = ("_at_s", "_rates", "_refusals", "_tokens", "_window", "address")

    def __init__(self, rates: Rates, address: str) -> None:
        self.address = address
        self._rates = rates
        self._window = Window()
        self._tokens = float(rates.settings.burst)
        self._at_s = rates.clock.monotonic_s()
        self._refusals = 0

    def take(self, tokens: float) -> None:
        """A message comes. Raises Overloaded where it is one too many; that takes no token."""
        settings, now_s = self._rates.settings, self._rates.clock.monotonic_s()
        self._refill(now_s)
        if not self._window.left(settings.messages_per_s, now_s):
            self._rates.refused["messages_per_s"] += 1
            raise self._refused(f"{settings.messages_per_s} messages per second", self._window.wait_s(now_s))
        if self._tokens + _ROUNDING < tokens:
            wait_s = (tokens - self._tokens) / settings.refill_per_s
            self._rates.refused["burst"] += 1
            raise self._refused(f"{settings.burst} at once and {settings.refill_per_s:g} per second", wait_s)
        self._window.add(now_s)
        self._tokens -= tokens
        self._refusals = 0

    @property
    def capacity(self) -> int:
        """The most tokens that it may have."""
        return self._rates.settings.burst

    @property
    def tokens(self) -> int:
        """Whole tokens left."""
        self._refill(self._rates.clock.monotonic_s())
        return int(self._tokens + _ROUNDING)

    @property
    def view(self) -> RateView:
        """How the window of a second stands."""
        settings, now_s = self._rates.settings, self._rates.clock.monotonic_s()
        left = self._window.left(settings.messages_per_s, now_s)
        return RateView(settings.messages_per_s, left, self._window.wait_s(now_s))

    @property
    def delay_ms(self) -> int | None:
        """How long to wait until another batch passes; None where it would now."""
        self._refill(self._rates.clock.monotonic_s())
        if self._tokens + _ROUNDING >= 1:
            return None
        return math.ceil((1 - self._tokens) / self._rates.settings.refill_per_s * 1000)

    def _refill(self, now_s: float) -> None:
        settings = self._rates.settings
        self._tokens = min(float(settings.burst), self._tokens + (now_s - self._at_s) * settings.refill_per_s)
        self._at_s = now_s

    def _refused(self, expected: str, wait_s: float) -> Overloaded:
        self._refusals += 1
        settings = self._rates.settings
        grown_s = retry_ms(self._refusals, settings, self._rates.rng) / 1000
        return Overloaded(
            f"too many messages. expected=at most {expected}",
            retry_after_s=min(settings.retry_ms_max / 1000, max(wait_s, grown_s)),
            reason="rate_limited",
        )


def _plain(address: str) -> str:
    """An IPv4 address that comes in the clothes of IPv6 is that IPv4 address."""
    ip = ip_address(address)
    return str(getattr(ip, "ipv4_mapped", None) or ip)


def subnet_of(address: str) -> str:
    """The /24 of an address, or its /64."""
    try:
        ip = ip_address(address)
    except ValueError as error:
        raise Invalid(f"address. expected=an IP address got={address!r:.64}") from error
    return str(ip_network(f"{ip}/{_SUBNET_BITS[ip.version]}", strict=False))
