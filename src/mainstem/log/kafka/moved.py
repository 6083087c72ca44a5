"""What a folder says of a log that was moved from it into a topic: `moved.json`, beside the log's own files.

From its first moment on nothing may be appended here: the log goes on elsewhere, or is about to.
"""

from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from mainstem.model.errors import Corrupt, Invalid
from mainstem.runtime import durable

MOVED_FILE = "moved.json"
# The folder's files of the log, once it is moved.
ASIDE = "embedded"


class MovedLog(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log goes, what it is called from there on, and how far it came here."""

    # On its way; there; or on its way back, which ends without this file.
    state: Literal["moving", "moved", "back"]
    topic: str
    bootstrap_servers: str
    spans: list[tuple[str, int]]
    last: int


def read_moved(folder: Path) -> MovedLog | None:
    """What the folder says; None where nothing was moved from it."""
    try:
        return msgspec.json.decode((folder / MOVED_FILE).read_bytes(), type=MovedLog)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Corrupt(f"what was moved cannot be read. got={error}", place=str(folder / MOVED_FILE)) from error


def write_moved(folder: Path, moved: MovedLog) -> None:
    """Say it, durably and in one step."""
    durable.replace(folder / MOVED_FILE, msgspec.json.encode(moved))


def refuse_half_moved(folder: Path, moved: MovedLog) -> NoReturn:
    """Raise what a server is told that finds a log on its way."""
    again = "mainstem migrate --back" if moved.state == "back" else "mainstem migrate"
    raise Invalid(
        f"the log of this folder is on its way {'from' if moved.state == 'back' else 'to'} topic {moved.topic}. "
        f"Run `{again}` again: it goes on where it was. got={folder}"
    )
