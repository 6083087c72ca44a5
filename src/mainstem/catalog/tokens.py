"""OAuth2 client credentials: who may use the catalog, where its owner says that not everybody may.

Tokens are JSON Web Tokens signed with HMAC-SHA256 (HS256), so every gateway that has the secret can check them without
asking anyone.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping

import msgspec

from mainstem.runtime.clock import Clock

_HEADER = {"alg": "HS256", "typ": "JWT"}


class TokenRefused(Exception):
    """The credentials are wrong. `error` is the word of OAuth2 for it."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


class TokenExpired(Exception):
    """The token was good once."""


class _Claims(msgspec.Struct, frozen=True):
    sub: str
    iat: int
    exp: int


class Tokens:
    """Issues and checks tokens. Without clients there is nobody to tell apart, and nothing is asked for."""

    def __init__(self, clients: Mapping[str, str], secret: str, lifetime_s: int, clock: Clock) -> None:
        self._clients = dict(clients)
        self._secret = secret.encode() if secret else secrets.token_bytes(32)
        self._clock = clock
        self.lifetime_s = lifetime_s

    @property
    def is_required(self) -> bool:
        """Whether requests need a token."""
        return bool(self._clients)

    def issue(self, client_id: str, client_secret: str) -> str:
        """A token for a client that knows its secret."""
        known = self._clients.get(client_id)
        # Compared also for an unknown client, so that the time taken tells nothing.
        matches = hmac.compare_digest((known or "").encode(), client_secret.encode())
        if known is None or not matches:
            raise TokenRefused("invalid_client", "client id or secret is wrong")
        return self._sign(client_id)

    def exchange(self, token: str) -> str:
        """A fresh token for one that is still good."""
        try:
            return self._sign(self.check(token))
        except TokenExpired as error:
            raise TokenRefused("invalid_grant", "the subject token has expired") from error

    def check(self, token: str) -> str:
        """The client whose token this is."""
        head, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._signature(head).encode(), signature.encode()):
            raise TokenRefused("invalid_grant", "the token is not one of ours")
        try:
            claims = msgspec.json.decode(_decoded(head.partition(".")[2]), type=_Claims)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise TokenRefused("invalid_grant", "the token is not one of ours") from error
        if claims.exp <= self._clock.now_ms() // 1000:
            raise TokenExpired
        if claims.sub not in self._clients:
            raise TokenRefused("invalid_grant", "the client is no longer known")
        return claims.sub

    def _sign(self, client_id: str) -> str:
        now_s = self._clock.now_ms() // 1000
        claims = _Claims(sub=client_id, iat=now_s, exp=now_s + self.lifetime_s)
        head = f"{_encoded(msgspec.json.encode(_HEADER))}.{_encoded(msgspec.json.encode(claims))}"
        return f"{head}.{self._signature(head)}"

    def _signature(self, head: str) -> str:
        return _encoded(hmac.new(self._secret, head.encode(), hashlib.sha256).digest())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
