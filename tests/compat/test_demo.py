"""`mainstem demo`, as `make demo` runs it: each door writes and sees what others wrote; loud where a row differs."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from mainstem.app.demo.demo import _differences
from mainstem.app.demo.sample import Shop

# On a fresh machine it is to stay under this.
SECONDS_MAX = 180.0


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_demo_shows_every_door_and_says_where_to_look() -> None:
    began_s = time.monotonic()
    words = [sys.executable, "-m", "mainstem.app", "demo", "--changes", "2000"]
    # Wide enough for its tables.
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(words, env=wide, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert time.monotonic() - began_s < SECONDS_MAX
    assert "every door, DuckDB and Spark see the same rows" in done.stdout
    for seer in ("change stream", "Kafka consumer", "sync client", "MongoDB client", "DuckDB", "Spark"):
        # A mark for each of the four doors that wrote.
        assert re.search(rf"{seer}[^│┃\n]*[│┃]( *✓ *[│┃]){{4}}", done.stdout), (seer, done.stdout)
    assert "what Spark did" in done.stdout
    for what in ("console  http://", "catalog  http://", "kafka    127.0.0.1:", "mongo    mongodb://"):
        assert what in done.stdout


def as_found(shop: Shop) -> dict[str, list[dict[str, Any]]]:
    """The tables as DuckDB would show them."""
    rows = {name: [{**row, "_key": key} for key, row in table.items()] for name, table in shop.tables.items()}
    return rows | {"history": [{"count": shop.events, "distinct": shop.events}]}


DAMAGES: dict[str, Callable[[dict[str, list[dict[str, Any]]]], object]] = {
    "a value": lambda found: found["shipments"][3].update(km=-1.0),
    "a row less": lambda found: found["customers"].pop(),
    "a row twice": lambda found: found["shipments"].append(found["shipments"][0]),
    "a row more": lambda found: found["shipments"].append({"_key": "s999999"}),
    "a change twice": lambda found: found["history"][0].update(count=found["history"][0]["count"] + 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_single_row_that_differs_is_told(damage: str) -> None:
    shop = Shop()
    list(shop.batches(1_000, 100))
    # Nested values are JSON text in the tables: those are left out here.
    for table in shop.tables.values():
        for key, row in table.items():
            table[key] = {name: value for name, value in row.items() if not isinstance(value, list | dict)}
    found = as_found(shop)
    assert _differences(shop, found) == []
    DAMAGES[damage](found)
    assert len(_differences(shop, found)) == 1
