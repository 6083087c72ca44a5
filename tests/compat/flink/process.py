"""A real Flink: PyFlink in an environment of its own (it wants other versions of our dependencies), in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.compat.downloads import Artifact, cached, fetch, install

FLINK = "apache-flink==2.1.1"
JARS = (
    Artifact("org.apache.iceberg", "iceberg-flink-runtime-2.1", "1.11.0"),
    # S3, with all that it needs.
    Artifact("org.apache.iceberg", "iceberg-aws-bundle", "1.11.0"),
    Artifact("org.apache.hadoop", "hadoop-client-api", "3.4.2"),
    Artifact("org.apache.hadoop", "hadoop-client-runtime", "3.4.2"),
    Artifact("commons-logging", "commons-logging", "1.3.5"),
)


def ensure_flink() -> tuple[Path, list[Path]]:
    """The folder of PyFlink's packages, and the jars that it needs for Iceberg."""
    packages = cached(FLINK.replace("==", "-"), lambda folder: install(FLINK, folder))
    jars = cached("flink-jars-" + "-".join(jar.version for jar in JARS), lambda folder: fetch(JARS, folder))
    return packages, sorted(jars.glob("*.jar"))


class Flink:
    """A session that runs statements, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        packages, jars = ensure_flink()
        self._folder.mkdir(parents=True)
        class_path = os.pathsep.join(str(jar) for jar in jars)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
            "PYTHONPATH": str(packages),
            # Flink takes what stands here into its own class path.
            "HADOOP_CLASSPATH": class_path,
            "FLINK_HOME": str(packages / "pyflink"),
        }
        with (self._folder / "flink.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("session.py"))],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement; its rows."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(sql), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Flink is gone: {(self._folder / 'flink.log').read_text()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{sql}: {answer['error']}")
        return [tuple(row) for row in answer["rows"]]
