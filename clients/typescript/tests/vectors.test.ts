/** The conformance vectors, which Python and Spark pass too. */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import protobuf from "protobufjs";
import { describe, expect, it } from "vitest";
import { ClockDrift, Invalid } from "../src/errors.js";
import { deltaIdOf, type RowDelta } from "../src/model/delta.js";
import { checkDrift, HlcClock, pack } from "../src/model/hlc.js";
import { canonical, type Json } from "../src/model/json.js";
import { merge, type Row } from "../src/model/merge.js";
import { broadcastFrame, checkpointPiece, CheckpointReader, decodeFromServer, decodeRequest, pullFrame, pushFrame } from "../src/wire/frames.js";
import { encodeResponse, toJson, type SyncPull, type SyncPush, type SyncResponse } from "../src/wire/messages.js";

const read = (name: string): never =>
  JSON.parse(readFileSync(new URL(`../../../tests/vectors/sync/${name}.json`, import.meta.url), "utf8")) as never;

const CLOCK_FIELDS = new Set(["hlc", "lastSeenHlc", "sinceHlc", "serverHlc"]);
const withClocks = <T>(value: unknown): T =>
  JSON.parse(JSON.stringify(value), (key, member: unknown) =>
    CLOCK_FIELDS.has(key) && typeof member === "string" ? BigInt(member) : member,
  ) as T;

function reasonOf(run: () => unknown): string {
  try {
    run();
  } catch (error) {
    if (error instanceof ClockDrift) return "clock_drift";
    if (error instanceof Invalid) return error.reason;
    throw error;
  }
  return "accepted";
}

describe("clocks", () => {
  const { pack: packs, tick: ticks, drift } = read("clocks") as Record<string, Record<string, string>[]>;

  it.each(packs!)("packs $wallMs + $counter", ({ wallMs, counter, hlc, error }) => {
    const run = (): bigint => pack(BigInt(wallMs!), BigInt(counter!));
    if (error) expect(reasonOf(run)).toBe(error);
    else expect(run()).toBe(BigInt(hlc!));
  });

  it.each(ticks!)("ticks from $last by $count", ({ last, nowMs, count, first, after, error }) => {
    const clock = new HlcClock(BigInt(last!));
    const run = (): bigint => clock.tick(BigInt(nowMs!), BigInt(count!));
    if (error) return expect(reasonOf(run)).toBe(error);
    expect(run()).toBe(BigInt(first!));
    return expect(clock.last).toBe(BigInt(after!));
  });

  it.each(drift!)("judges $remote", ({ remote, nowMs, error }) => {
    expect(reasonOf(() => checkDrift(BigInt(remote!), BigInt(nowMs!)))).toBe(error ?? "accepted");
  });
});

describe("delta ids", () => {
  const cases = withClocks<{ delta: RowDelta; canonical: string; id: string }[]>(read("delta_ids"));

  it.each(cases)("$delta.rowId $id", ({ delta, canonical: text, id }) => {
    const { clientId, columns, hlc, rowId, table } = delta;
    expect(canonical({ clientId, columns: columns as unknown as Json, hlc: String(hlc), rowId, table })).toBe(text);
    expect(deltaIdOf(delta)).toBe(id);
  });
});

describe("merges", () => {
  type Cells = Record<string, { hlc: bigint; source: string; value: Json }>;
  const cases = withClocks<{ name: string; deltas: RowDelta[]; row: { cells: Cells; tombstone: Row["tombstone"] | null } }[]>(read("merges"));

  it.each(cases)("$name", ({ deltas, row }) => {
    for (const order of [deltas, [...deltas].reverse(), [...deltas, ...deltas]]) {
      const merged = merge(order);
      expect(new Map(merged.cells)).toEqual(new Map(Object.entries(row.cells)));
      expect(merged.tombstone ?? null).toEqual(row.tombstone);
    }
  });
});

describe("frames", () => {
  type Good = { name: string; kind: string; message: unknown; hex: string };
  const vectors = read("frames") as { good: Good[]; bad: { name: string; hex: string }[]; checkpoint: { pieces: unknown[]; hex: string } };
  const schema = protobuf.loadSync(fileURLToPath(new URL("../../../src/mainstem/wire/lakesync.proto", import.meta.url)));

  it.each(vectors.good)("$kind: $name", ({ kind, message, hex }) => {
    const bytes = new Uint8Array(Buffer.from(hex, "hex"));
    const value = withClocks(message);
    if (kind === "push") expectBoth(bytes, pushFrame(value as SyncPush), { push: value }, decodeRequest);
    else if (kind === "pull") expectBoth(bytes, pullFrame(value as SyncPull), { pull: value }, decodeRequest);
    else {
      const broadcast = kind === "broadcast";
      const encoded = broadcast ? broadcastFrame(value as SyncResponse) : encodeResponse(value as SyncResponse);
      expectBoth(bytes, encoded, { broadcast, response: value }, decodeFromServer);
    }
    expect(JSON.parse(toJson(value as SyncPush))).toEqual(message);
  });

  // Another implementation reads the same schema file: both must mean the same bytes.
  it.each(vectors.good)("protobufjs agrees on $name", ({ kind, hex }) => {
    const name = { push: "SyncPush", pull: "SyncPull", reply: "SyncResponse", broadcast: "SyncResponse" }[kind]!;
    const type = schema.lookupType(`lakesync.v1.${name}`);
    const body = Buffer.from(hex, "hex").subarray(kind === "reply" ? 0 : 1);
    expect(Buffer.from(type.encode(type.decode(body)).finish()).toString("hex")).toBe(body.toString("hex"));
  });

  it.each(vectors.bad)("refuses $name", ({ hex }) => {
    expect(() => decodeRequest(new Uint8Array(Buffer.from(hex, "hex")))).toThrow(Invalid);
  });

  it("reads a checkpoint in any cuts", () => {
    const bytes = new Uint8Array(Buffer.from(vectors.checkpoint.hex, "hex"));
    const pieces = vectors.checkpoint.pieces.map((piece) => withClocks<SyncResponse>(piece));
    expect(Buffer.concat(pieces.map(checkpointPiece)).toString("hex")).toBe(vectors.checkpoint.hex);
    for (const size of [1, 7, bytes.length]) {
      const reader = new CheckpointReader();
      const got: SyncResponse[] = [];
      for (let at = 0; at < bytes.length; at += size) got.push(...reader.feed(bytes.subarray(at, at + size)));
      reader.finish();
      expect(got).toEqual(pieces);
    }
  });

  it("refuses a checkpoint that is cut off", () => {
    const bytes = new Uint8Array(Buffer.from(vectors.checkpoint.hex, "hex"));
    const reader = new CheckpointReader();
    expect([...reader.feed(bytes.subarray(0, bytes.length - 1))]).toHaveLength(1);
    expect(() => reader.finish()).toThrow("cut off");
  });
});

function expectBoth(bytes: Uint8Array, encoded: Uint8Array, value: unknown, decode: (bytes: Uint8Array) => unknown): void {
  expect(Buffer.from(encoded).toString("hex")).toBe(Buffer.from(bytes).toString("hex"));
  expect(decode(bytes)).toEqual(value);
}
