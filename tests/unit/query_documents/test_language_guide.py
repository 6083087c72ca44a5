"""The guide's tables are those of the code: nothing is missing, and nothing is promised that is not there."""

import re
from pathlib import Path

from mainstem.documents.aggregation import ACCUMULATORS, STAGES, WINDOW_OPERATORS
from mainstem.documents.aggregation import NOT_RUN as STAGES_NOT_RUN
from mainstem.documents.expressions import FORMS, NOT_RUN, OPERATORS
from mainstem.documents.filters.parse import FILTER_OPERATORS, NOT_ANSWERED
from mainstem.documents.schema import KEYWORDS
from mainstem.documents.updates.operators import OPERATORS as UPDATES

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "mongo-languages.md"
# What stands inside of others and is in no table of its own.
_MODIFIERS = {"$each", "$position", "$rename", "$slice", "$sort", "$elemMatch"}


def section(title: str) -> set[str]:
    """The operators that a section names."""
    text = GUIDE.read_text()
    part = text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"`(\$[A-Za-z]\w+)`", part))


def test_filters() -> None:
    assert section("Filters") - {"$jsonSchema"} == FILTER_OPERATORS - {"$jsonSchema"}
    assert all(f"`{name}`" in GUIDE.read_text() for name in KEYWORDS)


def test_updates() -> None:
    stages = {"$set", "$addFields", "$unset", "$project", "$replaceRoot", "$replaceWith"}
    assert section("Updates") == set(UPDATES) | _MODIFIERS - {"$elemMatch"} | stages


def test_stages() -> None:
    assert section("Stages") - {"$expr"} == set(STAGES) | set(ACCUMULATORS) | WINDOW_OPERATORS


def test_expressions() -> None:
    assert section("Expressions") == set(OPERATORS) | FORMS


def test_refusals() -> None:
    assert section("Refused by name") >= set(NOT_ANSWERED) | set(NOT_RUN) | set(STAGES_NOT_RUN)
