"""Spark's jars: fetched once, from the repository that is named."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mainstem.app.spark.jars import ensure_jars, find_jars
from mainstem.model import Invalid

ONE = ("com.example.lake:boat:1.2",)
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>com.example.lake</groupId><artifactId>boat</artifactId><version>1.2</version></project>"""


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A Maven repository with one jar, on loopback."""
    folder = tmp_path / "repository" / "com" / "example" / "lake" / "boat" / "1.2"
    folder.mkdir(parents=True)
    (folder / "boat-1.2.pom").write_text(POM)
    (folder / "boat-1.2.jar").write_bytes(b"PK\x05\x06" + bytes(18))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "repository"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_mirror_is_asked_once(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_jars(ONE) == []
    (jar,) = ensure_jars(ONE, mirror)
    assert jar.name.endswith("boat-1.2.jar")
    # Nobody listens there: what is in the cache is asked of nobody.
    assert ensure_jars(ONE, "http://127.0.0.1:9/") == [jar]


def test_a_jar_that_is_not_there_is_named(mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(Invalid, match="raft"):
        ensure_jars(("com.example.lake:raft:1.0",), mirror)
    assert find_jars(("com.example.lake:raft:1.0",)) == []
