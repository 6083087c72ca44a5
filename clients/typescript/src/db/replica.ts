/**
 * What may happen to the local copy, each as one body of a write transaction.
 *
 * No I/O of its own and no events: `LocalDB` runs these and tells the app. Every body leaves the stores in a state that a
 * crash right after it may keep.
 */
import { Invalid, Overloaded } from "../errors.js";
import { withId, type ColumnDelta, type RowDelta } from "../model/delta.js";
import { DRIFT_MS_MAX, tick, wallMs, type Hlc } from "../model/hlc.js";
import { canonical, type Json } from "../model/json.js";
import { EMPTY, join, merge, rowOf, valuesOf, type Cell, type Row, type Stamp } from "../model/merge.js";
import type { StoreName, WriteTransaction } from "../store/store.js";
import type { SyncResponse } from "../wire/messages.js";
import { queueId, type DeadRecord, type MergedMark, type QueueRecord, type RowRecord, type StateRecord, type TouchedRecord } from "./records.js";

export const ALL_STORES: readonly StoreName[] = ["rows", "queue", "dead", "touched", "meta"];

/** A write that the app asks for. */
export type LocalWrite =
  | { readonly op: "INSERT" | "UPDATE"; readonly table: string; readonly rowId: string; readonly columns: Readonly<Record<string, Json>> }
  | { readonly op: "DELETE"; readonly table: string; readonly rowId: string };

/** The rows that a transaction changed, and the merges that it made. */
export class Effects {
  readonly rows = new Map<string, Set<string>>();
  readonly merges: { readonly table: string; readonly rowId: string; readonly mark: MergedMark }[] = [];

  changed(table: string, rowId: string): void {
    let ids = this.rows.get(table);
    if (!ids) this.rows.set(table, (ids = new Set()));
    ids.add(rowId);
  }
}

export async function readState(transaction: WriteTransaction): Promise<StateRecord> {
  const state = await transaction.get<StateRecord>("meta", "", "state");
  if (!state) throw new Invalid("the local database has no state record", "corrupt");
  return state;
}

export function writeState(transaction: WriteTransaction, state: StateRecord): void {
  transaction.put("meta", "", "state", state);
}

/** Stamp and queue writes. A write that changes nothing makes no delta; the answer says which ones did. */
export async function recordLocal(
  transaction: WriteTransaction,
  writes: readonly LocalWrite[],
  nowMs: number,
  queueMax: number,
  effects: Effects,
): Promise<(RowDelta | undefined)[]> {
  let state = await readState(transaction);
  const made: (RowDelta | undefined)[] = [];
  for (const write of writes) {
    const row = (await transaction.get<RowRecord>("rows", write.table, write.rowId)) ?? EMPTY;
    const columns = changedColumns(write, row);
    if (!columns) {
      made.push(undefined);
      continue;
    }
    if (state.pending >= queueMax) {
      throw new Overloaded(`the queue is full. expected=at most ${queueMax} waiting deltas`, 1_000);
    }
    const issued = tick(state.clock, BigInt(nowMs + state.offsetMs));
    const { op, table, rowId } = write;
    const delta = withId({ op, table, rowId, columns, hlc: issued.first, clientId: state.clientId });
    state = { ...state, clock: issued.last, pending: state.pending + 1 };
    transaction.put("queue", "", queueId(delta.hlc), { delta } satisfies QueueRecord);
    transaction.put("rows", table, rowId, { ...join(row, rowOf(delta)) } satisfies RowRecord);
    await touch(transaction, delta, 1);
    effects.changed(table, rowId);
    made.push(delta);
  }
  writeState(transaction, state);
  return made;
}

function changedColumns(write: LocalWrite, row: Row): ColumnDelta[] | undefined {
  const visible = valuesOf(row) !== undefined;
  if (write.op === "DELETE") return visible ? [] : undefined;
  if (write.op === "UPDATE" && !visible) return undefined;
  const columns: ColumnDelta[] = [];
  for (const [column, value] of Object.entries(write.columns)) {
    const cell = row.cells.get(column);
    const text = canonical(value);
    const same = write.op === "UPDATE" && cell !== undefined && canonical(cell.value) === text;
    // Parsed again, so that what the app keeps and may change is not what we keep.
    if (!same) columns.push({ column, value: JSON.parse(text) as Json });
  }
  return columns.length > 0 ? columns : undefined;
}

