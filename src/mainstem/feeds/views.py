"""Pages as a viewer may see them: what is hidden is left out, what leaves the view is evicted, what enters comes whole.

For every row that a page touches it is asked whether the viewer had it at the cursor where the page begins, and whether
it may see it now. Between the two nothing else counts, so a page is right whatever happened in between.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mainstem.feeds.checkpoints import deltas_of_row
from mainstem.feeds.entries import Entry
from mainstem.feeds.rules import TableScope, View
from mainstem.feeds.shadow import Seen, Shadow, ShadowRow
from mainstem.model.errors import Invalid
from mainstem.model.names import RULES_TABLE
from mainstem.model.position import NOWHERE, LogPosition
from mainstem.wire.sync import Op, RowDelta, encode_delta

# A change of rules that moves more rows than this in or out of a view makes the client begin again.
MOVED_MAX = 10_000


def visible_entries(entries: Iterable[Entry], scope: TableScope | None) -> list[bytes]:
    """A page for a gateway without rules."""
    shown = [entry for entry in entries if entry.table != RULES_TABLE]
    return [entry.encoded for entry in shown if scope is None or scope.sees(entry.table)]


def page_for(
    shadow: Shadow,
    entries: list[Entry],
    since: LogPosition,
    *,
    client: str,
    claims: Mapping[str, Any],
    evicts: bool,
    scope: TableScope | None = None,
) -> list[bytes]:
    """What a viewer is sent of a page that begins at `since`. Raises Invalid (`cursor_expired`) if it is too much."""
    before, now = (shadow.view_at(at, claims).within(scope) for at in (since, shadow.position))
    page = _Page(shadow, since, before, now, evicts)
    by_row: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.table != RULES_TABLE and (scope is None or scope.sees(entry.table)):
            by_row.setdefault((entry.table, entry.row_id), []).append(entry)
    encoded: list[bytes] = []
    for (table, row_id), own in by_row.items():
        found = shadow.find(table, row_id)
        if found is not None:
            encoded += page.of_row(table, row_id, found, own, client)
    # Nothing was there at the very beginning, so no change of rules can have moved anything since.
    if before != now and since > NOWHERE:
        encoded += page.moved(by_row.keys())
    return encoded


class _Page:
    def __init__(self, shadow: Shadow, since: LogPosition, before: View, now: View, evicts: bool) -> None:
        self._shadow = shadow
        self._since = since
        self._before = before
        self._now = now
        self._evicts = evicts

    def of_row(self, table: str, row_id: str, row: ShadowRow, own: list[Entry], client: str) -> list[bytes]:
        had, has = self._had(table, row), self._has(table, row)
        if has:
            steady = had and self._always(table, row)
            return [entry.encoded for entry in own] if steady else _whole(table, row_id, row)
        if had and not row.row.visible:
            # It is gone for everyone: clients that had it are told of the delete itself.
            return [encode_delta(delta) for delta in deltas_of_row(table, row_id, row.row)]
        if had or any(entry.client_id == client for entry in own):
            return [self._evict(table, row_id, row)]
        return []

    def moved(self, touched: Iterable[tuple[str, str]]) -> list[bytes]:
        """Rows that were not written, but that a change of rules moved in or out of view."""
        skip = set(touched)
        encoded: list[bytes] = []
        count = 0
        for table, row_id, row in self._shadow.rows():
            if (table, row_id) in skip:
                continue
            had, has = self._had(table, row), self._has(table, row)
            if had == has:
                continue
            count += 1
            if count > MOVED_MAX:
                raise Invalid("the rules changed too much to go on from here", reason="cursor_expired")
            encoded += _whole(table, row_id, row) if has else [self._evict(table, row_id, row)]
        return encoded

    def _had(self, table: str, row: ShadowRow) -> bool:
        return _sees(self._before, table, row.at(self._since))

    def _has(self, table: str, row: ShadowRow) -> bool:
        return _sees(self._now, table, row.seen[-1])

    def _always(self, table: str, row: ShadowRow) -> bool:
        views = {self._before, self._now}
        return all(_sees(view, table, seen) for seen in row.since(self._since) for view in views)

    def _evict(self, table: str, row_id: str, row: ShadowRow) -> bytes:
        if self._evicts:
            return encode_delta(RowDelta(op=Op.EVICT, table=table, row_id=row_id))
        # A client that knows no better: the delete is as new as the newest of what it may have.
        stamps = [cell.stamp for cell in row.row.cells.values()]
        stamp = max([*stamps, *([row.row.tombstone] if row.row.tombstone else [])])
        return encode_delta(RowDelta(op=Op.DELETE, table=table, row_id=row_id, hlc=stamp.hlc, client_id=stamp.source))


def sees_now(shadow: Shadow, view: View, table: str, row_id: str) -> bool:
    """Whether a row is in view at this moment."""
    row = shadow.find(table, row_id)
    return row is not None and _sees(view, table, row.seen[-1])


def _sees(view: View, table: str, seen: Seen) -> bool:
    return seen is not None and view.sees(table, seen)


def _whole(table: str, row_id: str, row: ShadowRow) -> list[bytes]:
    return [encode_delta(delta) for delta in deltas_of_row(table, row_id, row.row)]
