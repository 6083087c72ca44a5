"""Whether a store checks that a body is the one that was signed.

Amazon's does. Some others trust the hash in a signed request: there, a client that has a bulk delete signed could
send another list of objects under that signature. So the store is tried once, with a list that does not fit its hash
and names an object that does not exist.
"""

import hashlib
import logging
import threading
import urllib.error
import urllib.request
import uuid

from mainstem.runtime.clock import Clock
from mainstem.wire.sigv4 import Keys, sign

TIMEOUT_S = 10.0
# A store that could not be asked is asked again after this.
PAUSE_MS = 60_000

_logger = logging.getLogger(__name__)


class BodyCheck:
    """Knows it of one store. Blocks at the first question."""

    def __init__(self, keys: Keys, *, endpoint: str, region: str, clock: Clock) -> None:
        self._keys = keys
        self._endpoint = endpoint.rstrip("/")
        self._region = region
        self._clock = clock
        self._lock = threading.Lock()
        self._is_made: bool | None = None
        self._asks_from_ms = 0

    def is_made(self, bucket: str, folder: str) -> bool:
        """Whether another body than the signed one is refused."""
        if not self._endpoint:
            return True
        with self._lock:
            now_ms = self._clock.now_ms()
            if self._is_made is None and now_ms >= self._asks_from_ms:
                try:
                    self._is_made = self._is_refused(bucket, folder)
                except OSError as error:
                    _logger.warning("the store could not be asked whether it checks bodies: %s", error)
                    self._asks_from_ms = now_ms + PAUSE_MS
                if self._is_made is False:
                    _logger.warning("the store does not check bodies: bulk deletes are not signed")
            return bool(self._is_made)

    def _is_refused(self, bucket: str, folder: str) -> bool:
        uri = f"{self._endpoint}/{bucket}?delete="
        body = f"<Delete><Object><Key>{folder}/metadata/none-{uuid.uuid4()}</Key></Object></Delete>".encode()
        hashed = {"x-amz-content-sha256": [hashlib.sha256(b"another").hexdigest()]}
        signed = sign(
            self._keys, method="POST", uri=uri, region=self._region, headers=hashed, now_ms=self._clock.now_ms()
        )
        headers = {name: values[0] for name, values in signed.items() if name != "host"}
        request = urllib.request.Request(uri, body, headers | {"content-type": "application/xml"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return False
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                raise
            return True
