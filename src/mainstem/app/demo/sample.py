"""A realistic sample of changes: a small shop, with what really happens on the way from its database.

What the tables must hold in the end is kept beside the changes, in plain dicts, by code that knows nothing of the
merge: the demo and the fault tests judge the product by it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
Row = dict[str, Any]

_FIRST = ("Ada", "Grace", "Edsger", "Barbara", "Ken", "Radia", "Tony", "Frances", "Leslie", "Shafi")
_CITIES = ("Lisbon", "Nairobi", "Osaka", "Quito", "Tromsø", "Zürich", "Hà Nội", "Montréal")
_STATUS = ("new", "paid", "packed", "shipped", "delivered")


@dataclass
class Shop:
    """Makes events of three tables, and remembers what the tables should hold."""

    seed: int = 7
    tables: dict[str, dict[str, Row]] = field(default_factory=lambda: {"customers": {}, "orders": {}, "shipments": {}})
    sequence: int = 0
    events: int = 0
    operations: dict[str, int] = field(default_factory=lambda: {"INSERT": 0, "UPDATE": 0, "DELETE": 0})

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next_id = dict.fromkeys(self.tables, 0)
        self._keys: dict[str, list[str]] = {name: [] for name in self.tables}

    def batches(self, total: int, size: int) -> Iterator[list[Event]]:
        """`total` events, `size` at a time."""
        for start in range(0, total, size):
            yield [self._event() for _ in range(min(size, total - start))]

    def _event(self) -> Event:
        table = self._random.choices(("customers", "orders", "shipments"), (2, 6, 2))[0]
        rows = self.tables[table]
        dice = self._random.random()
        if len(rows) < 20 or dice < 0.45:
            self._next_id[table] += 1
            key = f"{table[:1]}{self._next_id[table]}"
            return self._record("INSERT", table, key, None, self._row(table, key))
        key = self._pick(table)
        before = rows[key]
        if dice < 0.92:
            return self._record("UPDATE", table, key, before, self._changed(table, before))
        return self._record("DELETE", table, key, before, None)

    def _pick(self, table: str) -> str:
        # Recent rows change more often than old ones, as in any shop.
        keys = self._keys[table]
        return keys[min(int(len(keys) * self._random.betavariate(4, 1)), len(keys) - 1)]

    def _record(self, operation: str, table: str, key: str, before: Row | None, after: Row | None) -> Event:
        self.sequence += 1
        self.events += 1
        self.operations[operation] += 1
        if after is None:
            del self.tables[table][key]
            self._keys[table].remove(key)
        else:
            if before is None:
                self._keys[table].append(key)
            self.tables[table][key] = after
        event: Event = {
            "sequence": self.sequence,
            "timestamp": 1_767_225_600_000 + self.sequence * 37,
            "operation": operation,
            "table": table,
            "rowId": key,
        }
        if before is not None:
            event["before"] = before
        if after is not None:
            event["after"] = after
        return event

    def _row(self, table: str, key: str) -> Row:
        r = self._random
        if table == "customers":
            return {
                "id": key,
                "name": f"{r.choice(_FIRST)} {key}",
                "city": r.choice(_CITIES),
                "vip": r.random() < 0.1,
                "credit": round(r.uniform(0, 500), 2),
                "tags": r.sample(["new", "loyal", "b2b", "late"], r.randint(0, 3)),
            }
        if table == "orders":
            return {
                "id": key,
                "customer": f"c{r.randint(1, 500)}",
                "amount": round(r.uniform(1, 900), 2),
                "items": r.randint(1, 12),
                "status": "new",
                "note": None if r.random() < 0.7 else "leave at the door",
                "address": {"city": r.choice(_CITIES), "zip": str(r.randint(10_000, 99_999))},
            }
        return {
            "id": key,
            "order": f"o{r.randint(1, 500)}",
            "carrier": r.choice(("post", "bike", "drone")),
            "km": r.random() * 900,
        }

    def _changed(self, table: str, row: Row) -> Row:
        r = self._random
        if table == "customers":
            return {**row, "city": r.choice(_CITIES), "credit": round(r.uniform(0, 500), 2)}
        if table == "orders":
            return {**row, "status": r.choice(_STATUS), "note": r.choice((row["note"], None, "call first"))}
        return {**row, "km": r.random() * 900}
