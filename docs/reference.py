"""Writes docs/reference/python.md: what users import, from the sources' own signatures and docstrings: `make docs`.

`make check` says whether the page is current. It reads the sources as text and imports none of them.
"""

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PAGE = ROOT / "docs" / "reference" / "python.md"
# What users import, and the guide that shows it at work.
PACKAGES = {
    "mainstem.client": "[flow control](../guides/flow-control.md), [catalog](../guides/catalog.md)",
    "mainstem.client.sync": "[sync for Python](../guides/python-sync.md)",
    "mainstem.client.delta": "[Delta tables](../guides/delta.md)",
}
HEAD = """# Python reference

What users import, by package. `make docs` writes this page from the sources; `make check` says whether it is current.
Errors are those of `mainstem.model`: `Invalid`, `Denied`, `NotFound`, `Conflict`, `Overloaded` (with `retry_after_s`),
`OutcomeUnknown` and `Corrupt`, under `MainstemError`.
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    """A definition, and the module that it stands in."""

    module: str
    node: ast.stmt


def _tree(module: str) -> ast.Module:
    path = SOURCE / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


def _find(module: str, name: str) -> Found:
    """Follow imports to where a name is defined."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return Found(module, node)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mainstem"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _find(node.module, alias.name)
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == name for each in node.targets
        ):
            return Found(module, node)
    raise SystemExit(f"docs/reference.py: a name is exported and not defined. got={module}.{name}")


def _signature(node: Function, *, of_class: str | None = None) -> str:
    copied = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(copied, ast.FunctionDef)
    if of_class is not None:
        positional = copied.args.posonlyargs or copied.args.args
        if positional and positional[0].arg in {"self", "cls"}:
            positional.pop(0)
    name = of_class if node.name == "__init__" and of_class else node.name
    begin = "await " if isinstance(node, ast.AsyncFunctionDef) and not _is_context(node) else ""
    end = f" -> {ast.unparse(node.returns)}" if node.returns is not None and node.name != "__init__" else ""
    return f"{begin}{name}({ast.unparse(copied.args)}){end}"


def _is_context(node: Function) -> bool:
    return any("contextmanager" in ast.unparse(each) for each in node.decorator_list)


def _is_property(node: Function) -> bool:
    return any(ast.unparse(each) == "property" for each in node.decorator_list)


def _text(node: ast.AST) -> str:
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return ast.get_docstring(node) or ""


def _prose(text: str, indent: str = "") -> str:
    """A docstring as Markdown: what it indents is code."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        if line.startswith("    ") and not code and (not lines or not lines[-1].strip()):
            lines.append("```text")
            code = True
        elif code and line.strip() and not line.startswith("    "):
            while lines and not lines[-1].strip():
                lines.pop()
            lines += ["```", ""]
            code = False
        lines.append(line[4:] if code else line)
    if code:
        lines.append("```")
    return textwrap.indent("\n".join(lines), indent).rstrip()


def _methods(found: Found) -> Iterator[Function]:
    """Public methods of a class and of its bases that are ours, each once."""
    assert isinstance(found.node, ast.ClassDef)
    seen: set[str] = set()
    classes = [found]
    while classes:
        module, node = classes.pop(0)
        assert isinstance(node, ast.ClassDef)
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name not in seen:
                seen.add(each.name)
                if not each.name.startswith("_") and _text(each):
                    yield each
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0]
            if name.isidentifier() and _is_ours(module, name):
                classes.append(_find(module, name))


def _is_ours(module: str, name: str) -> bool:
    return any(
        (isinstance(node, ast.ClassDef) and node.name == name)
        or (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("mainstem")
            and any((alias.asname or alias.name) == name for alias in node.names)
        )
        for node in ast.walk(_tree(module))
    )


def _class(found: Found, name: str) -> Iterator[str]:
    assert isinstance(found.node, ast.ClassDef)
    made = next(
        (each for each in found.node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None
    )
    yield f"### `{name}`\n\n{_prose(_text(found.node))}\n"
    fields = [each for each in found.node.body if isinstance(each, ast.AnnAssign) and _is_public(each.target)]
    if made is not None:
        yield f"```text\n{_signature(made, of_class=name)}\n```\n"
        if _text(made):
            yield _prose(_text(made)) + "\n"
    elif fields:
        yield "```text\n" + "\n".join(ast.unparse(each) for each in fields) + "\n```\n"
    rows = []
    for each in _methods(found):
        shown = each.name if _is_property(each) else _signature(each, of_class=name)
        rows.append(f"- `{shown}`\n{_prose(_text(each), '  ')}")
    if rows:
        yield "\n".join(rows) + "\n"


def _is_public(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and not target.id.startswith("_")


def _package(package: str, guides: str) -> Iterator[str]:
    tree = _tree(package)
    yield f"## `{package}`\n\n{ast.get_docstring(tree)} Guides: {guides}.\n"
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    exported = next(node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    for name in sorted(map(str, ast.literal_eval(exported)), key=str.lower):
        found = _find(package, name)
        inner = next((each for each in PACKAGES if each != package and found.module.startswith(each + ".")), None)
        if inner is not None and inner.startswith(package + "."):
            yield f"### `{name}`\n\nSee `{inner}`.\n"
        elif isinstance(found.node, ast.ClassDef):
            yield from _class(found, name)
        elif isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"### `{_signature(found.node)}`\n\n{_prose(_text(found.node))}\n"
        else:
            yield f"### `{name}`\n\n```text\n{ast.unparse(found.node)}\n```\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for package, guides in PACKAGES.items():
        parts += _package(package, guides)
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with --check say whether it is current."""
    text = page()
    if "--check" in sys.argv:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        sys.stderr.write("docs/reference/python.md is not what the sources say: run `make docs`\n")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
