"""Collections as a plain list in Python: what MongoDB's commands have to answer, and random commands to ask.

The languages are `mainstem.documents`, which `mongo_subjects` compares with a reference server. What the model has none
of is what a door adds: a store, indexes, cursors, batches of a log, transactions as a view, retries.
"""

# ruff: noqa: E501 - tables of choices.

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from mainstem.documents import (
    apply_update,
    compile_pipeline,
    matched_offset,
    matcher,
    parse_projection,
    sort_documents,
    upsert_document,
)
from mainstem.documents.aggregation import Run
from mainstem.documents.values import is_array, order_key
from mainstem.model.errors import Invalid
from mainstem.wire.mongo.frames import decode_document, encode_document
from tests.harness.mongo_random import Maker

Document = dict[str, Any]
NAME = "c"
# Ids that are equal to others of another type, or that few think of.
IDS: tuple[Any, ...] = (
    0, 1, 1.0, Int64(1), Decimal128("1"), Decimal128("1.5"), 1.5, -0.0, 2**53, float(2**53), Int64(2**53 + 1), Decimal128("NaN"),
    float("nan"), float("inf"), "", "1", "$n:1", "$oid:65f000000000000000000000", "a.b", "é\x00", None, True, False,
    ObjectId("65f000000000000000000000"), Binary(b"\x01"), Binary(b"\x01", 128), Timestamp(1, 2), MinKey(), MaxKey(), {},
    {"a": 1}, {"a": 1.0}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, Code("f()"),
)  # fmt: skip
# What no document may have as its id.
NO_IDS: tuple[Any, ...] = ([1], Regex("a"), {"$a": 1})
VALUES: tuple[Any, ...] = (
    *IDS, Regex("^a", "i"), Code("f()", {"x": 1}), [[1], []], {"x": [{"y": [1, 2]}]}, Decimal128("1E+6144"), Decimal128("-0"),
    Decimal128("1.10"), float("-inf"), Int64(-(2**63)), "x" * 300, Timestamp(0, 0), bson.DatetimeMS(-(2**62)),
)  # fmt: skip


class Duplicate(Invalid):
    """An id or a unique value that is there already."""


