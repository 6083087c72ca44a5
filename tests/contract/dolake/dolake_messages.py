"""Messages as DoLake's reference has them, and the server that they are sent to."""

import itertools
from typing import Any

from mainstem.admission import RateSettings
from mainstem.app.config import Config, PipelineConfig, ServerConfig

ALONE = Config(
    server=ServerConfig(port=0),
    pipeline=PipelineConfig(enabled=False),
    # The tests come more quickly than producers do; the bound itself has a row of its own.
    limits=RateSettings(connections_per_s=10_000, connections_per_subnet=10_000),
)
_numbers = itertools.count(1)
_hosts = itertools.count(1)
_numbers = itertools.count(1)
_hosts = itertools.count(1)


def a_number() -> int:
    """None comes twice."""
    return next(_numbers)


def a_source() -> str:
    return f"source-{a_number()}"


def an_address() -> str:
    """Somewhere outside of the exempt ranges, each in a subnet of its own."""
    number = next(_hosts)
    return f"198.{number // 256}.{number % 256}.7"


def event(**changed: Any) -> dict[str, Any]:
    """As the reference has it, with every field that it requires."""
    whole = {"sequence": 1, "timestamp": 1704067200000, "operation": "INSERT", "table": "users", "rowId": "user-123"}
    return whole | {"after": {"id": "user-123", "name": "Alice"}} | changed


def batch(source: str, number: int = 1, events: list[Any] | None = None, **changed: Any) -> dict[str, Any]:
    """As the reference has it, with every field that it requires."""
    events = [event()] if events is None else events
    sequences = [each.get("sequence") if isinstance(each, dict) else None for each in events] or [None]
    first, last = (each if type(each) is int and 0 <= each < 2**63 else 1 for each in (sequences[0], sequences[-1]))
    return {
        "type": "cdc_batch",
        "timestamp": 1704067200000,
        "sourceDoId": source,
        "events": events,
        "sequenceNumber": number,
        "firstEventSequence": first,
        "lastEventSequence": last,
        "sizeBytes": 256,
        "isRetry": False,
        "retryCount": 0,
    } | changed


def without(message: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}
