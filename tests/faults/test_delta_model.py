"""A Delta table against a plain Python model: random writes of every type of value into every type of column.

After each write the table holds what the dictionary holds, value for value; or the write was refused by name, and then
nothing has changed, not even the version. A failure names its seed: run it again with that one.
"""

import os
import random
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest

from mainstem.client.delta import DeltaTable, Storage, create_storage
from mainstem.model.errors import Invalid
from tests.harness.delta_values import COLUMNS, VALUES, as_written, is_kept, wide_table

Row = dict[str, Any]
Evolution = Literal["refuse", "widen", "variant"]
EVOLUTIONS: tuple[Evolution, ...] = ("refuse", "widen", "variant")
# Text from Arrow is taken for what these columns store, so they say nothing of single values.
STORED_AS_TEXT = ("json", "extended", "id", "variant")


class Run:
    """One table, its model, and the random choices between them."""

    def __init__(self, storage: Storage, seed: int, evolution: Evolution = "refuse") -> None:
        self.rng = random.Random(seed)
        self.name = f"model-{seed}"
        self.storage = storage
        self.table = wide_table(storage, self.name, self.rng, evolution)
        self.rows: dict[int, Row] = {}
        self.refused = self.taken = 0
        self.steps = [self.write, self.write_arrow, self.upsert, self.upsert, self.set, self.add, self.other]

    def step(self) -> None:
        before = self.table.version
        try:
            after = self.rng.choice(self.steps)()
        except Invalid:
            self.refused += 1
            assert self.table.version == before, "what is refused moves nothing"
        else:
            self.taken += 1
            self.rows = after
        if self.rng.random() < 0.2:
            # Another process, which has seen nothing yet.
            self.table = DeltaTable(self.storage, self.name)

    def value(self) -> Any:
        return self.rng.choice(VALUES)

    def row(self) -> Row:
        names = self.rng.sample([*COLUMNS, "x0", "x1", "x2"], self.rng.randrange(1, 3))
        return {name: self.value() for name in names}

    def id_(self) -> int:
        return self.rng.choice([*self.rows, 0]) if self.rng.random() < 0.6 else self.rng.randrange(1_000_000)

    def write(self) -> dict[int, Row]:
        new = {self.rng.randrange(10**6, 10**9): self.row() for _ in range(self.rng.randrange(1, 4))}
        self.table.write([{"_id": id_, **row} for id_, row in new.items()])
        return self.rows | new

    def write_arrow(self) -> dict[int, Row]:
        column = self.rng.choice([name for name in COLUMNS if name not in STORED_AS_TEXT])
        value, id_ = self.value(), self.rng.randrange(10**6, 10**9)
        try:
            # Arrow takes bson's types for the plain ones that they are made of.
            array = pa.array([value if not type(value).__module__.startswith("bson") else None])
            # What Arrow made of it is what is written: of a set, a list.
            value = array.to_pylist()[0]
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return self.rows
        self.table.write(pa.table({"_id": [id_], column: array}))
        return self.rows | {id_: {column: value}}

    def upsert(self) -> dict[int, Row]:
        id_, row = self.id_(), self.row()
        key = self.rng.choice([id_, id_, float(id_), Decimal(id_), id_ + 0.7, str(id_)])
        gone = self.id_()
        delete = [{"_id": gone}] if gone != id_ and self.rng.random() < 0.3 else None
        self.table.upsert([{"_id": key, **row}], delete=delete)
        assert key == id_, f"{key!r} is no key of this table"
        left = {other: kept for other, kept in self.rows.items() if delete is None or other != gone}
        return left | {id_: row}

    def set(self) -> dict[int, Row]:
        id_ = self.id_()
        name, value = next(iter(self.row().items()))
        if self.rng.random() < 0.2:
            changed = self.table.update({"_id": id_}, {"$unset": {name: 1}})
            row = {other: kept for other, kept in self.rows.get(id_, {}).items() if other != name}
        else:
            changed = self.table.update({"_id": id_}, {"$set": {name: value}})
            row = {**self.rows.get(id_, {}), name: value}
        assert changed.matched == (id_ in self.rows)
        return {**self.rows, id_: row} if id_ in self.rows else self.rows

    def add(self) -> dict[int, Row]:
        """`$inc` where both are plain numbers that no sum of them rounds, so that Python says what comes out."""
        plain = [
            (id_, name)
            for id_, row in self.rows.items()
            for name, value in row.items()
            if (type(value) is int and abs(value) < 2**50) or (type(value) is float and value in (0.0, 0.5, 2.0, 2.75))
        ]
        if not plain:
            return self.rows
        id_, name = self.rng.choice(plain)
        by = self.rng.choice([1, -1, 0.5, 2.0, 2**40, *([2**63 - 1] if name == "long" else [])])
        self.table.update({"_id": id_}, {"$inc": {name: by}})
        return {**self.rows, id_: {**self.rows[id_], name: self.rows[id_][name] + by}}

    def other(self) -> dict[int, Row]:
        match self.rng.randrange(4):
            case 0:
                id_ = self.id_()
                self.table.delete({"_id": id_})
                return {other: row for other, row in self.rows.items() if other != id_}
            case 1:
                self.table.optimize()
            case 2:
                self.table.checkpoint()
            case _:
                # There and back: every row is written anew by another way.
                version = self.table.version
                self.table.delete({})
                self.table.restore(version)
        return self.rows

    def check(self) -> None:
        found = {row["_id"]: row for row in self.table.query()}
        assert found.keys() == self.rows.keys()
        for id_, row in self.rows.items():
            kept = {name: value for name, value in found[id_].items() if name != "_id"}
            given = {name: value for name, value in row.items() if value is not None}
            assert kept.keys() == given.keys(), id_
            for name, value in given.items():
                assert is_kept(as_written(value, name), as_written(kept[name], name)), (
                    f"row {id_}, column {name}: {value!r} became {kept[name]!r}"
                )


def run(seed: int, steps: int, evolution: Evolution = "refuse") -> None:
    state = Run(create_storage("memory://"), seed, evolution)
    for step in range(steps):
        state.step()
        if step % 5 == 0 or step == steps - 1:
            state.check()
    assert state.taken > steps / 4
    assert state.refused > steps / 10


@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_its_model(seed: int) -> None:
    run(seed, 60)


@pytest.mark.parametrize("evolution", ["widen", "variant"])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_whose_columns_become_others_is_its_model(seed: int, evolution: Evolution) -> None:
    run(seed, 60, evolution)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_table_is_its_model_for_long() -> None:
    first = int(os.environ.get("SEED", "1")) * 1_000
    for seed in range(first, first + 100):
        run(seed, 400, EVOLUTIONS[seed % 3])
