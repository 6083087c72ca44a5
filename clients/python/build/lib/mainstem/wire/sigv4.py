"""AWS Signature Version 4 for S3 and its token service. Pure: a request in, the headers of the signed one out."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl, quote, urlsplit

UNSIGNED = "UNSIGNED-PAYLOAD"
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Keys:
    """Whose signature it is."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None


def sign(
    keys: Keys,
    *,
    method: str,
    uri: str,
    region: str,
    headers: Mapping[str, list[str]],
    now_ms: int,
    service: str = "s3",
) -> dict[str, list[str]]:
    """The headers to send with the request: those that came, and the ones that sign it."""
    parts = urlsplit(uri)
    time = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = {name.lower(): values for name, values in headers.items()}
    for name in ("authorization", "x-amz-date", "x-amz-security-token"):
        kept.pop(name, None)
    kept["host"] = [parts.netloc]
    kept["x-amz-date"] = [time]
    payload = kept.setdefault("x-amz-content-sha256", [UNSIGNED])[0]
    if keys.session_token:
        kept["x-amz-security-token"] = [keys.session_token]
    # Proxies and HTTP clients rewrite others on the way; these are the ones that S3 itself asks for.
    signed = sorted(n for n in kept if n in ("host", "content-md5", "content-type") or n.startswith("x-amz-"))
    canonical = "\n".join(
        [
            method.upper(),
            parts.path or "/",
            _canonical_query(parts.query),
            *(f"{name}:{','.join(' '.join(value.split()) for value in kept[name])}" for name in signed),
            "",
            ";".join(signed),
            payload,
        ]
    )
    scope = f"{time[:8]}/{region}/{service}/aws4_request"
    text = "\n".join([_ALGORITHM, time, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (time[:8], region, service, "aws4_request"):
        key = _hmac(key, part)
    kept["authorization"] = [
        f"{_ALGORITHM} Credential={keys.access_key_id}/{scope}, "
        f"SignedHeaders={';'.join(signed)}, Signature={_hmac(key, text).hex()}"
    ]
    return kept


def _canonical_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return "&".join(sorted(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs))


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
