"""A batch of the sync door on its way through the log."""

from mainstem.model.batch import Batch
from mainstem.wire.sync import RowDelta


class DeltaBatch(Batch, frozen=True, kw_only=True, gc=False):
    """A batch of the sync door, with its deltas at hand: listeners need not read the payload again."""

    gateway: str
    deltas: tuple[RowDelta, ...]
    # The same as they are encoded in the payload.
    parts: tuple[bytes, ...]
