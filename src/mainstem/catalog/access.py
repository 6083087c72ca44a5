"""How clients reach a table's files on S3: with keys that the catalog hands out, or with requests that it signs.

Signing keeps the keys here. A request is only signed if everything it touches lies below the table's location.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

from mainstem.model import Denied, Invalid
from mainstem.wire.sigv4 import Keys, sign

REGION_DEFAULT = "us-east-1"
BODY_CHARS_MAX = 1 << 20
_SCHEMES = ("s3://", "s3a://", "s3n://")
# What a client needs to know to talk to the store, and what is a secret.
_PLAIN = ("s3.endpoint", "s3.path-style-access", "s3.region", "client.region")
_SECRET = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_OBJECT_METHODS = ("GET", "HEAD", "PUT", "DELETE", "POST")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a client is given with a table: settings, credentials by prefix, and whether to have requests signed."""

    config: dict[str, str] = field(default_factory=dict)
    credentials: dict[str, dict[str, str]] = field(default_factory=dict)
    is_signed: bool = False


class Access:
    """Decides what clients are given, by the catalog's own S3 properties."""

    def __init__(
        self, io: Mapping[str, str] | None = None, *, vend_credentials: bool = False, sign_requests: bool = True
    ) -> None:
        self._io = dict(io or {})
        # One thing by two names: Java clients know the first, pyiceberg and DuckDB the second.
        region = self._io.get("client.region") or self._io.get("s3.region")
        if region:
            self._io = {"client.region": region, "s3.region": region} | self._io
        self._vends = vend_credentials
        self._signs = sign_requests
        key_id, secret = self._io.get("s3.access-key-id"), self._io.get("s3.secret-access-key")
        self._keys = Keys(key_id, secret, self._io.get("s3.session-token")) if key_id and secret else None

    def grant(self, location: str, asked: str | None) -> Grant:
        """What goes with a table. `asked` is the list of ways that the client knows."""
        if not location.startswith(_SCHEMES):
            return Grant()
        config = {name: self._io[name] for name in _PLAIN if name in self._io}
        ways = {way.strip() for way in (asked or "").split(",")}
        if "vended-credentials" in ways and self._vends and self._keys:
            secrets = {name: self._io[name] for name in _SECRET if name in self._io}
            return Grant(config | secrets, {location: config | secrets})
        if "remote-signing" in ways and self._signs and self._keys:
            return Grant(config | {"s3.remote-signing-enabled": "true"}, is_signed=True)
        return Grant(config)

    def credentials(self, location: str) -> dict[str, dict[str, str]]:
        """The credentials for a table's files, by prefix; none where they are not handed out."""
        return self.grant(location, "vended-credentials").credentials

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
        if self._keys is None or not self._signs:
            raise Denied("requests are not signed here. expected=s3 keys and sign_requests got=neither or one")
        self._check(location, method.upper(), uri, body)
        region = region or self._io.get("s3.region") or self._io.get("client.region") or REGION_DEFAULT
        return sign(self._keys, method=method, uri=uri, region=region, headers=headers, now_ms=now_ms)

    def _check(self, location: str, method: str, uri: str, body: str | None) -> None:
        if not location.startswith(_SCHEMES) or method not in _OBJECT_METHODS:
            raise Denied(f"request cannot be signed. expected=a request to an object on s3 got={method} {uri:.200}")
        bucket, _, folder = location.split("://", 1)[1].partition("/")
        below = folder.rstrip("/") + "/"
        key, query = self._key_of(uri, bucket)
        if key:
            touched = [key]
        elif method == "GET":
            # A listing.
            touched = query.get("prefix", [""])
        elif method == "POST" and "delete" in query:
            touched = _deleted(body)
        else:
            touched = []
        if "x-amz-copy-source" in query or not touched or not all(_is_below(name, below) for name in touched):
            raise Denied(f"request reaches beyond the table. expected=objects below {location} got={method} {uri:.200}")

    def _key_of(self, uri: str, bucket: str) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(uri)
        endpoint = urlsplit(self._io.get("s3.endpoint", "")).netloc
        host, path = parts.netloc, unquote(parts.path).lstrip("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        if endpoint and host not in (endpoint, f"{bucket}.{endpoint}"):
            raise Denied(f"request goes elsewhere. expected={endpoint} got={host:.200}")
        if not endpoint and not host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
            raise Denied(f"request goes elsewhere. expected=s3 got={host:.200}")
        if host.startswith(f"{bucket}."):
            return path, query
        found, _, key = path.partition("/")
        if found != bucket:
            raise Denied(f"request goes to another bucket. expected={bucket} got={found:.200}")
        return key, query


def _is_below(key: str, folder: str) -> bool:
    return key.startswith(folder) and not any(part in ("..", ".") for part in key.split("/"))


def _deleted(body: str | None) -> list[str]:
    """The keys in the body of a request that deletes several objects."""
    if not body or len(body) > BODY_CHARS_MAX or "<!DOCTYPE" in body or "<!ENTITY" in body:
        raise Invalid("request cannot be checked. expected=the body of a delete got=none, or too much")
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Invalid(f"request cannot be checked. expected=XML got={error}") from error
    return [element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == "Key"]
