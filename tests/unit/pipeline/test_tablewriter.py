"""A table takes in the log: rows, history, marks, replays, evolution, dead letters."""

from typing import Any

import pytest

from mainstem.model import UNNAMED, Lineage, LogId, LogPosition, Operation, Span
from mainstem.tables.settings import TableSettings
from tests.unit.pipeline.conftest import BOTH_CATALOGS

pytestmark = [pytest.mark.spark, BOTH_CATALOGS]


def test_last_row_of_a_key_stays_and_a_deleted_one_goes(bench: Any) -> None:
    bench.seal(
        bench.change("1", {"id": 1, "note": "a"}),
        bench.change("2", {"id": 2, "note": "b"}),
        bench.change("1", {"id": 1, "note": "c"}),
    )
    assert bench.catch_up() == 3
    bench.seal(
        bench.change("2", None),
        bench.change("3", {"id": 3, "note": None}),
        bench.change("4", {"id": 4, "note": "d"}),
        bench.change("4", None),
    )
    assert bench.catch_up() == 7
    assert bench.values() == {"1": {"id": 1, "note": "c"}, "3": {"id": 3, "note": None}}
    assert [row["_position"] for row in bench.rows("orders_history")] == [1, 3, 2, 4, 5, 6, 7]


def test_a_replay_commits_nothing(bench: Any) -> None:
    bench.seal(bench.change("1", {"id": 1}))
    bench.catch_up()
    bench.seal(bench.change("1", {"id": 2}), bench.change("2", None))
    bench.catch_up()
    before = [bench.lake.load(bench.name(table)).snapshot_id for table in ("orders", "orders_history")]
    assert bench.catch_up() == 3
    assert [bench.lake.load(bench.name(table)).snapshot_id for table in ("orders", "orders_history")] == before


def test_a_history_from_before_it_said_of_which_log_its_rows_are_begins_to(bench: Any) -> None:
    bench.seal(bench.change("1", {"id": 1}), bench.change("2", {"": 1}), errors={2: "empty column name"})
    bench.catch_up()
    for table in ("orders_history", "orders_dead_letters"):
        bench.spark.sql(f"ALTER TABLE {bench.lake.identifier(bench.name(table))} DROP COLUMN _log")
    bench.lineage = Lineage((*bench.lineage.spans, Span(LogId("a"), LogPosition(4))))
    bench.seal(bench.change("1", {"id": 2}), bench.change("3", {"id": 3}))
    bench.seal(bench.change("4", {"": 1}), errors={5: "empty column name"})
    assert bench.catch_up() == 5
    history = sorted(bench.rows("orders_history"), key=lambda row: row["_position"])
    assert [(row["_position"], row["_log"]) for row in history] == [(1, None), (3, ""), (4, "a")]
    assert [row["_log"] for row in bench.rows("orders_dead_letters")] == [None, "a"]
    assert bench.lake.load(bench.name("orders_history")).property("mainstem.unlogged") == '{"": 2}'
    assert bench.values()["3"] == {"id": 3}


def test_columns_change_their_types_midway_and_keep_every_value(bench: Any) -> None:
    bench.seal(bench.change("1", {"a": 1, "b": 1, "c": True, "d": None, "e": {"x": [1]}}))
    bench.catch_up()
    bench.seal(bench.change("2", {"a": 2.5, "b": "text", "c": 0, "d": 7, "e": "plain", "f": 2**70}))
    bench.catch_up()
    assert bench.values() == {
        "1": {"a": 1.0, "b": "1", "c": "true", "d": None, "e": '{"x":[1]}', "f": None},
        "2": {"a": 2.5, "b": "text", "c": "0", "d": 7, "e": "plain", "f": str(2**70)},
    }
    assert bench.lake.load(bench.name("orders")).marks().positions == {UNNAMED: 2}


def test_a_missing_column_keeps_its_value_and_a_null_takes_it(bench: Any) -> None:
    bench.seal(bench.change("1", {"a": 1, "b": 1}), bench.change("2", {"a": 1, "b": 1}))
    bench.catch_up()
    bench.seal(bench.change("1", {"a": 2}), bench.change("2", {"a": None, "c": "new"}))
    bench.catch_up()
    assert bench.values() == {"1": {"a": 2, "b": 1, "c": None}, "2": {"a": None, "b": 1, "c": "new"}}


