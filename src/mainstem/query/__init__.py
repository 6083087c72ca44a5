"""Queries over the lake. The document queries of `mainstem.documents` are had from here by their usual name.

Those are loaded when they are asked for: the gateway imports this package, and starts without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainstem.documents import *  # noqa: F403 — every name that the package has, for type checkers


def __getattr__(name: str) -> Any:
    documents = import_module("mainstem.documents") if not name.startswith("__") else None
    if documents is not None and name in documents.__all__:
        return getattr(documents, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