/**
 * Apply a page of deltas that follows our cursor, and move the cursor with it.
 *
 * Answers false, and does nothing, if the page does not start at the cursor: another tab was faster, or a broadcast was
 * lost; the caller pulls. `settles` says that the page ends a pull that began after the last push.
 */
export async function applyPage(
  transaction: WriteTransaction,
  page: SyncResponse,
  settles: boolean,
  effects: Effects,
): Promise<boolean> {
  const state = await readState(transaction);
  if (page.sinceHlc !== state.cursor || page.serverHlc < state.cursor) return false;
  const observed = await applyDeltas(transaction, page.deltas, state, effects);
  const unconfirmed = await confirm(transaction, page, state.unconfirmed ?? [], settles, effects);
  if (settles) await settle(transaction, effects);
  writeState(transaction, { ...state, ...observed, cursor: page.serverHlc, unconfirmed });
  return true;
}

/** What neither the checkpoint nor the pull after it has is not for us to see: of such rows our own edits are left. */
async function confirm(
  transaction: WriteTransaction,
  page: SyncResponse,
  unconfirmed: readonly string[],
  settles: boolean,
  effects: Effects,
): Promise<readonly string[]> {
  if (unconfirmed.length === 0) return unconfirmed;
  const told = new Set(page.deltas.map(({ table, rowId }) => rowKey(table, rowId)));
  const left = unconfirmed.filter((key) => !told.has(key));
  if (!settles) return left;
  for (const key of left) {
    const [table, rowId] = JSON.parse(key) as [string, string];
    const stored = await transaction.get<RowRecord>("rows", table, rowId);
    if (stored) keep(transaction, table, rowId, stored, await ownRow(transaction, table, rowId), stored.merged, effects);
  }
  return [];
}

/**
 * Apply one piece of a checkpoint. The cursor stays: a checkpoint that breaks off is begun again.
 *
 * `fresh` has the keys of rows that neither this copy nor an earlier piece had when the checkpoint began: they need not be
 * read, which is half of a first sync's time. Rows that the app writes meanwhile are read all the same.
 */
export async function applyCheckpointPiece(
  transaction: WriteTransaction,
  piece: SyncResponse,
  fresh: ReadonlySet<string>,
  effects: Effects,
): Promise<void> {
  const state = await readState(transaction);
  const observed = await applyDeltas(transaction, piece.deltas, state, effects, fresh);
  writeState(transaction, { ...state, ...observed });
}

/**
 * A whole checkpoint is in: the rows that this copy had and the checkpoint has not (`missing`, by their keys) are gone,
 * unless they hold edits that still wait, or that the server has only just taken: a checkpoint may be older than they are,
 * and then the pull that follows brings them.
 */
export async function finishCheckpoint(
  transaction: WriteTransaction,
  cursor: Hlc,
  missing: Iterable<string>,
  effects: Effects,
): Promise<void> {
  const state = await readState(transaction);
  const waiting = await unsettledRows(transaction);
  const unconfirmed: string[] = [];
  for (const key of missing) {
    if (waiting.has(key)) {
      unconfirmed.push(key);
      continue;
    }
    const [table, rowId] = JSON.parse(key) as [string, string];
    transaction.remove("rows", table, rowId);
    effects.changed(table, rowId);
  }
  writeState(transaction, { ...state, cursor, unconfirmed });
}

async function unsettledRows(transaction: WriteTransaction): Promise<Set<string>> {
  const refused = (await transaction.scan<DeadRecord>("dead", "")).map(([, { delta }]) => rowKey(delta.table, delta.rowId));
  const touched = (await transaction.keys("touched")).map(([table, rowId]) => rowKey(table, rowId));
  return new Set([...refused, ...touched]);
}

export const rowKey = (table: string, rowId: string): string => JSON.stringify([table, rowId]);

