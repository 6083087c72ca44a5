"""The errors of the whole product, by what the caller does next.

    MainstemError
    ├── Invalid         mend the request; sending it again as it is cannot succeed
    ├── Denied          ask for other rights; sending it again cannot succeed
    ├── NotFound        the thing named does not exist
    ├── Conflict        look at the current state, then decide
    ├── Overloaded      the same request may succeed after `retry_after_s`
    ├── OutcomeUnknown  it may or may not have happened: look before doing it again
    └── Corrupt         stored bytes are not what was written; `place` says where

A new kind is added only where a caller would act differently. Only doors turn these into the codes of a
protocol. A message says what was expected and what came.
"""


class MainstemError(Exception):
    """Base of every error that Mainstem raises on purpose."""


class Invalid(MainstemError):
    """The request is wrong. `reason` is a short stable word that a program can act on."""

    def __init__(self, message: str, *, reason: str = "invalid_format") -> None:
        super().__init__(message)
        self.reason = reason


class Denied(MainstemError):
    """The caller may not do this."""


class NotFound(MainstemError):
    """The thing named does not exist."""


class Conflict(MainstemError):
    """The state is not what the caller assumed."""


class Overloaded(MainstemError):
    """A bound was met. The same request may succeed after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float, reason: str = "buffer_full") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.reason = reason


class OutcomeUnknown(MainstemError):
    """It may or may not have happened."""


class Corrupt(MainstemError):
    """Stored bytes are not what was written. `place` names the file and the offset."""

    def __init__(self, message: str, *, place: str) -> None:
        super().__init__(f"{message}. place={place}")
        self.place = place
