"""Which web pages may ask: by the name a request was sent to (Host) and the page it comes from (Origin).

A server that asks for no token listens on loopback only, but a browser on the same machine opens pages of
anybody. Two ways lead from such a page to the server, and each has its rule, on every path:

    a request to another origin   the page's own origin is named (Origin, Sec-Fetch-Site): it has to be of this machine
    DNS rebinding                 the page's own name is made to point at this machine: then Host names the page's
                                  server, and has to be a name of ours

The sync door is for pages of other origins, so the first rule is not for its paths. Where a token is asked for, the
token is the proof, and Host is only held against `[server] hosts`, if there are any.
"""

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from mainstem.admission import Unauthenticated

FOREIGN_HOST = "foreign_host"
FOREIGN_ORIGIN = "foreign_origin"
_SITES = (b"", b"none", b"same-origin", b"same-site")


class Origins:
    """The rules, for one server."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        *,
        is_cross_origin: Callable[[str], bool] = lambda path: False,
    ) -> None:
        """`hosts`: names of ours, besides those of loopback. `is_cross_origin`: paths for pages of other origins."""
        self._hosts = frozenset(_plain(host) for host in hosts)
        self.is_cross_origin = is_cross_origin

    def check_host(self, scope: Any, *, asks_for_tokens: bool) -> None:
        """Refuse a request to a name that is not ours. Raises Unauthenticated."""
        if asks_for_tokens and not self._hosts:
            return
        named = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
        # No browser leaves it out, and none sends two.
        if len(named) > 1 or not all(self._is_ours(each) for each in named):
            message = "the server is not known by this name. expected=localhost, or one of [server] hosts"
            raise Unauthenticated(f"{message} got={named!r:.100}", FOREIGN_HOST)

    def check_origin(self, scope: Any) -> None:
        """Refuse a request that a page from elsewhere makes. Raises Unauthenticated."""
        if self.is_cross_origin(scope["path"]):
            return
        origin, site, mode, host = b"", b"", b"", b""
        for key, value in scope["headers"]:
            match key:
                case b"origin":
                    origin = value
                case b"sec-fetch-site":
                    site = value
                case b"sec-fetch-mode":
                    mode = value
                case b"host":
                    host = value
        if origin:
            is_ours = _is_of_this_machine(origin.decode("latin-1"), host.decode("latin-1"))
        else:
            # A plain GET names no origin. Following a link to the console is fine; the API is for no link.
            is_link = mode == b"navigate" and not scope["path"].startswith("/v1/")
            is_ours = site in _SITES or is_link
        if not is_ours:
            got = origin.decode("latin-1") or "a page of another site"
            raise Unauthenticated(f"pages of other origins need a token. got={got!r:.100}", FOREIGN_ORIGIN)

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        # An address needs no look-up in DNS, so no foreign name can be made to lead here.
        return name is not None and (name in self._hosts or _is_loopback_name(name) or _is_address(name))


def _is_of_this_machine(origin: str, host: str) -> bool:
    try:
        place = urlsplit(origin)
        name = place.hostname
    except ValueError:
        return False
    if name is None or place.scheme not in ("http", "https"):
        return False
    # Host is one of our names by now: a page that we served ourselves.
    return place.netloc.lower() == host.lower() or _is_loopback_name(name) or _is_loopback_address(name)


def _name(host: str) -> str | None:
    """The name or address in a Host header, without its port; None where it is neither."""
    if "@" in host or "/" in host:
        return None
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    return None if name is None else _plain(name)


def _plain(name: str) -> str:
    return name.strip().rstrip(".").lower()


def _is_loopback_name(name: str) -> bool:
    # Browsers never ask anybody for a name below `localhost`.
    return name == "localhost" or name.endswith(".localhost")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback_address(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback
