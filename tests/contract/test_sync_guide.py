"""The examples of docs/guides/python-sync.md, run as they stand, against a real gateway."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

from mainstem.client import LocalDB
from tests.harness.inprocess import gateway_on_socket

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python-sync.md"


async def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    printed = []
    async with gateway_on_socket(tmp_path / "data") as (_, url):
        base = url.replace("ws://", "http://").removesuffix("/ws")
        for program in examples:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                program.replace("http://127.0.0.1:8181", base),
                cwd=tmp_path,
                env=os.environ.copy(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            out, error = await asyncio.wait_for(process.communicate(), 120)
            assert process.returncode == 0, error.decode()
            printed.append(out.decode())
    assert printed[0] == "[{'_key': 't1', 'title': 'Buy milk'}]\n"
    assert printed[1].endswith("[{'title': 'Buy milk', 'done': 1}]\n")
    with LocalDB.open(tmp_path / "ada.db") as db:
        assert db.query("SELECT _key, rank FROM todos ORDER BY _key") == [
            {"_key": "t1", "rank": 2.0},
            {"_key": "t3", "rank": None},
        ]
        assert db.state().pending == 2
