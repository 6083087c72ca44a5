"""Pages as a viewer may see them: what is hidden is left out, what leaves the view is evicted, what enters comes whole.

A page is judged by the newest that is known when it is sent, which may be far ahead of where it ends. So a client that
stands at a cursor may have a row as it was at any moment from there on, or may have been made to forget it. For every
row that a page touches, or that rules moved within it, three things are asked of all that time: is it in view now, was
it ever, was it always. One in view that was not always comes whole; one that ever was and is no more is evicted.
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
    until: LogPosition,
    *,
    client: str,
    claims: Mapping[str, Any],
    evicts: bool,
    scope: TableScope | None = None,
) -> list[bytes]:
    """What a viewer is sent of the page that begins at `since` and moves its cursor to `until`. Raises Invalid
    (`cursor_expired`) if it is too much."""
    page = _Page(shadow, since, claims, evicts, scope)
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
    if since > NOWHERE and page.rules_changed_by(until):
        encoded += page.moved(by_row.keys())
    return encoded


class _Page:
    def __init__(
        self, shadow: Shadow, since: LogPosition, claims: Mapping[str, Any], evicts: bool, scope: TableScope | None
    ) -> None:
        self._shadow = shadow
        self._since = since
        self._views = [(began, view.within(scope)) for began, view in shadow.views_since(since, claims)]
        self._evicts = evicts

    def rules_changed_by(self, until: LogPosition) -> bool:
        """Whether this page has a change of what the viewer may see. A later page tells of a later one."""
        return any(began <= until for began, _ in self._views[1:])

    def of_row(self, table: str, row_id: str, row: ShadowRow, own: list[Entry], client: str) -> list[bytes]:
        """A row that the page touches."""
        if self._has(table, row):
            return [entry.encoded for entry in own] if self._always_had(table, row) else _whole(table, row_id, row)
        had = self._ever_had(table, row)
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
            has = self._has(table, row)
            if self._always_had(table, row) if has else not self._ever_had(table, row):
                continue
            count += 1
            if count > MOVED_MAX:
                raise Invalid("the rules changed too much to go on from here", reason="cursor_expired")
            encoded += _whole(table, row_id, row) if has else [self._evict(table, row_id, row)]
        return encoded

    def _has(self, table: str, row: ShadowRow) -> bool:
        return _sees(self._views[-1][1], table, row.seen[-1])

    def _ever_had(self, table: str, row: ShadowRow) -> bool:
        """Whether it was in view at any moment since the cursor. Of others the client is not even told the key."""
        ends = [*(began - 1 for began, _ in self._views[1:]), None]
        return any(
            _sees(view, table, seen)
            for (began, view), end in zip(self._views, ends, strict=True)
            for seen in row.during(began, end)
        )

    def _always_had(self, table: str, row: ShadowRow) -> bool:
        """Whether nothing that happened since the cursor hid it. Every view is asked of every state, as the checkpoint
        that a client began with was judged by rules that are newer than it."""
        return all(_sees(view, table, seen) for seen in row.during(self._since) for _, view in self._views)

    def _evict(self, table: str, row_id: str, row: ShadowRow) -> bytes:
        if self._evicts:
            return encode_delta(RowDelta(op=Op.EVICT, table=table, row_id=row_id))
        # A client that knows no better: the delete is as new as the newest of what it may have.
        stamps = [cell.stamp for cell in row.row.cells.values()]
        stamp = max([*stamps, *([row.row.tombstone] if row.row.tombstone else [])])
        return encode_delta(RowDelta(op=Op.DELETE, table=table, row_id=row_id, hlc=stamp.hlc, client_id=stamp.source))


def sees_at(shadow: Shadow, view: View, position: LogPosition, table: str, row_id: str) -> bool:
    """Whether a row is in a view at a position."""
    row = shadow.find(table, row_id)
    return row is not None and _sees(view, table, row.at(position))


def _sees(view: View, table: str, seen: Seen) -> bool:
    return seen is not None and view.sees(table, seen)


def _whole(table: str, row_id: str, row: ShadowRow) -> list[bytes]:
    return [encode_delta(delta) for delta in deltas_of_row(table, row_id, row.row)]