class Model:
    """One collection. `run` changes it, and answers what is comparable of a reply."""

    def __init__(self) -> None:
        self.documents: list[Document] = []
        # Whether `u` is unique, where a document has it.
        self.is_unique = False
        # Names by key: two indexes of one key are refused.
        self._names: dict[str, str] = {}

    def run(self, command: Mapping[str, Any]) -> Any:
        """The answer to a command. Raises Invalid where the whole command is refused."""
        return getattr(self, f"_{next(iter(command))}")(command)

    # Writes

    def _insert(self, command: Mapping[str, Any]) -> Any:
        count = 0
        refused: list[tuple[int, bool]] = []
        for index, document in enumerate(command["documents"]):
            try:
                identity = document["_id"]
                if is_array(identity) or isinstance(identity, Regex) or "$a" in str(identity):
                    raise Invalid("not an id", reason="bad_id")
                self._put(None, {"_id": identity, **document})
                count += 1
            except Invalid as error:
                refused.append((index, isinstance(error, Duplicate)))
                if command["ordered"]:
                    break
        return count, refused

    def _put(self, before: Document | None, after: Document) -> None:
        """Take a new document, or another one in the place of an old one."""
        after = decode_document(encode_document(after))
        others = [each for each in self.documents if each is not before]
        if any(order_key(each["_id"]) == order_key(after["_id"]) for each in others):
            raise Duplicate("id", reason="duplicate")
        if self.is_unique and any(_unique(each) & _unique(after) for each in others):
            raise Duplicate("u", reason="duplicate")
        if before is None:
            self.documents.append(after)
        else:
            self.documents[next(at for at, each in enumerate(self.documents) if each is before)] = after

    def _update(self, command: Mapping[str, Any]) -> Any:
        matched = modified = 0
        upserted: list[tuple[int, Any]] = []
        for index, statement in enumerate(command["updates"]):
            found = self._matching(statement["q"])
            for each in found if statement["multi"] else found[:1]:
                matched += 1
                modified += self._change(statement["q"], statement["u"], each) is not each
            if not found and statement["upsert"]:
                made = self._upsert(statement["q"], statement["u"])
                matched += 1
                upserted.append((index, order_key(made["_id"])))
        return matched, modified, upserted

    def _matching(self, filter: Mapping[str, Any]) -> list[Document]:
        return [each for each in self.documents if matcher(filter)(each)]

    def _change(self, filter: Any, update: Any, document: Document) -> Document:
        offset = matched_offset(filter, document)
        done = apply_update(update, document, now_ms=0, offset=offset)
        if not done.modified:
            return document
        self._put(document, done.document)
        return done.document

    def _upsert(self, filter: Any, update: Any) -> Document:
        made = upsert_document(filter, update, now_ms=0, new_id=ObjectId("0" * 24))
        self._put(None, made)
        return made

    def _delete(self, command: Mapping[str, Any]) -> Any:
        gone = 0
        for statement in command["deletes"]:
            found = self._matching(statement["q"])
            found = found[:1] if statement["limit"] else found
            gone += len(found)
            self.documents = [each for each in self.documents if not any(each is other for other in found)]
        return gone

    def _findAndModify(self, command: Mapping[str, Any]) -> Any:
        found: list[Any] = sort_documents(self._matching(command["query"]), command["sort"])[:1]
        if command.get("remove"):
            self.documents = [each for each in self.documents if each not in found]
            return [encode_document(each) for each in found]
        if not found and command["upsert"]:
            after: Document | None = self._upsert(command["query"], command["update"])
            return [encode_document(after)] if command["new"] else []
        after = self._change(command["query"], command["update"], found[0]) if found else None
        shown = after if command["new"] else (found[0] if found else None)
        return [] if shown is None else [encode_document(shown)]

    # Reads

    def _find(self, command: Mapping[str, Any]) -> Any:
        found: Sequence[Any] = self._matching(command["filter"])
        if command["sort"]:
            found = sort_documents(found, command["sort"])
        found = found[command["skip"] :][: command["limit"] or None]
        parsed = parse_projection(command["projection"]) if command["projection"] else None
        shown = [encode_document(each if parsed is None else parsed.apply(each)) for each in found]
        return shown if command["sort"] else sorted(shown)

    def _count(self, command: Mapping[str, Any]) -> Any:
        return len(self._matching(command["query"])[command["skip"] :])

    def _distinct(self, command: Mapping[str, Any]) -> Any:
        key = command["key"]
        found: set[Any] = set()
        for each in self._matching(command["query"]):
            value = each.get(key, each)
            for one in value if is_array(value) else [value] if value is not each else []:
                found.add(order_key(one))
        return sorted(found)

    def _aggregate(self, command: Mapping[str, Any]) -> Any:
        return keyed(compile_pipeline(command["pipeline"]).run(self.documents, Run()))

    # Indexes

    def _createIndexes(self, command: Mapping[str, Any]) -> Any:
        index = command["indexes"][0]
        if self._names.get(str(index["key"]), index["name"]) != index["name"]:
            raise Invalid("another index of that key", reason="bad_index")
        if index.get("unique"):
            seen: set[Any] = set()
            for each in self.documents:
                if seen & _unique(each):
                    raise Duplicate("u", reason="duplicate")
                seen |= _unique(each)
            self.is_unique = True
        self._names[str(index["key"])] = index["name"]
        return "made"

    def _dropIndexes(self, command: Mapping[str, Any]) -> Any:
        self.is_unique = False
        self._names.clear()
        return "dropped"


def keyed(documents: Any) -> list[Any]:
    """Documents in an order of their values: of equal numbers either may stand for both."""
    return sorted(order_key(each) for each in documents)


