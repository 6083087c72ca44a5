"""The Kafka door's table of APIs without what stands behind it."""

from typing import Any

from mainstem.doors.kafka import (
    administering,
    authenticating,
    cluster,
    committing,
    fetching,
    group_tools,
    grouping,
    joining,
    producing,
    transacting,
)
from mainstem.doors.kafka.dispatch import Table


def filled_table() -> Table:
    """As `app.kafka` fills it; `tests/compat` compares it with a server's. Broker 1 of cluster `c`; what needs
    topics or a log cannot be asked here."""
    table = Table()
    nothing: Any = None
    cluster.register(table, cluster.Cluster("c", 1, "localhost", 9092, nothing, nothing))
    fetching.register(table, nothing)
    administering.register(table, nothing)
    producing.register(table, nothing, nothing)
    joining.register(table, nothing, nothing)
    for each in (grouping, committing, group_tools, transacting, authenticating):
        each.register(table, nothing)
    return table
