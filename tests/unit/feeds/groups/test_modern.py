"""The newer protocol: epochs, targets, and partitions that are never two members' at once."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.feeds.groups.assignors import ASSIGNORS, Subscribed
from mainstem.feeds.groups.matching import REGEX_CHARS_MAX, match
from mainstem.feeds.groups.modern import ModernGroup
from mainstem.feeds.groups.modern_values import Beat, GroupState, MemberState, Told, Topic
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.settings import GroupSettings

TOPICS = {"a": Topic("id-a", 4), "b": Topic("id-b", 3)}


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.topics = dict(TOPICS)
        self.group = ModernGroup("g", GroupSettings())

    def beat(self, member_id: str, epoch: int, **fields: object) -> Told:
        beat = Beat(member_id=member_id, epoch=epoch, **fields)  # type: ignore[arg-type]
        return self.group.beat(beat, self.topics, {}, self.now_s)

    def join(self, member_id: str, *topics: str, instance_id: str | None = None) -> Told:
        return self.beat(
            member_id, 0, topics=topics or ("a",), rebalance_timeout_ms=5000, owned=frozenset(), instance_id=instance_id
        )


def test_one_member_has_everything_at_once() -> None:
    told = World().join("m1", "a", "b")
    assert told.assignment is not None
    assert (len(told.assignment), told.epoch) == (7, 1)


def test_a_partition_moves_only_after_it_was_given_up() -> None:
    world = World()
    all_of_a = world.join("m1").assignment
    assert all_of_a is not None
    second = world.join("m2")
    assert second.assignment == frozenset(), "the first still has them all"
    assert second.epoch == 2
    told = world.beat("m1", 1)
    assert (told.epoch, told.assignment is not None and len(told.assignment)) == (1, 2)
    assert world.group.members["m1"].state is MemberState.REVOKING
    assert world.beat("m2", 2).assignment is None
    # It says that it has only what it was left.
    told = world.beat("m1", 1, owned=told.assignment)
    assert told.epoch == 2
    told = world.beat("m2", 2)
    assert told.assignment is not None
    assert len(told.assignment) == 2
    assert world.group.state is GroupState.STABLE


def test_who_does_not_give_up_in_time_is_out() -> None:
    world = World()
    first = world.join("m1").assignment
    world.join("m2")
    world.beat("m1", 1, owned=first)
    world.now_s = 5.0
    world.beat("m2", 2)
    world.group.tick(world.topics, {}, world.now_s)
    assert list(world.group.members) == ["m2"]
    with pytest.raises(Refused) as caught:
        world.beat("m1", 1)
    assert caught.value.reason is Reason.UNKNOWN_MEMBER
    assert len(world.beat("m2", 2).assignment or ()) == 4


def test_a_lost_answer_is_given_again_and_an_old_epoch_is_fenced() -> None:
    world = World()
    world.join("m1")
    world.join("m2")
    left = world.beat("m1", 1).assignment
    world.beat("m1", 1, owned=left)
    assert world.beat("m1", 1, owned=left).epoch == 2
    world.join("m3")
    for epoch, owned in ((7, None), (1, None), (1, frozenset({("id-a", 9)}))):
        with pytest.raises(Refused) as caught:
            world.beat("m1", epoch, owned=owned)
        assert caught.value.reason is Reason.FENCED_EPOCH


def test_topics_that_grow_bring_a_new_epoch() -> None:
    world = World()
    world.join("m1")
    world.topics["a"] = Topic("id-a", 6)
    told = world.beat("m1", 1)
    assert (told.epoch, len(told.assignment or ())) == (2, 6)


def test_a_static_member_that_comes_back_takes_its_partitions_over() -> None:
    world = World()
    first = world.join("m1", instance_id="i1").assignment
    world.join("m2", instance_id="i2")
    with pytest.raises(Refused) as caught:
        world.join("m3", instance_id="i1")
    assert caught.value.reason is Reason.UNRELEASED_INSTANCE
    kept = world.beat("m1", 1).assignment
    world.beat("m1", 1, owned=kept)
    world.beat("m1", -2, instance_id="i1")
    assert "m1" in world.group.members
    assert first is not None
    told = world.join("m3", instance_id="i1")
    assert told.assignment == kept
    assert set(world.group.members) == {"m2", "m3"}


def test_commits_are_judged_by_the_epoch() -> None:
    world = World()
    world.group.check_commit("", -1, 0, is_new_enough=True)
    world.join("m1")
    world.group.check_commit("m1", 1, 0, is_new_enough=True)
    for member, epoch, new, reason in (
        ("m1", 0, True, Reason.STALE_EPOCH),
        ("m2", 1, True, Reason.UNKNOWN_MEMBER),
        ("m1", 1, False, Reason.UNSUPPORTED_VERSION),
        ("", -1, True, Reason.UNKNOWN_MEMBER),
    ):
        with pytest.raises(Refused) as caught:
            world.group.check_commit(member, epoch, 0, is_new_enough=new)
        assert caught.value.reason is reason


def test_what_a_join_must_not_be() -> None:
    world = World()
    for fields in (
        {"rebalance_timeout_ms": 1},
        {"topics": ("a",)},
        {"topics": ("a",), "rebalance_timeout_ms": 1, "owned": frozenset({("id-a", 0)})},
    ):
        with pytest.raises(Refused) as caught:
            world.beat("m1", 0, **fields)
        assert caught.value.reason is Reason.INVALID_REQUEST
    with pytest.raises(Refused) as caught:
        world.beat("m1", 0, topics=("a",), rebalance_timeout_ms=1, assignor="nonsense")
    assert caught.value.reason is Reason.UNSUPPORTED_ASSIGNOR


def test_members_are_bounded() -> None:
    world = World()
    world.group = ModernGroup("g", GroupSettings(members_max=1))
    world.join("m1")
    with pytest.raises(Refused) as caught:
        world.join("m2")
    assert caught.value.reason is Reason.GROUP_FULL


def test_a_restored_group_goes_on_where_it_was() -> None:
    world = World()
    world.join("m1", instance_id="i1")
    world.join("m2")
    world.beat("m1", 1)
    again = ModernGroup("g", GroupSettings())
    for entry in world.group.whole():
        again.restore(entry, 0.0)  # type: ignore[arg-type]
    assert again.whole() == world.group.whole()
    assert again.state is world.group.state


@pytest.mark.parametrize("seed", range(30))
def test_no_partition_is_ever_two_members(seed: int) -> None:
    rng = Random(seed)
    world = World()
    # What each consumer has in its hands, its epoch, and what it was told to have.
    holds: dict[str, frozenset[tuple[str, int]]] = {}
    epochs: dict[str, int] = {}
    told_all: dict[str, frozenset[tuple[str, int]]] = {}

    def hear(name: str, told: Told) -> None:
        epochs[name] = told.epoch
        if told.assignment is not None:
            told_all[name] = told.assignment
            # It lets go at once or with its next turn; what is new it takes at once.
            holds[name] = holds[name] | told.assignment
        taken = [each for owned in holds.values() for each in owned]
        assert len(taken) == len(set(taken)), seed

    def turn(name: str) -> None:
        holds[name] &= told_all[name]
        hear(name, world.beat(name, epochs[name], owned=holds[name]))

    for number in range(300):
        world.now_s += 0.2
        roll = rng.random()
        if roll < 0.06 and len(holds) < 9:
            name = f"m{number}"
            holds[name], told_all[name] = frozenset(), frozenset()
            hear(name, world.join(name, *rng.sample(("a", "b"), rng.randint(1, 2))))
        elif roll < 0.09 and len(holds) > 1:
            name = rng.choice(list(holds))
            world.beat(name, -1)
            del holds[name], epochs[name], told_all[name]
        elif roll < 0.11:
            topic = rng.choice(("a", "b"))
            world.topics[topic] = Topic(f"id-{topic}", world.topics[topic].partitions + 1)
        elif holds:
            turn(rng.choice(list(holds)))
    for _ in range(20):
        for name in list(holds):
            turn(name)
    if holds:
        assert world.group.state is GroupState.STABLE, seed
        for name, member in world.group.members.items():
            assert holds[name] == member.assigned == world.group.target[name]
        wanted = {topic for member in world.group.members.values() for topic in member.topics}
        assert sum(map(len, holds.values())) == sum(world.topics[topic].partitions for topic in wanted)


subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(8)]),
    st.frozensets(st.sampled_from(["a", "b", "c"]), min_size=1).map(Subscribed),
    max_size=8,
)
counts = st.fixed_dictionaries({name: st.integers(1, 12) for name in "abc"})


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(members=subscriptions, later=subscriptions, topics=counts)
def test_assignors_give_everything_to_somebody_once(
    name: str, members: dict[str, Subscribed], later: dict[str, Subscribed], topics: dict[str, int]
) -> None:
    assign = ASSIGNORS[name].assign
    first = assign(members, topics, {})
    for wants, given_out in ((members, first), (later, assign(later, topics, first))):
        every = [each for owned in given_out.values() for each in owned]
        assert len(every) == len(set(every))
        assert set(every) == {
            (topic, index)
            for topic, count in topics.items()
            if any(topic in member.topics for member in wants.values())
            for index in range(count)
        }
        assert all(topic in wants[who].topics for who, owned in given_out.items() for topic, _ in owned)


@given(st.integers(1, 8), st.integers(1, 30))
def test_uniform_is_even_and_stays_put(members: int, partitions: int) -> None:
    wants = {f"m{n}": Subscribed(frozenset("a")) for n in range(members)}
    first = ASSIGNORS["uniform"].assign(wants, {"a": partitions}, {})
    sizes = [len(owned) for owned in first.values()]
    assert max(sizes) - min(sizes) <= 1
    assert ASSIGNORS["uniform"].assign(wants, {"a": partitions}, first) == first
    one_more = ASSIGNORS["uniform"].assign({**wants, "new": Subscribed(frozenset("a"))}, {"a": partitions}, first)
    moved = sum(len(first[name] - one_more[name]) for name in first)
    assert moved == len(one_more["new"]), "only what the new one gets has moved"


def test_expressions_are_whole_bounded_and_never_slow() -> None:
    names = {name: Topic(name, 1) for name in ("orders", "orders2", "x" * 200)}
    assert match("orders", names) == {"orders"}
    assert match("ord.*", names) == {"orders", "orders2"}
    assert match("(x+)+y", names) == frozenset()
    for bad in ("(", "a" * (REGEX_CHARS_MAX + 1)):
        with pytest.raises(Refused) as caught:
            match(bad, names)
        assert caught.value.reason is Reason.INVALID_REGEX
