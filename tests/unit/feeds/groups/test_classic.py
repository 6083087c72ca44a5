"""The classic protocol: every state and event, what members are promised, and many members at once."""

from collections.abc import Callable
from random import Random

import pytest

from mainstem.feeds.groups.classic import ClassicGroup
from mainstem.feeds.groups.classic_values import Join, Joined, Protocol, State, Synced
from mainstem.feeds.groups.reasons import Reason, Refused
from mainstem.feeds.groups.settings import GroupSettings

SESSION_MS, REBALANCE_MS = 10_000, 30_000


def asked(
    member_id: str = "",
    *,
    instance_id: str | None = None,
    metadata: bytes = b"m",
    names: tuple[str, ...] = ("range",),
    kind: str = "consumer",
    can_skip: bool = False,
    knows_member_ids: bool = True,
) -> Join:
    return Join(
        member_id=member_id,
        instance_id=instance_id,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type=kind,
        protocols=tuple(Protocol(name, metadata) for name in names),
        client_id="c",
        knows_member_ids=knows_member_ids,
        can_skip=can_skip,
    )


class World:
    """A group, its time, and the answers that came, by ticket."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.now_s = 0.0
        self._ids = 0
        self._tickets = 0
        self.group = ClassicGroup("g", settings or GroupSettings(rebalance_delay_ms=0), self._new_id)
        self.answers: dict[int, Joined | Synced | Refused] = {}

    def _new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}-{self._ids}"

    def ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def drain(self) -> None:
        for answer in self.group.answers:
            assert answer.ticket not in self.answers, "a request was answered twice"
            assert isinstance(answer.ticket, int)
            self.answers[answer.ticket] = answer.said
        self.group.answers = []

    def join(self, join: Join) -> int:
        ticket = self.ticket()
        try:
            self.group.join(join, ticket, self.now_s)
        finally:
            self.drain()
        return ticket

    def enter(self, **options: object) -> tuple[str, int]:
        """Join as somebody new, with the id that is handed out; the id and the ticket."""
        join = asked(**options)  # type: ignore[arg-type]
        try:
            ticket = self.join(join)
            return list(self.group.members)[-1], ticket
        except Refused as refused:
            assert refused.reason is Reason.MEMBER_ID_REQUIRED
            member_id = str(refused)
        return member_id, self.join(asked(member_id, **options))  # type: ignore[arg-type]

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, instance: str | None = None) -> int:
        ticket = self.ticket()
        try:
            pairs = list((assignments or {}).items())
            self.group.sync(member_id, self.group.generation, instance, pairs, ticket, self.now_s)
        finally:
            self.drain()
        return ticket

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.group.tick(self.now_s)
        self.drain()

    def stable(self, count: int = 2) -> list[str]:
        """Bring a group of so many members to work."""
        ids = []
        for _ in range(count):
            member_id, _ = self.enter()
            ids.append(member_id)
            for other in ids[:-1]:
                if self.group.state is State.PREPARING_REBALANCE and self.group.members[other].join is None:
                    self.join(asked(other))
        assert self.group.state is State.COMPLETING_REBALANCE
        for member_id in ids:
            self.sync(member_id, {each: each.encode() for each in ids} if member_id == self.group.leader else None)
        assert str(self.group.state) == State.STABLE
        return ids


def test_a_first_join_is_answered_with_an_id_to_join_with() -> None:
    world = World()
    with pytest.raises(Refused) as caught:
        world.join(asked())
    assert caught.value.reason is Reason.MEMBER_ID_REQUIRED
    assert not world.group.members
    ticket = world.join(asked(str(caught.value)))
    said = world.answers[ticket]
    assert isinstance(said, Joined)
    assert (said.generation, said.leader, len(said.members)) == (1, said.member_id, 1)


def test_an_id_that_nobody_comes_back_with_does_not_hold_the_others_for_ever() -> None:
    world = World()
    with pytest.raises(Refused):
        world.join(asked())
    _, ticket = world.enter()
    assert ticket not in world.answers
    world.pass_time(SESSION_MS / 1000)
    assert isinstance(world.answers[ticket], Joined)


def test_members_learn_of_each_other_and_of_their_assignment() -> None:
    world = World()
    one, two = world.stable()
    assert world.group.generation == 2
    ticket = world.sync(two)
    said = world.answers[ticket]
    assert isinstance(said, Synced)
    assert said.assignment == two.encode()
    assert len(world.group.entries[-1].members) == 2  # type: ignore[union-attr]
    assert one != two


def test_a_new_group_waits_a_little_for_more_members() -> None:
    world = World(GroupSettings(rebalance_delay_ms=3000))
    _, first = world.enter()
    world.pass_time(2)
    _, second = world.enter()
    world.pass_time(2)
    assert not world.answers
    world.pass_time(1)
    assert {world.answers[first].generation, world.answers[second].generation} == {1}  # type: ignore[union-attr]


def test_a_member_that_is_not_heard_of_is_lost_and_the_others_rebalance() -> None:
    world = World()
    one, two = world.stable()
    world.pass_time(SESSION_MS / 1000 - 1)
    world.group.heartbeat(two, 2, None, world.now_s)
    world.pass_time(1.5)
    assert list(world.group.members) == [two]
    assert world.group.state is State.PREPARING_REBALANCE
    with pytest.raises(Refused) as caught:
        world.group.heartbeat(two, 2, None, world.now_s)
    assert caught.value.reason is Reason.REBALANCING
    with pytest.raises(Refused) as caught:
        world.group.heartbeat(one, 2, None, world.now_s)
    assert caught.value.reason is Reason.UNKNOWN_MEMBER


def test_who_does_not_join_again_in_time_is_out() -> None:
    world = World()
    one, two = world.stable()
    ticket = world.join(asked(one, metadata=b"other"))
    for _ in range(4):
        world.pass_time(REBALANCE_MS / 4000)
        if two in world.group.members:
            with pytest.raises(Refused):
                world.group.heartbeat(two, world.group.generation, None, world.now_s)
    said = world.answers[ticket]
    assert isinstance(said, Joined)
    assert [each.member_id for each in said.members] == [one]
    assert two not in world.group.members


def test_the_leader_that_goes_silent_in_its_turn_is_replaced() -> None:
    world = World()
    one, _ = world.enter()
    two, _ = world.enter()
    world.join(asked(one))
    waiting = world.sync(two)
    assert waiting not in world.answers
    world.pass_time(SESSION_MS / 1000)
    refused = world.answers[waiting]
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.REBALANCING
    ticket = world.join(asked(two))
    said = world.answers[ticket]
    assert isinstance(said, Joined)
    assert said.leader == two


def test_a_follower_whose_answer_was_lost_is_told_again_without_a_rebalance() -> None:
    world = World()
    _, two = world.stable()
    said = world.answers[world.join(asked(two))]
    assert isinstance(said, Joined)
    assert said.generation == 2
    assert world.group.state is State.STABLE


def test_the_protocol_is_one_that_all_know_and_most_like() -> None:
    world = World()
    world.enter(names=("a", "b"))
    world.enter(names=("b", "c"))
    first = next(iter(world.group.members))
    ticket = world.join(asked(first, names=("a", "b")))
    assert world.answers[ticket].protocol == "b"  # type: ignore[union-attr]
    for join in (asked(names=("c",)), asked(kind="connect"), asked(names=())):
        with pytest.raises(Refused) as caught:
            world.join(join)
        assert caught.value.reason is Reason.INCONSISTENT_PROTOCOL


# Static members


def static_world() -> tuple[World, str, str]:
    world = World()
    world.join(asked(instance_id="i1"))
    world.join(asked(instance_id="i2"))
    one, two = world.group.members
    world.join(asked(one, instance_id="i1"))
    world.sync(one, {one: b"1", two: b"2"}, "i1")
    world.sync(two, instance="i2")
    assert world.group.state is State.STABLE
    return world, one, two


def test_an_instance_that_starts_again_takes_its_assignment_back_without_a_rebalance() -> None:
    world, one, two = static_world()
    said = world.answers[world.join(asked(instance_id="i2"))]
    assert isinstance(said, Joined)
    assert (said.generation, said.member_id != two, world.group.state) == (2, True, State.STABLE)
    synced = world.answers[world.sync(said.member_id, instance="i2")]
    assert isinstance(synced, Synced)
    assert synced.assignment == b"2"
    for call in (
        lambda: world.group.heartbeat(two, 2, "i2", 0),
        lambda: world.group.check_commit(two, 2, "i2", 0),
        lambda: world.sync(two, instance="i2"),
        lambda: world.join(asked(two, instance_id="i2")),
        lambda: world.group.leave(two, "i2", 0),
    ):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value.reason is Reason.FENCED_INSTANCE
    assert one in world.group.members


@pytest.mark.parametrize("can_skip", [True, False])
def test_an_instance_that_was_the_leader_does_not_assign_anew(can_skip: bool) -> None:
    world, one, _ = static_world()
    said = world.answers[world.join(asked(instance_id="i1", can_skip=can_skip))]
    assert isinstance(said, Joined)
    assert said.skips_assignment is can_skip
    if can_skip:
        assert (said.leader, len(said.members)) == (said.member_id, 2)
    else:
        assert (said.leader, said.members) == (one, ())
    assert world.group.state is State.STABLE


def test_an_instance_that_wants_something_else_makes_a_rebalance() -> None:
    world, _, _ = static_world()
    world.join(asked(instance_id="i2", metadata=b"new topics"))
    assert world.group.state is State.PREPARING_REBALANCE


def test_an_instance_leaves_by_its_name() -> None:
    world, one, two = static_world()
    assert world.group.leave("", "i2", 0) == two
    with pytest.raises(Refused) as caught:
        world.group.leave("", "i3", 0)
    assert caught.value.reason is Reason.UNKNOWN_MEMBER
    assert list(world.group.members) == [one]


def test_the_old_process_that_waits_is_fenced_when_a_new_one_takes_its_place() -> None:
    world, one, _ = static_world()
    waiting = world.join(asked(one, instance_id="i1", metadata=b"x"))
    world.join(asked(instance_id="i1", metadata=b"x"))
    said = world.answers[waiting]
    assert isinstance(said, Refused)
    assert said.reason is Reason.FENCED_INSTANCE


# Every state and event


def in_state(state: State) -> tuple[World, str]:
    """A group in a state, and a member of it, if it can have one."""
    world = World()
    if state is State.EMPTY:
        return world, "nobody"
    one, two = world.stable()
    if state is State.PREPARING_REBALANCE:
        world.join(asked(one))
        return world, two
    if state is State.COMPLETING_REBALANCE:
        world.join(asked(one))
        world.join(asked(two))
        return world, two
    if state is State.DEAD:
        world.group.die()
    return world, two


EVENTS: dict[str, Callable[[World, str], object]] = {
    "join": lambda world, member: world.join(asked(member)),
    "join_new": lambda world, member: world.join(asked(instance_id="new")),
    "sync": lambda world, member: world.sync(member),
    "heartbeat": lambda world, member: world.group.heartbeat(member, world.group.generation, None, world.now_s),
    "leave": lambda world, member: world.group.leave(member, None, world.now_s),
    "commit": lambda world, member: world.group.check_commit(member, world.group.generation, None, world.now_s),
    "stale_commit": lambda world, member: world.group.check_commit(member, 1, None, world.now_s),
    "commit_of_nobody": lambda world, member: world.group.check_commit("", -1, None, world.now_s),
    "time": lambda world, member: world.pass_time(3600),
}

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = State
# (state, event) → the state after it, or why not.
TABLE: dict[tuple[State, str], State | Reason] = {
    (EMPTY, "join"): Reason.UNKNOWN_MEMBER,
    (EMPTY, "join_new"): COMPLETING,
    (EMPTY, "sync"): Reason.UNKNOWN_MEMBER,
    (EMPTY, "heartbeat"): Reason.UNKNOWN_MEMBER,
    (EMPTY, "leave"): Reason.UNKNOWN_MEMBER,
    (EMPTY, "commit"): Reason.UNKNOWN_MEMBER,
    (EMPTY, "stale_commit"): Reason.UNKNOWN_MEMBER,
    (EMPTY, "commit_of_nobody"): EMPTY,
    (EMPTY, "time"): EMPTY,
    (PREPARING, "join"): COMPLETING,
    (PREPARING, "join_new"): PREPARING,
    (PREPARING, "sync"): Reason.REBALANCING,
    (PREPARING, "heartbeat"): Reason.REBALANCING,
    (PREPARING, "leave"): COMPLETING,
    (PREPARING, "commit"): PREPARING,
    (PREPARING, "stale_commit"): Reason.ILLEGAL_GENERATION,
    (PREPARING, "commit_of_nobody"): Reason.UNKNOWN_MEMBER,
    (PREPARING, "time"): COMPLETING,
    (COMPLETING, "join"): COMPLETING,
    (COMPLETING, "join_new"): PREPARING,
    (COMPLETING, "sync"): COMPLETING,
    (COMPLETING, "heartbeat"): COMPLETING,
    (COMPLETING, "leave"): PREPARING,
    (COMPLETING, "commit"): Reason.REBALANCING,
    (COMPLETING, "stale_commit"): Reason.ILLEGAL_GENERATION,
    (COMPLETING, "commit_of_nobody"): Reason.UNKNOWN_MEMBER,
    (COMPLETING, "time"): EMPTY,
    (STABLE, "join"): STABLE,
    (STABLE, "join_new"): PREPARING,
    (STABLE, "sync"): STABLE,
    (STABLE, "heartbeat"): STABLE,
    (STABLE, "leave"): PREPARING,
    (STABLE, "commit"): STABLE,
    (STABLE, "stale_commit"): Reason.ILLEGAL_GENERATION,
    (STABLE, "commit_of_nobody"): Reason.UNKNOWN_MEMBER,
    (STABLE, "time"): EMPTY,
    (DEAD, "join"): Reason.NOT_AVAILABLE,
    (DEAD, "join_new"): Reason.NOT_AVAILABLE,
    (DEAD, "sync"): Reason.NOT_AVAILABLE,
    (DEAD, "heartbeat"): Reason.NOT_AVAILABLE,
    (DEAD, "leave"): Reason.NOT_AVAILABLE,
    (DEAD, "commit"): Reason.NOT_AVAILABLE,
    (DEAD, "stale_commit"): Reason.NOT_AVAILABLE,
    (DEAD, "commit_of_nobody"): Reason.NOT_AVAILABLE,
    (DEAD, "time"): DEAD,
}


def test_the_table_is_complete() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in EVENTS}


@pytest.mark.parametrize(("state", "event"), list(TABLE), ids=str)
def test_every_state_and_event(state: State, event: str) -> None:
    world, member = in_state(state)
    assert world.group.state is state
    expected = TABLE[state, event]
    if isinstance(expected, State):
        EVENTS[event](world, member)
        world.drain()
        assert world.group.state is expected
        return
    with pytest.raises(Refused) as caught:
        EVENTS[event](world, member)
    assert caught.value.reason is expected


# Bounds


def test_a_group_takes_so_many_members_and_no_more() -> None:
    world = World(GroupSettings(rebalance_delay_ms=0, members_max=2))
    world.stable(2)
    with pytest.raises(Refused) as caught:
        world.join(asked())
    assert caught.value.reason is Reason.GROUP_FULL


def test_a_group_takes_so_much_metadata_and_no_more() -> None:
    world = World(GroupSettings(rebalance_delay_ms=0, metadata_bytes_max=100))
    with pytest.raises(Refused) as caught:
        world.join(asked(metadata=b"x" * 101))
    assert caught.value.reason is Reason.GROUP_FULL


def test_ids_to_join_with_are_bounded() -> None:
    world = World(GroupSettings(members_max=3))
    for _ in range(3):
        with pytest.raises(Refused):
            world.join(asked())
    with pytest.raises(Refused) as caught:
        world.join(asked())
    assert caught.value.reason is Reason.GROUP_FULL


def test_a_restored_group_goes_on_where_it_was() -> None:
    world = World()
    one, two = world.stable()
    again = World()
    again.group.restore(world.group.entry(), 0.0)
    assert again.group.state is State.STABLE
    again.group.heartbeat(one, 2, None, 1)
    again.group.check_commit(two, 2, None, 1)
    said = again.answers[again.sync(two)]
    assert isinstance(said, Synced)
    assert said.assignment == two.encode()


class Client:
    """A well-behaved consumer: joins, syncs, beats, and does what its answers tell it to."""

    def __init__(self, world: World, name: int) -> None:
        self.world = world
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.waiting: int | None = None
        self.doing = "join"
        self.refused: list[Reason] = []

    def step(self) -> None:
        world = self.world
        if self.waiting is not None:
            said = world.answers.get(self.waiting)
            if said is None:
                return
            self.waiting = None
            self.hear(said)
            return
        try:
            if self.doing == "join":
                self.waiting = world.join(asked(self.member_id))
            elif self.doing == "sync":
                members = {each: each.encode() for each in world.group.members}
                assignments = members if self.member_id == self.leader else {}
                ticket = world.ticket()
                world.group.sync(self.member_id, self.generation, None, list(assignments.items()), ticket, world.now_s)
                world.drain()
                self.waiting = ticket
            else:
                world.group.heartbeat(self.member_id, self.generation, None, world.now_s)
        except Refused as refused:
            self.hear(refused)

    def hear(self, said: Joined | Synced | Refused) -> None:
        if isinstance(said, Joined):
            self.member_id, self.generation, self.leader = said.member_id, said.generation, said.leader
            self.doing = "sync"
        elif isinstance(said, Synced):
            self.doing = "work"
            assert said.assignment == self.member_id.encode()
        else:
            self.refused.append(said.reason)
            self.doing = "join"
            if said.reason is Reason.MEMBER_ID_REQUIRED:
                self.member_id = str(said)
            elif said.reason is Reason.UNKNOWN_MEMBER:
                self.member_id = ""


@pytest.mark.parametrize("seed", range(30))
def test_no_member_that_keeps_beating_is_ever_unknown(seed: int) -> None:
    """Members come and go while others rebalance; who is alive and in time must never hear UNKNOWN_MEMBER_ID."""
    rng = Random(seed)
    world = World(GroupSettings(rebalance_delay_ms=rng.choice((0, 500))))
    clients = [Client(world, number) for number in range(rng.randint(2, 12))]
    gone: list[Client] = []
    for _ in range(600):
        # Everybody gets a turn well within the session's time, in any order.
        for client in rng.sample(clients, len(clients)):
            if rng.random() < 0.8:
                client.step()
        world.pass_time(rng.uniform(0.05, 0.6))
        roll = rng.random()
        if roll < 0.03 and len(clients) < 15:
            clients.append(Client(world, len(clients) + len(gone)))
        elif roll < 0.05 and len(clients) > 2:
            # One goes without a word.
            gone.append(clients.pop(rng.randrange(len(clients))))
        elif roll < 0.07 and len(clients) > 2:
            client = rng.choice(clients)
            if client.doing == "work" and client.waiting is None:
                world.group.leave(client.member_id, None, world.now_s)
                world.drain()
                clients.remove(client)
    for client in clients:
        assert Reason.UNKNOWN_MEMBER not in client.refused, (seed, client.name)
    # Left alone, the group comes to work, and everybody is in it.
    for _ in range(400):
        for client in clients:
            client.step()
        world.pass_time(0.5)
    assert world.group.state is State.STABLE
    assert all(client.doing == "work" for client in clients)
    assert {client.member_id for client in clients} == set(world.group.members)
    assert world.group.waiting_count == 0
