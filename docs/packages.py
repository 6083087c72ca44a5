"""Draws the packages of `src/mainstem` and their imports into docs/ARCHITECTURE.md: `make docs`.

`make check` says whether the picture is current. It reads the sources as text and imports none of them. An arrow that
follows from two others is left out of the picture; the table beneath it has every import.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mainstem"
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
BEGIN, END = "<!-- packages: begin (make docs) -->", "<!-- packages: end -->"


def imports_by_package() -> dict[str, set[str]]:
    """Which packages each package imports, besides itself."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        found[package] |= {name for name in _imported(path) if name != package}
    return dict(sorted(found.items()))


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("mainstem.")}


def _needed(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows without those that a longer way implies."""

    def reaches(start: str, goal: str) -> bool:
        seen, todo = set[str](), [each for each in graph[start] if each != goal]
        while todo:
            at = todo.pop()
            if at == goal:
                return True
            if at not in seen:
                seen.add(at)
                todo += graph.get(at, ())
        return False

    return [(one, other) for one in graph for other in sorted(graph[one]) if not reaches(one, other)]


def draw() -> str:
    """The picture and the table, between their marks."""
    graph = imports_by_package()
    arrows = "\n".join(f"  {one} --> {other}" for one, other in _needed(graph))
    rows = "\n".join(f"| `{name}` | {', '.join(sorted(used)) or 'nothing of ours'} |" for name, used in graph.items())
    table = f"| package | imports |\n|---|---|\n{rows}"
    return f"{BEGIN}\n```mermaid\nflowchart TD\n{arrows}\n```\n\n{table}\n{END}"


def main(arguments: list[str]) -> int:
    """Write the picture, or with `--check` say whether it is current."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    current = before + draw() + rest.split(END)[1]
    if "--check" in arguments:
        if current != page:
            sys.stderr.write("the picture of the packages in docs/ARCHITECTURE.md is not current, run `make docs`\n")
            return 1
    else:
        PAGE.write_text(current)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
