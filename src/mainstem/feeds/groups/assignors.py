"""Which member gets which partitions, decided here and not by a member. Pure functions of what is subscribed to.

uniform  as many for each member as for any other, whatever topic they are of, and as few moves as that allows
range    a run of each topic's partitions for each of its members, the same run of every topic that they share
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

MemberId = str
Partition = tuple[str, int]
Assignment = frozenset[Partition]


class Subscribed(msgspec.Struct, frozen=True, gc=False):
    """A member as an assignor sees it: the ids of its topics, and its instance if it has one."""

    topics: frozenset[str]
    instance_id: str | None = None


Members = Mapping[MemberId, Subscribed]
# Partitions by the topic's id.
Topics = Mapping[str, int]
Assignor = Callable[[Members, Topics, Mapping[MemberId, Assignment]], dict[MemberId, Assignment]]


def uniform(members: Members, topics: Topics, before: Mapping[MemberId, Assignment]) -> dict[MemberId, Assignment]:
    """Even and sticky. What a member had it keeps, up to its share; what is left goes to the member with the fewest."""
    all_partitions = [
        (topic, partition)
        for topic in sorted(topics)
        if any(topic in member.topics for member in members.values())
        for partition in range(topics[topic])
    ]
    order = sorted(members, key=lambda name: (members[name].instance_id or name, name))
    held: dict[MemberId, set[Partition]] = {name: set() for name in order}
    taken: set[Partition] = set()
    known = set(all_partitions)
    quotas = _quotas(order, members, all_partitions, before)
    for name in order:
        for each in sorted(before.get(name, ())):
            is_good = each in known and each not in taken and each[0] in members[name].topics
            if is_good and len(held[name]) < quotas[name]:
                held[name].add(each)
                taken.add(each)
    for each in all_partitions:
        if each not in taken:
            to = min((name for name in order if each[0] in members[name].topics), key=lambda name: len(held[name]))
            held[to].add(each)
    _level(order, members, held)
    return {name: frozenset(each) for name, each in held.items()}


def _quotas(
    order: list[MemberId], members: Members, partitions: list[Partition], before: Mapping[MemberId, Assignment]
) -> dict[MemberId, int]:
    """The most that each may keep: its even share, where members that had more are among those with one more."""
    if not order:
        return {}
    share, more = divmod(len(partitions), len(order))
    longest_first = sorted(order, key=lambda name: -len(before.get(name, ())))
    return {name: share + (1 if index < more else 0) for index, name in enumerate(longest_first)}


def _level(order: list[MemberId], members: Members, held: dict[MemberId, set[Partition]]) -> None:
    """Move partitions from the member with the most to one that may have them and has at least two fewer."""
    # Each move makes the sum of squares smaller, so this ends.
    moved = True
    while moved:
        moved = False
        for rich in sorted(order, key=lambda name: -len(held[name])):
            for poor in sorted(order, key=lambda name: len(held[name])):
                if len(held[rich]) - len(held[poor]) < 2:
                    break
                one = next((each for each in sorted(held[rich]) if each[0] in members[poor].topics), None)
                if one is not None:
                    held[rich].remove(one)
                    held[poor].add(one)
                    moved = True
                    break
            if moved:
                break


def by_range(members: Members, topics: Topics, before: Mapping[MemberId, Assignment]) -> dict[MemberId, Assignment]:
    """Runs of partitions, in the order of the members' names: topics that are partitioned alike come together."""
    held: dict[MemberId, set[Partition]] = {name: set() for name in members}
    order = sorted(members, key=lambda name: (members[name].instance_id or name, name))
    for topic in sorted(topics):
        those = [name for name in order if topic in members[name].topics]
        if not those:
            continue
        share, more = divmod(topics[topic], len(those))
        first = 0
        for index, name in enumerate(those):
            count = share + (1 if index < more else 0)
            held[name].update((topic, partition) for partition in range(first, first + count))
            first += count
    return {name: frozenset(each) for name, each in held.items()}


class Named(NamedTuple):
    """An assignor and what clients ask for it by."""

    name: str
    assign: Assignor


ASSIGNORS = {each.name: each for each in (Named("uniform", uniform), Named("range", by_range))}
DEFAULT = "uniform"
