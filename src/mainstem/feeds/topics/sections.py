"""The coordinators' state beside the topics': made before the log is opened, and told of everything in it."""

from typing import NamedTuple

from mainstem.feeds.groups.section import GroupsSection
from mainstem.feeds.topics.state import TopicsState
from mainstem.feeds.transactions.section import TransactionsSection


class Sections(NamedTuple):
    """What the log's companion keeps for the coordinators. Made before the log is opened."""

    groups: GroupsSection
    transactions: TransactionsSection


def register_sections(state: TopicsState) -> Sections:
    """Keep the coordinators' state beside that of the topics."""
    sections = Sections(GroupsSection(), TransactionsSection())
    state.register(sections.groups)
    state.register_of_records(sections.transactions)
    return sections
