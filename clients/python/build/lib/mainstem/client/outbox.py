"""What a CDC client has sent or will send, and where each batch stands. No I/O.

The order of the batches is the order of the changes, and the tables keep the last one: so a batch that the server
refused for now is sent again before anything newer, and only once every answer that was still on its way is in.
"""

from collections import deque
from weakref import WeakValueDictionary

from mainstem.client.receipt import Durable, Receipt
from mainstem.model.errors import Invalid, MainstemError


class Parcel:
    """A batch that is not known to be durable."""

    __slots__ = ("attempts", "order", "payload", "receipt")

    def __init__(self, order: int, payload: bytes, receipt: Receipt) -> None:
        self.order = order
        self.payload = payload
        self.receipt = receipt
        self.attempts = 0

    @property
    def sequence(self) -> int:
        """Its number at its source."""
        return self.receipt.sequence


class Outbox:
    """Batches to send, batches without an answer, and receipts that wait for the tables."""

    def __init__(self) -> None:
        self._waiting: deque[Parcel] = deque()
        self._sent: dict[int, Parcel] = {}
        self._open: set[int] = set()
        self._size_bytes = 0
        self._orders = 0
        # After a refusal nothing leaves until all answers are in.
        self._regrouping = False
        # Weak: who does not hold a receipt does not wait for the tables.
        self._unpersisted: WeakValueDictionary[int, Receipt] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sent)

    @property
    def size_bytes(self) -> int:
        """The payloads that are held."""
        return self._size_bytes

    @property
    def in_flight(self) -> int:
        """Batches that were sent and have no answer."""
        return len(self._sent)

    def receipts(self) -> list[Receipt]:
        """Those of all batches that are not known to be durable."""
        return [parcel.receipt for parcel in (*self._sent.values(), *self._waiting)]

    def put(self, payload: bytes, receipt: Receipt) -> None:
        """A new batch. Its sequence must not be on its way already."""
        if receipt.sequence in self._open:
            raise Invalid(f"sequence is on its way already. got={receipt.sequence}", reason="invalid_sequence")
        self._orders += 1
        self._open.add(receipt.sequence)
        self._waiting.append(Parcel(self._orders, payload, receipt))
        self._size_bytes += len(payload)

    def next(self) -> Parcel | None:
        """The batch to send now, which counts as sent from here on."""
        if not self._waiting or self._regrouping:
            return None
        parcel = self._waiting.popleft()
        parcel.attempts += 1
        self._sent[parcel.sequence] = parcel
        return parcel

    def rewind(self) -> None:
        """The connection is gone: whatever has no answer is to be sent again, in order."""
        self._requeue(list(self._sent.values()))
        self._sent.clear()
        self._regrouping = False

    def acknowledge(self, durable: Durable) -> None:
        """A batch is durable."""
        parcel = self._answer(durable.sequence)
        if parcel is not None:
            self._size_bytes -= len(parcel.payload)
            self._unpersisted[durable.sequence] = parcel.receipt
            parcel.receipt.settle_durable(durable)

    def refuse(self, sequence: int, error: MainstemError) -> None:
        """A batch was refused for good."""
        parcel = self._answer(sequence)
        if parcel is not None:
            self._size_bytes -= len(parcel.payload)
            parcel.receipt.settle_failed(error)

    def postpone(self, sequence: int) -> None:
        """A batch was refused for now."""
        parcel = self._sent.pop(sequence, None)
        if parcel is not None:
            self._requeue([parcel])
            self._regrouping = bool(self._sent)

    def persisted(self, up_to: int) -> None:
        """The tables have every durable batch up to a sequence."""
        for sequence in [sequence for sequence in list(self._unpersisted.keys()) if sequence <= up_to]:
            receipt = self._unpersisted.pop(sequence, None)
            if receipt is not None:
                receipt.settle_persisted()

    def abandon(self, error: MainstemError) -> None:
        """Nothing further will be known of anything."""
        for receipt in (*self.receipts(), *self._unpersisted.values()):
            receipt.settle_failed(error)
        self._waiting.clear()
        self._sent.clear()
        self._open.clear()
        self._size_bytes = 0

    def _answer(self, sequence: int) -> Parcel | None:
        parcel = self._sent.pop(sequence, None)
        if parcel is not None:
            self._open.discard(sequence)
        if not self._sent:
            self._regrouping = False
        return parcel

    def _requeue(self, parcels: list[Parcel]) -> None:
        if parcels:
            self._waiting = deque(sorted((*parcels, *self._waiting), key=lambda parcel: parcel.order))
