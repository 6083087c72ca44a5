"""What happens to a table's schema before a batch goes in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model.errors import Conflict
from mainstem.tables.evolution import OVER_LIMIT, TABLE_COLUMNS_MAX, Column, columns_of, kinds_of, plan_evolution
from mainstem.tables.kinds import settings_of_kind
from mainstem.tables.layout import column_name, stored_name
from mainstem.tables.settings import DEFAULT_SETTINGS, Format, TableSettings
from mainstem.tables.types import DECIMAL, TIMESTAMPTZ, ColumnType, Kind
from mainstem.wire.mongo.batches import DOCUMENT_COLUMN, DOCUMENTS

LONG, DOUBLE, STRING = ColumnType("long"), ColumnType("double"), ColumnType("string")


def test_new_columns_are_added_with_the_type_of_their_values() -> None:
    plan = plan_evolution((), {"id": ["int"], "note": ["null"]}, DEFAULT_SETTINGS)
    assert plan.add == (Column("id", LONG, Kind.INT), Column("note", STRING, Kind.NULL))
    assert plan.touches_schema and not plan.rewrite


def test_nothing_new_touches_nothing() -> None:
    current = (Column("id", LONG, Kind.INT), Column("doc", STRING, Kind.JSON))
    plan = plan_evolution(current, {"id": ["int", "null"], "doc": ["array"]}, DEFAULT_SETTINGS)
    assert not plan.touches_schema
    assert plan.columns == current


@pytest.mark.parametrize(
    ("kind", "stored", "seen", "becomes", "how"),
    [
        (Kind.INT, "long", "long", Column("c", LONG, Kind.LONG), "kinds_changed"),
        (Kind.INT, "long", "double", Column("c", DOUBLE, Kind.DOUBLE), "rewrite"),
        (Kind.LONG, "long", "double", Column("c", STRING, Kind.STRING), "rewrite"),
        (Kind.DOUBLE, "double", "int", Column("c", DOUBLE, Kind.DOUBLE), None),
        (Kind.DOUBLE, "double", "long", Column("c", STRING, Kind.STRING), "rewrite"),
        (Kind.BOOL, "boolean", "string", Column("c", STRING, Kind.STRING), "rewrite"),
        (Kind.JSON, "string", "string", Column("c", STRING, Kind.STRING), "kinds_changed"),
        (Kind.NULL, "string", "int", Column("c", LONG, Kind.INT), "retype"),
        (Kind.NULL, "string", "string", Column("c", STRING, Kind.STRING), "kinds_changed"),
        (Kind.STRING, "string", "object", Column("c", STRING, Kind.STRING), None),
        (Kind.STRING, "string", "time", Column("c", STRING, Kind.STRING), None),
        (Kind.NULL, "string", "time", Column("c", TIMESTAMPTZ, Kind.TIME), "retype"),
        (Kind.TIME, "timestamptz", "string", Column("c", STRING, Kind.STRING), "rewrite"),
        (Kind.INT, "long", "decimal", Column("c", DECIMAL, Kind.DECIMAL), "rewrite"),
        (Kind.DECIMAL, "decimal(38,18)", "double", Column("c", STRING, Kind.STRING), "rewrite"),
    ],
)
def test_how_a_column_grows(kind: Kind, stored: str, seen: str, becomes: Column, how: str | None) -> None:
    plan = plan_evolution((Column("c", ColumnType(stored), kind),), {"c": [seen]}, DEFAULT_SETTINGS)
    assert plan.columns == (becomes,)
    done = {name for name in ("add", "retype", "widen", "rewrite") if getattr(plan, name)}
    assert done == ({how} - {"kinds_changed", None})
    assert plan.kinds_changed is (how is not None)


@pytest.mark.parametrize(
    ("transforms", "becomes"),
    [
        ({"truncate"}, Column("c", STRING, Kind.STRING)),
        ({"identity", "bucket"}, Column("c", STRING, Kind.STRING)),
        ({"identity"}, Column("c", DOUBLE, Kind.DOUBLE)),
        ({"void"}, Column("c", DOUBLE, Kind.DOUBLE)),
    ],
)
def test_a_column_keeps_a_type_that_its_partitions_can_be_taken_of(transforms: set[str], becomes: Column) -> None:
    current = (Column("c", LONG, Kind.INT),)
    plan = plan_evolution(current, {"c": ["double"]}, DEFAULT_SETTINGS, {"c": transforms})
    assert plan.columns == plan.rewrite == (becomes,)
    # Decided once, it stays so.
    again = plan_evolution(plan.columns, {"c": ["int"]}, DEFAULT_SETTINGS, {"c": transforms})
    assert again.columns == plan.columns and not again.rewrite


def test_a_declared_type_that_no_partition_can_be_taken_of_is_a_conflict() -> None:
    declared = TableSettings.from_document({"columns": {"c": "double"}})
    with pytest.raises(Conflict, match="partitions are made of this column"):
        plan_evolution((Column("c", LONG, Kind.INT),), {}, declared, {"c": {"bucket"}})


def test_a_declared_type_wins() -> None:
    settings = TableSettings.from_document({"columns": {"price": "decimal(10,2)", "later": "date"}})
    plan = plan_evolution((), {"price": ["string"], "id": ["int"]}, settings)
    assert {(column.name, column.type, column.kind) for column in plan.columns} == {
        ("price", "decimal(10,2)", None),
        ("later", "date", None),
        ("id", "long", Kind.INT),
    }


def test_a_declared_type_widens_in_place_or_is_a_conflict() -> None:
    current = (Column("price", ColumnType("decimal(10,2)")),)
    wider = TableSettings.from_document({"columns": {"price": "decimal(12,2)"}})
    assert plan_evolution(current, {}, wider).widen == (Column("price", ColumnType("decimal(12,2)")),)
    other = TableSettings.from_document({"columns": {"price": "date"}})
    with pytest.raises(Conflict, match="price"):
        plan_evolution(current, {}, other)


def test_columns_over_the_limit_are_refused() -> None:
    current = [Column(f"c{i}", LONG, Kind.INT) for i in range(TABLE_COLUMNS_MAX)]
    plan = plan_evolution(current, {"more": ["int"], "c1": ["int"]}, DEFAULT_SETTINGS)
    assert plan.refused == {"more": OVER_LIMIT}
    assert len(plan.columns) == TABLE_COLUMNS_MAX


IN_DELTA = TableSettings(format=Format.DELTA)


@pytest.mark.parametrize("name", ["NAME", "nAme", "_KEY", "_Hlc", "file_index", "File_Row_Number"])
def test_a_name_that_delta_takes_for_another_is_refused_and_stops_nothing(name: str) -> None:
    current = [Column("Name", STRING, Kind.STRING)]
    seen = {name: ["int"], "other": ["int"]}
    plan = plan_evolution(current, seen, IN_DELTA)
    assert [column.name for column in plan.columns] == ["Name", "other"]
    assert set(plan.refused) == {name} and name in plan.refused[name]
    # Iceberg tells them apart.
    assert plan_evolution(current, seen, DEFAULT_SETTINGS).refused == {}


def test_of_two_new_names_that_differ_by_case_the_first_is_a_column() -> None:
    plan = plan_evolution([], {"Case": ["int"], "case": ["int"]}, IN_DELTA)
    assert [column.name for column in plan.columns] == ["Case"] and set(plan.refused) == {"case"}


def test_a_document_keeps_its_row_where_a_field_has_no_column() -> None:
    documents = settings_of_kind(DOCUMENTS)
    plan = plan_evolution([], {"Case": ["int"], "case": ["int"]}, documents)
    assert [column.name for column in plan.columns] == [DOCUMENT_COLUMN, "Case"] and plan.refused == {}


def test_kinds_are_remembered() -> None:
    columns = (Column("_key", LONG, Kind.INT), Column("doc", STRING, Kind.JSON), Column("d", ColumnType("date")))
    fields = [(column.stored, column.type) for column in columns]
    assert columns_of(fields, kinds_of(columns)) == columns


names = st.one_of(st.text(min_size=1), st.sampled_from(["_key", "_file", "_hlc"]).flatmap(
    lambda name: st.integers(0, 4).map(lambda count: name + "_" * count)
))  # fmt: skip


@given(names, names)
def test_stored_names_are_one_to_one(left: str, right: str) -> None:
    assert column_name(stored_name(left)) == left
    assert (stored_name(left) == stored_name(right)) is (left == right)


@given(names)
def test_no_stored_name_is_a_reserved_one(name: str) -> None:
    assert stored_name(name) not in {"_key", "_hlc", "_source", "_position", "_clocks", "_file", "_pos"}
