// Generated from lakesync.proto by scripts/generate-schema.mjs. Do not edit.

export const DeltaOp = {
  UNSPECIFIED: 0,
  INSERT: 1,
  UPDATE: 2,
  DELETE: 3,
  EVICT: 4,
} as const;

export interface ColumnDeltaWire {
  column: string;
  value: Uint8Array;
}

export interface RowDeltaWire {
  op: number;
  table: string;
  rowId: string;
  columns: ColumnDeltaWire[];
  hlc: bigint;
  clientId: string;
  deltaId: string;
}

export interface SyncPushWire {
  clientId: string;
  deltas: RowDeltaWire[];
  lastSeenHlc: bigint;
}

export interface SyncPullWire {
  clientId: string;
  sinceHlc: bigint;
  maxDeltas: number;
}

export interface SyncResponseWire {
  deltas: RowDeltaWire[];
  serverHlc: bigint;
  hasMore: boolean;
  sinceHlc: bigint;
}

export type Scalar = "string" | "bytes" | "fixed64" | "uint32" | "bool" | "enum";
export type MessageName = keyof typeof MESSAGES;
/** number, name, kind, repeated */
export type Field = readonly [number, string, Scalar | MessageName, boolean];

export const MESSAGES = {
  ColumnDelta: [
    [1, "column", "string", false],
    [2, "value", "bytes", false],
  ],
  RowDelta: [
    [1, "op", "enum", false],
    [2, "table", "string", false],
    [3, "rowId", "string", false],
    [4, "columns", "ColumnDelta", true],
    [5, "hlc", "fixed64", false],
    [6, "clientId", "string", false],
    [7, "deltaId", "string", false],
  ],
  SyncPush: [
    [1, "clientId", "string", false],
    [2, "deltas", "RowDelta", true],
    [3, "lastSeenHlc", "fixed64", false],
  ],
  SyncPull: [
    [1, "clientId", "string", false],
    [2, "sinceHlc", "fixed64", false],
    [3, "maxDeltas", "uint32", false],
  ],
  SyncResponse: [
    [1, "deltas", "RowDelta", true],
    [2, "serverHlc", "fixed64", false],
    [3, "hasMore", "bool", false],
    [4, "sinceHlc", "fixed64", false],
  ],
} as const;
