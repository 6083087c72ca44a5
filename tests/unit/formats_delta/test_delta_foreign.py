"""Tables as other writers leave them: read as those read them, or refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from mainstem.client.delta import DeltaTable, create_storage
from mainstem.formats.delta.files import vectors
from mainstem.model.errors import Corrupt, Invalid

Row = dict[str, Any]


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    made = DeltaTable(create_storage(str(tmp_path)), "t")
    made.write([{"_id": n} for n in range(100)], properties={"delta.enableDeletionVectors": "true"})
    return made


def rewritten(table: DeltaTable, change: Callable[[Row], object], version: int = 0) -> DeltaTable:
    """The same table with another first commit."""
    path = Path(table.uri) / "_delta_log" / f"{version:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        change(action)
    path.write_text("\n".join(map(json.dumps, actions)))
    return DeltaTable(table.storage, table.name)


def with_column(column: Row) -> Callable[[Row], object]:
    def change(action: Row) -> None:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"].append({"nullable": True, "metadata": {}, **column})
            action["metaData"]["schemaString"] = json.dumps(schema)

    return change


def padded85(data: bytes) -> str:
    """As Rust's writers end a text whose length is no multiple of four."""
    whole = len(data) // 4 * 4
    rest = data[whole:]
    word, digits = int.from_bytes(rest, "big"), ""
    for _ in range(len(rest) + 1):
        digits = vectors._ALPHABET[word % 85] + digits
        word //= 85
    return vectors.encode85(data[:whole]) + ("#" * (4 - len(rest)) + digits if rest else "")


@pytest.mark.parametrize("count", range(1, 9))
def test_a_vector_in_the_log_may_end_in_padding(table: DeltaTable, count: int) -> None:
    data = vectors.encode(BitMap64(range(0, 3 * count, 3)))
    text = padded85(data)
    assert vectors.decode85(text) == data

    def change(action: Row) -> None:
        if "add" in action:
            vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": count}
            action["add"]["deletionVector"] = vector

    again = rewritten(table, change)
    left = sorted(set(range(100)) - set(range(0, 3 * count, 3)))
    assert sorted(row["_id"] for row in again.query()) == left
    theirs = pa.RecordBatchReader.from_stream(again.delta_rs().scan()).read_all()
    assert sorted(theirs["_id"].to_pylist()) == left


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", b"abcd", b"\xff" * 7, b"\x00" * 6], ids=repr)
def test_base85_of_every_length(data: bytes) -> None:
    assert vectors.decode85(padded85(data)) == data


@pytest.mark.parametrize("text", ["#####", "####", "0000", "~0000", "####0", "##zzz#", "#zzzz"])
def test_text_that_is_not_base85(text: str) -> None:
    with pytest.raises(Corrupt, match="Base85"):
        vectors.decode85(text)


def test_a_first_metadata_without_a_schema_is_put_right_by_a_later_one(table: DeltaTable) -> None:
    table.write([{"_id": 100, "more": 1}])
    again = rewritten(table, lambda action: action.get("metaData", {}).pop("schemaString", None))
    assert len(again.query()) == 101
    again.write([{"_id": 101}])
    assert len(DeltaTable(again.storage, "t").query()) == 102
    with pytest.raises(Corrupt, match="never says what the table is"):
        again.snapshot(0)


VARIANTS: list[Row] = [
    {"type": "array", "elementType": "variant", "containsNull": True},
    {"type": "map", "keyType": "string", "valueType": "variant", "valueContainsNull": True},
    {"type": "struct", "fields": [{"name": "a", "type": "variant", "nullable": True, "metadata": {}}]},
]


@pytest.mark.parametrize("type_", VARIANTS, ids=lambda type_: str(type_["type"]))
def test_a_variant_inside_another_type_is_refused_by_name(table: DeltaTable, type_: Row) -> None:
    again = rewritten(table, with_column({"name": "inside", "type": type_}))
    for attempt in (again.query, lambda: again.write([{"_id": 1}]), lambda: again.schema):
        with pytest.raises(Invalid, match=r"Variant inside another type.*column=inside"):
            attempt()


def test_a_mapped_name_inside_another_type_is_refused_by_name(table: DeltaTable) -> None:
    mapping = {"delta.columnMapping.id": 7, "delta.columnMapping.physicalName": "col-7"}
    inner = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": mapping}]}
    again = rewritten(table, with_column({"name": "outer", "type": inner}))
    with pytest.raises(Invalid, match=r"mapped name inside another type.*column=outer field=a"):
        again.query()


def test_a_type_that_nobody_here_knows_is_refused_by_name(table: DeltaTable) -> None:
    with pytest.raises(Invalid, match="type that is not read"):
        rewritten(table, with_column({"name": "shape", "type": "geometry"})).query()


def test_a_column_with_the_readers_own_name_is_read_or_refused(table: DeltaTable) -> None:
    again = rewritten(table, with_column({"name": "file_index", "type": "long"}))
    assert len(again.query()) == 100
    attempts: list[Callable[[], object]] = [lambda: again.delete({"_id": 1}), lambda: again.upsert([{"_id": 1}])]
    for attempt in attempts:
        with pytest.raises(Invalid, match=r"reader's own.*file_index"):
            attempt()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"PAR1 not really PAR1")])
def test_a_bad_file_in_a_large_table(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    table = DeltaTable(create_storage(str(tmp_path)), "large")
    for _ in range(2):
        table.write(pa.table({"n": range(150_000)}))
    victim = Path(table.snapshot().file_uris()[0])
    damage(victim)
    some = {"n": {"$gt": 5}}
    attempts: list[Callable[[DeltaTable], object]] = [
        lambda fresh: fresh.query_arrow(),
        lambda fresh: fresh.query_arrow(some),
        lambda fresh: list(fresh.query_batches()),
        lambda fresh: fresh.find(some).statistics,
        lambda fresh: fresh.delete({"n": 3}),
    ]
    for attempt in attempts:
        with pytest.raises(Corrupt, match=victim.name):
            attempt(DeltaTable(create_storage(str(tmp_path)), "large"))


OUTSIDE = [
    "../theirs/{file}",
    "..%2Ftheirs%2F{file}",
    "x/../../theirs/{file}",
    "{root}/theirs/{file}",
    "file://{root}/theirs/{file}",
]


@pytest.mark.parametrize("named", OUTSIDE)
def test_a_file_of_another_table_is_not_read(tmp_path: Path, named: str) -> None:
    """Whoever may write a table's log may write any path into it."""
    storage = create_storage(str(tmp_path))
    own, theirs = DeltaTable(storage, "own"), DeltaTable(storage, "theirs")
    own.write([{"_id": 1, "word": "mine"}])
    theirs.write([{"_id": 2, "word": "secret"}])
    (file,) = (tmp_path / "theirs").glob("*.parquet")
    path = named.format(file=file.name, root=tmp_path)

    def steal(action: Row) -> None:
        if "add" in action:
            action["add"]["path"] = path
            del action["add"]["stats"]  # bounds of the own file would keep the other one from being opened

    stolen = rewritten(own, steal)
    for read in (
        lambda: stolen.find().rows(),
        # By what the log says of it, the file may have this key.
        lambda: stolen.upsert([{"_id": 1, "word": "x"}]),
        lambda: stolen.delete({"_id": 1}),
    ):
        with pytest.raises(Corrupt, match="outside its table"):
            read()
    assert theirs.find().rows() == [{"_id": 2, "word": "secret"}]
