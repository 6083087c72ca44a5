"""Which gateways have rules, and their shadows, kept up with the feeds."""

import asyncio
import os
from pathlib import Path

import msgspec

from mainstem.feeds.feeds import PULL_MAX, Feeds
from mainstem.feeds.shadow import NewColumns, Shadow
from mainstem.model.errors import Corrupt
from mainstem.model.position import NOWHERE

_TRIES_MAX = 10


class Shadows:
    """Shadows are made when they are first needed, from the feed. That a gateway may have rules is kept in a file."""

    def __init__(self, path: Path, feeds: Feeds, *, any_may_be_ruled: bool = False) -> None:
        """`any_may_be_ruled`: the file may lack gateways whose rules came in elsewhere, so all are asked for theirs."""
        self._any_may_be_ruled = any_may_be_ruled
        self._path = path
        self._feeds = feeds
        # Whole ones alone: one that is still made does not know all the rules, and would show what they hide.
        self._shadows: dict[str, Shadow] = {}
        # The columns that rules look at, as far as that is known.
        self._columns: dict[str, frozenset[str]] = {}
        self._making: dict[str, asyncio.Lock] = {}
        self._ruled: frozenset[str] = frozenset()
        if path.exists():
            try:
                self._ruled = frozenset(msgspec.json.decode(path.read_bytes(), type=list[str]))
            except msgspec.MsgspecError as error:
                raise Corrupt(f"gateways with rules cannot be read. got={error}", place=str(path)) from error

    def is_ruled(self, gateway: str) -> bool:
        """Whether the gateway has, or ever had, rules."""
        return self._any_may_be_ruled or gateway in self._ruled

    def mark(self, gateway: str) -> None:
        """Rules are about to be written: from here on no client is answered without asking for them."""
        if gateway in self._ruled:
            return
        ruled = self._ruled | {gateway}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".new")
        with scratch.open("wb") as file:
            file.write(msgspec.json.encode(sorted(ruled)))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._path)
        self._ruled = ruled

    async def ready(self, gateway: str) -> Shadow:
        """The shadow, up to everything that arrived."""
        shadow = self.current(gateway)
        if shadow is not None:
            return shadow
        async with self._making.setdefault(gateway, asyncio.Lock()):
            shadow = self.current(gateway)
            if shadow is not None:
                return shadow
            for _ in range(_TRIES_MAX):
                shadow = self._shadows.pop(gateway, None) or Shadow(self._columns.get(gateway, frozenset()))
                try:
                    await self._fold(gateway, shadow)
                except NewColumns as wanted:
                    self._columns[gateway] = wanted.columns
                    continue
                self._shadows[gateway] = shadow
                break
        found = self.current(gateway)
        return found if found is not None else await self.ready(gateway)

    def current(self, gateway: str) -> Shadow | None:
        """The same at once; None where it has to be made first."""
        shadow = self._shadows.get(gateway)
        if shadow is None:
            return None
        page = self._feeds.pull_hot(gateway, shadow.position, PULL_MAX)
        if page is None or page.has_more:
            return None
        try:
            shadow.advance(page.entries, page.cursor)
        except NewColumns as wanted:
            self._columns[gateway] = wanted.columns
            del self._shadows[gateway]
            return None
        return shadow

    async def _fold(self, gateway: str, shadow: Shadow) -> None:
        if shadow.position == NOWHERE:
            async for entries in self._feeds.others(gateway):
                await asyncio.to_thread(shadow.begin, entries)
        while True:
            page = await self._feeds.pull(gateway, shadow.position, PULL_MAX)
            if page.has_more:
                await asyncio.to_thread(shadow.advance, page.entries, page.cursor)
            else:
                shadow.advance(page.entries, page.cursor)
                return
