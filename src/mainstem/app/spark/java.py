"""Finds the Java that Spark runs on, or says in one sentence what to install."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from mainstem.model import Invalid

SUPPORTED = (17, 21)
_VERSION = re.compile(r'version "(\d+)')
ADVICE = "Install a Java 17 or 21 runtime (Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one."


def check_java() -> Path:
    """The path of a Java that Spark supports."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise Invalid(
            f"Spark needs Java 17 or 21, and there is none{f' in JAVA_HOME={home}' if home else ''}. {ADVICE}"
        )
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, check=False, timeout=30)
    version = _VERSION.search(answer.stderr + answer.stdout)
    major = int(version.group(1)) if version else 0
    if major < min(SUPPORTED):
        raise Invalid(
            f"Spark needs Java 17 or 21, and {found} is {f'Java {major}' if major else 'not a Java'}. {ADVICE}"
        )
    return Path(found)