def test_a_row_the_sealer_refused_is_a_dead_letter(bench: Any) -> None:
    bench.seal(bench.change("1", {"a": 1}), bench.change("2", {"": 1}), errors={2: "empty column name"})
    bench.catch_up()
    assert bench.values() == {"1": {"a": 1}}
    assert [row["_reason"] for row in bench.rows("orders_dead_letters")] == ["empty column name"]
    assert len(bench.rows("orders_history")) == 1
    bench.seal(bench.change("3", {"": 1}), errors={3: "empty column name"})
    assert bench.catch_up() == 3
    assert bench.lake.load(bench.name("orders")).marks().positions == {UNNAMED: 3}
    assert bench.lake.load(bench.name("orders_history")).marks().positions == {UNNAMED: 3}
    assert len(bench.rows("orders_dead_letters")) == 2


def test_a_declared_type_wins_and_what_does_not_fit_is_a_dead_letter(bench: Any) -> None:
    settings = TableSettings.from_document(
        {
            "columns": {
                "price": "decimal(20,4)",
                "day": "date",
                "n": "int",
                "at": "timestamptz",
                "u": "uuid",
                "b": "binary",
            }
        }
    )
    uuid = "123e4567-e89b-12d3-a456-426614174000"
    bench.seal(
        bench.change("1", {"price": 1234567890123456.1234, "day": "2024-02-29", "n": 5, "u": uuid, "b": "aGk="}),
        bench.change("2", {"price": "abc", "day": "2024-01-01"}),
        bench.change("3", {"price": "7.5", "day": "never", "n": None}),
        bench.change("4", {"n": 3_000_000_000}),
        bench.change("5", {"price": "12.50", "at": "2024-01-01T10:00:00Z"}),
    )
    bench.catch_up(settings=settings)
    reasons = [row["_reason"] for row in bench.rows("orders_dead_letters")]
    assert reasons == ["price: 'abc' is not decimal(20,4)", "day: 'never' is not date", "n: '3000000000' is not int"]
    values = bench.values()
    assert sorted(values) == ["1", "5"]
    assert str(values["5"]["price"]) == "12.5000"
    assert (str(values["1"]["day"]), values["1"]["n"], values["1"]["u"], bytes(values["1"]["b"])) == (
        "2024-02-29", 5, uuid, b"hi",
    )  # fmt: skip


def test_reserved_odd_and_many_column_names(bench: Any) -> None:
    row = {"_key": 1, "_key_": 2, "_file": "f", "a.b": 3, "with space": 4, "back`tick": 5, "Ünï": 6, "ID": 7, "id": 8}
    row |= {'quo"te': 9, "back\\slash": 10, "it's": 11, "$x": 12, "select": 13}
    bench.seal(bench.change("k", row))
    bench.catch_up()
    bench.seal(bench.change("k", {"a.b": 4}), bench.change("k2", {"_key": 9}))
    bench.catch_up()
    stored = {"_key_": 1, "_key__": 2, "_file_": "f", "a.b": 4}
    as_they_are = {name: value for name, value in row.items() if name not in ("_key", "_key_", "_file", "a.b")}
    assert bench.values()["k"] == stored | as_they_are
    assert bench.values()["k2"]["_key_"] == 9


def test_history_alone_and_state_alone(bench: Any) -> None:
    bench.seal(
        bench.change("1", {"a": 1}, table="h"), bench.change("1", {"a": 1}, table="s", operation=Operation.INSERT)
    )
    assert bench.catch_up("h", settings=TableSettings(state=False)) == 2
    assert bench.catch_up("s", settings=TableSettings(history=False)) == 2
    assert bench.lake.load(bench.name("h")) is None
    assert bench.lake.load(bench.name("s_history")) is None
    assert len(bench.rows("h_history")) == 1
    assert bench.values("s") == {"1": {"a": 1}}


