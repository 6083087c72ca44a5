"""An archive of the classes that Spark loads at every start: Java maps it instead of reading and checking them anew.

Half of Spark's start on a small machine is the loading of some twenty thousand classes out of three hundred jars. Java
can write what it has loaded into a file (class data sharing) and start the next time from that. The file fits one Java
and one set of jars; Java itself looks, and goes without it where they differ. So it is only ever a gain: made once,
when the environment is set up, and never waited for by a server.
"""

import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from mainstem.app.spark.jars import COORDINATES, ensure_jars, jars_dir
from mainstem.app.spark.java import check_java
from mainstem.model import MainstemError
from mainstem.runtime.children import child_environment, python_module
from mainstem.runtime.clock import SystemClock

MAKE_S_MAX = 300.0
# An archive that no Java has mapped for this long belongs to an environment that is gone: each has over 100 MB.
UNUSED_S_MAX = 30 * 24 * 3600


def find_archive(java: Path) -> Path | None:
    """The archive for this environment and a Java, if it has been made."""
    path = _archive_path(java)
    return path if path.exists() else None


def make_archive(java: Path) -> Path:
    """Start Spark once, let it load what the pipeline needs, and keep that. Takes half a minute."""
    path = _archive_path(java)
    jars = [str(jar) for jar in ensure_jars()]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place and renamed whole: a start must never meet half of it.
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        command = python_module("mainstem.pipeline.session.archiving", str(made), *jars)
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=MAKE_S_MAX, env=child_environment()
        )
        if answer.returncode or not made.exists():
            raise MainstemError(f"no archive of Spark's classes was made. {answer.stderr[-500:].strip()}")
        made.rename(path)
    _remove_old(path)
    return path


def _remove_old(path: Path) -> None:
    """Archives of an earlier Java or Spark in the same environment, and of environments that are not used."""
    environment = path.name.split("-")[0]
    unused_s = SystemClock().now_ms() / 1000 - UNUSED_S_MAX
    for other in path.parent.glob("*.jsa"):
        stat = other.stat()
        if other != path and (other.name.startswith(environment) or max(stat.st_atime, stat.st_mtime) < unused_s):
            other.unlink(missing_ok=True)


def _archive_path(java: Path) -> Path:
    """Named by the environment, and by what the archive is made of."""
    spec = importlib.util.find_spec("pyspark")
    spark = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    home = java.resolve().parent.parent
    release = home / "release"
    parts = (
        str(home),
        release.read_text() if release.exists() else "",
        importlib.metadata.version("pyspark"),
        # Java compares the times of the jars too.
        str((spark / "jars").stat().st_mtime_ns),
        *COORDINATES,
    )
    return jars_dir().parent / f"{_digest(str(spark))}-{_digest(*parts)}.jsa"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def main() -> int:
    """Make it, unless it is there. Where it cannot be made, that is logged and Spark starts without it."""
    try:
        java = check_java()
        if find_archive(java) is None:
            print("preparing a quicker start of Spark (once)", flush=True)
            make_archive(java)
    except (MainstemError, OSError, subprocess.TimeoutExpired) as error:
        print(f"mainstem: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
