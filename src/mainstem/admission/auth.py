"""From a bearer token to a principal: the question "who", asked once for every path of every door.

Tokens are JSON Web Tokens. The claims that count:

    sub         who; required
    exp         when it ends; required
    role        client, reader, writer or admin; `client` where it is missing
    namespace   a namespace or a list of them, each with all that lies below it; `*` is every one; missing is none
    tables      a list of patterns; missing is every table of the namespaces
    gw          the gateway id of a sync client
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mainstem.admission.keys import AuthSettings, Key, KeyRing, sign
from mainstem.admission.principal import Principal, Role
from mainstem.model.errors import Denied
from mainstem.runtime.clock import Clock

TOKEN_CHARS_MAX = 16 * 1024
CACHE_MAX = 4096
# A token is looked at again after this long, so that a key that was taken out ends what it signed.
RECHECK_S = 30
INTERNAL_S = 366 * 24 * 3600
_ITEMS_MAX = 256


class Unauthenticated(Denied):
    """The caller is not known. `reason` is a stable word: token_missing, token_invalid or token_expired."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Authenticator:
    """Checks tokens, and remembers the good ones for a while: a signature is dear next to a lookup."""

    def __init__(self, settings: AuthSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._keys = KeyRing(settings)
        self._known: dict[str, tuple[Principal, float]] = {}
        self._version = self._keys.version

    @property
    def is_on(self) -> bool:
        """Whether a token is asked for."""
        return self._settings.is_on

    def principal(self, token: str) -> Principal:
        """Whose token this is. Raises Unauthenticated."""
        now_s = self._clock.now_ms() / 1000
        known = self._known.get(token)
        if known is not None and now_s < known[1] and self._version == self._keys.version:
            return known[0]
        principal = self._checked(token, now_s)
        if self._version != self._keys.version or len(self._known) >= CACHE_MAX:
            self._known.clear()
            self._version = self._keys.version
        ends_s = now_s + RECHECK_S
        if principal.expires_s is not None:
            ends_s = min(ends_s, principal.expires_s + self._settings.leeway_s)
        self._known[token] = (principal, ends_s)
        return principal

    def recheck(self, token: str) -> Principal:
        """As `principal`, by the keys that there are at this moment: what was remembered of it counts only as long as
        no key was added or taken out."""
        self._keys.refresh()
        return self.principal(token)

    def internal_token(self, sub: str) -> str:
        """A token for a process that we start ourselves: good as long as this process lives, and nowhere else."""
        now_s = self._clock.now_ms() // 1000
        claims = {"sub": sub, "role": Role.ADMIN, "namespace": "*", "exp": now_s + INTERNAL_S}
        return sign(claims, self._keys.internal)

    def _checked(self, token: str, now_s: float) -> Principal:
        if len(token) > TOKEN_CHARS_MAX:
            raise Unauthenticated("the token is too long", "token_invalid")
        # Not above: its cryptography takes a while to load, and most servers on loopback need none.
        import jwt

        self._keys.refresh()
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise Unauthenticated("the token cannot be read", "token_invalid") from error
        candidates = self._keys.candidates(header.get("kid"), header.get("alg", ""))
        claims = self._verified(token, candidates)
        leeway_s = self._settings.leeway_s
        expires_s = _number(claims, "exp")
        if expires_s is None:
            raise Unauthenticated("the token has no end. expected=exp got=none", "token_invalid")
        if now_s >= expires_s + leeway_s:
            raise Unauthenticated("the token has expired", "token_expired")
        begins_s = _number(claims, "nbf")
        if begins_s is not None and now_s < begins_s - leeway_s:
            raise Unauthenticated("the token is not good yet", "token_invalid")
        return principal_of_claims(claims, expires_s)

    def _verified(self, token: str, candidates: Iterable[Key]) -> dict[str, Any]:
        import jwt

        settings = self._settings
        # Times are checked by our own clock.
        options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}
        for key in candidates:
            try:
                claims: dict[str, Any] = jwt.decode(token, key.value, [key.algorithm], options=options)  # type: ignore[arg-type]
            except jwt.PyJWTError:
                continue
            if key is self._keys.internal:
                return claims
            if settings.issuer and claims.get("iss") != settings.issuer:
                raise Unauthenticated("the token is from another issuer", "token_invalid")
            if settings.audience and settings.audience not in _texts(claims.get("aud")):
                raise Unauthenticated("the token is for another audience", "token_invalid")
            return claims
        raise Unauthenticated("no key of ours signed the token", "token_invalid")


def principal_of_claims(claims: Mapping[str, Any], expires_s: int | None) -> Principal:
    """Read the claims. What cannot be read grants nothing."""
    sub = claims.get("sub")
    if not isinstance(sub, str) or not sub:
        raise Unauthenticated("the token names no user. expected=sub got=none", "token_invalid")
    try:
        role = Role(claims.get("role", Role.CLIENT))
    except ValueError as error:
        message = f"the token has an unknown role. expected={', '.join(Role)} got={claims.get('role')!r:.100}"
        raise Unauthenticated(message, "token_invalid") from error
    namespaces: tuple[str, ...] | None = _texts(claims.get("namespace"))
    if namespaces is not None and "*" in namespaces:
        namespaces = None
    tables = claims.get("tables")
    gw = claims.get("gw")
    return Principal(
        sub=sub,
        role=role,
        namespaces=namespaces,
        tables=None if tables is None else _texts(tables),
        gw=gw if isinstance(gw, str) else None,
        claims=MappingProxyType(dict(claims)),
        expires_s=expires_s,
    )


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, list) and len(value) <= _ITEMS_MAX and all(isinstance(each, str) and each for each in value):
        return tuple(value)
    if value is None:
        return ()
    raise Unauthenticated("a claim is not a text or a list of texts", "token_invalid")


def _number(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated(f"the token's {name} is not a number", "token_invalid")
    return int(value)
