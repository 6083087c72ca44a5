"""Names of sources: whose they are. Two batches with one source and sequence are one to dedup, so no user
may use up the numbers of another's source.
"""

import hashlib
from collections.abc import Sequence

from mainstem.admission.keyed import KEYED_SOURCES

# Doors that make up their own begin them like this.
RESERVED_SOURCES = ("kafka/", "mongo/", "dead-letters/", *KEYED_SOURCES)


def own_sources(namespaces: Sequence[str] | None, tables: Sequence[str] | None) -> str:
    """How the sources of somebody bound to these begin; empty for who is bound to nothing."""
    if namespaces is None and tables is None:
        return ""
    whose = "*" if namespaces is None else "+".join(namespaces)
    if tables is not None:
        whose += f":{hashlib.blake2b(repr(sorted(tables)).encode(), digest_size=4).hexdigest()}"
    # A namespace may be called as a door is.
    return f"+{whose}/" if f"{whose}/" in RESERVED_SOURCES else f"{whose}/"
