"""What a user can say of a table, and what is refused."""

from typing import Any

import pytest

from mainstem.model.errors import Invalid
from mainstem.tables.settings import TableSettings, Transform, parse_transform


@pytest.mark.parametrize(
    ("text", "transform"),
    [
        ("bucket(16, id)", Transform("bucket", "id", 16)),
        ("truncate( 4 ,name)", Transform("truncate", "name", 4)),
        ("day(at)", Transform("day", "at")),
        ("identity(country)", Transform("identity", "country")),
        ("country", Transform("identity", "country")),
    ],
)
def test_transforms_are_read(text: str, transform: Transform) -> None:
    assert parse_transform(text) == transform


@pytest.mark.parametrize(
    "text", ["", "bucket(id)", "bucket(0, id)", "week(at)", "day(a, b)", "\u0131dentity(a)", "buc\u212aet(4, a)"]
)
def test_other_transforms_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_transform(text)


@pytest.mark.parametrize(
    "document",
    [
        {"state": False, "history": False},
        {"format_version": 1},
        {"nested": "variant"},
        {"nested": "struct"},
        {"columns": {"a": "variant"}},
        {"columns": {"a": "money"}},
        {"colour": "red"},
        # Of one column: an hour has its day in it, unless the day stands before it.
        {"partition": ["hour(at)", "day(at)"]},
        {"partition": ["month(at)", "day(at)"]},
        {"partition": ["day(at)", "hour(at)", "year(at)"]},
    ],
)
def test_settings_that_cannot_be_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        TableSettings.from_document(document)


def test_settings_are_read() -> None:
    settings = TableSettings.from_document(
        {"nested": "variant", "format_version": 3, "columns": {"a": "int"}, "partition": ["bucket(4, a)"]}
    )
    assert settings.columns["a"] == "int"
    assert settings.partition == (Transform("bucket", "a", 4),)
