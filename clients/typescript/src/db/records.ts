/** What the stores hold. These shapes are on people's disks: change them only with a new IndexedDB version. */
import type { RowDelta } from "../model/delta.js";
import type { Hlc } from "../model/hlc.js";
import type { Json } from "../model/json.js";
import { merge, type Cell, type Row } from "../model/merge.js";

/** `meta`: one record, read and written in every transaction that stamps or moves the cursor. */
export interface StateRecord {
  readonly clientId: string;
  /** The last clock value issued or seen. */
  readonly clock: Hlc;
  /** The highest clock that the server is known to have accepted: stamping again must stay after it. */
  readonly observed: Hlc;
  /** What to add to the wall clock; learnt when the server refuses our clock. */
  readonly offsetMs: number;
  /** The server's arrival clock up to which everything is here; 0 before the first sync. */
  readonly cursor: Hlc;
  readonly pending: number;
  readonly dead: number;
  /** Keys of rows with edits of ours that the last checkpoint did not have: newer than it, or hidden. The pull tells. */
  readonly unconfirmed?: readonly string[];
}

/** `rows`: the merged row, and what a merge last did to an edit made here. */
export interface RowRecord extends Row {
  readonly merged?: MergedMark | undefined;
}

/**
 * Someone else's change met ours. `took`: columns that are now theirs; `kept`: where ours is newer; `mine`: what we had
 * written where theirs is shown now, to be taken back.
 */
export interface MergedMark {
  readonly by: string;
  readonly hlc: Hlc;
  readonly took: readonly string[];
  readonly kept: readonly string[];
  readonly mine?: Readonly<Record<string, Json>>;
}

/** `queue`, by clock: what the server has not acknowledged yet. */
export interface QueueRecord {
  readonly delta: RowDelta;
}

/** `dead`, by clock: what the server refused for good. */
export interface DeadRecord extends QueueRecord {
  readonly reason: string;
  readonly message: string;
  readonly atMs: number;
}

/** `touched`: rows edited here that no completed pull has followed yet. */
export interface TouchedRecord {
  readonly pending: number;
  readonly columns: readonly string[];
}

/** A row as the app sees it. */
export interface RowView {
  readonly rowId: string;
  readonly values: Readonly<Record<string, Json>>;
  /** Edits of this row that wait for the server. */
  readonly pending: boolean;
  readonly merged: MergedMark | undefined;
}

/** A row in a block: its id, its cells by the write that set them, its tombstone. Clocks are decimal. */
type PackedRow = [id: string, writes: [hlc: string, source: string, names: string[], values: Json[]][], tombstone?: [hlc: string, source: string]];

/** New rows as one text: a browser copies that many times quicker than the maps and bigints of each. */
export function packRows(rows: readonly (readonly RowDelta[])[]): string {
  return JSON.stringify(rows.map(packRow));
}

export function unpackRows(text: string): [string, RowRecord][] {
  return (JSON.parse(text) as PackedRow[]).map(unpackRow);
}

function packRow(deltas: readonly RowDelta[]): PackedRow {
  const { rowId: id, op, hlc, clientId, columns } = deltas[0]!;
  // Most rows are one write, and need no merge.
  if (deltas.length === 1 && op !== "DELETE") {
    return [id, [[String(hlc), clientId, columns.map(({ column }) => column), columns.map(({ value }) => value)]]];
  }
  const { cells, tombstone } = merge(deltas);
  const writes: PackedRow[1] = [];
  let last: Cell | undefined;
  for (const [name, cell] of cells) {
    // The cells of one write stand together: rows come from deltas.
    if (last?.hlc !== cell.hlc || last.source !== cell.source) writes.push([String(cell.hlc), cell.source, [], []]);
    last = cell;
    const [, , names, values] = writes.at(-1)!;
    names.push(name);
    values.push(cell.value);
  }
  return tombstone ? [id, writes, [String(tombstone.hlc), tombstone.source]] : [id, writes];
}

function unpackRow([id, writes, tombstone]: PackedRow): [string, RowRecord] {
  const cells = new Map<string, Cell>();
  for (const [clock, source, names, values] of writes) {
    const hlc = BigInt(clock);
    names.forEach((name, index) => cells.set(name, { hlc, source, value: values[index]! }));
  }
  return [id, tombstone ? { cells, tombstone: { hlc: BigInt(tombstone[0]), source: tombstone[1] } } : { cells }];
}

export const queueId = (hlc: Hlc): string => hlc.toString(16).padStart(16, "0");
