"""Generates the protobuf classes of the sync protocol from its one schema file: `make proto`, checked by `make check`.

The classes are in the tree, so that neither an installation nor a start needs the compiler.
"""

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SCHEMA = HERE.parent / "lakesync.proto"
NAMES = ("lakesync_pb2.py", "lakesync_pb2.pyi")
HEADER = "# ruff: noqa\n# mypy: disable-error-code=type-arg\n"


def generate() -> dict[str, str]:
    """The generated files, by name. Needs grpcio-tools, which only development has."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory() as folder:
        arguments = ["protoc", f"-I{SCHEMA.parent}", f"--python_out={folder}", f"--pyi_out={folder}", SCHEMA.name]
        if protoc.main(arguments):
            raise SystemExit(f"the schema cannot be compiled. got={SCHEMA.name}")
        return {name: HEADER + (Path(folder) / name).read_text() for name in NAMES}


def main(arguments: list[str]) -> int:
    """Write the files, or with `--check` say whether they are current."""
    stale = {name: text for name, text in generate().items() if _stored(name) != text}
    if "--check" in arguments:
        if stale:
            sys.stderr.write(f"not current, run `make proto`: {', '.join(stale)}\n")
        return 1 if stale else 0
    for name, text in stale.items():
        (HERE / name).write_text(text)
    return 0


def _stored(name: str) -> str | None:
    path = HERE / name
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
