"""A client of an Iceberg REST catalog that is somebody else's: what is there, and where it stands. It only reads.

Tokens are asked for with OAuth2 client credentials, or given. Every method blocks and may be called from any thread.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from mainstem.catalog.names import Namespace, TableIdent
from mainstem.model import Corrupt, Denied, Overloaded
from mainstem.runtime.clock import Clock, SystemClock

TIMEOUT_S = 20.0
PAGE_ROWS = 1_000
# A token is asked for again when this share of its time is over.
_TOKEN_SHARE = 0.8
_TOKEN_S_DEFAULT = 3600
_LEVELS = "\x1f"
_document = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """Where the catalog is, and how one gets in."""

    uri: str
    warehouse: str = ""
    token: str = ""
    # `id:secret`, or a secret alone.
    credential: str = ""
    oauth2_uri: str = ""
    scope: str = ""
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A table's metadata, and what to ask with for a newer one."""

    location: str
    document: dict[str, Any]
    etag: str | None


class RemoteClient:
    """Asks."""

    def __init__(self, settings: RemoteSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._uri = settings.uri.rstrip("/")
        self._http = httpx.Client(timeout=TIMEOUT_S, headers=dict(settings.headers or {}))
        self._lock = threading.Lock()
        self._token = settings.token
        self._token_until_s = float("inf") if settings.token else 0.0
        self._root: str | None = None

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def namespaces(self) -> Iterator[Namespace]:
        """Every namespace, those above before those below."""
        waiting: list[Namespace] = [()]
        while waiting:
            parent = waiting.pop()
            query = {"parent": _LEVELS.join(parent)} if parent else {}
            for levels in self._pages("namespaces", query, "namespaces"):
                # Some catalogs name all that lie below, others the next level alone.
                found = tuple(map(str, levels))
                if len(found) == len(parent) + 1:
                    yield found
                    waiting.append(found)

    def tables(self, namespace: Namespace) -> list[TableIdent]:
        """The tables of a namespace: none where it is gone by now."""
        path = f"namespaces/{_quoted(namespace)}/tables"
        found = self._pages(path, {}, "identifiers")
        with _read(path):
            return [TableIdent(tuple(map(str, each["namespace"])), str(each["name"])) for each in found]

    def load(self, ident: TableIdent, known: RemoteTable | None = None) -> RemoteTable | None:
        """A table as it is now: `known` where it is still that, None where it is gone."""
        path = f"namespaces/{_quoted(ident.namespace)}/tables/{quote(ident.name, safe='')}"
        headers = {} if known is None or known.etag is None else {"If-None-Match": known.etag}
        answer = self._get(path, {}, headers)
        if answer.status_code == 304 and known is not None:
            return known
        if answer.status_code == 404:
            return None
        _checked(answer)
        with _read(path):
            body = _document(answer.content)
            return RemoteTable(str(body["metadata-location"]), dict(body["metadata"]), answer.headers.get("etag"))

    def _pages(self, path: str, query: Mapping[str, str], name: str) -> Iterator[Any]:
        token: str | None = ""
        while token is not None:
            asked = {**query, "pageToken": token, "pageSize": str(PAGE_ROWS)} if token else dict(query)
            answer = self._get(path, asked, {})
            if answer.status_code == 404:
                return
            _checked(answer)
            with _read(path):
                body = _document(answer.content)
                listed = list(body.get(name) or ())
            yield from listed
            token = body.get("next-page-token") or None

    def _get(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> httpx.Response:
        url = f"{self._known_root()}/{path}"
        for is_first in (True, False):
            answer = self._ask("GET", url, params=query, headers={**headers, **self._authorization()})
            if answer.status_code == 401 and is_first and not self._settings.token:
                # The catalog was started anew, and knows no token of before.
                self._token_until_s = 0.0
                continue
            break
        return answer

    def _known_root(self) -> str:
        """The address that paths are appended to: catalogs may put a prefix of their own between."""
        if self._root is None:
            query = {"warehouse": self._settings.warehouse} if self._settings.warehouse else {}
            url = f"{self._uri}/v1/config"
            answer = _checked(self._ask("GET", url, params=query, headers=self._authorization()))
            with _read(url):
                body = _document(answer.content)
                told = {**body.get("defaults", {}), **body.get("overrides", {})}
            prefix = told.get("prefix", "")
            self._root = f"{str(told.get('uri', self._uri)).rstrip('/')}/v1" + (f"/{prefix}" if prefix else "")
        return self._root

    def _authorization(self) -> dict[str, str]:
        settings = self._settings
        with self._lock:
            if settings.credential and self._clock.monotonic_s() >= self._token_until_s:
                self._token, good_s = self._new_token()
                self._token_until_s = self._clock.monotonic_s() + good_s * _TOKEN_SHARE
            return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _new_token(self) -> tuple[str, float]:
        settings = self._settings
        client, _, secret = settings.credential.rpartition(":")
        form = {"grant_type": "client_credentials", "client_secret": secret, "scope": settings.scope or "catalog"}
        if client:
            form["client_id"] = client
        url = settings.oauth2_uri or f"{self._uri}/v1/oauth/tokens"
        answer = _checked(self._ask("POST", url, data=form))
        with _read(url):
            body = _document(answer.content)
            return str(body["access_token"]), float(body.get("expires_in") or _TOKEN_S_DEFAULT)

    def _ask(self, method: str, url: str, **more: Any) -> httpx.Response:
        try:
            return self._http.request(method, url, **more)
        except httpx.HTTPError as error:
            trouble = f"{type(error).__name__}: {error}"
            raise Overloaded(f"the catalog cannot be reached. url={url} got={trouble}", retry_after_s=1.0) from error


@contextmanager
def _read(place: str) -> Iterator[None]:
    """Whatever is wrong with an answer's content is one error: a proxy may answer with a page of its own."""
    try:
        yield
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the catalog's answer is none of its protocol. got={error!r:.200}", place=place) from error


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.status_code in (401, 403):
        raise Denied(f"the catalog lets us not in. url={answer.request.url} got={answer.status_code}")
    if answer.status_code != 200:
        said = f"{answer.status_code} {answer.text[:200]}"
        raise Overloaded(f"the catalog does not answer. url={answer.request.url} got={said}", retry_after_s=1.0)
    return answer


def _quoted(namespace: Namespace) -> str:
    return quote(_LEVELS.join(namespace), safe="")
