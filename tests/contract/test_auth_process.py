"""A server that others can reach: it asks for tokens, speaks TLS, and its own pipeline gets through."""

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import trustme
from msgspec.structs import replace

from mainstem.app.config import LogConfig, PipelineConfig, ServerConfig
from mainstem.app.process import ServerProcess
from mainstem.client import CdcClient, insert
from tests.contract.auth_tokens import KEY, SECURED, bearer, token


def mainstem(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mainstem.app.cli.main", *words]
    told = {**os.environ, "COLUMNS": "200", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=told)


class Certified:
    """A certificate for this machine, and what trusts it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        self.cert, self.key, self.authority = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        issued.private_key_pem.write_to_path(str(self.key))
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(str(self.cert), append=number > 0)
        authority.cert_pem.write_to_path(str(self.authority))
        self.context = ssl.create_default_context(cafile=str(self.authority))


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[Certified]:
    yield Certified(tmp_path)


def argument_lists(pid: int) -> str:
    """What `ps` shows of a process's children. Java starts short-lived ones, which may be gone by now."""
    found = []
    for each in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(each.cmdline()))
    return "\n".join(found)


def files_with(text: bytes, folder: Path) -> list[Path]:
    """The JSON files below a folder that a text stands in. Files come and go while a server runs."""
    found = []
    for path in folder.rglob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            if text in path.read_bytes():
                found.append(path)
    return found


async def test_a_secured_server_carries_changes_into_tables_over_tls(tmp_path: Path, certified: Certified) -> None:
    config = replace(
        SECURED,
        server=ServerConfig(port=0, tls_cert=str(certified.cert), tls_key=str(certified.key)),
        pipeline=PipelineConfig(enabled=True, driver_memory="1g"),
        log=LogConfig(flush_interval_s=1.0),
    )
    async with ServerProcess(tmp_path / "data", config) as server:
        assert server.url.startswith("https://")
        async with CdcClient(server.ws_url, source="s", token=token("writer"), ssl=certified.context) as client:
            receipt = await client.send([insert("sales.orders", "1", {"a": 1})])
            await asyncio.wait_for(receipt.persisted(), 200)
        # The token of the pipeline is in no command line and in no file.
        assert "eyJ" not in argument_lists(server.pid)
        assert files_with(b"eyJ", tmp_path / "data") == []
        async with httpx.AsyncClient(base_url=server.url, verify=certified.context, timeout=60) as http:
            assert (await http.get("/health")).json() == {"status": "ok"}
            assert (await http.get("/status")).status_code == 401
            body = {"sql": "SELECT a FROM sales.orders"}
            for headers, code in ((bearer(token("reader", "sales")), 200), (bearer(token("reader", "other")), 404)):
                assert (await http.post("/v1/query", json=body, headers=headers)).status_code == code
        told = mainstem("status", "--url", server.url, MAINSTEM_TOKEN=token(), SSL_CERT_FILE=str(certified.authority))
        assert '"sales.orders"' in told.stdout, told.stderr


def write_config(folder: Path, text: str) -> str:
    path = folder / "mainstem.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_without_keys_the_server_does_not_listen_beyond_loopback(tmp_path: Path, host: str) -> None:
    answer = mainstem("serve", "--data", str(tmp_path / "data"), "--host", host, "--port", "0", "--no-pipeline")
    assert answer.returncode == 1
    assert "without authentication the server only listens on loopback" in answer.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[auth.keys]\nk = "short"', "too short"),
        ('[auth]\njwks_file = "/nowhere.json"', "/nowhere.json"),
        ('[server]\ntls_cert = "cert.pem"', "TLS needs both"),
        ('[server]\ntls_cert = "/no/cert.pem"\ntls_key = "/no/key.pem"', "/no/cert.pem"),
        ('[auth]\nkyes = "x"', "kyes"),
    ],
)
def test_what_would_not_protect_is_one_clear_sentence(tmp_path: Path, text: str, complaint: str) -> None:
    path = write_config(tmp_path, text)
    answer = mainstem("serve", "--data", str(tmp_path / "data"), "--config", path, "--port", "0", "--no-pipeline")
    assert answer.returncode == 1
    assert complaint in answer.stderr and "Traceback" not in answer.stderr


async def test_with_keys_the_server_listens_everywhere(tmp_path: Path) -> None:
    config = replace(SECURED, server=ServerConfig(host="0.0.0.0", port=0))
    async with ServerProcess(tmp_path / "data", config) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            assert (await http.get("/health")).json() == {"status": "ok"}
            assert (await http.get("/status")).status_code == 401
            assert (await http.get("/health", headers=bearer(token("client")))).status_code == 200


def test_a_minted_token_is_taken(tmp_path: Path) -> None:
    path = write_config(tmp_path, f'[auth.keys]\nold = "{"o" * 32}"\nnew = "{KEY}"\n')
    minted = mainstem("token", "--config", path, "--role", "reader", "--namespace", "sales", "--gw", "g1")
    assert minted.returncode == 0, minted.stderr
    from mainstem.admission import Authenticator, AuthSettings, Role
    from mainstem.runtime.clock import SystemClock

    who = Authenticator(AuthSettings(keys={"new": KEY}), SystemClock()).principal(minted.stdout.strip())
    assert (who.role, who.namespaces, who.gw, who.sub) == (Role.READER, ("sales",), "g1", "dev")
    assert mainstem("token").returncode == 1
    assert mainstem("token", "--config", path, "--kid", "other").returncode == 1
    assert mainstem("token", "--config", path, "--expires", "never").returncode != 0


def test_a_new_key_is_a_configuration(tmp_path: Path) -> None:
    path = write_config(tmp_path, mainstem("key", "2026-11").stdout)
    assert mainstem("token", "--config", path).returncode == 0
