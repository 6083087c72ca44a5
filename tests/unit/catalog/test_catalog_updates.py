"""Every update of the protocol on a metadata document: what it changes, what it refuses, what it leaves alone."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.catalog.errors import CommitFailed
from mainstem.catalog.metadata.table import new_document, normalized, with_referenced_snapshots_only
from mainstem.catalog.metadata.updates import apply, create
from mainstem.formats.iceberg.snapshots import ancestry
from mainstem.model import Invalid

Document = dict[str, Any]

NOW_MS = 1_700_000_000_000
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 3, "name": "id", "type": "long", "required": True},
        {"id": 4, "name": "data", "type": "string", "required": False, "doc": "what it says"},
    ],
}


def table(version: int = 2, **overrides: Any) -> Document:
    document = new_document(
        schema=SCHEMA,
        spec=None,
        order=None,
        location="/w/t",
        properties={"format-version": str(version)},
        uuid="u-1",
        now_ms=NOW_MS,
    )
    return normalized({**document, **overrides})


def run(base: Document, *updates: Document) -> Document:
    before = copy.deepcopy(base)
    after = apply(base, updates, base_location="/w/t/metadata/00000-a.metadata.json", now_ms=NOW_MS + 5)
    assert base == before, "the base document is shared and must never change"
    return after


def snapshot(number: int, parent: int | None = None, **more: Any) -> Document:
    made = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": NOW_MS + number,
        "manifest-list": f"/w/t/metadata/snap-{number}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    if parent is not None:
        made["parent-snapshot-id"] = parent
    return made | more


def append(
    number: int, parent: int | None = None, ref: str = "main", more: Document | None = None
) -> tuple[Document, Document]:
    return (
        {"action": "add-snapshot", "snapshot": snapshot(number, parent, **more or {})},
        {"action": "set-snapshot-ref", "ref-name": ref, "type": "branch", "snapshot-id": number},
    )


def with_snapshots(count: int, version: int = 2) -> Document:
    base = table(version)
    for number in range(1, count + 1):
        base = normalized(run(base, *append(number, number - 1 or None)))
    return base


def test_a_new_table_numbers_its_columns_in_icebergs_order() -> None:
    nested = {
        "type": "struct",
        "identifier-field-ids": [90],
        "fields": [
            {"id": 90, "name": "id", "type": "long", "required": True},
            {
                "id": 91,
                "name": "tags",
                "required": False,
                "type": {"type": "list", "element-id": 92, "element": "string", "element-required": False},
            },
            {
                "id": 93,
                "name": "by",
                "required": False,
                "type": {
                    "type": "map",
                    "key-id": 94,
                    "key": "string",
                    "value-id": 95,
                    "value-required": False,
                    "value": {
                        "type": "struct",
                        "fields": [{"id": 96, "name": "x", "type": "variant", "required": False}],
                    },
                },
            },
        ],
    }
    document = new_document(
        schema=nested,
        spec={"fields": [{"source-id": 90, "name": "b", "transform": "bucket[4]"}]},
        order={"fields": [{"source-id": 90, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}]},
        location="/w/t",
        properties={"format-version": "3", "owner": "me"},
        uuid="u",
        now_ms=NOW_MS,
    )
    fields = document["schemas"][0]["fields"]
    assert [field["id"] for field in fields] == [1, 2, 3]
    assert fields[1]["type"]["element-id"] == 4
    assert (fields[2]["type"]["key-id"], fields[2]["type"]["value-id"]) == (5, 6)
    assert fields[2]["type"]["value"]["fields"][0] == {"id": 7, "name": "x", "type": "variant", "required": False}
    assert document["last-column-id"] == 7
    assert document["schemas"][0]["identifier-field-ids"] == [1]
    assert document["partition-specs"] == [
        {"spec-id": 0, "fields": [{"source-id": 1, "name": "b", "transform": "bucket[4]", "field-id": 1000}]}
    ]
    assert document["last-partition-id"] == 1000
    assert (document["default-sort-order-id"], document["sort-orders"][0]["fields"][0]["source-id"]) == (1, 1)
    assert document["properties"] == {"write.parquet.compression-codec": "zstd", "owner": "me"}
    assert (document["next-row-id"], document["current-snapshot-id"]) == (0, None)


def test_v1_keeps_its_old_fields_until_it_is_upgraded() -> None:
    first = table(1)
    assert first["schema"]["fields"][0]["name"] == "id"
    assert first["partition-spec"] == []
    later = run(first, {"action": "upgrade-format-version", "format-version": 2})
    assert "schema" not in later
    assert "partition-spec" not in later
    assert later["last-sequence-number"] == 0
    assert run(normalized(later), {"action": "upgrade-format-version", "format-version": 3})["next-row-id"] == 0


def test_add_schema_reuses_a_known_one_and_counts_columns() -> None:
    base = table()
    wider = {**SCHEMA, "fields": [*base["schemas"][0]["fields"], {"id": 9, "name": "n", "type": "int"}]}
    after = run(base, {"action": "add-schema", "schema": wider}, {"action": "set-current-schema", "schema-id": -1})
    assert (after["current-schema-id"], after["last-column-id"]) == (1, 9)
    back = run(
        normalized(after),
        {"action": "add-schema", "schema": {**base["schemas"][0], "schema-id": 77}},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert (back["current-schema-id"], len(back["schemas"]), back["last-column-id"]) == (0, 2, 9)


def test_specs_and_orders_get_ids() -> None:
    base = table()
    spec = {"fields": [{"source-id": 1, "name": "b", "transform": "bucket[4]"}]}
    order = {
        "order-id": 0,
        "fields": [{"source-id": 2, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}],
    }
    after = run(
        base,
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    assert after["partition-specs"][1]["fields"][0]["field-id"] == 1000
    assert (after["default-spec-id"], after["last-partition-id"], after["default-sort-order-id"]) == (1, 1000, 1)
    # The same field in a later spec keeps its id, and a new one gets the next.
    both = {"fields": [*spec["fields"], {"source-id": 2, "name": "t", "transform": "truncate[2]"}]}
    later = run(normalized(after), {"action": "add-spec", "spec": both})
    assert [f["field-id"] for f in later["partition-specs"][2]["fields"]] == [1000, 1001]
    again = run(normalized(later), {"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1})
    assert again is not later
    assert len(again["partition-specs"]) == 3
    assert again["default-spec-id"] == 1


def test_snapshots_move_main_and_the_logs() -> None:
    after = with_snapshots(2)
    assert after["current-snapshot-id"] == 2
    assert after["refs"] == {"main": {"type": "branch", "snapshot-id": 2}}
    assert [e["snapshot-id"] for e in after["snapshot-log"]] == [1, 2]
    assert (after["last-sequence-number"], after["last-updated-ms"]) == (2, NOW_MS + 2)
    assert len(after["metadata-log"]) == 2
    assert [s["snapshot-id"] for s in ancestry(after, 2)] == [2, 1]


def test_snapshots_that_main_only_passed_over_are_not_in_the_log() -> None:
    after = run(with_snapshots(1), *append(2, 1), *append(3, 2))
    assert [e["snapshot-id"] for e in after["snapshot-log"]] == [1, 3]
    assert [s["snapshot-id"] for s in after["snapshots"]] == [1, 2, 3]


def test_removing_a_snapshot_cuts_the_log_before_it_and_takes_its_statistics_and_refs() -> None:
    base = run(
        with_snapshots(3),
        {"action": "set-snapshot-ref", "ref-name": "old", "type": "tag", "snapshot-id": 2},
        {"action": "set-statistics", "statistics": {"snapshot-id": 2, "statistics-path": "/s"}},
        {"action": "set-partition-statistics", "partition-statistics": {"snapshot-id": 2, "statistics-path": "/p"}},
    )
    after = run(normalized(base), {"action": "remove-snapshots", "snapshot-ids": [2]})
    assert [e["snapshot-id"] for e in after["snapshot-log"]] == [3]
    assert after["refs"].keys() == {"main"}
    assert (after["statistics"], after["partition-statistics"]) == ([], [])
    gone = run(normalized(after), {"action": "remove-snapshots", "snapshot-ids": [3]})
    assert gone["current-snapshot-id"] == -1
    assert gone["refs"] == {}


def test_branches_do_not_move_main() -> None:
    after = run(with_snapshots(1), *append(2, 1, ref="side"))
    assert after["current-snapshot-id"] == 1
    assert after["refs"]["side"]["snapshot-id"] == 2
    fast_forward = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 2}
    assert run(normalized(after), fast_forward)["current-snapshot-id"] == 2
    assert run(normalized(after), {"action": "remove-snapshot-ref", "ref-name": "side"})["refs"].keys() == {"main"}


def test_v3_hands_out_row_ids() -> None:
    base = table(3)
    after = normalized(run(base, *append(1, more={"first-row-id": 0, "added-rows": 10})))
    assert after["next-row-id"] == 10
    assert run(after, *append(2, 1, more={"first-row-id": 10, "added-rows": 5}))["next-row-id"] == 15
    with pytest.raises(CommitFailed, match="first-row-id is behind table next-row-id: 9 < 10"):
        run(after, *append(2, 1, more={"first-row-id": 9, "added-rows": 5}))
    with pytest.raises(Invalid, match="first-row-id is null"):
        run(after, *append(2, 1))


def test_a_stale_sequence_number_can_be_tried_again() -> None:
    with pytest.raises(CommitFailed, match="sequence number 1 older than last sequence number 1"):
        run(with_snapshots(1), *append(2, 1, more={"sequence-number": 1}))


def test_properties_location_uuid_and_keys() -> None:
    after = run(
        table(),
        {"action": "set-properties", "updates": {"a": "1", "b": "2"}},
        {"action": "remove-properties", "removals": ["a", "absent"]},
        {"action": "set-location", "location": "/elsewhere/"},
        {"action": "assign-uuid", "uuid": "u-2"},
        {"action": "add-encryption-key", "encryption-key": {"key-id": "k1", "encrypted-key-metadata": "eA=="}},
        {"action": "add-encryption-key", "encryption-key": {"key-id": "k2", "encrypted-key-metadata": "eQ=="}},
        {"action": "remove-encryption-key", "key-id": "k1"},
    )
    assert after["properties"]["b"] == "2"
    assert "a" not in after["properties"]
    assert (after["location"], after["table-uuid"]) == ("/elsewhere", "u-2")
    assert [key["key-id"] for key in after["encryption-keys"]] == ["k2"]
    assert after["last-updated-ms"] == NOW_MS + 5


def test_statistics_are_replaced_and_removed() -> None:
    base = run(with_snapshots(1), {"action": "set-statistics", "snapshot-id": 1, "statistics": {"path": "old"}})
    base = run(
        normalized(base), {"action": "set-statistics", "statistics": {"snapshot-id": 1, "path": "new", "later": 1}}
    )
    assert base["statistics"] == [{"snapshot-id": 1, "path": "new", "later": 1}]
    assert run(normalized(base), {"action": "remove-statistics", "snapshot-id": 1})["statistics"] == []
    parts = {"snapshot-id": 1, "statistics-path": "/p"}
    base = run(normalized(base), {"action": "set-partition-statistics", "partition-statistics": parts})
    gone = run(normalized(base), {"action": "remove-partition-statistics", "snapshot-id": 1})
    assert gone["partition-statistics"] == []


def test_old_schemas_and_specs_can_go_but_not_the_current_ones() -> None:
    wider = {**SCHEMA, "fields": [*table()["schemas"][0]["fields"], {"id": 9, "name": "n", "type": "int"}]}
    base = run(table(), {"action": "add-schema", "schema": wider}, {"action": "set-current-schema", "schema-id": 1})
    after = run(normalized(base), {"action": "remove-schemas", "schema-ids": [0]})
    assert [s["schema-id"] for s in after["schemas"]] == [1]
    with pytest.raises(Invalid, match="Cannot remove the current schema"):
        run(normalized(base), {"action": "remove-schemas", "schema-ids": [1]})
    with pytest.raises(Invalid, match="Cannot remove the default partition spec"):
        run(normalized(base), {"action": "remove-partition-specs", "spec-ids": [0]})


def test_the_metadata_log_keeps_as_many_as_the_table_asks_for() -> None:
    base = run(table(), {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": "2"}})
    for number in range(5):
        base = run(normalized(base), {"action": "set-properties", "updates": {"n": str(number)}})
    assert len(base["metadata-log"]) == 2


@pytest.mark.parametrize(
    "updates",
    [
        [],
        [{"action": "set-properties", "updates": {}}],
        [{"action": "upgrade-format-version", "format-version": 2}],
        [{"action": "assign-uuid", "uuid": "u-1"}],
        [{"action": "set-location", "location": "/w/t"}],
        [{"action": "set-current-schema", "schema-id": 0}],
        [{"action": "remove-snapshots", "snapshot-ids": [5]}],
        [{"action": "remove-statistics", "snapshot-id": 5}],
        [{"action": "remove-snapshot-ref", "ref-name": "absent"}],
    ],
)
def test_updates_that_change_nothing_make_no_new_metadata(updates: list[Document]) -> None:
    base = table()
    assert run(base, *updates) is base


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"action": "explode"}, "unknown update"),
        ({}, "unknown update"),
        ({"action": ["set-location"]}, "unknown update"),
        ({"action": "set-location"}, "update is incomplete"),
        ({"action": "upgrade-format-version", "format-version": 1}, "Cannot downgrade v2 table to v1"),
        ({"action": "upgrade-format-version", "format-version": 99}, "Unsupported format version: v99"),
        ({"action": "set-current-schema", "schema-id": 9}, "unknown schema: 9"),
        ({"action": "set-current-schema", "schema-id": -1}, "no schema has been added"),
        ({"action": "set-default-spec", "spec-id": 9}, "unknown spec: 9"),
        ({"action": "set-default-spec", "spec-id": -1}, "no spec has been added"),
        ({"action": "set-default-sort-order", "sort-order-id": 9}, "unknown sort order: 9"),
        ({"action": "set-default-sort-order", "sort-order-id": -1}, "no sort order has been added"),
        (
            {"action": "add-spec", "spec": {"fields": [{"source-id": 42, "name": "x", "transform": "identity"}]}},
            "Cannot find source column for partition field",
        ),
        (
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5},
            "Cannot set main to unknown snapshot: 5",
        ),
        ({"action": "set-properties", "updates": {"a": 1}}, "properties are not text"),
        ({"action": "add-snapshot", "snapshot": {"snapshot-id": 1}}, "update is incomplete"),
    ],
)
def test_updates_that_cannot_be_applied_are_refused(update: Document, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        run(table(), update)


def test_the_same_snapshot_twice_is_refused() -> None:
    with pytest.raises(Invalid, match="Snapshot already exists for id: 1"):
        run(with_snapshots(1), *append(1))


def test_a_create_transaction_builds_a_table_from_updates_alone() -> None:
    document = create(
        [
            {"action": "assign-uuid", "uuid": "client"},
            {"action": "upgrade-format-version", "format-version": 3},
            {"action": "add-schema", "schema": SCHEMA},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": "/w/t"},
            *append(1, more={"first-row-id": 0, "added-rows": 4}),
        ],
        uuid="server",
        now_ms=NOW_MS,
    )
    assert (document["table-uuid"], document["format-version"], document["next-row-id"]) == ("client", 3, 4)
    assert (document["last-column-id"], document["last-partition-id"], document["metadata-log"]) == (4, 999, [])
    with pytest.raises(Invalid, match="table is incomplete"):
        create([{"action": "set-location", "location": "/w/t"}], uuid="u", now_ms=NOW_MS)


def test_only_referenced_snapshots() -> None:
    assert [s["snapshot-id"] for s in with_referenced_snapshots_only(with_snapshots(3))["snapshots"]] == [3]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
unknown = st.dictionaries(st.text(min_size=1, max_size=8).map(lambda text: "x-" + text), json_values, max_size=3)


@given(unknown, unknown, unknown, unknown, unknown)
def test_what_we_do_not_know_survives_every_commit(
    top: Document, in_schema: Document, in_type: Document, in_snapshot: Document, in_ref: Document
) -> None:
    """A later spec may put anything anywhere: at the top, in schemas and types, in snapshots and refs."""
    kind = {"type": "of-the-future", **in_type}
    schema = {"type": "struct", "fields": [{"id": 1, "name": "a", "type": kind, "required": False}], **in_schema}
    base = {**table(2), **top}
    after = normalized(
        run(
            base,
            {"action": "add-schema", "schema": schema},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-snapshot", "snapshot": snapshot(1, **in_snapshot)},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}
            | {key: value for key, value in in_ref.items() if value is not None},
        )
    )
    later = run(
        after,
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "set-properties", "updates": {"a": "b"}},
        *append(2, 1, ref="side", more={"first-row-id": 0, "added-rows": 1}),
    )
    for key, value in top.items():
        assert later[key] == value
    assert later["schemas"][1] == {**schema, "schema-id": 1}
    assert later["snapshots"][0] == snapshot(1, **in_snapshot)
    assert {k: v for k, v in later["refs"]["main"].items() if k.startswith("x-")} == {
        key: value for key, value in in_ref.items() if value is not None
    }