def _unique(document: Document) -> set[Any]:
    if "u" not in document:
        return set()
    value = document["u"]
    return {order_key(each) for each in value} if is_array(value) else {order_key(value)}


class Commands:
    """Random commands on one collection, each of which has one answer only. The same seed makes the same ones."""

    def __init__(self, seed: int, model: Model) -> None:
        self._maker = Maker(seed)
        self.random = self._maker.random
        self._model = model

    def command(self, *, writes: bool = False) -> Document:
        """A command that the model can run; `writes`: one that may be a part of a transaction."""
        while True:
            kinds = (self._insert, self._update, self._update, self._delete, self._modify, self._find)
            more = () if writes else (self._find, self._find, self._count, self._distinct, self._aggregate, self._index)
            made = self.random.choice(kinds + more)()
            trial = copy.deepcopy(self._model)
            try:
                trial.run(made)
            except Duplicate:
                # One document that is refused leaves all as it was; of several, which came first depends on the way.
                if any(each["multi"] for each in made.get("updates", ())) or len(made.get("updates", "1")) > 1:
                    continue
            except (Invalid, OverflowError):
                continue
            return made

    def _id(self) -> Any:
        return self.random.choice(IDS) if self.random.random() < 0.5 else self.random.randrange(12)

    def _document(self) -> Document:
        made = self._maker.documents(1)[0]
        fields = [("_id", self._id()), *((name, value) for name, value in made.items() if name != "_id")]
        for name in self.random.sample(["e", "f", "", "ä b", "_x"], 2):
            fields.append((name, self.random.choice(VALUES)))
        if self.random.random() < 0.3:
            fields.append(("u", self.random.choice([1, 1.0, 2, 3, Int64(4), "x", None, [5, 5], [6, 1], self._id()])))
        self.random.shuffle(fields)
        return dict(fields)

    def _insert(self) -> Document:
        documents = [self._document() for _ in range(self.random.randrange(1, 9))]
        if self.random.random() < 0.1:
            self.random.choice(documents)["_id"] = self.random.choice(NO_IDS)
        return {"insert": NAME, "documents": documents, "ordered": self.random.random() < 0.5}

    def _by_id(self) -> Document:
        there = self._model.documents
        if there and self.random.random() < 0.7:
            return {"_id": {"$eq": self.random.choice(there)["_id"]}}
        return {"_id": {"$eq": self._id()}}

    def _change_of(self) -> Any:
        kind = self.random.random()
        if kind < 0.15:
            made = self._document()
            made.pop("_id")
            return made
        if kind < 0.25:
            return [{"$set": {"x": self._maker.expression()}}, {"$unset": "d"}]
        if kind < 0.4:
            return self.random.choice(
                [{"$set": {"u": self._id()}}, {"$unset": {"u": 1}}, {"$push": {"u": 1}}, {"$set": {"e": self._value()}}]
            )
        return self._maker._update().arguments["update"]

    def _value(self) -> Any:
        return self.random.choice(VALUES)

    def _update(self) -> Document:
        if self.random.random() < 0.4:
            statement = {"q": self._maker.filter(), "u": self._change_of(), "multi": True, "upsert": False}
            if isinstance(statement["u"], dict) and not any(key.startswith("$") for key in statement["u"]):
                statement["u"] = {"$set": {"f": self._value()}}
            return {"update": NAME, "updates": [statement]}
        count = self.random.choice((1, 1, 2, 3))
        return {
            "update": NAME,
            "updates": [
                {"q": self._by_id(), "u": self._change_of(), "multi": False, "upsert": self.random.random() < 0.3}
                for _ in range(count)
            ],
        }

    def _delete(self) -> Document:
        if self.random.random() < 0.2:
            return {"delete": NAME, "deletes": [{"q": self._maker.filter(), "limit": 0}]}
        return {
            "delete": NAME,
            "deletes": [{"q": self._by_id(), "limit": 1} for _ in range(self.random.choice((1, 2)))],
        }

    def _modify(self) -> Document:
        sort = self._sort() or {"_id": 1}
        query = self._by_id() if self.random.random() < 0.6 else self._maker.filter()
        if self.random.random() < 0.3:
            return {"findAndModify": NAME, "query": query, "sort": sort, "remove": True}
        # What an upsert makes of any other filter has an id that nobody can foretell.
        upsert = "_id" in query and self.random.random() < 0.3
        new = self.random.random() < 0.5
        update = self._change_of()
        return {"findAndModify": NAME, "query": query, "sort": sort, "update": update, "new": new, "upsert": upsert}

    def _sort(self) -> Document:
        # By the id in the end: of what is equal by the sort, either may come first.
        field = self.random.choice(["n", "s", "t", "a", "l", "u", "e", "b.c", None, None])
        direction = self.random.choice([1, -1])
        return ({} if field is None else {field: direction}) | {"_id": self.random.choice([1, -1])}

    def _find(self) -> Document:
        sort = self._sort() if self.random.random() < 0.6 else {}
        projection = self.random.choice([{}, {}, {"a": 1, "b.c": 1}, {"a": 0, "u": 0}, {"l": {"$slice": 2}}])
        filter = self._by_id() if self.random.random() < 0.2 else self._maker.filter()
        if self.random.random() < 0.2:
            filter = {"s": self.random.choice(["x", "xy", ""]), **filter}
        if self.random.random() < 0.2:
            filter = {"u": self.random.choice([1, 2, None, {"$gt": 1}, {"$exists": True}, {"$in": [1, 5, "x"]}])}
        skip, limit = (self.random.randrange(3), self.random.randrange(6)) if sort else (0, 0)
        size = self.random.choice([1, 2, 3, 100])
        return {
            "find": NAME, "filter": filter, "sort": sort, "skip": skip, "limit": limit, "projection": projection,
            "batchSize": size,
        }  # fmt: skip

    def _count(self) -> Document:
        return {"count": NAME, "query": self._maker.filter(), "skip": self.random.choice([0, 0, 1])}

    def _distinct(self) -> Document:
        return {"distinct": NAME, "key": self.random.choice(["n", "s", "l", "a", "u"]), "query": self._maker.filter()}

    def _aggregate(self) -> Document:
        pipeline = [self._maker.stage() for _ in range(self.random.randrange(1, 4))]
        if any("$lookup" in stage for stage in pipeline):
            pipeline = [{"$match": self._maker.filter()}]
        if self.random.random() < 0.3:
            pipeline.append(self._maker.group())
        return {"aggregate": NAME, "pipeline": pipeline, "cursor": {"batchSize": self.random.choice([1, 100])}}

    def _index(self) -> Document:
        if self.random.random() < 0.35:
            return {"dropIndexes": NAME, "index": "*"}
        if self.random.random() < 0.3:
            unique = {"key": {"u": 1}, "name": "u", "unique": True, "partialFilterExpression": {"u": {"$exists": True}}}
            return {"createIndexes": NAME, "indexes": [unique]}
        # No two of which can be arrays at once.
        key: Document = {
            self.random.choice(["a", "b", "n", "l", "e", "a.b", "b.c", "u", "s", "_id"]): self.random.choice([1, -1])
        }
        if self.random.random() < 0.4:
            key = {"s": self.random.choice([1, -1])} | key
        options: Document = self.random.choice(
            [{}, {}, {"sparse": True}, {"partialFilterExpression": {"n": {"$gt": 0}}}]
        )
        if self.random.random() < 0.15:
            key = {self.random.choice(["s", "t"]): "hashed"}
        name = "_".join(f"{path}_{direction}" for path, direction in key.items()) + "_".join(options)
        return {"createIndexes": NAME, "indexes": [{"key": key, "name": name, **options}]}
