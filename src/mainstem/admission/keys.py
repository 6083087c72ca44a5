"""The keys that tokens are checked with: secrets by name, a file of public keys, and one that never leaves the process.

A key belongs to one algorithm. The token's header only picks among the keys; it never says how a key is used.
"""

import base64
import binascii
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mainstem.model.errors import Invalid

ALGORITHMS = ("HS256", "RS256", "ES256")
SECRET_BYTES_MIN = 32
KEYS_MAX = 64
INTERNAL_KID = "mainstem-internal"

# Empty text stands for "not set", because TOML has no null.
NOT_SET = ""


class AuthSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[auth]` section of the configuration. With a key or a file of keys, every path asks for a token."""

    # HS256 secrets by key id, of 32 bytes or more. To rotate: add one, mint with it, then take the old one out.
    keys: dict[str, str] = {}
    # A JWKS file with RSA (RS256), P-256 (ES256) or symmetric (HS256) keys. It is read again when it changes.
    jwks_file: str = NOT_SET
    # What `iss` and `aud` have to be. Not set: not asked for.
    issuer: str = NOT_SET
    # What `aud` has to be. Not set: not asked for.
    audience: str = NOT_SET
    # How far another machine's clock may be off.
    leeway_s: Annotated[int, msgspec.Meta(ge=0, le=600)] = 30

    @property
    def is_on(self) -> bool:
        """Whether there is anything to check a token with."""
        return bool(self.keys or self.jwks_file)


class Key(msgspec.Struct, frozen=True):
    """One key. `value` is what PyJWT takes for its algorithm."""

    kid: str | None
    algorithm: str
    value: Any


class KeyRing:
    """Every key there is now."""

    def __init__(self, settings: AuthSettings) -> None:
        self._fixed = [secret_key(kid, secret) for kid, secret in settings.keys.items()]
        self._path = Path(settings.jwks_file) if settings.jwks_file else None
        self._stamp: tuple[int, int] | None = None
        self._filed: list[Key] = []
        self.internal = Key(INTERNAL_KID, "HS256", secrets.token_bytes(SECRET_BYTES_MIN))
        # Counts the changes of the file: what was checked before one must be checked again.
        self.version = 0
        self.refresh(is_first=True)

    def refresh(self, *, is_first: bool = False) -> None:
        """Read the file again if it changed. A file that cannot be read later on leaves the keys as they are, so that
        half a write does not lock everybody out."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp == self._stamp:
                return
            self._filed = _jwks(self._path)
        except (OSError, Invalid) as error:
            if is_first:
                raise Invalid(f"the keys cannot be read. file={self._path} reason={error}") from error
            return
        self._stamp = stamp
        self.version += 1

    def candidates(self, kid: str | None, algorithm: str) -> list[Key]:
        """The keys that a token may have been signed with."""
        if kid == INTERNAL_KID:
            return [self.internal] if algorithm == "HS256" else []
        keys: Iterable[Key] = (*self._fixed, *self._filed)
        return [key for key in keys if key.algorithm == algorithm and (kid is None or key.kid == kid)]


def new_secret() -> str:
    """A secret for `[auth.keys]`."""
    return secrets.token_urlsafe(SECRET_BYTES_MIN)


def sign(claims: Mapping[str, Any], key: Key) -> str:
    """A token."""
    # Not above: its cryptography takes a while to load, and most servers on loopback need none.
    import jwt

    headers = {"kid": key.kid} if key.kid else None
    return jwt.encode(dict(claims), key.value, algorithm=key.algorithm, headers=headers)


def secret_key(kid: str, secret: str) -> Key:
    """A key from the configuration. Refuses one that can be guessed."""
    return _secret(kid, secret.encode())


def private_key(kid: str | None, pem: bytes) -> Key:
    """A private key to sign with: RSA or P-256."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        value = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise Invalid(f"private key. expected=PEM without a password got={error}") from error
    if isinstance(value, rsa.RSAPrivateKey):
        return Key(kid, "RS256", value)
    if isinstance(value, ec.EllipticCurvePrivateKey) and isinstance(value.curve, ec.SECP256R1):
        return Key(kid, "ES256", value)
    raise Invalid(f"private key. expected=RSA or P-256 got={type(value).__name__}")


def _secret(kid: str | None, secret: bytes) -> Key:
    if len(secret) < SECRET_BYTES_MIN:
        raise Invalid(f"auth key {kid!r} is too short. expected=at least {SECRET_BYTES_MIN} bytes got={len(secret)}")
    if kid == INTERNAL_KID:
        raise Invalid(f"auth key has a name that is taken. got={kid!r}")
    return Key(kid, "HS256", secret)


def _jwks(path: Path) -> list[Key]:
    try:
        document = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        entries = document["keys"]
    except (msgspec.DecodeError, KeyError) as error:
        raise Invalid(f"expected=a JWKS document got={type(error).__name__}: {error}") from error
    if not isinstance(entries, list) or not entries or len(entries) > KEYS_MAX:
        raise Invalid(f"expected=1 to {KEYS_MAX} keys got={len(entries) if isinstance(entries, list) else 'no list'}")
    return [_jwk(entry) for entry in entries]


def _jwk(entry: Any) -> Key:
    import jwt

    if not isinstance(entry, dict):
        raise Invalid("expected=an object for each key got=something else")
    kid = entry.get("kid")
    if entry.get("kty") == "oct":
        text = str(entry.get("k", ""))
        try:
            return _secret(kid, base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except binascii.Error as error:
            raise Invalid(f"key {kid!r} cannot be used. reason={error}") from error
    try:
        found = jwt.PyJWK(entry)
    except jwt.PyJWTError as error:
        raise Invalid(f"key {kid!r} cannot be used. reason={error}") from error
    if found.algorithm_name not in ALGORITHMS:
        raise Invalid(f"key {kid!r} has another algorithm. expected={ALGORITHMS} got={found.algorithm_name}")
    return Key(kid, found.algorithm_name, found.key)
