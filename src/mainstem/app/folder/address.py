"""Where a running gateway listens: it writes this into its data folder once it does."""

from pathlib import Path

import msgspec

ADDRESS_FILE = "gateway.json"


class Address(msgspec.Struct, frozen=True):
    """The process, and the URL of its door."""

    pid: int
    url: str


def write_address(folder: Path, address: Address) -> None:
    """Write it whole or not at all."""
    scratch = folder / f".{ADDRESS_FILE}"
    scratch.write_bytes(msgspec.json.encode(address))
    scratch.rename(folder / ADDRESS_FILE)


def read_address(folder: Path) -> Address | None:
    """What was written last, if anything was."""
    try:
        return msgspec.json.decode((folder / ADDRESS_FILE).read_bytes(), type=Address)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