async function applyDeltas(
  transaction: WriteTransaction,
  deltas: readonly RowDelta[],
  state: StateRecord,
  effects: Effects,
  fresh: ReadonlySet<string> = new Set(),
): Promise<Pick<StateRecord, "clock" | "observed">> {
  let { observed } = state;
  const groups = new Map<string, RowDelta[]>();
  for (const delta of deltas) {
    if (delta.hlc > observed) observed = delta.hlc;
    const key = rowKey(delta.table, delta.rowId);
    const group = groups.get(key);
    if (group) group.push(delta);
    else groups.set(key, [delta]);
  }
  const touched = new Set((await transaction.keys("touched")).map(([table, rowId]) => rowKey(table, rowId)));
  // All reads are asked for at once: IndexedDB answers them in one go, where a wait for each would cost a turn each.
  const applying: Promise<void>[] = [];
  const added = new Map<string, RowDelta[][]>();
  for (const [key, group] of groups) {
    if (touched.has(key)) applying.push(applyToTouchedRow(transaction, group, state.clientId, effects));
    else if (fresh.has(key)) {
      // A row that this copy does not have yet. A checkpoint evicts nothing.
      const { table, rowId } = group[0]!;
      const rows = added.get(table);
      if (rows) rows.push(group);
      else added.set(table, [group]);
      effects.changed(table, rowId);
    } else applying.push(applyToRow(transaction, group, effects));
  }
  await Promise.all(applying);
  for (const [table, rows] of added) transaction.putNew(table, rows);
  return { observed, clock: observed > state.clock ? observed : state.clock };
}

/** A row without edits of ours. */
async function applyToRow(transaction: WriteTransaction, deltas: readonly RowDelta[], effects: Effects): Promise<void> {
  const { table, rowId } = deltas[0]!;
  const stored = await transaction.get<RowRecord>("rows", table, rowId);
  const evicted = deltas.findLastIndex(({ op }) => op === "EVICT");
  // Refused edits are ours too, and outlive the pulls that follow them.
  const base = evicted < 0 ? stored : await ownRow(transaction, table, rowId);
  const rest = deltas.slice(evicted + 1);
  keep(transaction, table, rowId, stored, rest.length > 0 ? merge(rest, base ?? EMPTY) : base, stored?.merged, effects);
}

/** A row edited here: what others did to it is marked for the person to see. */
async function applyToTouchedRow(
  transaction: WriteTransaction,
  deltas: readonly RowDelta[],
  clientId: string,
  effects: Effects,
): Promise<void> {
  const { table, rowId } = deltas[0]!;
  const [stored, touched] = await Promise.all([
    transaction.get<RowRecord>("rows", table, rowId),
    transaction.get<TouchedRecord>("touched", table, rowId),
  ]);
  let row: Row | undefined = stored;
  let mark = stored?.merged;
  for (const delta of deltas) {
    if (delta.op === "EVICT") {
      row = await ownRow(transaction, table, rowId);
      continue;
    }
    const before: Row = row ?? EMPTY;
    row = join(before, rowOf(delta));
    if (delta.clientId !== clientId && !has(before, delta)) mark = markOf(delta, touched!, clientId, before, row, mark);
  }
  keep(transaction, table, rowId, stored, row, mark, effects);
}

/** Store a row and its mark if either differs from what is stored. */
function keep(
  transaction: WriteTransaction,
  table: string,
  rowId: string,
  stored: RowRecord | undefined,
  row: Row | undefined,
  mark: MergedMark | undefined,
  effects: Effects,
): void {
  const marked = mark !== undefined && mark !== stored?.merged;
  if (sameRow(stored, row) && !marked) return;
  if (marked) effects.merges.push({ table, rowId, mark });
  if (!row) transaction.remove("rows", table, rowId);
  else transaction.put("rows", table, rowId, { ...row, merged: mark } satisfies RowRecord);
  effects.changed(table, rowId);
}

/** The row that our own waiting and refused edits make: what is left when the server's view of it goes. */
async function ownRow(transaction: WriteTransaction, table: string, rowId: string): Promise<RowRecord | undefined> {
  let row: RowRecord | undefined;
  for (const store of ["queue", "dead"] as const) {
    for (const [, { delta }] of await transaction.scan<QueueRecord>(store, "")) {
      if (delta.table === table && delta.rowId === rowId) row = join(row ?? EMPTY, rowOf(delta));
    }
  }
  return row;
}

