"""Blocks of the guides, for the tests that run them where `tests/compat/test_guides.py` cannot."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "guides"


def guide_block(page: str, language: str, number: int = 0) -> str:
    """One of the blocks that a guide has in a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", (FOLDER / page).read_text(), re.MULTILINE | re.DOTALL)
    return str(found[number])


def guide_properties(page: str, number: int, places: dict[str, str]) -> str:
    """A guide's own properties, with the places of a test and its settings beyond."""
    lines = [
        line for line in guide_block(page, "properties", number).splitlines() if line.partition("=")[0] not in places
    ]
    return "\n".join([*lines, *(f"{name}={value}" for name, value in places.items())])
