"""Random documents, filters, updates and pipelines in MongoDB's languages, all from one seed."""

# ruff: noqa: PLR0911, PLR0912, E501 - tables of choices, one to a line.

import datetime as dt
import random
from typing import Any

from bson.int64 import Int64
from bson.objectid import ObjectId

from tests.harness.mongo_subjects import Case

FIELDS = ("a", "b", "c", "d")
_WORDS = ("", "x", "xy", "Abc", "zebra", "ünï", "10")
_DATES = tuple(dt.datetime(2024, 1, 31, tzinfo=dt.UTC) + dt.timedelta(hours=31 * step) for step in range(5))


class Maker:
    """Makes cases. The same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def scalar(self) -> Any:
        return self.one(
            None, True, False, 0, 1, 2, 3, -1, 7, 1.5, 2.0, -0.5, Int64(3), Int64(5_000_000_000), self.one(*_WORDS),
            self.one(*_WORDS), self.one(*_DATES), ObjectId(f"{self.random.randrange(3):024x}"),
        )  # fmt: skip

    def number(self) -> Any:
        return self.one(0, 1, 2, 3, -4, 7, 1.5, 2.0, -0.5, Int64(3), Int64(5_000_000_000))

    def value(self, depth: int = 0) -> Any:
        kind = self.random.random()
        if depth < 2 and kind < 0.18:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if depth < 2 and kind < 0.33:
            return {name: self.value(depth + 1) for name in self.random.sample(FIELDS, self.random.randrange(1, 3))}
        return self.scalar()

    def documents(self, count: int = 12) -> list[dict[str, Any]]:
        return [
            {"_id": at, **{name: self.value() for name in FIELDS if self.random.random() < 0.75},
             "n": self.number(), "s": self.one(*_WORDS), "t": self.one(*_DATES),
             "l": [self.number() for _ in range(self.random.randrange(4))]}
            for at in range(count)
        ]  # fmt: skip

    def path(self) -> str:
        return str(self.one("a", "b", "c", "d", "n", "s", "l", "a.b", "b.c", "a.0", "c.d", "l.1"))

    # Filters

    def condition(self, depth: int = 0) -> Any:
        match self.random.randrange(14):
            case 0:
                return self.value()
            case 1 | 2:
                return {self.one("$gt", "$gte", "$lt", "$lte"): self.scalar()}
            case 3:
                return {self.one("$eq", "$ne"): self.value()}
            case 4:
                return {self.one("$in", "$nin"): [self.scalar() for _ in range(self.random.randrange(4))]}
            case 5:
                return {"$exists": self.one(True, False)}
            case 6:
                return {
                    "$type": self.one("int", "long", "double", "string", "array", "object", "null", "number", "bool")
                }
            case 7:
                return {"$regex": self.one("^x", "y$", "b", "^Z"), "$options": self.one("", "i")}
            case 8:
                return {"$size": self.random.randrange(4)}
            case 9:
                return {"$all": [self.scalar() for _ in range(self.random.randrange(1, 3))]}
            case 10 if depth < 2:
                return {"$not": {"$gt": self.number()}}
            case 11 if depth < 2:
                return {"$elemMatch": self.one({"$gt": self.number()}, {"b": self.condition(depth + 1)})}
            case 12:
                return {"$mod": [self.one(2, 3), self.one(0, 1)]}
            case _:
                return self.scalar()

    def filter(self, depth: int = 0) -> dict[str, Any]:
        kind = self.random.random()
        if depth < 2 and kind < 0.2:
            return {
                self.one("$and", "$or", "$nor"): [self.filter(depth + 1) for _ in range(self.random.randrange(1, 3))]
            }
        return {self.path(): self.condition() for _ in range(self.random.randrange(1, 3))}

    # Expressions

    def numeric(self, depth: int = 0) -> Any:
        if depth > 2 or self.random.random() < 0.35:
            return self.one("$n", "$n", self.number(), {"$size": "$l"}, {"$strLenCP": "$s"})
        deeper = depth + 1
        match self.random.randrange(9):
            case 0:
                return {"$add": [self.numeric(deeper), self.numeric(deeper)]}
            case 1:
                return {"$subtract": [self.numeric(deeper), self.numeric(deeper)]}
            case 2:
                return {"$multiply": [self.numeric(deeper), self.number()]}
            case 3:
                return {self.one("$abs", "$ceil", "$floor"): self.numeric(deeper)}
            case 4:
                return {"$mod": [self.numeric(deeper), self.one(2, 3, 7)]}
            case 5:
                return {"$divide": [self.numeric(deeper), self.one(2, 4, 0.5)]}
            case 6:
                return {"$cond": [self.boolean(deeper), self.numeric(deeper), self.numeric(deeper)]}
            case 7:
                return {self.one("$sum", "$max", "$min"): "$l"}
            case _:
                return {self.one("$year", "$month", "$dayOfMonth", "$hour", "$dayOfWeek", "$dayOfYear"): "$t"}

    def boolean(self, depth: int = 0) -> Any:
        match self.random.randrange(5):
            case 0:
                return {"$in": [self.number(), "$l"]}
            case 1:
                return {"$not": [self.expression(depth + 1)]}
            case 2:
                return {self.one("$and", "$or"): [self.boolean(depth + 1) if depth < 3 else True, "$n"]}
            case _:
                name = self.one("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
                return {name: [self.one("$n", "$a", "$s", "$t"), self.one(self.scalar(), "$b")]}

    def text(self) -> Any:
        return self.one(
            "$s", {"$toUpper": "$s"}, {"$toLower": "$s"}, {"$concat": ["$s", "-", "$s"]}, {"$substrCP": ["$s", 0, 2]},
            {"$trim": {"input": "$s"}}, {"$toString": "$n"}, {"$dateToString": {"date": "$t", "format": "%Y-%m-%d %H:%M"}},
        )  # fmt: skip

    def array(self) -> Any:
        return self.one(
            "$l", {"$reverseArray": "$l"}, {"$slice": ["$l", self.one(1, 2, -1)]}, {"$concatArrays": ["$l", [1]]},
            {"$map": {"input": "$l", "as": "e", "in": {"$multiply": ["$$e", 2]}}},
            {"$filter": {"input": "$l", "as": "e", "cond": {"$gt": ["$$e", 1]}}},
            {"$setUnion": ["$l", [1, 2]]}, {"$range": [0, {"$size": "$l"}]},
            {"$objectToArray": {"q": "$n"}},
        )  # fmt: skip

    def expression(self, depth: int = 0) -> Any:
        return self.one(
            lambda: self.numeric(depth), self.text, self.array, lambda: self.boolean(depth),
            lambda: {"$ifNull": [f"${self.path().split('.')[0]}", "none"]}, lambda: {"$type": f"${self.one(*FIELDS)}"},
            lambda: f"${self.one('a', 'b', 'c', 'd', 'a.b', 'b.c')}",
            lambda: {"$reduce": {"input": "$l", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}},
            lambda: {"$arrayElemAt": ["$l", self.one(0, -1)]}, lambda: {"$literal": "$x"},
            lambda: {"$switch": {"branches": [{"case": {"$gt": ["$n", 2]}, "then": "big"}], "default": "small"}},
            lambda: {"$mergeObjects": [{"q": 1}, {"r": "$n"}]},
        )()  # fmt: skip

    # Pipelines

    def stage(self) -> dict[str, Any]:
        match self.random.randrange(9):
            case 0:
                return {"$match": self.filter()}
            case 1:
                return {"$addFields": {"x": self.expression(), "y": self.expression()}}
            case 2:
                return {"$project": self.one({"n": 1, "x": self.expression()}, {"a": 0, "b.c": 0}, {"l": 1, "b.c": 1})}
            case 3:
                return {"$unwind": self.one("$l", {"path": "$a", "preserveNullAndEmptyArrays": True})}
            case 4:
                return {"$unset": self.one("a", ["b", "c.d"])}
            case 5:
                return {
                    "$replaceRoot": {
                        "newRoot": {"_id": "$_id", "n": "$n", "l": "$l", "s": "$s", "t": "$t", "v": self.expression()}
                    }
                }
            case 6:
                return {
                    "$lookup": {"from": "other", "localField": self.one("n", "l", "a"), "foreignField": "n", "as": "o"}
                }
            case 7:
                return {"$match": {"$expr": self.boolean()}}
            case _:
                return {"$addFields": {"n": self.numeric()}}

    def group(self) -> dict[str, Any]:
        accumulators = {
            "k1": {"$sum": self.one(1, "$n", self.numeric(1))}, "k2": {"$avg": "$n"}, "k3": {"$min": self.one("$n", "$s")},
            "k4": {"$max": self.one("$n", "$t")}, "k5": {"$sum": "$n"},
        }  # fmt: skip
        chosen = self.random.sample(sorted(accumulators), 3)
        return {
            "$group": {"_id": self.one("$s", "$n", None, {"k": "$s"}, "$t"), **{k: accumulators[k] for k in chosen}}
        }

    def case(self) -> Case:
        kind = self.random.random()
        if kind < 0.35:
            return self._find()
        if kind < 0.6:
            return self._update()
        pipeline = [self.stage() for _ in range(self.random.randrange(1, 4))]
        end = self.random.random()
        if end < 0.3:
            pipeline.append(self.group())
        elif end < 0.4:
            pipeline.append({"$count": "many"})
        elif end < 0.5:
            pipeline.append({"$facet": {"one": [{"$count": "c"}], "two": [{"$sort": {"_id": 1}}, {"$limit": 2}]}})
        return Case("aggregate", {"pipeline": pipeline})

    def _find(self) -> Case:
        arguments: dict[str, Any] = {"filter": self.filter()}
        if self.random.random() < 0.3:
            arguments["projection"] = self.one(
                {"a": 1, "b": 1}, {"a": 0}, {"b.c": 1, "_id": 0}, {"l": {"$slice": self.one(1, -1)}}, {"a.b": 0}
            )
        if self.random.random() < 0.4:
            arguments["sort"] = self.one(
                {"n": 1, "_id": 1}, {"s": -1, "_id": -1}, {"a": 1, "_id": 1}, {"l": -1, "_id": 1}
            )
        return Case("find", arguments, ordered="sort" in arguments)

    def _update(self) -> Case:
        path = self.one("a", "b", "n", "e", "a.b", "b.c", "e.f")
        match self.random.randrange(12):
            case 0 | 1:
                update: Any = {"$set": {path: self.value()}}
            case 2:
                update = {"$unset": {path: ""}}
            case 3:
                update = {self.one("$inc", "$mul"): {self.one("n", "e", "a"): self.number()}}
            case 4:
                update = {self.one("$min", "$max"): {self.one("n", "s", "a"): self.scalar()}}
            case 5:
                update = {"$push": {self.one("l", "e", "a"): self.one(self.scalar(), {"$each": [1, 2], "$slice": -3})}}
            case 6:
                update = {"$push": {"l": {"$each": [self.number(), 9], "$sort": self.one(1, -1), "$position": 0}}}
            case 7:
                update = {"$addToSet": {self.one("l", "e"): self.one(self.number(), {"$each": [1, 2, 4]})}}
            case 8:
                update = {"$pull": {"l": self.one(self.number(), {"$gt": self.number()})}}
            case 9:
                update = {self.one("$pop"): {"l": self.one(1, -1)}}
            case 10:
                update = {"$rename": {self.one("a", "b", "s"): self.one("e", "f.g")}}
            case _:
                update = {"$set": {"l.$[]": self.number()}}
        return Case("update", {"filter": self.one({}, {"n": {"$gt": 0}}, {"_id": {"$lt": 6}}), "update": update})
