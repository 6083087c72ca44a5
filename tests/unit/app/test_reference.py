"""The configuration's reference: complete, and a file that the server takes."""

from pathlib import Path

import msgspec
import pytest

from mainstem.app.config import Config, load_config
from mainstem.app.reference import Section, sections, to_markdown, to_toml

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "configuration.md"


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.name)
def test_every_key_says_what_it_is_for(section: Section) -> None:
    assert section.words
    assert [key.name for key in section.keys if not key.words] == []


def test_what_is_printed_is_a_file_with_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mainstem.toml"
    path.write_text(to_toml())
    assert load_config(path) == Config()


def test_every_section_and_key_is_there() -> None:
    printed = msgspec.toml.decode(to_toml())
    expected = msgspec.json.decode(msgspec.json.encode(Config()))
    del expected["users"], expected["tables"]
    assert printed == expected
    assert {"users.NAME", 'tables."NAMESPACE.TABLE"'} <= {section.name for section in sections()}


def test_the_guide_is_current() -> None:
    assert GUIDE.read_text() == to_markdown(), "run `make docs`"
