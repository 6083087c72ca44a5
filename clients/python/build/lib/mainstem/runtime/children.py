"""How this product starts Python processes of its own.

`-m` puts the working folder on the import path: a `copy.py` that lies there would be run as ours. `-P` leaves it out,
and the variable says the same to what the child itself starts (Spark's Python workers).
"""

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours, whatever lies in the working folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment(**more: str) -> dict[str, str]:
    """Our own environment, for a child and for what it starts in turn."""
    return {**os.environ, SAFE_PATH: "1", **more}


def bare_environment() -> dict[str, str]:
    """Only what Python needs to start: no token or key of ours is in it."""
    names = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "TMPDIR", "VIRTUAL_ENV")
    return {name: os.environ[name] for name in names if name in os.environ} | {SAFE_PATH: "1", "TZ": "UTC"}
