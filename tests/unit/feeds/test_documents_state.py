"""The store of documents: what it holds, what its indexes find, and what a second opening finds again."""

import random
from pathlib import Path
from typing import Any

from mainstem.documents import matcher, parse_filter
from mainstem.feeds.documents.access import choose
from mainstem.feeds.documents.reading import Position, View
from mainstem.feeds.documents.shapes import shape_of
from mainstem.feeds.documents.state import Collection, State
from mainstem.model.position import LogId, LogPosition
from mainstem.wire.mongo.frames import encode_document
from mainstem.wire.mongo.ordered import ordered

INDEXES: list[dict[str, Any]] = [
    {"key": {"a": 1}, "name": "a", "number": 1},
    {"key": {"b": -1, "a": 1}, "name": "b", "number": 2},
    {"key": {"t.x": 1}, "name": "t", "number": 3},
    {"key": {"s": 1}, "name": "s", "number": 4, "sparse": True},
    {"key": {"a": "hashed"}, "name": "h", "number": 5},
    {"key": {"p": 1}, "name": "p", "number": 6, "partialFilterExpression": {"p": {"$gt": 2}}},
]
VALUES: list[Any] = [None, 0, 1, 1.0, 2, 2.5, -3, "x", "", True, [], [1, 2], [[1]], {"x": 1}, {}]


def _filled(state: State, chance: random.Random) -> tuple[Collection, dict[int, dict[str, Any]]]:
    collection = state.describe("db", "c", {"_id": "c", "indexes": INDEXES})
    documents: dict[int, dict[str, Any]] = {}
    for step in range(400):
        number = chance.randrange(60)
        if chance.random() < 0.2:
            documents.pop(number, None)
            state.delete(collection, ordered(number))
            continue
        document: dict[str, Any] = {"_id": number}
        for name in ("a", "b", "s", "p"):
            if chance.random() < 0.7:
                document[name] = chance.choice(VALUES)
        # One array at most, or the compound index refuses the document.
        if isinstance(document.get("a"), list) and isinstance(document.get("b"), list):
            del document["b"]
        document["t"] = [{"x": chance.choice(VALUES[:8])} for _ in range(chance.randrange(3))]
        documents[number] = document
        state.shaped(collection, [shape_of(document)])
        state.put(collection, ordered(number), encode_document(document), step)
    return collection, documents


def test_every_way_to_the_documents_finds_the_same(tmp_path: Path) -> None:
    chance = random.Random(11)
    state = State(tmp_path / "documents.db")
    collection, documents = _filled(state, chance)
    ways = set()
    for _ in range(500):
        filter: dict[str, Any] = {}
        for name in chance.sample(["_id", "a", "b", "t.x", "s", "p"], chance.randrange(1, 3)):
            operator = chance.choice(["$eq", "$gt", "$gte", "$lt", "$lte", "$in"])
            value = chance.choice(VALUES)
            filter[name] = {operator: [value, chance.choice(VALUES)] if operator == "$in" else value}
        node = parse_filter(filter)
        access = choose(collection, node)
        ways.add(access.index.name if access.index is not None else access.stage)
        given = [each for each in View(state).find(collection, node, access) if each is not None]
        found = [each.decoded()["_id"] for each in given]
        expected = [number for number, document in documents.items() if matcher(node)(document)]
        assert sorted(found) == sorted(expected), filter
        if given:
            # From any of them on, the rest.
            at = chance.randrange(len(given))
            after = Position(given[at].place, given[at].key, given[at].entry)
            rest = [each for each in View(state).find(collection, node, access, after) if each is not None]
            assert [each.key for each in rest] == [each.key for each in given[at + 1 :]], filter
    assert ways >= {"a", "b", "t", "s", "IDHACK", "COLLSCAN"}


def test_what_was_stored_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    state = State(tmp_path / "documents.db")
    _, documents = _filled(state, random.Random(3))
    state.answer(b"s", 4, LogPosition(9), {0: b"", 3: b"x"}, 1)
    state.cover(LogPosition(9), LogId("log"))
    state.close()
    again = State(tmp_path / "documents.db")
    found = again.find("db", "c")
    assert found is not None
    assert (again.position, again.log, again.count(found)) == (9, "log", len(documents))
    assert [entries.index.name for entries in found.indexes] == [each["name"] for each in INDEXES]
    assert again.answered(b"s", 4) == {0: b"", 3: b"x"}
    again.answer(b"s", 5, LogPosition(10), {0: b""}, 1)
    assert again.answered(b"s", 4) == {}
    again.clear()
    assert (again.position, again.collections) == (0, {})


def test_a_snapshot_does_not_see_what_comes_later(tmp_path: Path) -> None:
    state = State(tmp_path / "documents.db")
    collection = state.describe("db", "c", {"_id": "c", "indexes": []})
    state.put(collection, ordered(1), encode_document({"_id": 1, "v": 1}), 1)
    snapshot = state.snapshot()
    state.put(collection, ordered(1), encode_document({"_id": 1, "v": 2}), 2)
    state.put(collection, ordered(2), encode_document({"_id": 2}), 3)
    state.commit()
    view = View(state, snapshot, {("db", "c"): {ordered(3): encode_document({"_id": 3})}})
    found = [each.decoded() for each in view.find(collection, parse_filter({})) if each is not None]
    assert found == [{"_id": 1, "v": 1}, {"_id": 3}]
    snapshot.close()
