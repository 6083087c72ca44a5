"""Which requests to S3 are signed for a client: an allow list of operations, of their parameters and of their headers.

A signature is made with the catalog's own keys, so whatever is not known here is refused: a copy that names its source
in a header, the bucket's policy, an object's access list. Everything that an allowed request touches lies below the
table's location, and the body of a delete, which names the objects, is bound to the signature by its hash; see `bodies`
for stores that do not look at it.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree

from mainstem.model import Denied, Invalid
from mainstem.wire.sigv4 import UNSIGNED

BODY_CHARS_MAX = 1 << 20
HASH_HEADER = "x-amz-content-sha256"
# What clients send in place of a hash, where the signer is to make it.
_NO_HASH = frozenset({UNSIGNED, "required", ""})


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation of S3: the parameters by which it is known, and those that it may have besides."""

    name: str
    method: str
    on_object: bool
    needs: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()


def _operation(name: str, method: str, needs: str = "", may: str = "", *, on_object: bool = True) -> _Operation:
    # Amazon's clients say what they mean in a parameter that the store ignores.
    return _Operation(name, method, on_object, frozenset(needs.split()), frozenset((*may.split(), "x-id")))


_LISTING = "delimiter max-keys encoding-type"
OPERATIONS = (
    _operation("GetObject", "GET", may="partNumber"),
    _operation("HeadObject", "HEAD", may="partNumber"),
    _operation("PutObject", "PUT"),
    _operation("DeleteObject", "DELETE"),
    _operation("CreateMultipartUpload", "POST", "uploads"),
    _operation("UploadPart", "PUT", "partNumber uploadId"),
    _operation("CompleteMultipartUpload", "POST", "uploadId"),
    _operation("AbortMultipartUpload", "DELETE", "uploadId"),
    _operation("ListParts", "GET", "uploadId", "max-parts part-number-marker"),
    _operation("ListObjects", "GET", "prefix", f"marker {_LISTING}", on_object=False),
    _operation(
        "ListObjectsV2",
        "GET",
        "list-type prefix",
        f"continuation-token start-after fetch-owner {_LISTING}",
        on_object=False,
    ),
    _operation("DeleteObjects", "POST", "delete", on_object=False),
)
_HEADERS = frozenset(
    {
        *("host", "date", "accept", "accept-encoding", "accept-language", "authorization", "cache-control"),
        *("connection", "content-encoding", "content-length", "content-md5", "content-type", "expect", "pragma"),
        *("if-match", "if-modified-since", "if-none-match", "if-unmodified-since", "range", "te", "traceparent"),
        *("tracestate", "transfer-encoding", "user-agent", "x-amz-content-sha256", "x-amz-date", "x-amz-trailer"),
        *("x-amz-decoded-content-length", "x-amz-expected-bucket-owner", "x-amz-mp-object-size"),
        *("x-amz-sdk-checksum-algorithm", "x-amz-security-token", "x-amz-storage-class", "x-amz-user-agent"),
        "x-amzn-trace-id",
    }
)
_HEADER_STARTS = ("amz-sdk-", "x-amz-checksum-", "x-amz-meta-", "x-amz-server-side-encryption")
_AMAZON = re.compile(r"s3(?:[.-][a-z0-9-]+)*\.amazonaws\.com(?:\.cn)?")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a client wants signed."""

    method: str
    uri: str
    headers: Mapping[str, list[str]]
    body: str | None = None


def check(asked: Asked, *, bucket: str, folder: str, endpoint: str) -> dict[str, list[str]]:
    """Refuse what is not allowed below a folder of a bucket. Returns the headers that are to be signed."""
    key, query = _parts(asked.uri, bucket, urlsplit(endpoint).netloc)
    operation = _known(asked, query, is_object=bool(key))
    headers = _checked_headers(asked.headers)
    match operation.name:
        case "DeleteObjects":
            touched = _deleted(asked.body)
            headers[HASH_HEADER] = [_bound_hash(headers, asked.body or "")]
        case "ListObjects" | "ListObjectsV2":
            touched = [query["prefix"]]
        case _:
            touched = [key]
    below = folder.rstrip("/") + "/"
    if not touched or not all(_is_below(name, below) for name in touched):
        raise Denied(f"request reaches beyond the table. expected=objects below {below} got={_shown(asked)}")
    return headers


def is_by_body(asked: Asked) -> bool:
    """Whether it is the body that says what an allowed request touches."""
    query = dict(parse_qsl(urlsplit(asked.uri).query, keep_blank_values=True))
    return asked.method.upper() == "POST" and "delete" in query


def _known(asked: Asked, query: Mapping[str, str], *, is_object: bool) -> _Operation:
    names = frozenset(query)
    for operation in OPERATIONS:
        is_same = (operation.method, operation.on_object) == (asked.method.upper(), is_object)
        if is_same and operation.needs <= names <= operation.needs | operation.may:
            return operation
    raise Denied(f"request is none that is signed. expected=one of {_names()} got={_shown(asked)}")


def _names() -> str:
    return ", ".join(operation.name for operation in OPERATIONS)


def _checked_headers(headers: Mapping[str, list[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, values in headers.items():
        lower = name.lower()
        if lower in found or not (lower in _HEADERS or lower.startswith(_HEADER_STARTS)):
            raise Denied(f"request has a header that is not signed. got={name!r:.100}")
        if any(letter in value for value in values for letter in "\r\n"):
            raise Denied(f"request has a header of several lines. got={name!r:.100}")
        found[lower] = values
    return found


def _parts(uri: str, bucket: str, endpoint: str) -> tuple[str, dict[str, str]]:
    """The key that a request names, none where it is to the bucket, and its parameters."""
    parts = urlsplit(uri)
    host = parts.netloc
    is_amazon = not endpoint
    in_host = host.removeprefix(f"{bucket}.") if host.startswith(f"{bucket}.") else None
    if is_amazon:
        in_host = in_host if in_host is not None and _AMAZON.fullmatch(in_host) else None
        is_there = in_host is not None or _AMAZON.fullmatch(host) is not None
    else:
        in_host = in_host if in_host == endpoint else None
        is_there = in_host is not None or host == endpoint
    if not is_there or parts.fragment or parts.scheme not in ("http", "https"):
        raise Denied(f"request goes elsewhere. expected={endpoint or 's3'} got={uri:.200}")
    path = unquote(parts.path)
    if path.startswith("//"):
        raise Denied(f"request goes elsewhere. expected=/bucket/key got={uri:.200}")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = dict(pairs)
    if len(query) != len(pairs):
        raise Denied(f"request names a parameter twice. got={uri:.200}")
    if in_host is not None:
        return path.removeprefix("/"), query
    found, _, key = path.removeprefix("/").partition("/")
    if found != bucket:
        raise Denied(f"request goes to another bucket. expected={bucket} got={found:.200}")
    return key, query


def _is_below(key: str, folder: str) -> bool:
    return key.startswith(folder) and not any(part in ("..", ".") for part in key.split("/"))


def _bound_hash(headers: Mapping[str, list[str]], body: str) -> str:
    """The hash of the body that was checked: another body does not fit the signature."""
    found = hashlib.sha256(body.encode()).hexdigest()
    said = headers.get(HASH_HEADER, [""])
    if len(said) != 1 or (said[0] not in _NO_HASH and said[0].lower() != found):
        raise Denied(f"request's hash is not its body's. expected={found} got={said!r:.200}")
    return found


def _deleted(body: str | None) -> list[str]:
    """The keys in the body of a request that deletes several objects."""
    if not body or len(body) > BODY_CHARS_MAX or "<!DOCTYPE" in body or "<!ENTITY" in body:
        raise Invalid("request cannot be checked. expected=the body of a delete got=none, or too much")
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Invalid(f"request cannot be checked. expected=XML got={error}") from error
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    if not tags <= {"Delete", "Quiet", "Object", "Key"}:
        raise Denied(f"request deletes by more than keys. expected=Object and Key got={sorted(tags)!r:.200}")
    return [element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == "Key"]


def _shown(asked: Asked) -> str:
    return f"{asked.method:.20} {asked.uri:.200}"
