"""Who a connection is: SaslHandshake and SaslAuthenticate, with what admission knows: passwords and tokens.

PLAIN and SCRAM are for users of the configuration, OAUTHBEARER for the tokens that every door takes. PLAIN may also
carry a token, as the password of whatever user: for clients that have no other way to bring one.
"""

from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from mainstem.admission import Authenticator, Principal, Unauthenticated, Users
from mainstem.admission.scram import Exchange, Mechanism
from mainstem.admission.scram import State as ScramState
from mainstem.doors.kafka.dispatch import Context, Table
from mainstem.runtime.clock import Clock
from mainstem.wire.kafka.messages import Message

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
_MECHANISM, _EXCHANGE, _IS_DONE = "sasl.mechanism", "sasl.exchange", "sasl.done"
# The token of a connection, and when it was last looked at.
_TOKEN, _LOOKED_S = "sasl.token", "sasl.looked_s"
# As of which version of the users a connection's user is who it is.
_VERSION = "sasl.version"
# A key that was taken out ends what its tokens opened after so long.
RECHECK_S = 5.0
MESSAGE_BYTES_MAX = 32 * 1024


class Authentication:
    """What SASL needs; and the question that is asked before any other request."""

    def __init__(self, users: Users, tokens: Authenticator, clock: Clock) -> None:
        self.users = users
        self.tokens = tokens
        self.clock = clock

    @property
    def is_on(self) -> bool:
        """Whether a client has to say who it is."""
        return self.users.is_on or self.tokens.is_on

    @property
    def mechanisms(self) -> list[str]:
        """What a client may log in with."""
        known = [PLAIN, *map(str, Mechanism)] if self.users.is_on else [PLAIN]
        return [*known, OAUTHBEARER] if self.tokens.is_on else known

    def may_ask(self, context: Context) -> bool:
        """Whether a connection may ask for anything but its login: it is logged in, and not past its token's end."""
        if not self.is_on:
            return True
        if not context.kept.get(_IS_DONE):
            return False
        ends_s = context.principal.expires_s
        if ends_s is not None and self.clock.now_ms() / 1000 >= ends_s + 30:
            return False
        return self._is_still_good(context)

    def _is_still_good(self, context: Context) -> bool:
        """Whether the keys of this moment still vouch for the connection's token, or its user is who it was."""
        token, now_s = context.kept.get(_TOKEN), self.clock.monotonic_s()
        if token is None and context.kept.get(_VERSION) != self.users.version:
            context.kept[_IS_DONE] = (
                self.users.find(context.principal.sub, context.kept.get(_VERSION)) == context.principal
            )
            context.kept[_VERSION] = self.users.version
            return bool(context.kept[_IS_DONE])
        if token is None or now_s - context.kept.get(_LOOKED_S, 0.0) < RECHECK_S:
            return True
        try:
            self.tokens.recheck(token)
        except Unauthenticated:
            context.kept[_IS_DONE] = False
            return False
        context.kept[_LOOKED_S] = now_s
        return True


def register(table: Table, authentication: Authentication) -> None:
    """Answer these APIs."""
    table.add(17, "SaslHandshake", 0, 1, partial(_handshake, authentication), is_open=True)
    table.add(36, "SaslAuthenticate", 0, 2, partial(_authenticate, authentication), is_open=True)


async def _handshake(authentication: Authentication, request: Any, context: Context) -> Message:
    mechanisms = authentication.mechanisms if authentication.is_on else []
    if request.mechanism not in mechanisms:
        return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": mechanisms}
    context.kept[_MECHANISM] = request.mechanism
    context.kept.pop(_EXCHANGE, None)
    return {"error_code": ErrorCode.none, "mechanisms": mechanisms}


async def _authenticate(authentication: Authentication, request: Any, context: Context) -> Message:
    mechanism = context.kept.get(_MECHANISM)
    said = bytes(request.auth_bytes)
    if mechanism is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": "no handshake before it"}
    try:
        if len(said) > MESSAGE_BYTES_MAX:
            raise Unauthenticated(f"message. expected=at most {MESSAGE_BYTES_MAX} bytes", "login_invalid")
        if mechanism == PLAIN:
            principal, token = await _plain(authentication, said)
            answer = b""
        elif mechanism == OAUTHBEARER:
            principal, token = _bearer(authentication, said)
            answer = b""
        else:
            exchange: Exchange = context.kept.setdefault(_EXCHANGE, authentication.users.exchange(Mechanism(mechanism)))
            answer = exchange.step(said)
            if exchange.state is not ScramState.DONE:
                return {"error_code": ErrorCode.none, "auth_bytes": answer}
            principal, token = authentication.users.proven(exchange), None
            context.kept.pop(_EXCHANGE, None)
    except Unauthenticated as error:
        context.kept.pop(_EXCHANGE, None)
        context.kept[_IS_DONE] = False
        return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": str(error), "auth_bytes": b""}
    before: Principal = context.principal
    if context.kept.get(_IS_DONE) and before.sub != principal.sub:
        # A connection logs in again to go on, never to become somebody else.
        context.kept[_IS_DONE] = False
        message = "another user than before"
        return {"error_code": ErrorCode.sasl_authentication_failed, "error_message": message, "auth_bytes": b""}
    context.principal = principal
    context.is_known = True
    context.kept[_IS_DONE] = True
    context.kept[_TOKEN], context.kept[_LOOKED_S] = token, authentication.clock.monotonic_s()
    context.kept[_VERSION] = authentication.users.version
    context.kept.pop(_MECHANISM, None)
    lifetime_ms = 0
    if principal.expires_s is not None:
        lifetime_ms = max(1, round(principal.expires_s * 1000 - authentication.clock.now_ms()))
    return {"error_code": ErrorCode.none, "auth_bytes": answer, "session_lifetime": lifetime_ms}


async def _plain(authentication: Authentication, said: bytes) -> tuple[Principal, str | None]:
    """Who it is, and the token where that was one."""
    parts = said.split(b"\0")
    try:
        acts_as, user, password = (part.decode() for part in parts)
    except (ValueError, UnicodeDecodeError) as error:
        raise Unauthenticated("login. expected=name and password, each after a zero byte", "login_invalid") from error
    if acts_as not in ("", user):
        raise Unauthenticated("a user cannot act as another", "login_invalid")
    if authentication.tokens.is_on and password.count(".") == 2:
        return authentication.tokens.principal(password), password
    return await authentication.users.check(user, password), None


def _bearer(authentication: Authentication, said: bytes) -> tuple[Principal, str]:
    """RFC 7628: a GS2 header, then pairs, of which `auth` has the token."""
    head, *pairs = said.split(b"\x01")
    if not head.startswith((b"n,", b"y,")):
        raise Unauthenticated("login. expected=no channel binding", "login_invalid")
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        if name == b"auth":
            scheme, _, token = value.decode("ascii", "replace").partition(" ")
            if scheme.lower() == "bearer":
                return authentication.tokens.principal(token.strip()), token.strip()
    raise Unauthenticated("login. expected=auth=Bearer … got=none", "login_invalid")
