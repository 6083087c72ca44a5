"""`mainstem catalog verify` finds what is wrong with a state, and `rebuild` mends it from the history."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mainstem.app.cli.catalog import catalog
from mainstem.model.errors import Invalid
from mainstem.model.position import Lineage, LogId, LogPosition, Span
from mainstem.pipeline.commit.places import PlaceFinder
from mainstem.pipeline.session.spark import join_session
from mainstem.pipeline.turns import Turns
from mainstem.pipeline.upkeep.jobs import JobRunner, Link
from mainstem.pipeline.upkeep.maintenance import Maintenance
from mainstem.runtime.clock import SystemClock
from mainstem.tables.maintenance import MaintenanceSettings, Step
from mainstem.tables.settings import TableSettings

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("bench", ["served"], indirect=True),
]

KEYS = 30
RIGHT: dict[str, list[str]] = {"doubled": [], "stale": [], "missing": [], "extra": []}


def fill(bench: Any, **settings: Any) -> None:
    """Whole rows, partial ones, late ones, deletes, and a key that came back."""
    bench.seal(*(bench.change(f"k{number:02d}", {"n": number, "text": "first"}) for number in range(KEYS)))
    bench.catch_up(**settings)
    late = bench.change("k05", {"text": "late"}, hlc=1)
    bench.seal(
        *(bench.change(f"k{number:02d}", {"n": -number}) for number in range(10)),
        late,
        *(bench.change(f"k{number:02d}", None) for number in range(20, 24)),
        bench.change("k23", {"n": 23}),
        bench.change("empty", {}),
    )
    bench.catch_up(**settings)


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(catalog, ["--url", url, *words], env={"COLUMNS": "160"})


def verdict(bench: Any, url: str) -> tuple[int, dict[str, list[str]], int]:
    """How the check ends, the faults it finds, and how many keys it could not check."""
    result = run(url, "verify", f"{bench.namespace}.orders", "--json")
    assert result.output.startswith("{"), result.output
    (found,) = json.loads(result.output)["tables"]
    for fault in RIGHT:
        assert found[fault]["keys"] == len(found[fault]["examples"])
    return result.exit_code, {fault: found[fault]["examples"] for fault in RIGHT}, found["unchecked"]


def damage(bench: Any) -> None:
    """As the index that lost keys did, and worse."""
    state = bench.lake.identifier(bench.name("orders"))
    spark = bench.spark
    stale = f"SELECT n, 'old', _key, _hlc, _source, 1, _clocks FROM {state} WHERE _key IN ('k03', 'k11', 'k29')"
    spark.sql(f"INSERT INTO {state} {stale}")
    other = f"SELECT n, text, 'k20', _hlc, _source, _position, _clocks FROM {state} WHERE _key = 'k28'"
    spark.sql(f"INSERT INTO {state} {other}")
    spark.sql(f"DELETE FROM {state} WHERE _key IN ('k12', 'k13')")
    spark.sql(f"UPDATE {state} SET _position = 2 WHERE _key = 'k04'")


@pytest.mark.parametrize("version", [2, 3])
def test_a_damaged_state_is_found_and_made_anew(bench: Any, catalog_url: str, version: int) -> None:
    settings = TableSettings(format_version=version)
    fill(bench, settings=settings)
    assert verdict(bench, catalog_url) == (0, RIGHT, 0)
    rows, marks = bench.rows(), bench.lake.load(bench.name("orders")).marks()
    damage(bench)
    wrong = {"doubled": ["k03", "k11", "k29"], "stale": ["k04"], "missing": ["k12", "k13"], "extra": ["k20"]}
    assert verdict(bench, catalog_url) == (1, wrong, 0)

    bench.change("ahead", {"n": 1})
    done = Maintenance(bench.lake, Turns(), MaintenanceSettings(), SystemClock()).run(
        bench.name("orders"), [Step.REBUILD]
    )["rebuild"]

    assert done["rows_written"] == len(rows) and done["rows_before"] == len(rows) + 3 + 1 - 2
    assert bench.rows() == rows
    assert bench.lake.load(bench.name("orders")).marks() == marks
    assert verdict(bench, catalog_url) == (0, RIGHT, 0)

    bench.seal(bench.change("k03", {"n": 333}), bench.change("k29", None), bench.change("new", {"n": 5}))
    bench.catch_up(settings=settings)
    values = bench.values()
    assert values["k03"] == {"n": 333, "text": "first"} and values["new"] == {"n": 5, "text": None}
    assert "k29" not in values
    assert verdict(bench, catalog_url) == (0, RIGHT, 0)


def test_a_table_that_two_logs_wrote_is_right(bench: Any, catalog_url: str) -> None:
    """Their positions cannot be compared: the second log's 2 is later than the first one's 6."""
    bench.lineage = Lineage((Span(LogId("lost"), LogPosition(1)),))
    bench.seal(*(bench.change(f"k{number}", {"n": number, "text": "first"}) for number in range(6)))
    bench.catch_up()
    for segment in bench.segments():
        Path(segment.location).unlink()
    bench.lineage, bench.position, bench.finder = Lineage((Span(LogId("new"), LogPosition(1)),)), 0, PlaceFinder()
    bench.seal(
        bench.change("k5", {"n": 50, "text": "again"}, hlc=1_000),
        bench.change("k0", None, hlc=1_001),
        bench.change("k6", {"n": 6, "text": "new"}, hlc=1_002),
        # It came, and was too late to change anything but what nobody had written.
        bench.change("k1", {"n": -1, "late": 1}, hlc=1),
    )
    assert bench.catch_up() == 4
    assert bench.values()["k5"]["n"] == 50 and bench.values()["k1"] == {"n": 1, "text": "first", "late": 1}
    assert verdict(bench, catalog_url) == (0, RIGHT, 0)
    state = bench.lake.identifier(bench.name("orders"))
    # As it was before the second log wrote it.
    bench.spark.sql(f"UPDATE {state} SET _position = 6, _hlc = 60 WHERE _key = 'k5'")
    assert verdict(bench, catalog_url) == (1, RIGHT | {"stale": ["k5"]}, 0)


def test_the_commands_find_and_mend_it_through_the_pipeline(bench: Any, catalog_url: str) -> None:
    """`rebuild` queues a job at the gateway, and whoever runs the pipeline's jobs does it."""
    fill(bench)
    rows = bench.rows()
    damage(bench)
    name = f"{bench.namespace}.orders"
    shown = run(catalog_url, "verify")
    assert shown.exit_code == 1
    assert f"{name}: doubled: k03, k11, k29" in shown.output
    assert f"mainstem catalog rebuild {name}" in shown.output

    def maintenance() -> Maintenance:
        made = Maintenance(bench.lake, Turns(), MaintenanceSettings(), SystemClock())
        join_session(made.spark)
        return made

    runner = JobRunner(Link(f"{catalog_url}/v1/pipeline/jobs"), maintenance, SystemClock())
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        rebuilt = run(catalog_url, "rebuild", name, "--yes")
        assert rebuilt.exit_code == 0, rebuilt.output
        assert f"{len(rows):,} now" in " ".join(rebuilt.output.split())
        assert bench.rows() == rows
        assert run(catalog_url, "verify", name).exit_code == 0
        refused = run(catalog_url, "rebuild", f"{name}_history", "--yes")
        assert refused.exit_code == 1 and "reserved" in refused.output
        assert run(catalog_url, "rebuild", f"{bench.namespace}.none", "--yes").exit_code == 1
        missing = run(catalog_url, "verify", f"{bench.namespace}.none", name)
        assert missing.exit_code == 1 and "none: could not be checked: 404" in missing.output
    finally:
        runner.stop()


def test_a_shortened_history_is_refused_unless_forced(bench: Any, catalog_url: str) -> None:
    fill(bench)
    rows = bench.rows()
    bench.spark.sql(f"DELETE FROM {bench.lake.identifier(bench.name('orders_history'))} WHERE _key IN ('k01', 'k15')")
    damage(bench)
    maintenance = Maintenance(bench.lake, Turns(), MaintenanceSettings(), SystemClock())
    damaged = bench.rows()
    with pytest.raises(Invalid, match="does not know all keys"):
        maintenance.run(bench.name("orders"), [Step.REBUILD])
    assert bench.rows() == damaged

    done = maintenance.run(bench.name("orders"), [Step.REBUILD], force=True)["rebuild"]
    assert done["rows_kept"] == 2
    values = {row["_key"]: (row["n"], row["text"], row["_hlc"], row["_position"]) for row in rows}
    assert {row["_key"]: (row["n"], row["text"], row["_hlc"], row["_position"]) for row in bench.rows()} == values
    assert verdict(bench, catalog_url) == (0, RIGHT, 2)