/** Whether a row visibly has this very write already: then it comes a second time, and nothing meets. */
function has(row: Row, delta: RowDelta): boolean {
  const stamp = { hlc: delta.hlc, source: delta.clientId };
  if (row.tombstone && sameStamp(row.tombstone, stamp)) return true;
  return delta.columns.some(({ column }) => {
    const cell = row.cells.get(column);
    return cell !== undefined && sameStamp(cell, stamp);
  });
}

function markOf(
  delta: RowDelta,
  touched: TouchedRecord,
  clientId: string,
  was: Row,
  after: Row,
  before: MergedMark | undefined,
): MergedMark {
  const theirs = (column: string): boolean => {
    const cell = after.cells.get(column);
    return cell === undefined || sameStamp(cell, { hlc: delta.hlc, source: delta.clientId });
  };
  const columns = delta.op === "DELETE" ? touched.columns : delta.columns.map(({ column }) => column);
  const took = new Set(before?.took);
  const kept = new Set(before?.kept);
  for (const column of columns) (theirs(column) ? took : kept).add(column);
  for (const column of took) kept.delete(column);
  const mine: Record<string, Json> = { ...before?.mine };
  for (const column of columns) {
    const cell = was.cells.get(column);
    if (cell?.source === clientId && theirs(column)) mine[column] = cell.value;
  }
  const mark = { by: delta.clientId, hlc: delta.hlc, took: [...took], kept: [...kept] };
  return Object.keys(mine).length > 0 ? { ...mark, mine } : mark;
}

/** The server has these: they leave the queue. Answers how many were still in it. */
export async function acknowledge(transaction: WriteTransaction, deltas: readonly RowDelta[], effects: Effects): Promise<number> {
  const state = await readState(transaction);
  let removed = 0;
  let { observed } = state;
  for (const delta of deltas) {
    const id = queueId(delta.hlc);
    const queued = await transaction.get<QueueRecord>("queue", "", id);
    if (queued?.delta.deltaId !== delta.deltaId) continue;
    transaction.remove("queue", "", id);
    await touch(transaction, delta, -1);
    effects.changed(delta.table, delta.rowId);
    if (delta.hlc > observed) observed = delta.hlc;
    removed++;
  }
  writeState(transaction, { ...state, observed, pending: state.pending - removed });
  return removed;
}

/** The server refused this one for good: it is put aside, and the local row keeps it. */
export async function bury(transaction: WriteTransaction, delta: RowDelta, why: Omit<DeadRecord, "delta">, effects: Effects): Promise<void> {
  const { observed } = await readState(transaction);
  if ((await acknowledge(transaction, [delta], effects)) === 0) return;
  transaction.put("dead", "", queueId(delta.hlc), { delta, ...why } satisfies DeadRecord);
  const state = await readState(transaction);
  writeState(transaction, { ...state, observed, dead: state.dead + 1 });
}

/** Put a refused delta back into the queue, as it was. */
export async function revive(transaction: WriteTransaction, deltaId: string, effects: Effects): Promise<boolean> {
  const record = await exhume(transaction, deltaId);
  if (!record) return false;
  const { delta } = record;
  transaction.put("queue", "", queueId(delta.hlc), { delta } satisfies QueueRecord);
  const state = await readState(transaction);
  writeState(transaction, { ...state, pending: state.pending + 1 });
  await touch(transaction, delta, 1);
  effects.changed(delta.table, delta.rowId);
  return true;
}

/**
 * Give a refused delta up. What it hid of the row is not here any more, so the row goes back to our waiting edits and the
 * cursor to the start: the next sync brings the server's row again.
 */
export async function discard(transaction: WriteTransaction, deltaId: string, effects: Effects): Promise<boolean> {
  const record = await exhume(transaction, deltaId);
  if (!record) return false;
  const { table, rowId } = record.delta;
  const row = await ownRow(transaction, table, rowId);
  if (row) transaction.put("rows", table, rowId, row);
  else transaction.remove("rows", table, rowId);
  writeState(transaction, { ...(await readState(transaction)), cursor: 0n });
  effects.changed(table, rowId);
  return true;
}

