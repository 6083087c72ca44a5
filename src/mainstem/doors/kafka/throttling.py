"""Quotas at the Kafka door: what admission counts, and how an answer says for how long a client has been throttled.

As in Kafka since KIP-219 the answer goes out at once, says the time, and the connection's next request is begun only
when that is over: clients that heed the answer never notice the second half.
"""

import struct
from collections.abc import Mapping

from mainstem.admission.quotas import Quota, Quotas
from mainstem.doors.kafka.dispatch import Answered, Context, Encoded, Entry

PRODUCE, FETCH = 0, 1
_MS = struct.Struct(">i")


class Throttle:
    """Charges what requests take."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    @property
    def is_on(self) -> bool:
        """Whether anybody has a quota."""
        return self._quotas.is_on

    def charge_ms(self, entry: Entry, context: Context, in_bytes: int, out_bytes: int) -> int:
        """A request came and was answered: for how many milliseconds its client has to be silent now."""
        if not self._quotas.is_on or entry.is_open:
            return 0
        taken = {Quota.REQUESTS: 1}
        if entry.key == PRODUCE:
            taken[Quota.PRODUCE] = in_bytes
        elif entry.key == FETCH:
            taken[Quota.FETCH] = out_bytes
        return round(self._quotas.charge(context.principal, context.client_id or "", taken) * 1000)


def throttled(key: int, answer: Answered, delay_ms: int) -> Answered:
    """The same answer, with the time in it."""
    if isinstance(answer, Mapping):
        return {**answer, "throttle_time": delay_ms}
    if isinstance(answer, Encoded) and key == PRODUCE:
        # A buffer of its own (`encode_produced`), behind what became of the batches.
        return Encoded([answer.body[0], _MS.pack(delay_ms), *answer.body[2:]])
    if isinstance(answer, Encoded) and key == FETCH and answer.body:
        # The first field of its answer, in all versions.
        first = bytes(answer.body[0])
        return Encoded([_MS.pack(delay_ms) + first[_MS.size :], *answer.body[1:]])
    return answer
