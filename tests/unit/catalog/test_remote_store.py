"""A catalog of somebody else's that answers badly, over a real socket: what is seen of it then, and what is kept."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mainstem.catalog.stores.remote import RemoteStore
from mainstem.catalog.stores.remote_client import RemoteClient, RemoteSettings
from mainstem.catalog.stores.sqlite import SqliteStore
from mainstem.catalog.stores.store import Kind
from mainstem.model.errors import MainstemError, Overloaded

GOOD, PAGE = (200, None), (200, b"<html>please log in</html>")


class Theirs(ThreadingHTTPServer):
    """One namespace, `shop`, with tables that each have an answer of their own; `page` answers everything else."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tables: dict[str, tuple[int, bytes | None]] = {}
        self.page: bytes | None = None
        self.version = 1

    def answer(self, path: str) -> tuple[int, bytes]:
        last = path.partition("?")[0].rsplit("/", 1)[1]
        if self.page is not None:
            return 200, self.page
        if last in self.tables:
            status, body = self.tables[last]
            return status, self._table(last) if body is None else body
        lists: dict[str, Any] = {
            "config": {},
            "namespaces": {"namespaces": [] if "parent=" in path else [["shop"]]},
            "tables": {"identifiers": [{"namespace": ["shop"], "name": name} for name in self.tables]},
        }
        return 200, json.dumps(lists[last]).encode()

    def _table(self, name: str) -> bytes:
        place = f"/w/shop/{name}"
        metadata = {"format-version": 2, "location": place, "current-snapshot-id": -1, "snapshots": []}
        location = f"{place}/metadata/{self.version}.json"
        return json.dumps({"metadata-location": location, "metadata": metadata}).encode()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Theirs)
        status, body = self.server.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def theirs() -> Iterator[Theirs]:
    with Theirs() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def opened(theirs: Theirs, folder: Path) -> RemoteStore:
    uri = f"http://127.0.0.1:{theirs.server_address[1]}"
    return RemoteStore(RemoteClient(RemoteSettings(uri)), SqliteStore(folder / "catalog.db"), uri, 0.01)


def seen(store: RemoteStore) -> dict[str, str]:
    return {
        ident.name: pointer.metadata_location.rsplit("/", 1)[1] for ident, pointer in store.entries(None, Kind.TABLE)
    }


@pytest.mark.parametrize("answer", [(403, b"{}"), (200, b"{}"), (200, b'{"metadata-location": null}'), PAGE])
def test_one_table_that_cannot_be_seen_hides_no_other(
    theirs: Theirs, tmp_path: Path, answer: tuple[int, bytes]
) -> None:
    theirs.tables = {"orders": GOOD, "secret": answer}
    store = opened(theirs, tmp_path)
    assert seen(store) == {"orders": "1.json"}
    theirs.tables["secret"], theirs.version = GOOD, 2
    store.look()
    assert seen(store) == {"orders": "2.json", "secret": "2.json"}
    # What was seen is kept: it is there, and only cannot be looked at.
    theirs.tables["secret"], theirs.version = answer, 3
    store.look()
    assert seen(store) == {"orders": "3.json", "secret": "2.json"}
    store.close()


def test_a_table_that_the_catalog_cannot_show_stops_a_start_and_no_later_look(theirs: Theirs, tmp_path: Path) -> None:
    theirs.tables = {"orders": GOOD, "broken": (500, b"boom")}
    with pytest.raises(Overloaded, match="500 boom"):
        opened(theirs, tmp_path / "first")
    theirs.tables["broken"] = GOOD
    store = opened(theirs, tmp_path / "second")
    theirs.tables["broken"], theirs.version = (500, b"boom"), 2
    store.look()
    assert seen(store) == {"orders": "2.json", "broken": "1.json"}
    store.close()


@pytest.mark.parametrize("page", [b"<html>please log in</html>", b"[]", b"5", b'{"namespaces": 5}'])
def test_an_answer_that_is_none_of_the_protocol_is_an_error_of_ours(
    theirs: Theirs, tmp_path: Path, page: bytes
) -> None:
    theirs.tables = {"orders": GOOD}
    store = opened(theirs, tmp_path)
    watch = store.watch()
    theirs.page = page
    # Who watches goes on after one of those, and after nothing else.
    with pytest.raises(MainstemError):
        watch.wait(1.0)
    assert seen(store) == {"orders": "1.json"}
    theirs.page, theirs.version = None, 2
    assert [str(ident) for ident in watch.wait(1.0) or ()] == ["shop.orders"]
    store.close()
