"""`mainstem sync` against a real gateway: edits, rows and refusals, offline too."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.harness.inprocess import gateway_on_socket

TIMEOUT_S = 120.0


async def command(folder: Path, url: str, who: str, *words: str) -> asyncio.subprocess.Process:
    options = ["--url", url, "--gateway", "team", "--db", str(folder / f"{who}.db"), "--client-id", who]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mainstem.app.cli.main", "sync", *options, *words, stdout=pipe, stderr=pipe
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, list[Any], str]:
    async with asyncio.timeout(TIMEOUT_S):
        output, errors = await process.communicate()
    return process.returncode, [json.loads(line) for line in output.splitlines()], errors.decode()


async def test_edits_go_out_come_in_and_wait_while_there_is_no_server(tmp_path: Path) -> None:
    async with gateway_on_socket(tmp_path / "data") as (_, ws_url):
        url = ws_url.replace("ws://", "http://").removesuffix("/ws")
        watching = await command(tmp_path, url, "eve", "watch", "todos")
        assert watching.stdout is not None
        try:
            edit = await command(tmp_path, url, "ada", "push", "todos", "r1", '{"title": "tea"}')
            code, _, errors = await ended(edit)
            assert (code, errors) == (0, "")
            async with asyncio.timeout(TIMEOUT_S):
                assert json.loads(await watching.stdout.readline()) == {"id": "r1", "row": {"title": "tea"}}
            code, rows, _ = await ended(await command(tmp_path, url, "bob", "pull", "todos"))
            assert (code, rows) == (0, [{"id": "r1", "row": {"title": "tea"}}])
            code, _, _ = await ended(await command(tmp_path, url, "bob", "push", "todos", "r1", "--delete"))
            assert code == 0
            async with asyncio.timeout(TIMEOUT_S):
                assert json.loads(await watching.stdout.readline()) == {"id": "r1", "row": None}
        finally:
            watching.terminate()
            await watching.wait()
    code, _, errors = await ended(await command(tmp_path, url, "ada", "push", "todos", "r2", '{"title": "later"}'))
    assert code == 1 and "(1 waiting)" in errors
    code, rows, _ = await ended(await command(tmp_path, url, "ada", "pull", "todos"))
    assert code == 1 and {"id": "r2", "row": {"title": "later"}} in rows
    code, _, errors = await ended(await command(tmp_path, url, "ada", "push", "todos", "r3", "[1]"))
    assert code == 1 and "object" in errors
