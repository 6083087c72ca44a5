"""The text by which a row is known: one rule for every door whose rows have key columns.

A key of one column is its value: a text as it is, anything else as JSON. A key of several columns is a JSON object of
them, in the order of their names, without spaces: `{"line":2,"order":"o1"}`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


def key_text(identity: Any) -> str:
    """The key of a row, of its key columns by name, or of a key that is one value already."""
    if isinstance(identity, Mapping) and len(identity) == 1:
        identity = next(iter(identity.values()))
    if isinstance(identity, str):
        return identity
    return msgspec.json.encode(identity, order="sorted").decode()
