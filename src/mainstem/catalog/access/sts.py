"""Temporary keys for the files of one table, from the store's token service (STS AssumeRole with a session policy).

The catalog's own keys never leave it: where the store has no such service, requests are signed instead.
"""

import hashlib
import json
import logging
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode
from xml.etree import ElementTree

from mainstem.runtime.clock import Clock
from mainstem.wire.sigv4 import Keys, sign

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 * 1024
KEPT_MAX = 1_000
# After a refusal the service is asked again, but not for each load of a table.
PAUSE_MS = 60_000

_FILES = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Temporary:
    """Keys that end by themselves."""

    keys: Keys
    expires_ms: int


class TokenService:
    """Asks the store for keys, and keeps those that are good for a while yet. Blocks; for any thread."""

    def __init__(self, keys: Keys, *, endpoint: str, region: str, role: str, lifetime_s: int, clock: Clock) -> None:
        self._keys = keys
        self._endpoint = endpoint.rstrip("/") + "/"
        self._region = region
        self._role = role
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Temporary] = OrderedDict()
        self._asks_from_ms = 0

    def keys_for(self, bucket: str, folder: str) -> Temporary | None:
        """Keys for what lies below a folder, for half of their life at least; None where the store gives none."""
        now_ms = self._clock.now_ms()
        place = f"{bucket}/{folder}"
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None and kept.expires_ms - now_ms > self._lifetime_s * 500:
                self._kept.move_to_end(place)
                return kept
            if now_ms < self._asks_from_ms:
                return None
        session_policy = policy(bucket, folder)
        if session_policy is None:
            return None
        try:
            made = self._assume(session_policy)
        except (OSError, ValueError, ElementTree.ParseError) as error:
            _logger.warning("the store gives no temporary keys, requests are signed instead: %s", error)
            with self._lock:
                self._asks_from_ms = now_ms + PAUSE_MS
            return None
        with self._lock:
            self._kept[place] = made
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return made

    def _assume(self, session_policy: str) -> Temporary:
        asked = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleSessionName": "mainstem",
            "DurationSeconds": str(self._lifetime_s),
            "Policy": session_policy,
        } | ({"RoleArn": self._role} if self._role else {})
        body = urlencode(asked).encode()
        headers = {
            "content-type": ["application/x-www-form-urlencoded"],
            "x-amz-content-sha256": [hashlib.sha256(body).hexdigest()],
        }
        signed = sign(
            self._keys,
            method="POST",
            uri=self._endpoint,
            region=self._region,
            headers=headers,
            now_ms=self._clock.now_ms(),
            service="sts",
        )
        plain = {name: values[0] for name, values in signed.items() if name != "host"}
        request = urllib.request.Request(self._endpoint, body, plain, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return _read(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            raise ValueError(f"status {error.code} {error.read(300).decode(errors='replace')}") from error


def policy(bucket: str, folder: str) -> str | None:
    """What the keys may do: the table's own files, and listing them. None where a policy cannot say that."""
    below = f"{folder.strip('/')}/"
    # In a policy these stand for others: a folder that has them would open its neighbours.
    if any(letter in below for letter in "*?$"):
        return None
    statements = [
        {"Effect": "Allow", "Action": _FILES, "Resource": [f"arn:aws:s3:::{bucket}/{below}*"]},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket}"],
            "Condition": {"StringLike": {"s3:prefix": [f"{below}*"]}},
        },
        {"Effect": "Allow", "Action": ["s3:GetBucketLocation"], "Resource": [f"arn:aws:s3:::{bucket}"]},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _read(answer: bytes) -> Temporary:
    if b"<!DOCTYPE" in answer or b"<!ENTITY" in answer:
        raise ValueError("answer is no plain XML")
    found = {element.tag.rpartition("}")[2]: element.text or "" for element in ElementTree.fromstring(answer).iter()}
    try:
        keys = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
        expires = datetime.fromisoformat(found["Expiration"])
    except KeyError as error:
        raise ValueError(f"answer has no {error}") from error
    return Temporary(keys, round(expires.timestamp() * 1000))
