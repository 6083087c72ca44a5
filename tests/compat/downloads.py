"""What the compat runs on demand need and nobody else: fetched once, by name, into the user's cache."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyspark

from mainstem.app.spark.java import check_java
from mainstem.model import Invalid

# Maven Central is Ivy's own default for this resolver.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


class Artifact(NamedTuple):
    """One file of a Maven repository."""

    group: str
    name: str
    version: str
    extension: str = "jar"
    # Whether what it needs comes along, in the versions that its description names.
    is_whole: bool = False
    # Which of the files of that name.
    classifier: str = ""

    @property
    def file(self) -> str:
        """What it is called once it is here."""
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + f".{self.extension}"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the cache, made now if need be: whole, or not at all."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = base / "mainstem" / "compat" / name
    if not target.is_dir():
        print(f"fetching {name} (once, into {target})", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            make(made)
            shutil.move(made, target)
    return target


def fetch(artifacts: Sequence[Artifact], folder: Path) -> None:
    """Fetch files from Maven by their coordinates, with the Ivy that Spark ships. What they need comes along only with
    those that ask for it (`is_whole`)."""
    check_java()
    dependencies = "".join(map(_dependency, artifacts))
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        (Path(scratch) / "settings.xml").write_text(_SETTINGS.format(cache=Path(scratch) / "cache"))
        (Path(scratch) / "ivy.xml").write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            '<info organisation="mainstem" module="compat"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>"
        )
        ivy_jar = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
        command = ["java", "-jar", str(ivy_jar), "-settings", "settings.xml", "-ivy", "ivy.xml"]
        command += ["-types", *sorted({"bundle", *(a.extension for a in artifacts)}), "-retrieve"]
        pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
        done = subprocess.run([*command, pattern], cwd=scratch, capture_output=True, text=True, check=False)
    missing = [a.file for a in artifacts if not (folder / a.file).exists()]
    if missing:
        raise Invalid(f"cannot be fetched from Maven. expected={missing} got={done.stdout[-1500:]}{done.stderr[-500:]}")


def _dependency(a: Artifact) -> str:
    named = f'<dependency org="{a.group}" name="{a.name}" rev="{a.version}"'
    if a.is_whole:
        return f'{named} conf="default->compile(*),runtime(*),master(*)"/>'
    which = f' m:classifier="{a.classifier}"' if a.classifier else ""
    file = f'<artifact name="{a.name}" type="{a.extension}" ext="{a.extension}"{which}/>'
    return f'{named} conf="default->*" transitive="false">{file}</dependency>'


def install(requirement: str, folder: Path, python: str = sys.executable) -> None:
    """Install a package from the index of Python packages into a folder of its own, away from our environment."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--python", python, "--target", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Invalid(f"cannot be installed. expected={requirement} got={done.stderr[-1500:]}")
