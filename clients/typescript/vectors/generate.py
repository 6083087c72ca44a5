"""Writes the sync protocol's conformance vectors: clocks, delta ids, merges and frames.

The clock and merge rules come from `mainstem.model`; ids and frames are built here from the protocol's document with
nothing but the standard library, so that no codec under test has made its own answers. `--check` only compares.
"""

import argparse
import hashlib
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from mainstem.model.change import Change, Operation, SourceId
from mainstem.model.errors import Invalid
from mainstem.model.hlc import HLC_MAX, Hlc, HlcClock, check_drift, pack
from mainstem.model.merge import Row, merge

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "vectors" / "sync"
SEED = 20_26
NOW_MS = 1_764_000_000_000
OPERATIONS = {"INSERT": 1, "UPDATE": 2, "DELETE": 3, "EVICT": 4}

Json = Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is checked in, and write nothing")
    check = parser.parse_args().check
    files = {"clocks": clocks(), "delta_ids": delta_ids(), "merges": merges(), "frames": frames()}
    stale = []
    for name, content in files.items():
        path = FOLDER / f"{name}.json"
        text = lines(content) + "\n"
        if check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        sys.stderr.write(f"vectors differ from the generator: {', '.join(stale)}\n")
    return 1 if stale else 0


def lines(content: Json) -> str:
    """One case to a line, so that a difference shows which case it is."""
    if isinstance(content, list):
        return "[\n" + ",\n".join(map(json.dumps, content)) + "\n]"
    if "pieces" in content:
        return json.dumps(content)
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines(value)}" for key, value in content.items()) + "\n}"


def clocks() -> Json:
    return {
        "pack": [
            {"wallMs": str(wall), "counter": str(count), **outcome(partial(packed, wall, count))}
            for wall, count in [
                (0, 0),
                (1, 0),
                (NOW_MS, 7),
                (NOW_MS, 65_535),
                (NOW_MS, 65_536),
                (NOW_MS, 200_000),
                ((1 << 47) - 1, 65_535),
                ((1 << 47) - 1, 65_536),
                (1 << 47, 0),
                (-1, 0),
                (0, -1),
            ]
        ],
        "tick": [
            tick(last, now, count)
            for last, now, count in [
                (0, NOW_MS, 1),
                (pack(NOW_MS, 5), NOW_MS, 1),
                (pack(NOW_MS, 65_535), NOW_MS, 1),
                (pack(NOW_MS + 60_000, 3), NOW_MS, 2),
                (pack(NOW_MS, 0), NOW_MS + 1, 1_000),
                (pack(NOW_MS - 1, 65_535), NOW_MS, 70_000),
                (HLC_MAX, NOW_MS, 1),
            ]
        ],
        "drift": [
            {"remote": str(remote), "nowMs": str(NOW_MS), **outcome(partial(drift, remote))}
            for remote in [
                0,
                pack(NOW_MS, 0),
                pack(NOW_MS + 5_000, 0),
                pack(NOW_MS + 5_000, 65_535),
                pack(NOW_MS + 5_001, 0),
                pack(NOW_MS - 86_400_000, 1),
                HLC_MAX,
                HLC_MAX + 1,
                (1 << 64) - 1,
            ]
        ],
    }


def packed(wall: int, count: int) -> Json:
    return {"hlc": str(pack(wall, count))}


def tick(last: int, now_ms: int, count: int) -> Json:
    def run() -> Json:
        clock = HlcClock(Hlc(last))
        first = clock.tick(now_ms, count)
        return {"first": str(first), "after": str(clock.last)}

    return {"last": str(last), "nowMs": str(now_ms), "count": str(count), **outcome(run)}


def drift(remote: int) -> Json:
    check_drift(Hlc(remote), NOW_MS)
    return {"accepted": True}


def outcome(run: Callable[[], Json]) -> Json:
    try:
        return run()
    except Invalid as error:
        return {"error": error.reason}


