"""Hears of what other gateways commit to the same catalog, in a thread of its own."""

import logging
import threading

from mainstem.catalog import Catalog
from mainstem.model import MainstemError

# How long a look waits for something to see. A stop waits for it.
LOOK_S = 1.0

_logger = logging.getLogger(__name__)


class Following:
    """Between `start` and `stop`, the catalog's listener hears of others' commits as of our own."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Does nothing where no other gateway writes to the catalog."""
        if self._catalog.is_shared:
            self._thread = threading.Thread(target=self._run, name="catalog-following", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End it. Blocks for a moment."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        watch = self._catalog.watch()
        assert watch is not None, "a shared catalog can be watched"
        is_told = False
        while not self._stop.is_set():
            try:
                self._catalog.follow(watch, LOOK_S)
                is_told = False
            # The thread's edge: what was missed meanwhile is made up for once the store can be reached again.
            except MainstemError as error:
                if not is_told:
                    _logger.error("commits of other gateways cannot be seen: %s", error)
                is_told = True
                self._stop.wait(LOOK_S)
        watch.close()
