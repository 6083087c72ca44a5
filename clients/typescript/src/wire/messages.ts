/**
 * The protocol's messages as values, and their two encodings: Protobuf and JSON.
 *
 * In JSON clocks are decimal strings, since a JSON number cannot hold 64 bits everywhere; values stay plain JSON.
 */
import { Invalid } from "../errors.js";
import type { ColumnDelta, Operation, RowDelta } from "../model/delta.js";
import type { Hlc } from "../model/hlc.js";
import { canonical, type Json } from "../model/json.js";
import { decodeMessage, encodeMessage } from "./protobuf.js";
import { plainString, textOf } from "./text.js";
import {
  DeltaOp,
  type RowDeltaWire,
  type SyncPullWire,
  type SyncPushWire,
  type SyncResponseWire,
} from "./schema.generated.js";

export interface SyncPush {
  readonly clientId: string;
  readonly deltas: readonly RowDelta[];
  readonly lastSeenHlc: Hlc;
}

export interface SyncPull {
  readonly clientId: string;
  readonly sinceHlc: Hlc;
  readonly maxDeltas: number;
}

export interface SyncResponse {
  readonly deltas: readonly RowDelta[];
  readonly serverHlc: Hlc;
  readonly hasMore: boolean;
  readonly sinceHlc: Hlc;
}

export const CONTENT_TYPE_PROTOBUF = "application/x-protobuf";
export const CONTENT_TYPE_JSON = "application/json";

const utf8 = new TextEncoder();
const OPERATIONS = new Map<number, Operation>(
  Object.entries(DeltaOp)
    .filter(([name]) => name !== "UNSPECIFIED")
    .map(([name, number]) => [number, name as Operation]),
);

export function encodePush(push: SyncPush): Uint8Array {
  return encodeMessage("SyncPush", { ...push, deltas: push.deltas.map(deltaToWire) });
}

export function decodePush(bytes: Uint8Array): SyncPush {
  const wire = decodeMessage("SyncPush", bytes) as unknown as SyncPushWire;
  return { ...wire, deltas: wire.deltas.map(deltaFromWire) };
}

export function encodePull(pull: SyncPull): Uint8Array {
  return encodeMessage("SyncPull", pull);
}

export function decodePull(bytes: Uint8Array): SyncPull {
  return decodeMessage("SyncPull", bytes) as unknown as SyncPullWire;
}

export function encodeResponse(response: SyncResponse): Uint8Array {
  return encodeMessage("SyncResponse", { ...response, deltas: response.deltas.map(deltaToWire) });
}

export function decodeResponse(bytes: Uint8Array): SyncResponse {
  const wire = decodeMessage("SyncResponse", bytes) as unknown as SyncResponseWire;
  return { ...wire, deltas: wire.deltas.map(deltaFromWire) };
}

function deltaToWire(delta: RowDelta): RowDeltaWire {
  return {
    ...delta,
    op: DeltaOp[delta.op],
    columns: delta.columns.map(({ column, value }) => ({ column, value: utf8.encode(canonical(value)) })),
  };
}

function deltaFromWire(wire: RowDeltaWire): RowDelta {
  const op = OPERATIONS.get(wire.op);
  if (!op) throw new Invalid(`a delta has an unknown operation. got=${wire.op}`, "invalid_op");
  // In place, since the message is nobody else's: of a first sync there are half a million columns.
  const delta = wire as unknown as { op: Operation; columns: { value: Json }[] };
  wire.columns.forEach(({ value }, index) => (delta.columns[index]!.value = parseValue(value)));
  delta.op = op;
  return wire as unknown as RowDelta;
}

function parseValue(bytes: Uint8Array): Json {
  const plain = plainString(bytes);
  if (plain !== undefined) return plain;
  try {
    return JSON.parse(textOf(bytes)) as Json;
  } catch {
    throw new Invalid("a column's value is not UTF-8 JSON", "invalid_value");
  }
}

/** The JSON form of any of the messages. */
export function toJson(message: SyncPush | SyncPull | SyncResponse): string {
  return JSON.stringify(message, (_, value: unknown) => (typeof value === "bigint" ? String(value) : value));
}

export function pushFromJson(text: string): SyncPush {
  const body = parseObject(text);
  return { clientId: string(body, "clientId"), deltas: deltas(body), lastSeenHlc: clock(body, "lastSeenHlc") };
}

export function responseFromJson(text: string): SyncResponse {
  const body = parseObject(text);
  return {
    deltas: deltas(body),
    serverHlc: clock(body, "serverHlc"),
    hasMore: body["hasMore"] === true,
    sinceHlc: clock(body, "sinceHlc"),
  };
}

type Members = Record<string, unknown>;

function deltas(body: Members): RowDelta[] {
  return list(body["deltas"], "deltas").map((item) => {
    const name = string(item, "op");
    const op = [...OPERATIONS.values()].find((known) => known === name);
    if (!op) throw new Invalid(`a delta has an unknown operation. got=${name}`, "invalid_op");
    return {
      op,
      table: string(item, "table"),
      rowId: string(item, "rowId"),
      columns: list(item["columns"] ?? [], "columns").map(column),
      hlc: clock(item, "hlc"),
      clientId: string(item, "clientId"),
      deltaId: string(item, "deltaId"),
    };
  });
}

function column(item: Members): ColumnDelta {
  if (!("value" in item)) throw new Invalid("a column has no value", "invalid_value");
  return { column: string(item, "column"), value: item["value"] as Json };
}

function parseObject(text: string): Members {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw new Invalid("the body is not JSON", "invalid_json");
  }
  return list([parsed], "body")[0]!;
}

function list(value: unknown, what: string): Members[] {
  if (!Array.isArray(value)) throw new Invalid(`${what} must be an array. got=${typeof value}`);
  for (const item of value as unknown[]) {
    if (typeof item !== "object" || item === null) throw new Invalid(`${what} must hold objects. got=${typeof item}`);
  }
  return value as Members[];
}

function string(members: Members, key: string): string {
  const value = members[key];
  if (typeof value !== "string") throw new Invalid(`${key} must be a string. got=${typeof value}`);
  return value;
}

function clock(members: Members, key: string): Hlc {
  const value = members[key] ?? "0";
  if (typeof value !== "string" || !/^\d{1,20}$/.test(value)) throw new Invalid(`${key} must be a decimal string`, "clock_range");
  return BigInt(value);
}
