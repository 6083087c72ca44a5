/**
 * A small gateway in memory that keeps the server's rules: for tests, demos and the development server.
 *
 * A push is all or nothing and counts once; a cursor is the arrival clock; a checkpoint is the merged state with the
 * stamps that each column has. `docs/protocol/sync.md` is what it follows.
 */
import { CursorExpired, Denied, Invalid } from "../errors.js";
import { checkName, deltaIdOf, type RowDelta } from "../model/delta.js";
import { checkDrift, HlcClock, type Hlc } from "../model/hlc.js";
import { compareStamps, EMPTY, join, rowOf, type Row, type Stamp } from "../model/merge.js";
import type { SyncPull, SyncPush, SyncResponse } from "../wire/messages.js";

export const PULL_DEFAULT = 100;
export const PULL_MAX = 10_000;
export const PUSH_MAX = 10_000;
const CHECKPOINT_PIECE_DELTAS = 1_000;

interface Arrival {
  readonly hlc: Hlc;
  readonly delta: RowDelta;
}

export interface MemoryGatewayOptions {
  readonly now?: () => number;
  /** Refuse a delta for a reason of the app's own, by throwing `Invalid`: what a schema does on a real server. */
  readonly accept?: (delta: RowDelta) => void;
}

export class MemoryGateway {
  private readonly clock = new HlcClock();
  private readonly arrivals: Arrival[] = [];
  private readonly seen = new Set<string>();
  private readonly rows = new Map<string, Map<string, Row>>();
  private readonly listeners = new Set<() => void>();
  private readonly now: () => number;

  constructor(private readonly options: MemoryGatewayOptions = {}) {
    this.now = options.now ?? Date.now;
  }

  /** The arrival clock of the newest delta; 0 while there is none. */
  get newest(): Hlc {
    return this.arrivals.at(-1)?.hlc ?? 0n;
  }

  push(push: SyncPush): SyncResponse {
    const nowMs = BigInt(this.now());
    if (push.deltas.length > PUSH_MAX) throw new Invalid(`a push is too large. expected=at most ${PUSH_MAX} deltas`, "too_large");
    for (const delta of push.deltas) this.check(delta, push.clientId, nowMs);
    for (const delta of push.deltas) this.append(delta, nowMs);
    for (const listener of this.listeners) listener();
    return { deltas: [], serverHlc: this.newest, hasMore: false, sinceHlc: 0n };
  }

  pull(pull: SyncPull): SyncResponse {
    const since = pull.sinceHlc;
    if (since > this.newest) throw new CursorExpired(`the cursor is not from here. expected=at most ${this.newest} got=${since}`);
    const limit = Math.min(pull.maxDeltas || PULL_DEFAULT, PULL_MAX);
    const from = this.indexAfter(since);
    const page = this.arrivals.slice(from, from + limit);
    const hasMore = from + page.length < this.arrivals.length;
    return { deltas: page.map(({ delta }) => delta), serverHlc: page.at(-1)?.hlc ?? since, hasMore, sinceHlc: since };
  }

  *checkpoint(): Generator<SyncResponse> {
    const cursor = this.newest;
    const deltas: RowDelta[] = [];
    for (const [table, rows] of this.rows) {
      for (const [rowId, row] of rows) deltas.push(...deltasOf(table, rowId, row));
    }
    for (let index = 0; index < deltas.length; index += CHECKPOINT_PIECE_DELTAS) {
      yield { deltas: deltas.slice(index, index + CHECKPOINT_PIECE_DELTAS), serverHlc: cursor, hasMore: true, sinceHlc: 0n };
    }
    yield { deltas: [], serverHlc: cursor, hasMore: false, sinceHlc: 0n };
  }

  onArrival(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** The merged rows of a table: what the lake would show. */
  table(name: string): ReadonlyMap<string, Row> {
    return this.rows.get(name) ?? new Map<string, Row>();
  }

  get deltaCount(): number {
    return this.arrivals.length;
  }

  private check(delta: RowDelta, clientId: string, nowMs: bigint): void {
    if (delta.clientId !== clientId) throw new Denied(`a delta is someone else's. expected=${clientId} got=${delta.clientId}`);
    if (delta.op === "EVICT") throw new Invalid("only a server evicts", "invalid_op", delta.deltaId);
    checkName(delta.table, "a table's name");
    checkName(delta.rowId, "a row's id");
    for (const { column } of delta.columns) checkName(column, "a column's name");
    checkDrift(delta.hlc, nowMs);
    if (delta.deltaId !== deltaIdOf(delta)) throw new Invalid("a delta's id is not its hash", "delta_id_mismatch", delta.deltaId);
    this.options.accept?.(delta);
  }

  private append(delta: RowDelta, nowMs: bigint): void {
    const id = JSON.stringify([delta.clientId, delta.deltaId]);
    if (this.seen.has(id)) return;
    this.seen.add(id);
    this.arrivals.push({ hlc: this.clock.tick(nowMs), delta });
    let rows = this.rows.get(delta.table);
    if (!rows) this.rows.set(delta.table, (rows = new Map()));
    rows.set(delta.rowId, join(rows.get(delta.rowId) ?? EMPTY, rowOf(delta)));
  }

  private indexAfter(since: Hlc): number {
    let low = 0;
    let high = this.arrivals.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.arrivals[middle]!.hlc > since) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** The fewest deltas that make this row: one for its tombstone, one for each stamp that its columns have. */
export function deltasOf(table: string, rowId: string, row: Row): RowDelta[] {
  const stamps = new Map<string, { stamp: Stamp; columns: { column: string; value: RowDelta["columns"][number]["value"] }[] }>();
  for (const [column, cell] of row.cells) {
    const key = JSON.stringify([String(cell.hlc), cell.source]);
    let group = stamps.get(key);
    if (!group) stamps.set(key, (group = { stamp: cell, columns: [] }));
    group.columns.push({ column, value: cell.value });
  }
  const base = { table, rowId, deltaId: "" };
  const writes = [...stamps.values()]
    .sort((left, right) => compareStamps(left.stamp, right.stamp))
    .map(({ stamp, columns }): RowDelta => ({ ...base, op: "INSERT", columns, hlc: stamp.hlc, clientId: stamp.source }));
  if (!row.tombstone) return writes;
  return [{ ...base, op: "DELETE", columns: [], hlc: row.tombstone.hlc, clientId: row.tombstone.source }, ...writes];
}
