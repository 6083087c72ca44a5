"""Who answers a case of MongoDB's languages: our functions, or any server behind a driver."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import bson
from bson.codec_options import CodecOptions
from bson.objectid import ObjectId
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from mainstem.documents import (
    Namespace,
    Run,
    apply_update,
    compile_pipeline,
    error_code,
    matched_offset,
    matcher,
    parse_projection,
    sort_documents,
    upsert_document,
)
from mainstem.model.errors import Invalid

Document = Mapping[str, Any]
NOW_MS = 1_700_000_000_000
_OPTIONS: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)


class Case(NamedTuple):
    """One question: `kind` is find, update or aggregate; `arguments` are the driver's."""

    kind: str
    arguments: dict[str, Any]
    # Whether the answer's order is part of it.
    ordered: bool = False


class Answer(NamedTuple):
    """Documents as BSON, or the code of a refusal."""

    documents: tuple[bytes, ...] = ()
    code: int | None = None

    def shown(self) -> Any:
        """For people."""
        return f"error {self.code}" if self.code is not None else [bson.decode(item) for item in self.documents]


class Subject(Protocol):
    """Answers cases on collections that it is given."""

    def load(self, collections: Mapping[str, Sequence[Document]]) -> None:
        """Have these collections and no others."""

    def answer(self, case: Case) -> Answer:
        """Answer one case on the collection `main`. An update's answer is the whole collection after it."""


class Ours:
    """The pure functions."""

    def __init__(self) -> None:
        self._collections: dict[str, list[dict[str, Any]]] = {}

    def load(self, collections: Mapping[str, Sequence[Document]]) -> None:
        # Through BSON, so that values have the types that a door would see.
        self._collections = {
            name: [bson.decode(bson.encode(item), _OPTIONS) for item in items] for name, items in collections.items()
        }

    def read(self, namespace: Namespace, filter: Document) -> list[dict[str, Any]]:
        return self._collections.get(namespace.name, [])

    def has_index(self, namespace: Namespace, path: str) -> bool:
        return False

    def answer(self, case: Case) -> Answer:
        arguments = bson.decode(bson.encode(case.arguments), _OPTIONS)
        try:
            found = getattr(self, f"_{case.kind}")(**arguments)
            return Answer(tuple(bson.encode(item) for item in found))
        except Invalid as error:
            return Answer(code=error_code(error))

    def _find(self, filter: Document, projection: Any = None, sort: Any = None) -> list[Any]:
        found = list(filter_(filter, self._collections["main"]))
        if sort:
            found = sort_documents(found, sort)
        if projection is None:
            return found
        parsed = parse_projection(projection)
        offsets = [matched_offset(filter, item) if parsed.positional else None for item in found]
        return [parsed.apply(item, offset=offset) for item, offset in zip(found, offsets, strict=True)]

    def _aggregate(self, pipeline: Any) -> list[Any]:
        return list(compile_pipeline(pipeline).run(self._collections["main"], Run(sources=self)))

    def _update(self, filter: Document, update: Any, upsert: bool = False, array_filters: Any = ()) -> list[Any]:
        passes, held = matcher(filter), self._collections["main"]
        changed = []
        for item in held:
            if not passes(item):
                changed.append(item)
                continue
            offset = matched_offset(filter, item)
            done = apply_update(update, item, now_ms=NOW_MS, array_filters=array_filters, offset=offset)
            changed.append(done.document)
        if upsert and not any(map(passes, held)):
            new_id = ObjectId("0" * 24)
            changed.append(upsert_document(filter, update, now_ms=NOW_MS, new_id=new_id, array_filters=array_filters))
        return changed


def filter_(filter: Document, documents: Sequence[Any]) -> Any:
    """The documents that match."""
    passes = matcher(filter)
    return (item for item in documents if passes(item))


class OverWire:
    """A server, asked by pymongo: the reference, or a door."""

    def __init__(self, port: int, database: str = "differential") -> None:
        self.client: MongoClient[dict[str, Any]] = MongoClient("127.0.0.1", port, tz_aware=True)
        self._database = self.client[database]

    def load(self, collections: Mapping[str, Sequence[Document]]) -> None:
        for name, items in collections.items():
            self._database[name].delete_many({})
            if items:
                self._database[name].insert_many([dict(item) for item in items])

    def answer(self, case: Case) -> Answer:
        try:
            return Answer(tuple(bson.encode(item) for item in self._run(case)))
        except PyMongoError as error:
            return Answer(code=getattr(error, "code", None) or 1)
        except OverflowError:
            return Answer(code=1)

    def _run(self, case: Case) -> list[dict[str, Any]]:
        collection, arguments = self._database["main"], dict(case.arguments)
        if case.kind == "find":
            sort = arguments.pop("sort", None)
            return list(collection.find(**arguments, sort=list(sort.items()) if sort else None))
        if case.kind == "aggregate":
            return list(collection.aggregate(**arguments))
        if not arguments.get("array_filters"):
            arguments.pop("array_filters", None)
        collection.update_many(**arguments)
        return list(collection.find({}))


def alike(case: Case, one: Answer, other: Answer) -> bool:
    """Whether two answers are the same: byte by byte, in order where the case has one. Refusals are all alike."""
    if one.code is not None or other.code is not None:
        return (one.code is None) == (other.code is None)
    if case.ordered:
        return one.documents == other.documents
    return sorted(one.documents) == sorted(other.documents)