def delta_ids() -> Json:
    values: list[Json] = [
        None, True, False, 0, -0.0, 1.0, -17, 0.1, 1e21, 1e-7, 123456789012345680000, 1.5e300, 5e-324, 9007199254740991,
        0.000001, 333333333.33333329, "", "plain", "quote \" slash \\ / tab \t line \n null \x00 del \x7f",
        "é ü 漢字 😀 \u2028 \ufeff \ufb33", [], {}, [1, [2, [3, None]]],
        {"b": 1, "a": {"z": [True], "y": None}}, {"\ue000": 1, "😀": 2, "é": 3, "e": 4, "": 5},
    ]  # fmt: skip
    cases = []
    for index, value in enumerate(values):
        delta = delta_of("INSERT", "todos", f"row-{index}", {"value": value}, pack(NOW_MS, index), "client-1")
        cases.append(delta)
    cases += [
        delta_of("UPDATE", "todos", "r", {"title": "Buy milk", "done": False, "rank": 1.5}, pack(NOW_MS, 0), "ada"),
        # The order of the columns is the delta's own: it is part of the id.
        delta_of("UPDATE", "todos", "r", {"rank": 1.5, "done": False, "title": "Buy milk"}, pack(NOW_MS, 0), "ada"),
        delta_of("DELETE", "todos", "r", {}, pack(NOW_MS, 1), "ada"),
        delta_of("DELETE", "täbell", "ключ", {}, 0, "клиент"),
        delta_of("INSERT", "t", "k", {"clock": "max"}, HLC_MAX, "c"),
    ]
    return [{"delta": delta, "canonical": identity(delta), "id": delta["deltaId"]} for delta in cases]


def merges() -> Json:
    cases = []
    for name, deltas in [*told_merges(), *random_merges()]:
        row = merge(change_of(delta) for delta in deltas)
        for _ in range(3):
            shuffled = [*deltas, *deltas]
            random.Random(SEED).shuffle(shuffled)
            if merge(change_of(delta) for delta in shuffled) != row:
                raise AssertionError(f"the model does not converge on {name}")
        cases.append({"name": name, "deltas": deltas, "row": row_json(row)})
    return cases


def told_merges() -> Iterator[tuple[str, list[Json]]]:
    def write(counter: int, client: str, columns: Json, op: str = "UPDATE") -> Json:
        return delta_of(op, "t", "k", columns, pack(NOW_MS, counter), client)

    def delete(counter: int, client: str) -> Json:
        return delta_of("DELETE", "t", "k", {}, pack(NOW_MS, counter), client)

    yield "nothing", []
    yield "one insert", [write(1, "a", {"x": 1}, "INSERT")]
    yield "two columns of two clients", [write(1, "a", {"x": 1}), write(2, "b", {"y": 2})]
    yield "the later clock wins a column", [write(1, "a", {"x": 1}), write(2, "b", {"x": 2})]
    yield "an old clock that comes late", [write(5, "a", {"x": "new"}), write(1, "b", {"x": "old", "y": "kept"})]
    yield "one clock, two sources", [write(1, "a", {"x": "a's"}), write(1, "b", {"x": "b's"})]
    yield "sources by code point", [write(1, "\uff61", {"x": "bmp"}), write(1, "\U0001f600", {"x": "astral"})]
    yield "null is a value", [write(1, "a", {"x": 1}), write(2, "a", {"x": None})]
    yield "delete", [write(1, "a", {"x": 1}), delete(2, "b")]
    yield "delete and write with one clock", [write(2, "a", {"x": 1}), delete(2, "b")]
    yield "write and delete with one stamp", [write(2, "a", {"x": 1}), delete(2, "a")]
    yield "back with only what came after", [write(1, "a", {"x": 1, "y": 1}), delete(2, "b"), write(3, "a", {"x": 3})]
    yield "a write between two deletes", [delete(1, "a"), write(2, "b", {"x": 1}), delete(3, "a")]
    yield "the earlier of two deletes is late", [delete(3, "a"), write(4, "b", {"x": 1}), delete(2, "c")]
    yield "one stamp, two values", [write(1, "a", {"x": "a"}), write(1, "a", {"x": "b"})]
    yield "one stamp, two kinds of values", [write(1, "a", {"x": {"k": [1]}}), write(1, "a", {"x": [1, 2]})]
    yield "a column called __proto__", [write(1, "a", {"__proto__": 1}), write(2, "b", {"constructor": 2})]


