"""What a server may say, as errors by what the client does next.

Invalid         (Refused)      the delta cannot be taken: it is put aside
Denied                         keep everything, ask for a token again and retry
Overloaded                     retry after `retry_after_s`
Conflict        (ClockDrift)   our clock runs ahead of the server's: stamp again, then send
Conflict        (CursorExpired) the server no longer has what follows our cursor: begin with a checkpoint
OutcomeUnknown  (Unreachable)  no answer: it may or may not have happened, and sending it again is safe
"""

from mainstem.model.errors import Conflict, Invalid, OutcomeUnknown
from mainstem.model.hlc import Hlc


class Refused(Invalid):
    """The server refuses what was sent. `delta_id` names the delta at fault, where the server did."""

    def __init__(self, message: str, *, reason: str, delta_id: str | None = None) -> None:
        super().__init__(message, reason=reason)
        self.delta_id = delta_id


class ClockDrift(Conflict):
    """`server_hlc` is the server's clock when it refused; None where it did not say."""

    def __init__(self, message: str, *, server_hlc: Hlc | None = None) -> None:
        super().__init__(message)
        self.server_hlc = server_hlc


class CursorExpired(Conflict):
    """The server cannot go on from our cursor."""


class Unreachable(OutcomeUnknown):
    """No answer in the protocol's words."""