async function exhume(transaction: WriteTransaction, deltaId: string): Promise<DeadRecord | undefined> {
  const found = (await transaction.scan<DeadRecord>("dead", "")).find(([, { delta }]) => delta.deltaId === deltaId);
  if (!found) return undefined;
  transaction.remove("dead", "", found[0]);
  const state = await readState(transaction);
  writeState(transaction, { ...state, dead: state.dead - 1 });
  return found[1];
}

/**
 * Our clock ran ahead and the server refused: learn the difference and stamp the refused part of the queue again.
 *
 * Only what lies beyond the drift limit is stamped anew: no server can have accepted that already, whatever became of
 * its reply. The rest keeps its stamps, and the new ones come after it.
 */
export async function restamp(transaction: WriteTransaction, serverHlc: Hlc, nowMs: number, effects: Effects): Promise<number> {
  const state = await readState(transaction);
  const limitMs = wallMs(serverHlc) + DRIFT_MS_MAX;
  const queue = await transaction.scan<QueueRecord>("queue", "");
  let last = serverHlc > state.observed ? serverHlc : state.observed;
  const ahead: RowDelta[] = [];
  for (const [, { delta }] of queue) {
    if (wallMs(delta.hlc) > limitMs) ahead.push(delta);
    else if (delta.hlc > last) last = delta.hlc;
  }
  const offsetMs = Number(wallMs(serverHlc)) - nowMs;
  for (const old of ahead) {
    const issued = tick(last, wallMs(serverHlc));
    last = issued.last;
    const { deltaId: _, ...rest } = old;
    const delta = withId({ ...rest, hlc: issued.first });
    transaction.remove("queue", "", queueId(old.hlc));
    transaction.put("queue", "", queueId(delta.hlc), { delta } satisfies QueueRecord);
    const row = await transaction.get<RowRecord>("rows", old.table, old.rowId);
    if (row) transaction.put("rows", old.table, old.rowId, withStamp(row, old, delta));
    effects.changed(old.table, old.rowId);
  }
  writeState(transaction, { ...state, offsetMs: Math.min(offsetMs, 0), clock: last });
  return ahead.length;
}

function withStamp(row: RowRecord, old: RowDelta, delta: RowDelta): RowRecord {
  const from = { hlc: old.hlc, source: old.clientId };
  const cells = new Map<string, Cell>();
  for (const [name, cell] of row.cells) cells.set(name, sameStamp(cell, from) ? { ...cell, hlc: delta.hlc } : cell);
  if (!row.tombstone || !sameStamp(row.tombstone, from)) return { ...row, cells };
  return { ...row, cells, tombstone: { hlc: delta.hlc, source: delta.clientId } };
}

async function touch(transaction: WriteTransaction, delta: RowDelta, step: 1 | -1): Promise<void> {
  const before = await transaction.get<TouchedRecord>("touched", delta.table, delta.rowId);
  const columns = new Set(before?.columns);
  for (const { column } of delta.columns) columns.add(column);
  const record: TouchedRecord = { pending: Math.max(0, (before?.pending ?? 0) + step), columns: [...columns] };
  transaction.put("touched", delta.table, delta.rowId, record);
}

async function settle(transaction: WriteTransaction, effects: Effects): Promise<void> {
  for (const [table, rowId] of await transaction.keys("touched")) {
    const touched = await transaction.get<TouchedRecord>("touched", table, rowId);
    if (!touched || touched.pending > 0) continue;
    transaction.remove("touched", table, rowId);
    effects.changed(table, rowId);
  }
}

const sameStamp = (left: Stamp, right: Stamp): boolean => left.hlc === right.hlc && left.source === right.source;

function sameRow(left: Row | undefined, right: Row | undefined): boolean {
  if (!left || !right) return left === right;
  if (left.cells.size !== right.cells.size) return false;
  if (!left.tombstone !== !right.tombstone) return false;
  if (left.tombstone && !sameStamp(left.tombstone, right.tombstone!)) return false;
  for (const [name, cell] of left.cells) {
    const other = right.cells.get(name);
    if (!other || !sameStamp(cell, other)) return false;
    if (cell !== other && canonical(cell.value) !== canonical(other.value)) return false;
  }
  return true;
}
