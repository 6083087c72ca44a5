"""The table of filter cases as rows of one table with one column of extended JSON, for engines to be asked about."""

import datetime as dt
import json
from pathlib import Path
from typing import Any, NamedTuple

from bson import json_util

VECTORS = Path(__file__).parents[2] / "vectors" / "documents"
OPTIONS = json_util.JSONOptions(tz_aware=True, tzinfo=dt.UTC)
MARKS = {"$oid", "$date", "$numberLong", "$numberDouble", "$numberDecimal", "$binary", "$regularExpression"}
MARKS |= {"$timestamp", "$minKey", "$maxKey"}


class Question(NamedTuple):
    """A filter on the column `j`, and what it is about."""

    about: str
    filter: dict[str, Any]


def decoded(value: Any) -> Any:
    """Extended JSON, but only its own marks: `$regex` and `$ref` are part of the filter language and stay."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)) in MARKS:
        return json_util.loads(json.dumps(value), json_options=OPTIONS)
    return {name: decoded(item) for name, item in value.items()}


def raw_cases(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text())
    return cases


def texts() -> list[str]:
    """Every document of every case, as JSON text."""
    return [json.dumps(document) for case in raw_cases("filters") for document in case["match"] + case["differ"]]


def plain_texts() -> list[str]:
    """The documents that plain JSON can hold."""
    return [text for text in texts() if '"$' not in text]


def questions() -> list[Question]:
    """The filters, moved under the column. `$expr` speaks of fields in its own way and is left out."""
    return [
        Question(case["about"], under(decoded(case["filter"])))
        for case in raw_cases("filters")
        if "$expr" not in case["filter"]
    ]


def under(source: dict[str, Any]) -> dict[str, Any]:
    moved: dict[str, Any] = {}
    for name, value in source.items():
        if name in ("$and", "$or", "$nor"):
            moved[name] = [under(item) for item in value]
        else:
            moved[name if name.startswith("$") else f"j.{name}"] = value
    return moved
