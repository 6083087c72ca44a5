/** What must hold for every input, not only for the vectors. */
import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Invalid } from "../src/errors.js";
import { withId, type RowDelta } from "../src/model/delta.js";
import { HlcClock, wallMs } from "../src/model/hlc.js";
import { canonical, compareText, type Json } from "../src/model/json.js";
import { join, merge, rowOf, valuesOf, type Row } from "../src/model/merge.js";
import { sha256Hex } from "../src/model/sha256.js";
import { decodeRequest, pushFrame } from "../src/wire/frames.js";
import { pushFromJson, responseFromJson, toJson } from "../src/wire/messages.js";

// Few stamps and columns, so that ties, tombstones and returns are common.
const delta = fc
  .record({
    op: fc.constantFrom("INSERT" as const, "UPDATE" as const, "DELETE" as const),
    clock: fc.integer({ min: 0, max: 6 }),
    clientId: fc.constantFrom("a", "b", "\uff61", "😀"),
    columns: fc.uniqueArray(
      fc.record({ column: fc.constantFrom("x", "y", "__proto__"), value: fc.jsonValue({ maxDepth: 2 }) as fc.Arbitrary<Json> }),
      { selector: ({ column }) => column, minLength: 1 },
    ),
  })
  .map(({ op, clock, clientId, columns }): RowDelta =>
    withId({ op, table: "t", rowId: "k", columns: op === "DELETE" ? [] : columns, hlc: BigInt(clock), clientId }),
  );
const deltas = fc.array(delta, { maxLength: 12 });

/** Rows by their meaning, in an order of their own. */
const plain = (row: Row): unknown => ({
  cells: [...row.cells].sort(([a], [b]) => compareText(a, b)).map(([name, cell]) => [name, cell.hlc, cell.source, canonical(cell.value)]),
  tombstone: row.tombstone && [row.tombstone.hlc, row.tombstone.source],
});

describe("merge", () => {
  it("does not depend on order or repetition", () => {
    fc.assert(
      fc.property(deltas, fc.infiniteStream(fc.nat()), (all, chance) => {
        const shuffled = [...all, ...all.slice(0, 3)]
          .map((item) => ({ item, rank: chance.next().value as number }))
          .sort((left, right) => left.rank - right.rank)
          .map(({ item }) => item);
        expect(plain(merge(shuffled))).toEqual(plain(merge(all)));
      }),
      { numRuns: 300 },
    );
  });

  it("is commutative, associative and idempotent on rows", () => {
    fc.assert(
      fc.property(deltas, deltas, deltas, (a, b, c) => {
        const [left, middle, right] = [merge(a), merge(b), merge(c)];
        expect(plain(join(left, middle))).toEqual(plain(join(middle, left)));
        expect(plain(join(join(left, middle), right))).toEqual(plain(join(left, join(middle, right))));
        expect(plain(join(left, left))).toEqual(plain(left));
      }),
      { numRuns: 300 },
    );
  });

  it("never shows what a later delete covers", () => {
    fc.assert(
      fc.property(deltas, (all) => {
        const row = merge(all);
        for (const cell of row.cells.values()) {
          for (const other of all) if (other.op === "DELETE") expect(cell.hlc >= other.hlc).toBe(true);
        }
      }),
    );
  });

  it("leaves its inputs alone", () => {
    const one = rowOf(withId({ op: "INSERT", table: "t", rowId: "k", columns: [{ column: "x", value: 1 }], hlc: 1n, clientId: "a" }));
    const gone = rowOf(withId({ op: "DELETE", table: "t", rowId: "k", columns: [], hlc: 2n, clientId: "a" }));
    expect(valuesOf(join(one, gone))).toBeUndefined();
    expect(valuesOf(one)).toEqual({ x: 1 });
  });
});

describe("clock", () => {
  it("only grows, whatever the wall clock does", () => {
    fc.assert(
      fc.property(fc.array(fc.record({ now: fc.integer({ min: 0, max: 10_000 }), count: fc.integer({ min: 1, max: 70_000 }) })), (steps) => {
        const clock = new HlcClock();
        let last = -1n;
        for (const { now, count } of steps) {
          const first = clock.tick(BigInt(now), BigInt(count));
          expect(first > last).toBe(true);
          expect(wallMs(first) >= BigInt(now)).toBe(true);
          last = clock.last;
        }
      }),
    );
  });
});

describe("canonical JSON", () => {
  it("is JSON for the same value", () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        expect(JSON.parse(canonical(value as Json))).toEqual(JSON.parse(JSON.stringify(value)));
      }),
    );
  });

  it.each([
    ["undefined", undefined],
    ["NaN", Number.NaN],
    ["infinity", -Infinity],
    ["half a surrogate pair", "\ud83d"],
    ["a date", new Date(0)],
    ["a bigint", 1n],
    ["a map", new Map()],
    ["undefined within", { a: undefined }],
  ])("refuses %s", (_, value) => expect(() => canonical(value as never)).toThrow(Invalid));

  it("refuses what is nested too deep", () => {
    let value: Json = 1;
    for (let level = 0; level < 65; level++) value = [value];
    expect(() => canonical(value)).toThrow("too deep");
  });

  it("orders texts as their UTF-8 bytes", () => {
    const text = fc.string({ unit: "binary" });
    fc.assert(
      fc.property(text, text, (a, b) => {
        expect(Math.sign(compareText(a, b))).toBe(Math.sign(Buffer.compare(Buffer.from(a), Buffer.from(b))));
      }),
    );
  });
});

it("hashes as every other SHA-256 does", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 300 }), (bytes) => {
      expect(sha256Hex(bytes)).toBe(createHash("sha256").update(bytes).digest("hex"));
    }),
  );
});

describe("wire", () => {
  const push = fc.record({ clientId: fc.string({ unit: "grapheme" }), deltas, lastSeenHlc: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }) });

  it("comes back as it went, in both encodings", () => {
    fc.assert(
      fc.property(push, (message) => {
        const normal = JSON.parse(toJson(message)) as unknown;
        expect(JSON.parse(toJson((decodeRequest(pushFrame(message)) as { push: typeof message }).push))).toEqual(normal);
        expect(JSON.parse(toJson(pushFromJson(toJson(message))))).toEqual(normal);
      }),
    );
  });

  it.each([0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])("carries a text of %i bytes", (length) => {
    const message = { clientId: "é".repeat(length >> 1), deltas: [], lastSeenHlc: 1n };
    expect(decodeRequest(pushFrame(message))).toEqual({ push: message });
  });

  it("survives every cut and every changed byte", () => {
    fc.assert(
      fc.property(push, fc.nat(), fc.nat({ max: 255 }), (message, place, byte) => {
        const frame = pushFrame(message);
        const cut = frame.slice(0, place % frame.length);
        const changed = frame.slice();
        changed[place % frame.length] = byte;
        for (const bytes of [cut, changed]) {
          try {
            decodeRequest(bytes);
          } catch (error) {
            expect(error).toBeInstanceOf(Invalid);
          }
        }
      }),
      { numRuns: 300 },
    );
  });

  it.each(["", "[]", "null", '{"deltas":1}', '{"deltas":[null]}', '{"deltas":[],"serverHlc":5}', '{"deltas":[],"serverHlc":"-1"}'])(
    "refuses the JSON %j",
    (text) => expect(() => responseFromJson(text)).toThrow(Invalid),
  );
});
