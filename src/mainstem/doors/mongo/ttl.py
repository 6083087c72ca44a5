"""TTL indexes really delete: documents whose date is past, once a minute."""

import datetime as dt
from typing import Any

from bson.datetime_ms import DatetimeMS

from mainstem.documents import matcher, parse_filter
from mainstem.doors.mongo.cursors import every
from mainstem.feeds.documents.indexes import Index
from mainstem.feeds.documents.service import Documents
from mainstem.feeds.documents.state import Collection
from mainstem.feeds.documents.writing import Unit


async def delete_expired(documents: Documents) -> int:
    """Delete what every TTL index says is expired; how many documents that were."""
    deleted = 0
    for collection in list(documents.state.collections.values()):
        for entries in list(collection.indexes):
            if entries.index.expire_after_s is not None:
                deleted += await _delete(documents, collection, entries.index, entries.index.expire_after_s)
    return deleted


async def _delete(documents: Documents, collection: Collection, index: Index, after_s: int) -> int:
    before_ms = documents.clock.now_ms() - after_s * 1000
    filter: dict[str, Any] = {index.fields[0].name: {"$lt": _date(before_ms), "$type": "date"}}
    if index.partial is not None:
        filter = {"$and": [filter, dict(index.partial)]}
    node = parse_filter(filter)
    passes = matcher(node)
    unit = Unit(documents.writer)
    deleted = 0
    try:
        async for found in every(unit.view.find(collection, node)):
            gone = await unit.attempt(lambda found=found: unit.remove(collection, found, passes))  # type: ignore[misc]
            deleted += gone is not None
            if unit.draft.is_full:
                await unit.flush()
        await unit.flush()
    finally:
        # What it holds would be held for ever.
        unit.give_up()
    return deleted


def _date(milliseconds: int) -> Any:
    return DatetimeMS(milliseconds).as_datetime().replace(tzinfo=None) if milliseconds > 0 else dt.datetime(1970, 1, 1)
