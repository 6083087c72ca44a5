"""Checks the walks in docs/ARCHITECTURE.md, function by function: `make check`.

A step is a numbered line that begins with a file below `src/mainstem` and the name of a function or method in it. Steps
follow each other in legs. Any other line ends a leg and says why the next one begins where it does: what was done is at
rest, or the next function is called through a table. For every step this checks that

- the name is defined in that file;
- a step before it in the same leg mentions it: that is who calls it;
- its package is not above the caller's in the layers that import-linter keeps. The app may come after a port, since it
  is what fills ports: such a line says "port".
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mainstem"
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
HEADING = "## Three walks"
_STEP = re.compile(r"\d+\. `([\w/]+\.py)` `([\w.]+)`(.*)")
STEPS_MIN = 40
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Step(NamedTuple):
    """A line of a walk, and where it stands in the page."""

    line: int
    file: str
    name: str
    text: str

    @property
    def package(self) -> str:
        """The package that the file is in."""
        return self.file.split("/")[0].removesuffix(".py")


def legs(page: str) -> list[list[Step]]:
    """The steps of all walks, leg by leg."""
    found: list[list[Step]] = [[]]
    is_inside = False
    for number, line in enumerate(page.splitlines(), start=1):
        if line.startswith("## "):
            is_inside = line == HEADING
        elif is_inside and (match := _STEP.match(line)):
            found[-1].append(Step(number, *match.groups()))
        elif is_inside and line.strip():
            found.append([])
    return [leg for leg in found if leg]


def layers() -> dict[str, int]:
    """How high each package is, the lowest at 0."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    height = enumerate(reversed(rows))
    return {name.strip().removeprefix("mainstem."): level for level, row in height for name in row.split("|")}


@cache
def _parsed(file: str) -> tuple[list[str], ast.Module] | None:
    path = SOURCE / file
    return (path.read_text().splitlines(), ast.parse(path.read_text())) if path.exists() else None


@cache
def _source(file: str, name: str) -> str | None:
    """The text of a function or method; None where there is none of that name."""
    if (parsed := _parsed(file)) is None:
        return None
    lines, at = parsed
    node: ast.AST = at
    for part in name.split("."):
        definitions = [each for each in ast.walk(node) if isinstance(each, _DEFINITION) and each.name == part]
        if not definitions:
            return None
        node = definitions[0]
    assert isinstance(node, _DEFINITION)
    return "\n".join(lines[node.lineno - 1 : node.end_lineno])


def faults(page: str) -> Iterator[str]:
    """What is not as the walks of a page say."""
    height = layers()
    walked = legs(page)
    if sum(map(len, walked)) < STEPS_MIN:
        yield f"{PAGE.name}: walks. expected=at least {STEPS_MIN} steps got={sum(map(len, walked))}"
    for leg in walked:
        for number, step in enumerate(leg):
            place = f"{PAGE.name}:{step.line}: `{step.file}` `{step.name}`"
            if _source(step.file, step.name) is None:
                yield f"{place} is not there"
                continue
            if number == 0:
                continue
            called = re.compile(rf"\b_?{re.escape(step.name.rpartition('.')[2])}\b")
            callers = [each for each in leg[:number] if called.search(_source(each.file, each.name) or "")]
            if not callers:
                yield f"{place} is mentioned by no step before it in its leg"
            elif height[step.package] > min(height[each.package] for each in callers) and "port" not in step.text:
                yield f"{place} is above its caller {callers[-1].name}"


def main() -> int:
    """Say what is wrong; 0 where nothing is."""
    found = list(faults(PAGE.read_text()))
    for fault in found:
        sys.stderr.write(f"{fault}\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
