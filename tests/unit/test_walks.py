"""The check of the walks in docs/ARCHITECTURE.md finds what is wrong with one."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def walks() -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "walks.py"
    spec = importlib.util.spec_from_file_location("walks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_walks_are_what_the_sources_do(walks: ModuleType) -> None:
    assert list(walks.faults(walks.PAGE.read_text())) == []


@pytest.mark.parametrize(
    ("there", "instead", "fault"),
    [
        ("`CdcSession._take`", "`CdcSession._grab`", "is not there"),
        ("`doors/cdc/reading.py`", "`doors/cdc/listening.py`", "is not there"),
        ("`wal.py` `WalWriter._commit`", "`wal.py` `WalWriter._commit`", None),
        ("`Gate.admit` asks", "`Gate.tables` asks", "is mentioned by no step before it"),
        ("`CatalogLake.load` fills the port `Lake`", "`CatalogLake.load` fills `Lake`", "is above its caller"),
        ("## Three walks", "## Walks", "expected=at least"),
    ],
)
def test_a_walk_that_is_wrong_is_found(walks: ModuleType, there: str, instead: str, fault: str | None) -> None:
    found = list(walks.faults(walks.PAGE.read_text().replace(there, instead)))
    assert (not found) if fault is None else any(fault in each for each in found)
