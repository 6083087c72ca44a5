"""Debezium's events as CloudEvents: an envelope in which what it says of itself and of its source are attributes.

    {"specversion": "1.0", "iodebeziumop": "u", "iodebeziumtable": "orders", "iodebeziumlsn": "29274832", …,
     "data": {"before": null, "after": {…}}}

An attribute's name is a field's without all but letters and digits, and 64 bits are written as text.
"""

import re
from collections.abc import Mapping
from typing import Any

PREFIX = "iodebezium"
_OP = f"{PREFIX}op"
# Fields of sources whose names an attribute's does not tell.
_FIELDS = (
    *("ts_ms", "ts_us", "ts_ns", "txId"),
    # MySQL, SQL Server, Oracle, MongoDB.
    *("server_id", "change_lsn", "commit_lsn", "event_serial_no"),
    *("commit_scn", "lcr_position", "rs_id", "redo_thread", "user_name", "row_id", "start_scn", "start_ts_ms"),
    *("resume_token", "txnNumber", "wallTime"),
)
_NAMES = {re.sub("[^a-z0-9]", "", name.lower()): name for name in _FIELDS}
# Of the transaction, beside the source's own fields.
_ORDER = {"txtotalorder": "total_order", "txdatacollectionorder": "data_collection_order"}
# What an envelope has as numbers.
_NUMBERS = frozenset(
    [
        *("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "server_id", "pos", "row", "thread", "event_serial_no"),
        *("ssn", "redo_thread", "start_ts_ms", "ord", "txnNumber", "wallTime", *_ORDER.values()),
    ]
)
_WHOLE = re.compile(r"-?[0-9]{1,19}")


def is_cloud_event(value: Any) -> bool:
    """Whether this is a CloudEvent, whoever made it."""
    return isinstance(value, dict) and "specversion" in value and "data" in value


def envelope_of(event: Mapping[str, Any], data: Any) -> Any:
    """The envelope of which a CloudEvent was made; what it carries as it is, where that says everything itself."""
    op = event.get(_OP)
    if not isinstance(op, str) or not isinstance(data, dict) or "op" in data:
        return data
    if data and not data.keys() & {"before", "after"}:
        return data
    attributes = {name.removeprefix(PREFIX).lower(): value for name, value in event.items() if name.startswith(PREFIX)}
    del attributes["op"]
    order = {full: _value(full, attributes.pop(short)) for short, full in _ORDER.items() if short in attributes}
    names = {short: _NAMES.get(short, short) for short in attributes}
    source = {names[short]: _value(names[short], value) for short, value in attributes.items()}
    envelope = {"before": None, "after": None, **data, "op": op, "source": source}
    if any(value is not None for value in order.values()):
        envelope["transaction"] = {"id": source.get("txId"), **order}
    return envelope


def _value(name: str, value: Any) -> Any:
    return int(value) if name in _NUMBERS and isinstance(value, str) and _WHOLE.fullmatch(value) else value
