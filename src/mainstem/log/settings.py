"""Settings of the log: one frozen value, checked once."""

from pathlib import Path

import msgspec

from mainstem.model.errors import Invalid

_MIB = 1024 * 1024


class TimesRule(msgspec.Struct, frozen=True):
    """In which tables a JSON text that is an ISO time with a zone is a time, and not a text like any other."""

    default: bool = False
    # By full name: the tables that differ from that.
    others: tuple[str, ...] = ()

    def holds(self, table: str) -> bool:
        """Whether times are told from texts in this table."""
        return self.default is not (table in self.others)


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the log lives, when it seals, and its bounds."""

    folder: Path
    # A seal begins when one of these is met (and something is there to seal).
    seal_changes: int = 10_000
    seal_bytes: int = 32 * _MIB
    seal_age_s: float = 60.0
    seal_interval_s: float = 30.0
    # A file of frames rolls at either, also while the sealer is busy.
    file_bytes: int = 64 * _MIB
    file_changes: int = 250_000
    # One segment takes several rolled files when the sealer is behind, up to these; not more, so that tables can take
    # one in while the next is made.
    segment_changes_max: int = 250_000
    segment_bytes_max: int = 256 * _MIB
    # Segments that are made at the same time where that many wait; each takes a core and some 300 MB meanwhile.
    sealers: int = 2
    # Accepted but not yet durable: bounds memory.
    pending_bytes_max: int = 64 * _MIB
    # Durable but not yet sealed: bounds recovery time and disk while sealing fails.
    unsealed_bytes_max: int = 4096 * _MIB
    # Written and synced together; bounds how long the first batch of a group waits for the last.
    group_bytes_max: int = 8 * _MIB
    # Files of frames that are sealed wait for the next dump of the companion, at most so long or so large.
    companion_interval_s: float = 5.0
    companion_lag_bytes: int = 256 * _MIB
    # Files of frames that are kept for readers when the log needs them no longer (`log/kept`); 0: none.
    kept_bytes_max: int = 0
    # What a refused appender is told.
    retry_after_s: float = 1.0
    # What the sealer takes for a time.
    times: TimesRule = TimesRule()

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            if field.name == "kept_bytes_max" and value == 0:
                continue
            if field.name not in ("folder", "times") and value <= 0:
                raise Invalid(f"log setting {field.name}. expected=more than 0 got={value}")

    @property
    def wal_folder(self) -> Path:
        return self.folder / "wal"

    @property
    def kept_folder(self) -> Path:
        return self.folder / "kept"

    @property
    def segments_folder(self) -> Path:
        return self.folder / "segments"

    @property
    def scratch_folder(self) -> Path:
        """Where files are written before they get their name. On the same disk, but no reader looks here."""
        return self.folder / ".scratch"
