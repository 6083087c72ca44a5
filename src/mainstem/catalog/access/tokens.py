"""OAuth2 client credentials: who may use the catalog, where its owner says that not everybody may.

Tokens are JSON Web Tokens signed with HMAC-SHA256 (HS256), so every gateway that has the secret can check them without
asking anyone. PyJWT signs and checks them; it is imported when the first token is asked for, since its cryptography
takes a while to load and most catalogs on loopback have no clients.
"""

import hmac
import secrets
from collections.abc import Mapping

from mainstem.runtime.clock import Clock

_ALGORITHM = "HS256"


class TokenRefused(Exception):
    """The credentials are wrong. `error` is the word of OAuth2 for it."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


class TokenExpired(Exception):
    """The token was good once."""


class Tokens:
    """Issues and checks tokens. Without clients in the settings, requests need no token."""

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
        import jwt

        try:
            # The end is checked below, by our own clock.
            claims = jwt.decode(token, self._secret, [_ALGORITHM], options={"verify_exp": False, "verify_iat": False})
        except jwt.PyJWTError as error:
            raise TokenRefused("invalid_grant", "the token is not one of ours") from error
        client_id, ends_s = claims.get("sub"), claims.get("exp")
        if not isinstance(client_id, str) or not isinstance(ends_s, int):
            raise TokenRefused("invalid_grant", "the token is not one of ours")
        if ends_s <= self._clock.now_ms() // 1000:
            raise TokenExpired
        if client_id not in self._clients:
            raise TokenRefused("invalid_grant", "the client is no longer known")
        return client_id

    def _sign(self, client_id: str) -> str:
        import jwt

        now_s = self._clock.now_ms() // 1000
        claims = {"sub": client_id, "iat": now_s, "exp": now_s + self.lifetime_s}
        return jwt.encode(claims, self._secret, _ALGORITHM)
