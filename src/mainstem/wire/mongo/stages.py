"""An order to run a pipeline's stages over the documents in a table's rows, which the gateway sends with a query.

Stages are BSON, as the client sent them: an Int64 stays one, and a date is a date.
"""

import base64
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from mainstem.wire.mongo.frames import decode_document, encode_document


class StagesOrder(NamedTuple):
    """`scope`: the values of variables. `without`: keys of rows that are not to be read, for the table has them as they
    were before."""

    stages: Sequence[Mapping[str, Any]]
    scope: Mapping[str, Any]
    without: Collection[str]


def encode_stages(order: StagesOrder) -> str:
    """An order as text."""
    fields = {"stages": list(order.stages), "scope": dict(order.scope), "without": sorted(order.without)}
    return base64.b64encode(encode_document(fields)).decode()


def decode_stages(text: str) -> StagesOrder:
    """The order of a text."""
    fields = decode_document(base64.b64decode(text))
    return StagesOrder(fields["stages"], fields["scope"], frozenset(fields["without"]))