def random_merges() -> Iterator[tuple[str, list[Json]]]:
    chance = random.Random(SEED)
    for number in range(60):
        deltas = []
        used = set()
        for _ in range(chance.randint(2, 12)):
            stamp = (chance.randint(0, 8), chance.choice("abc"))
            if stamp in used:
                continue
            used.add(stamp)
            op = chance.choice(["INSERT", "UPDATE", "UPDATE", "DELETE"])
            names = [] if op == "DELETE" else chance.sample("wxyz", chance.randint(1, 3))
            columns = {name: chance.choice([None, 0, 1, "s", [1], {"k": True}]) for name in names}
            deltas.append(delta_of(op, "t", "k", columns, pack(NOW_MS, stamp[0]), stamp[1]))
        yield f"random {number}", deltas


def change_of(delta: Json) -> Change:
    return Change(
        table=delta["table"],
        key=delta["rowId"],
        operation=Operation(delta["op"].lower()),
        columns={column["column"]: column["value"] for column in delta["columns"]},
        hlc=Hlc(int(delta["hlc"])),
        source=SourceId(delta["clientId"]),
        batch_sequence=1,
    )


def row_json(row: Row) -> Json:
    cells = {
        name: {"hlc": str(cell.stamp.hlc), "source": cell.stamp.source, "value": cell.value}
        for name, cell in sorted(row.cells.items())
    }
    stamp = row.tombstone
    return {"cells": cells, "tombstone": stamp and {"hlc": str(stamp.hlc), "source": stamp.source}}


def frames() -> Json:
    insert = delta_of("INSERT", "todos", "r1", {"title": "Buy milk", "done": False}, pack(NOW_MS, 1), "ada")
    update = delta_of("UPDATE", "todos", "r1", {"title": None, "näme": "漢字 😀"}, pack(NOW_MS, 2), "bob")
    delete = delta_of("DELETE", "todos", "r2", {}, pack(NOW_MS, 3), "ada")
    evict = {**delete, "op": "EVICT", "deltaId": ""}
    large = delta_of("UPDATE", "todos", "r3", {"text": "x" * 300}, HLC_MAX, "ada")

    def response(deltas: list[Json], server: int, has_more: bool = False, since: int = 0) -> Json:
        return {"deltas": deltas, "serverHlc": str(server), "hasMore": has_more, "sinceHlc": str(since)}

    messages: list[tuple[str, str, Json]] = [
        ("an empty push", "push", {"clientId": "ada", "deltas": [], "lastSeenHlc": "0"}),
        ("a push", "push", {"clientId": "ada", "deltas": [insert, delete], "lastSeenHlc": str(pack(NOW_MS, 0))}),
        ("a large push", "push", {"clientId": "ada", "deltas": [large], "lastSeenHlc": str((1 << 64) - 1)}),
        ("a first pull", "pull", {"clientId": "ada", "sinceHlc": "0", "maxDeltas": 0}),
        ("a pull", "pull", {"clientId": "ada", "sinceHlc": str(pack(NOW_MS, 9)), "maxDeltas": 10_000}),
        ("an empty reply", "reply", response([], 0)),
        ("a page", "reply", response([insert, update, delete], pack(NOW_MS, 7), True, pack(NOW_MS, 4))),
        ("a broadcast", "broadcast", response([update], pack(NOW_MS, 8), False, pack(NOW_MS, 7))),
        ("an eviction", "broadcast", response([evict], pack(NOW_MS, 9), False, pack(NOW_MS, 8))),
    ]
    good = [{"name": n, "kind": kind, "message": m, "hex": frame(kind, m).hex()} for n, kind, m in messages]
    pieces = [response([insert, update], 0, True), response([], pack(NOW_MS, 9))]
    body = b"".join(varint(len(piece)) + piece for piece in map(encode_response, pieces))
    push = frame("push", messages[1][2])
    bad = [
        {"name": "nothing", "hex": ""},
        {"name": "a tag alone", "hex": "01"},
        {"name": "an unknown tag", "hex": "09" + push[1:].hex()},
        {"name": "a push that is cut off", "hex": push[:-1].hex()},
        {"name": "a length past the end", "hex": "010aff7f"},
        {"name": "an endless varint", "hex": "02" + "18" + "ff" * 11},
        {"name": "a group", "hex": "020b0c"},
        {"name": "field number 0", "hex": "020000"},
        {"name": "a wrong wire type", "hex": "020801"},
        {"name": "text that is not UTF-8", "hex": "020a02c328"},
        {"name": "no operation", "hex": "01" + field(2, field(2, b"todos")).hex()},
        {"name": "an unknown operation", "hex": "01" + field(2, varint(1 << 3) + varint(9)).hex()},
        {"name": "a value that is not JSON", "hex": "01" + bad_value(b"{").hex()},
        {"name": "a value of no bytes", "hex": "01" + bad_value(b"").hex()},
    ]
    return {"good": good, "bad": bad, "checkpoint": {"pieces": pieces, "hex": body.hex()}}