def test_variant_where_the_table_asks(bench: Any) -> None:
    settings = TableSettings.from_document({"nested": "variant", "format_version": 3})
    bench.seal(bench.change("1", {"doc": {"a": [1, 2]}}), bench.change("2", {"doc": [1]}))
    bench.catch_up(settings=settings)
    bench.seal(bench.change("1", {"x": 1}))
    bench.catch_up(settings=settings)
    table = bench.lake.identifier(bench.name("orders"))
    found = bench.spark.sql(f"SELECT _key, variant_get(doc, '$.a[1]', 'int') AS a, x FROM {table} ORDER BY _key")
    assert [tuple(row) for row in found.collect()] == [("1", 2, 1), ("2", None, None)]


def test_partitions_stay_over_a_rewrite(bench: Any) -> None:
    settings = TableSettings.from_document(
        {"partition": ["bucket(4, _key)", "truncate(1, country)"], "columns": {"country": "string"}}
    )
    bench.seal(*(bench.change(str(i), {"country": "de", "n": i}) for i in range(20)))
    bench.catch_up(settings=settings)
    bench.seal(*(bench.change(str(i), {"country": "at", "n": "x"}) for i in range(5)))
    bench.catch_up(settings=settings)
    assert {key: (row["country"], row["n"]) for key, row in bench.values().items()} == {
        str(i): ("at", "x") if i < 5 else ("de", str(i)) for i in range(20)
    }
    spec = bench.lake.load(bench.name("orders")).java.spec().toString()
    assert "bucket[4]" in spec and "truncate[1]" in spec


def test_old_values_of_every_type_come_through_a_merge_as_they_are(bench: Any) -> None:
    """A partial row takes the rest from the old one, which goes through JSON on its way."""
    declared = {
        "whole": "long", "small": "int", "real": "double", "short": "float", "money": "decimal(38,10)", "day": "date",
        "at": "timestamptz", "local": "timestamp", "id": "uuid", "raw": "binary", "text": "string", "yes": "boolean",
    }  # fmt: skip
    settings = TableSettings.from_document({"columns": declared})
    rows: dict[str, dict[str, Any]] = {
        "least": {
            "whole": -(2**63), "small": -(2**31), "real": "-Infinity", "short": -3.4028234e38, "money": "0.0000000001",
            "day": "0001-01-01", "at": "0002-01-01T00:00:00.000001Z", "local": "0001-01-01T00:00:00.000001",
            "id": "00000000-0000-0000-0000-000000000000", "raw": "", "text": "", "yes": False,
        },
        "greatest": {
            "whole": 2**63 - 1, "small": 2**31 - 1, "real": 1.7976931348623157e308, "short": 1.1754944e-38,
            "money": "9" * 28 + "." + "9" * 10, "day": "9999-12-31", "at": "9999-12-31T23:59:59.999999Z",
            "local": "9999-12-31T23:59:59.999999", "id": "ffffffff-ffff-ffff-ffff-ffffffffffff", "raw": "/wD+",
            "text": 'null "quoted" \\ \u2028 \u0001 😀 {"a":1}', "yes": True,
        },
        "odd": {
            "whole": 0, "small": 0, "real": -0.0, "short": 0.1, "money": "-1.5", "day": "1582-10-10",
            "at": "1900-01-01T00:00:00.123456Z", "local": "2024-03-31T02:30:00", "raw": "aGk=", "text": "null",
            "id": "123e4567-e89b-12d3-a456-426614174000", "yes": True,
        },
        "nothing": dict.fromkeys(declared),
    }  # fmt: skip
    bench.seal(*(bench.change(key, row) for key, row in rows.items()))
    bench.catch_up(settings=settings)
    before = bench.values()
    assert sorted(before) == sorted(rows)
    bench.seal(*(bench.change(key, {"more": 1}) for key in rows))
    bench.catch_up(settings=settings)
    assert bench.values() == {key: row | {"more": 1} for key, row in before.items()}
    assert str(before["greatest"]["money"]) == "9" * 28 + "." + "9" * 10
    assert before["greatest"]["text"] == rows["greatest"]["text"]
