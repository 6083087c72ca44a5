"""Documents of mixed types, and pipelines over them that columns may answer, or must not."""

import math
import random
from typing import Any

from bson.decimal128 import Decimal128
from bson.int64 import Int64

# Whether a column says exactly what the documents say at a field, for `$group` by it.
FIELDS = {
    "text": True, "whole": True, "long": True, "flag": True, "nullable": False, "mixed": False, "double": False,
    "nan": False, "array": False, "Case": False, "gone": False, "_key": False, "sparse": True, "a?b'c\"d": True,
}  # fmt: skip


def made(chance: random.Random, number: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "_id": number,
        "text": chance.choice(["", "a", "B", "ü", "a\x00b", "it's", "\U0001f600"]),
        "whole": chance.randrange(-4, 5),
        "long": Int64(chance.choice([1, 1 << 53, (1 << 53) + 1, -(1 << 62), 1 << 62])),
        "flag": chance.random() < 0.5,
        "nullable": chance.choice([None, 1, 2]),
        "mixed": chance.choice([1, 1.0, Int64(1), "1", True, Decimal128("1"), None, [1]]),
        "double": chance.choice([0.1, -0.0, 0.0, 1.0, 1e300, 2.5]),
        "nan": chance.choice([math.nan, math.inf, 1.5]),
        "array": chance.choice([[], [1, 2], 3]),
        "Case": 1,
        "case": 2,
        "_key": "k",
        "a?b'c\"d": chance.choice(["?", "'", '"']),
    }
    if chance.random() < 0.5:
        document["sparse"] = chance.randrange(3)
    return document


GROUPS: list[list[dict[str, Any]]] = [
    *[[{"$group": {"_id": f"${name}", "n": {"$sum": 1}}}] for name in FIELDS],
    *[
        [{"$group": {"_id": None, "s": {"$sum": f"${name}"}, "a": {"$avg": f"${name}"}}}]
        for name in ("whole", "long", "sparse", "nullable", "mixed", "nan")
    ],
    *[
        [{"$group": {"_id": "$flag", "l": {"$min": f"${name}"}, "h": {"$max": f"${name}"}}}]
        for name in ("text", "long", "nullable", "mixed")
    ],
    [{"$match": {"whole": {"$gte": 1.5}, "text": {"$ne": "a"}}}, {"$count": "n"}],
    [{"$match": {"whole": Int64(2)}}, {"$group": {"_id": {"t": "$text", "f": "$flag"}, "n": {"$sum": 2}}}],
    [{"$match": {"double": 0}}, {"$count": "n"}],
    [{"$match": {"double": {"$lt": Decimal128("2.4")}}}, {"$count": "n"}],
    [{"$match": {"long": 2.0**53}}, {"$count": "n"}],
    [{"$match": {"sparse": None}}, {"$count": "n"}],
    [{"$match": {"sparse": {"$exists": False}}}, {"$count": "n"}],
    [{"$match": {"nullable": None}}, {"$count": "n"}],
    [{"$match": {"nullable": {"$exists": True}}}, {"$count": "n"}],
    [{"$match": {"mixed": 1}}, {"$count": "n"}],
    [{"$match": {"nan": math.nan}}, {"$count": "n"}],
    [{"$match": {"text": "a\x00b"}}, {"$count": "n"}],
    [{"$match": {"text": {"$in": ["it's", "ü"]}}}, {"$count": "n"}],
    [{"$match": {"a?b'c\"d": "?"}}, {"$count": "n"}],
    [{"$match": {"case": 2}}, {"$count": "n"}],
    [{"$match": {"whole": 99}}, {"$count": "n"}],
    [{"$group": {"_id": "$whole", "n": {"$sum": 1}}}, {"$sort": {"_id": -1}}, {"$limit": 3}],
    [{"$group": {"_id": 1, "n": {"$sum": 1}}}],
    [{"$sort": {"whole": 1}}, {"$limit": 5}, {"$group": {"_id": None, "s": {"$sum": "$whole"}}}],
]
