"""A stranger's path, timed: from the wheels in an empty folder to an answer in SQL, with nothing of the tree.

    python3 stranger.py FOLDER_OF_WHEELS [--warm] [--python PYTHON]

Installs the server's wheel with pip into an environment of its own, starts it, posts rows with curl as the README does,
and asks for them in SQL. Ends with 1 where any of it fails, a row differs, or it took longer than three minutes.
Every cache begins empty, that of the jars and pip's included, and what is installed is in an environment that nobody
had before; `--warm` uses the machine's caches. `--python` names an environment that has the wheels already.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

SECONDS_MAX = 180.0
ROWS = [{"id": "o1", "amount": 12.5}, {"id": "o2", "amount": 3.0}]
STATEMENT = "SELECT id, amount FROM orders ORDER BY id"


class Wrong(Exception):
    """The path does not lead there."""


class Steps:
    """What was done, and when it was."""

    def __init__(self, seconds_max: float) -> None:
        self.seconds_max = seconds_max
        self.began_s = time.monotonic()
        self._last_s = self.began_s

    def done(self, what: str) -> None:
        now_s = time.monotonic()
        print(f"{now_s - self._last_s:7.1f} s  {what}", flush=True)
        self._last_s = now_s

    @property
    def taken_s(self) -> float:
        return time.monotonic() - self.began_s


def run(*command: str | Path, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Wrong(
            f"{' '.join(map(str, command))}\nended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def walk(folder: Path, wheels: Path, python: Path | None, environment: dict[str, str], steps: Steps) -> None:
    if python is None:
        run(sys.executable, "-m", "venv", "venv", folder=folder, environment=environment)
        python = folder / "venv" / "bin" / "python"
        files = sorted(wheels.glob("mainstem*.whl"))
        if len(files) != 2:
            raise Wrong(f"expected two wheels in {wheels}, got {[file.name for file in files]}")
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(python, *words, *files, folder=folder, environment=environment)
        steps.done("pip install")
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    said = (folder / "said.txt").open("wb")
    words = [str(python.with_name("mainstem")), "serve", "--data", "data", "--port", str(port)]
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=said, stderr=said) as serving:
        try:
            while not is_up(url):
                if serving.poll() is not None or steps.taken_s > 2 * steps.seconds_max:
                    raise Wrong(f"the server did not start:\n{(folder / 'said.txt').read_text()[-3000:]}")
                time.sleep(0.05)
            steps.done("mainstem serve: accepts changes")

            def curl(path: str, *words: str) -> object:
                told = run("curl", "-sS", url + path, *words, folder=folder, environment=environment)
                print(f"           {told[:200]}")
                return json.loads(told)

            told = curl("/v1/ingest/default/orders?key=id", "--json", json.dumps(ROWS))
            steps.done(f"curl: {told}")
            # 504 says that the tables are not there yet: ask again, as long as there is time.
            while not dict(curl("/flush?timeoutS=60", "-X", "POST")).get("complete"):  # type: ignore[call-overload]
                if steps.taken_s > 2 * steps.seconds_max:
                    raise Wrong(f"the table has no rows yet:\n{(folder / 'said.txt').read_text()[-3000:]}")
            steps.done("flush: Spark has started (its jars fetched, if need be) and the table has the rows")
            answer = curl("/v1/query", "--json", json.dumps({"sql": STATEMENT}))
            rows = dict(answer).get("rows", [])  # type: ignore[call-overload]
            steps.done(f"SQL: {rows}")
            if [list(row.values()) if isinstance(row, dict) else row for row in rows] != [
                list(row.values()) for row in ROWS
            ]:
                raise Wrong(f"expected {ROWS}, got {rows}")
        finally:
            serving.send_signal(signal.SIGTERM)
            try:
                serving.wait(timeout=60)
            except subprocess.TimeoutExpired:
                serving.kill()
                raise Wrong("the server did not end within a minute of SIGTERM") from None
    if serving.returncode:
        raise Wrong(f"the server ended with {serving.returncode}:\n{(folder / 'said.txt').read_text()[-3000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--warm", action="store_true", help="use the machine's caches of jars and packages")
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX, help="the bar")
    parser.add_argument("--python", type=Path, help="an environment that has the wheels")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stranger-"))
    environment = {
        name: each for name, each in os.environ.items() if not name.startswith(("PYTHON", "MAINSTEM", "VIRTUAL"))
    }
    if not asked.warm:
        environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "PIP_CACHE_DIR": str(folder / "cache" / "pip")}
    print(f"caches: {'of this machine' if asked.warm else 'empty'}; folder: {folder}")
    steps = Steps(asked.seconds)
    try:
        walk(folder, asked.wheels.resolve(), asked.python, environment, steps)
        taken_s = steps.taken_s
        if taken_s > asked.seconds:
            raise Wrong(f"it took {taken_s:.0f} s; the bar is {asked.seconds:.0f} s")
    except Wrong as error:
        print(f"the stranger's path is broken: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{taken_s:7.1f} s  in all, the stop included; the bar is {asked.seconds:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