def bad_value(value: bytes) -> bytes:
    return field(2, varint(1 << 3) + varint(1) + field(4, field(1, b"title") + field(2, value)))


def frame(kind: str, message: Json) -> bytes:
    if kind == "push":
        deltas = b"".join(field(2, encode_delta(delta)) for delta in message["deltas"])
        return b"\x01" + text(1, message["clientId"]) + deltas + fixed64(3, message["lastSeenHlc"])
    if kind == "pull":
        limit = number(3, message["maxDeltas"])
        return b"\x02" + text(1, message["clientId"]) + fixed64(2, message["sinceHlc"]) + limit
    return (b"\x03" if kind == "broadcast" else b"") + encode_response(message)


def encode_response(message: Json) -> bytes:
    deltas = b"".join(field(1, encode_delta(delta)) for delta in message["deltas"])
    more = number(3, int(message["hasMore"]))
    return deltas + fixed64(2, message["serverHlc"]) + more + fixed64(4, message["sinceHlc"])


def encode_delta(delta: Json) -> bytes:
    columns = b"".join(
        field(4, text(1, column["column"]) + field(2, canonical(column["value"]).encode()))
        for column in delta["columns"]
    )
    head = number(1, OPERATIONS[delta["op"]]) + text(2, delta["table"]) + text(3, delta["rowId"])
    return head + columns + fixed64(5, delta["hlc"]) + text(6, delta["clientId"]) + text(7, delta["deltaId"])


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(tag: int, body: bytes) -> bytes:
    return varint(tag << 3 | 2) + varint(len(body)) + body


def text(tag: int, value: str) -> bytes:
    return field(tag, value.encode()) if value else b""


def number(tag: int, value: int) -> bytes:
    return varint(tag << 3) + varint(value) if value else b""


def fixed64(tag: int, value: str) -> bytes:
    return varint(tag << 3 | 1) + int(value).to_bytes(8, "little") if int(value) else b""


def delta_of(op: str, table: str, row_id: str, columns: Json, hlc: int, client: str) -> Json:  # noqa: PLR0917
    listed = [{"column": column, "value": value} for column, value in columns.items()]
    delta = {"op": op, "table": table, "rowId": row_id, "columns": listed, "hlc": str(hlc), "clientId": client}
    return {**delta, "deltaId": hashlib.sha256(identity(delta).encode()).hexdigest()}


def identity(delta: Json) -> str:
    return canonical({key: delta[key] for key in ("clientId", "columns", "hlc", "rowId", "table")})


def canonical(value: Json) -> str:
    """RFC 8785: compact, keys by UTF-16 code units, numbers as ECMAScript writes them."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return es_number(float(value))
    return json.dumps(value, ensure_ascii=False)


def es_number(value: float) -> str:
    """A double as ECMAScript's Number::toString writes it. Python finds the same shortest digits."""
    if not math.isfinite(value):
        raise ValueError(f"JSON has no such number. got={value}")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    _, figures, exponent = Decimal(repr(abs(value))).as_tuple()
    point = len(figures) + int(exponent)  # the value is 0.DIGITS × 10^point
    digits = "".join(map(str, figures)).rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if power > 0 else '-'}{abs(power)}"


if __name__ == "__main__":
    sys.exit(main())
