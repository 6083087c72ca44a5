"""How clients reach a table's files on S3: with temporary keys for them, or with requests that the catalog signs.

The catalog's own keys stay here, either way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from mainstem.catalog.access import signing
from mainstem.catalog.access.bodies import BodyCheck
from mainstem.catalog.access.sts import TokenService
from mainstem.model import Denied
from mainstem.runtime.clock import Clock, SystemClock
from mainstem.wire.sigv4 import Keys, sign

REGION_DEFAULT = "us-east-1"
LIFETIME_S_DEFAULT = 3600
_SCHEMES = ("s3://", "s3a://", "s3n://")
# What a client needs to know to talk to the store.
_PLAIN = ("s3.endpoint", "s3.path-style-access", "s3.region", "client.region")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a client is given with a table: settings, credentials by prefix, and whether to have requests signed."""

    config: dict[str, str] = field(default_factory=dict)
    credentials: dict[str, dict[str, str]] = field(default_factory=dict)
    is_signed: bool = False


class Access:
    """Decides what clients are given, by the catalog's own S3 properties."""

    def __init__(
        self,
        io: Mapping[str, str] | None = None,
        *,
        vend_credentials: bool = False,
        sign_requests: bool = True,
        sts_endpoint: str = "",
        sts_role: str = "",
        credentials_s: int = LIFETIME_S_DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        self._io = dict(io or {})
        # One thing by two names: Java clients know the first, pyiceberg and DuckDB the second.
        region = self._io.get("client.region") or self._io.get("s3.region")
        if region:
            self._io = {"client.region": region, "s3.region": region} | self._io
        self._signs = sign_requests
        key_id, secret = self._io.get("s3.access-key-id"), self._io.get("s3.secret-access-key")
        self._keys = Keys(key_id, secret, self._io.get("s3.session-token")) if key_id and secret else None
        self._region = region or REGION_DEFAULT
        clock = clock or SystemClock()
        endpoint = self._io.get("s3.endpoint", "")
        self._bodies: BodyCheck | None = None
        if self._keys is not None:
            self._bodies = BodyCheck(self._keys, endpoint=endpoint, region=self._region, clock=clock)
        self._sts: TokenService | None = None
        if vend_credentials and self._keys is not None:
            # Stores other than Amazon's have the service where they have the rest.
            amazon = f"https://sts.{self._region}.amazonaws.com"
            self._sts = TokenService(
                self._keys,
                endpoint=sts_endpoint or endpoint or amazon,
                region=self._region,
                role=sts_role,
                lifetime_s=credentials_s,
                clock=clock,
            )

    def grant(self, location: str, asked: str | None) -> Grant:
        """What goes with a table. `asked` is the list of ways that the client knows."""
        if not location.startswith(_SCHEMES):
            return Grant()
        config = {name: self._io[name] for name in _PLAIN if name in self._io}
        ways = {way.strip() for way in (asked or "").split(",")}
        if "vended-credentials" in ways and (temporary := self._temporary(location)) is not None:
            return Grant(config | temporary, {location: config | temporary})
        if "remote-signing" in ways and self._signs and self._keys:
            return Grant(config | {"s3.remote-signing-enabled": "true"}, is_signed=True)
        return Grant(config)

    def credentials(self, location: str) -> dict[str, dict[str, str]]:
        """The credentials for a table's files, by prefix; none where they are not handed out."""
        return self.grant(location, "vended-credentials").credentials

    def _temporary(self, location: str) -> dict[str, str] | None:
        made = None if self._sts is None else self._sts.keys_for(*_bucket_and_folder(location))
        if made is None:
            return None
        return {
            "s3.access-key-id": made.keys.access_key_id,
            "s3.secret-access-key": made.keys.secret_access_key,
            "s3.session-token": made.keys.session_token or "",
            "s3.session-token-expires-at-ms": str(made.expires_ms),
        }

    def sign(
        self,
        location: str,
        *,
        method: str,
        uri: str,
        region: str,
        headers: Mapping[str, list[str]],
        body: str | None,
        now_ms: int,
    ) -> dict[str, list[str]]:
        """Sign a request to the files of a table."""
        if self._keys is None or self._bodies is None or not self._signs:
            raise Denied("requests are not signed here. expected=s3 keys and sign_requests got=neither or one")
        if not location.startswith(_SCHEMES):
            raise Denied(f"request cannot be signed. expected=a table on s3 got=one at {location:.200}")
        bucket, folder = _bucket_and_folder(location)
        asked = signing.Asked(method, uri, headers, body)
        allowed = signing.check(asked, bucket=bucket, folder=folder, endpoint=self._io.get("s3.endpoint", ""))
        if signing.is_by_body(asked) and not self._bodies.is_made(bucket, folder):
            raise Denied("bulk deletes are not signed for this store: it takes another body under the same signature")
        region = region or self._region
        return sign(self._keys, method=method, uri=uri, region=region, headers=allowed, now_ms=now_ms)


def _bucket_and_folder(location: str) -> tuple[str, str]:
    parts = urlsplit(location)
    return parts.netloc, parts.path.strip("/")
