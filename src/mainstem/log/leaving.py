"""An embedded log as the records of a log on Kafka. It is only read: its folder stays as it is.

Positions, clocks and batches stay what they are. What comes over:

- segments that are kept, up to the last one that ends where the stored companion has everything before it: as pieces,
  or by the store of segments, where there is one;
- every file of frames after that, record by record. Segments that were made of them already are made again, the same
  ones: a `Plan` says which they are;
- the stored companion. It is as of a position that frames lead on from.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mainstem.log import companion as companions
from mainstem.log import frames
from mainstem.log import lineage as lineages
from mainstem.log.companion import NoCompanion, Stored
from mainstem.log.kafka.records import Mark, Move, Part, Piece, Plan, encode_note, parts_of, spans_of
from mainstem.log.opening import Torn, look
from mainstem.log.seal.segments import SegmentInfo
from mainstem.log.settings import LogSettings
from mainstem.log.wal.files import WalFile
from mainstem.model.errors import Corrupt
from mainstem.model.position import Lineage, LogPosition

_PIECE_BYTES = 4 << 20


class Leaving(NamedTuple):
    """What of a folder's log goes elsewhere."""

    # As it is in the folder, without the identity that it goes on under.
    lineage: Lineage
    last: LogPosition
    # Those before the frames, and those that frames make again.
    segments: list[SegmentInfo]
    planned: list[SegmentInfo]
    files: list[WalFile]
    stored: Stored
    torn: Torn | None

    @property
    def batches(self) -> int:
        """Batches that go over as frames."""
        return sum(file.batches for file in self.files)

    @property
    def changes(self) -> int:
        """Changes in them."""
        return sum(file.changes for file in self.files)

    def bytes(self, *, with_segments: bool) -> int:
        """All that is written, but for notes."""
        segments = self.segments if with_segments else []
        data = len(self.stored.data or b"")
        return sum(file.bytes for file in self.files) + sum(one.bytes for one in segments) + data


async def survey(folder: Path) -> Leaving:
    """Check a folder's log, whose lock is held, and say what of it has to go over. Raises Corrupt as a start would."""
    settings = LogSettings(folder=folder)
    found = await look(settings, NoCompanion())
    stored = companions.read(folder)
    ends = [LogPosition(0), stored.sealed, *(one.last for one in found.segments)]
    # Frames before that are in segments, and what they did to the companion is in the stored one.
    done = max(end for end in ends if end <= stored.position)
    files = [file for file in (*found.spent, *found.unsealed) if file.first > done and file.changes]
    begins = files[0].first if files else found.last + 1
    if begins != done + 1:
        raise Corrupt(f"log files are missing. expected=one that begins at {done + 1} got={begins}", place=str(folder))
    return Leaving(
        lineage=lineages.look(folder, found.segments, found.last),
        last=found.last,
        segments=[one for one in found.segments if one.last <= done],
        planned=[one for one in found.segments if one.last > done],
        files=files,
        stored=stored,
        torn=found.torn,
    )


def records_of(leaving: Leaving, lineage: Lineage, *, with_segments: bool) -> Iterator[bytes]:
    """The values of all records, in order; the same each time. `lineage` is the log's as it goes on."""
    spans = spans_of(lineage)
    segments = leaving.segments if with_segments else []
    begins = leaving.files[0].first if leaving.files else LogPosition(leaving.last + 1)
    yield encode_note(Move(spans, segments[0].first if segments else begins, leaving.last))
    for segment in segments:
        yield from map(encode_note, _pieces(segment))
    plans = {one.first: one.last for one in leaving.planned}
    for file in leaving.files:
        # A file begins where it does here, and so do the segments that are made of them.
        yield encode_note(Mark(file.first, spans))
        if file.first in plans:
            yield encode_note(Plan(file.first, plans[file.first]))
        yield from _frames(file)
    stored = leaving.stored
    if stored.data is not None:
        parts = parts_of(stored.data)
        for number, part in enumerate(parts):
            yield encode_note(Part(stored.position, stored.hlc, number, len(parts), part))


def _pieces(segment: SegmentInfo) -> Iterator[Piece]:
    of = max(1, -(-segment.bytes // _PIECE_BYTES))
    with segment.path.open("rb") as file:
        for number in range(of):
            yield Piece(segment.first, segment.last, number, of, file.read(_PIECE_BYTES))


def _frames(file: WalFile) -> Iterator[bytes]:
    with file.path.open("rb") as handle:
        data = handle.read(file.bytes)
    start = 0
    for frame in frames.decode_all(data, str(file.path)):
        yield data[start : frame.end]
        start = frame.end
