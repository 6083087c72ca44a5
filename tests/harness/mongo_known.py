"""Where the reference server answers otherwise than MongoDB documents it, each with its reason. The rest is ours."""

import re
from collections.abc import Callable
from typing import NamedTuple

import bson
from bson import json_util

from mainstem.documents.values import order_key
from tests.harness.mongo_subjects import Answer, Case

# They say so where they lack a stage, an expression, an accumulator or a modifier.
_LACKING = frozenset({40324, 168, 15952, 10147, 31325, 59, 115, 9})


class Known(NamedTuple):
    """A difference of theirs."""

    reason: str
    holds: Callable[[str, Case, Answer, Answer], bool]


def _says(*words: str) -> Callable[[str, Case, Answer, Answer], bool]:
    return lambda text, case, ours, theirs: any(word in text for word in words)


def _equal_values(*words: str) -> Callable[[str, Case, Answer, Answer], bool]:
    """Only the types of numbers differ, and the case has one of these operators."""

    def holds(text: str, case: Case, ours: Answer, theirs: Answer) -> bool:
        if ours.code is not None or theirs.code is not None or not any(word in text for word in words):
            return False
        one, other = (sorted(order_key(bson.decode(item)) for item in answer.documents) for answer in (ours, theirs))
        return one == other

    return holds


def _is_beyond(answer: Answer) -> bool:
    """Whether a number of the answer is beyond 64 bits: there, by MongoDB, a product of longs is a double."""
    return any(_beyond(bson.decode(item)) for item in answer.documents)


def _beyond(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_beyond, value.values()))
    if isinstance(value, list):
        return any(map(_beyond, value))
    return isinstance(value, float) and abs(value) >= 2**63


def _has_large_fraction_ids(answer: Answer) -> bool:
    ids = [bson.decode(item).get("_id") for item in answer.documents]
    return any(isinstance(each, float) and not each.is_integer() and abs(each) > 2**31 for each in ids)


KNOWN = (
    Known(
        "they lack the stage or the operator, and say so",
        lambda text, case, ours, theirs: ours.code is None and theirs.code in _LACKING,
    ),
    Known("$lookup by an array gives a document once for each equal element", _says('"$lookup"')),
    Known("$all finds nothing in a field that is no array", _says('"$all"')),
    Known(
        "arithmetic gives doubles for ints, or ints for doubles",
        _equal_values('"$mod"', '"$ceil"', '"$floor"', '"$sum"', '"$avg"', '"$divide"', '"$abs"'),
    ),
    Known("$mod in a filter cuts a long to 32 bits", _says('"$mod": [2', '"$mod": [3')),
    Known("a $set of an equal number of another type changes nothing", _equal_values('"$set"', '"$min"', '"$max"')),
    Known("1 and 1.0 are two elements of a set", _says('"$addToSet"', '"$setUnion"')),
    Known("$in of an expression tells 3 from a long 3", _says('"$in": [')),
    Known("$toUpper and $toLower change letters beyond ASCII", _says('"$toUpper"', '"$toLower"')),
    Known(
        "a missing field equals null in expressions",
        lambda text, case, ours, theirs: case.kind == "aggregate" and ("null]" in text or '"$b"]' in text),
    ),
    Known("a literal text with a $ is taken for a path in $replaceRoot", _says('"$literal"')),
    Known(
        "a path into an array fails or is cut short in expressions and $project", _says('"$a.b"', '"$b.c"', '"b.c": 1')
    ),
    Known("$unset reaches into the documents of an array by name", _says('"$unset"')),
    Known("$regex finds text in an ObjectId's digits", _says('"$regex"')),
    Known("a whole double becomes text with a fraction", _says('"$toString"')),
    Known("an index past an array's end is null", _says('"l.1"', '"a.0"')),
    Known("$slice alone leaves out the other fields", _says('"$slice": 1}', '"$slice": -1}')),
    Known("an array in an array does not sort by its type", _says('"sort": {"a"')),
    Known("$elemMatch with conditions on fields looks at scalars", _says('"$elemMatch"')),
    Known("$gte and $lte null do not find missing fields", _says('"$gte": null', '"$lte": null')),
    Known("$dayOfWeek counts from Monday", _says('"$dayOfWeek"')),
    Known("$multiply past 64 bits wraps", lambda text, case, ours, theirs: '"$multiply"' in text and _is_beyond(ours)),
    # The remainder of such a product is small again.
    Known(
        "$multiply past 64 bits wraps, and its $mod with it",
        lambda text, case, ours, theirs: '"$multiply"' in text and '"$mod"' in text and "5000000000" in text,
    ),
    Known("$mul past 64 bits wraps", lambda text, case, ours, theirs: '"$mul"' in text and ours.code == 2),
    Known(
        "$inc takes null for a missing number", lambda text, case, ours, theirs: '"$inc"' in text and ours.code == 14
    ),
    Known(
        "$set makes an object of a null on its path",
        lambda text, case, ours, theirs: case.kind == "update" and ours.code == 28 and theirs.code is None,
    ),
    Known(
        "$push takes null for a missing array",
        lambda text, case, ours, theirs: '"$push"' in text and ours.code == 2 and theirs.code is None,
    ),
    Known(
        "$group takes a double with a fraction for the long before it, beyond 32 bits",
        lambda text, case, ours, theirs: '"$group"' in text and _has_large_fraction_ids(ours),
    ),
    Known("an empty array is not found among an array's elements", _says('": []')),
    Known(
        "null is found in an array of scalars by a path into it",
        _says(*(f'"{path}": {value}' for path in ("b.c", "a.b", "c.d") for value in ("null", '{"$eq": null'))),
    ),
    Known(
        "$addFields puts what an expression makes into the object that is there, not in its place",
        lambda text, case, ours, theirs: text.count('"$addFields"') > 1 and '"$mergeObjects"' in text,
    ),
    Known(
        "an object with a null equals what has no such field, be it no object",
        lambda text, case, ours, theirs: re.search(r'"[a-z]": \{"[a-d]": null', text) is not None,
    ),
    Known("$exists: false is not the opposite of $exists: true", _says('"$exists": false')),
    Known(
        "a path through an empty array finds nothing, not even for $not", _says('"$not"', '"$nor"', '"$ne"', '"$nin"')
    ),
)


def reason_of(case: Case, ours: Answer, theirs: Answer) -> str | None:
    """Why they may differ; None where nobody has said so."""
    text = json_util.dumps(case.arguments)
    return next((known.reason for known in KNOWN if known.holds(text, case, ours, theirs)), None)
