"""Events that an app listens to."""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Signal(Generic[T]):
    """One kind of event. Listeners are called in the thread in which it happens, and should return soon."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[[T], object], ...] = ()

    def connect(self, listener: Callable[[T], object]) -> Callable[[], None]:
        """Listen; the answer stops listening."""
        self._listeners = (*self._listeners, listener)

        def disconnect() -> None:
            # By equality and not by identity: a bound method is a new object each time that it is named.
            self._listeners = tuple(other for other in self._listeners if other != listener)

        return disconnect

    def emit(self, event: T) -> None:
        """Tell everyone. A listener that fails is the app's fault, and stops neither the others nor a sync."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("a listener failed")
