/**
 * The local copy: rows that the app reads and writes at once, and the queue of what the server has not seen.
 *
 * Owns the transactions and tells this tab and the others what changed. It never talks to a server.
 */
import { Invalid } from "../errors.js";
import type { RowDelta } from "../model/delta.js";
import type { Hlc } from "../model/hlc.js";
import { valuesOf } from "../model/merge.js";
import { IdbStore } from "../store/idb.js";
import { MemoryStore } from "../store/memory.js";
import type { ReadTransaction, Store, WriteOptions, WriteTransaction } from "../store/store.js";
import { TabChannel } from "./tabs.js";
import type { SyncResponse } from "../wire/messages.js";
import { Emitter } from "./emitter.js";
import { LiveTable } from "./live-table.js";
import type { DeadRecord, MergedMark, QueueRecord, RowRecord, RowView, StateRecord, TouchedRecord } from "./records.js";
import {
  acknowledge,
  ALL_STORES,
  applyCheckpointPiece,
  applyPage,
  bury,
  discard,
  Effects,
  finishCheckpoint,
  recordLocal,
  restamp,
  revive,
  rowKey,
  writeState,
  type LocalWrite,
} from "./replica.js";

export interface LocalDBOptions {
  readonly name: string;
  /** "idb" keeps the data in the browser, "memory" nowhere; tests may bring a store of their own. */
  readonly backend?: "idb" | "memory" | Store;
  /** Who writes. A random id by default; with tokens it must be the token's subject. */
  readonly clientId?: string;
  /** How many deltas may wait for the server before writes are refused. */
  readonly queueMax?: number;
  readonly now?: () => number;
}

/** Rows that changed, by table; null ids mean "any row of the table". */
export type ChangedRows = ReadonlyMap<string, ReadonlySet<string> | null>;

export interface LocalDBEvents {
  /** `local`: by a write in this tab. */
  changed: { readonly rows: ChangedRows; readonly local: boolean };
  merged: { readonly table: string; readonly rowId: string; readonly mark: MergedMark };
}

export interface DeadLetter {
  readonly id: string;
  readonly delta: RowDelta;
  readonly reason: string;
  readonly message: string;
  readonly atMs: number;
}

export const QUEUE_MAX = 100_000;
/** Beyond this many rows a change is told as "the table changed". */
const CHANGED_IDS_MAX = 1_000;

export class LocalDB extends Emitter<LocalDBEvents> {
  private readonly tables = new Map<string, LiveTable>();

  private constructor(
    readonly name: string,
    readonly clientId: string,
    private readonly store: Store,
    readonly tabs: TabChannel,
    private readonly queueMax: number,
    readonly now: () => number,
  ) {
    super();
    tabs.subscribe((message) => {
      if (message.kind !== "changed") return;
      const rows = new Map(message.rows.map(([table, ids]) => [table, ids && new Set(ids)]));
      this.emit("changed", { rows, local: false });
    });
  }

  static async open(options: LocalDBOptions): Promise<LocalDB> {
    const { name, backend = "idb", queueMax = QUEUE_MAX, now = Date.now } = options;
    const store =
      backend === "idb" ? await IdbStore.open(name) : backend === "memory" ? new MemoryStore() : backend;
    const clientId = await store.write(["meta", "queue"], (transaction) => identify(transaction, options.clientId), {
      strict: true,
    });
    return new LocalDB(name, clientId, store, new TabChannel(name, backend === "idb"), queueMax, now);
  }

  /** Forget everything that a closed database kept in this browser. */
  static destroy(name: string): Promise<void> {
    return IdbStore.destroy(name);
  }

  close(): void {
    this.tabs.close();
    this.store.close();
  }

  // Reading.

  async get(table: string, rowId: string): Promise<RowView | undefined> {
    return (await this.getMany(table, [rowId])).get(rowId);
  }

  /** The rows of a table that are there, by id. */
  async all(table: string): Promise<RowView[]> {
    return this.store.read(["rows", "touched"], async (transaction) => {
      const [rows, touched] = await Promise.all([
        transaction.scan<RowRecord>("rows", table),
        transaction.scan<TouchedRecord>("touched", table),
      ]);
      const pending = new Map(touched);
      return rows.flatMap(([rowId, record]) => viewOf(rowId, record, pending.get(rowId)) ?? []);
    });
  }

  /** Some rows of a table; those that are not there are left out. */
  async getMany(table: string, rowIds: Iterable<string>): Promise<Map<string, RowView>> {
    return this.store.read(["rows", "touched"], async (transaction) => {
      const views = await Promise.all([...rowIds].map((rowId) => readView(transaction, table, rowId)));
      return new Map(views.flatMap((view) => (view ? [[view.rowId, view]] : [])));
    });
  }

  /** A table that keeps itself current, shared by all who watch it. */
  live(table: string): LiveTable {
    let live = this.tables.get(table);
    if (!live) this.tables.set(table, (live = new LiveTable(this, table)));
    return live;
  }

  /** Call the listener with the table's rows now and after every change; the answer stops it. */
  watch(table: string, listener: (rows: readonly RowView[]) => void): () => void {
    const live = this.live(table);
    const tell = (): void => {
      if (live.rows) listener(live.rows);
    };
    const stop = live.subscribe(tell);
    tell();
    return stop;
  }

  state(): Promise<StateRecord> {
    return this.store.read(["meta"], async (transaction) => (await transaction.get<StateRecord>("meta", "", "state"))!);
  }

  // Writing: for SyncTracker.

  /** All of the writes or none. The deltas that they made, in their order; undefined where nothing changed. */
  write(writes: readonly LocalWrite[]): Promise<(RowDelta | undefined)[]> {
    const body = (transaction: WriteTransaction, effects: Effects): Promise<(RowDelta | undefined)[]> =>
      recordLocal(transaction, writes, this.now(), this.queueMax, effects);
    return this.transact(body, true, { strict: true });
  }

  // What the server refused.

  async deadLetters(): Promise<DeadLetter[]> {
    const records = await this.store.read(["dead"], (transaction) => transaction.scan<DeadRecord>("dead", ""));
    return records.map(([, record]) => ({ id: record.delta.deltaId, ...record }));
  }

  /** Queue a dead letter again, as it is. Answers whether it was there. */
  retryDeadLetter(id: string): Promise<boolean> {
    return this.transact((transaction, effects) => revive(transaction, id, effects), true, { strict: true });
  }

  /** Give a dead letter up: its row goes back to what the server has, with the next sync. */
  discardDeadLetter(id: string): Promise<boolean> {
    return this.transact((transaction, effects) => discard(transaction, id, effects), true, { strict: true });
  }

  /** Take the merge mark off a row that the person has looked at. */
  dismissMerged(table: string, rowId: string): Promise<void> {
    return this.transact(async (transaction, effects) => {
      const record = await transaction.get<RowRecord>("rows", table, rowId);
      if (!record?.merged) return;
      transaction.put("rows", table, rowId, { ...record, merged: undefined });
      effects.changed(table, rowId);
    }, false);
  }

  // For SyncCoordinator.

  /** The oldest deltas that wait. */
  async queued(limit: number): Promise<RowDelta[]> {
    const records = await this.store.read(["queue"], (transaction) => transaction.scan<QueueRecord>("queue", "", limit));
    return records.map(([, { delta }]) => delta);
  }

  acknowledge(deltas: readonly RowDelta[]): Promise<number> {
    return this.transact((transaction, effects) => acknowledge(transaction, deltas, effects), false);
  }

  bury(delta: RowDelta, reason: string, message: string): Promise<void> {
    const why = { reason, message, atMs: this.now() };
    return this.transact((transaction, effects) => bury(transaction, delta, why, effects), false, { strict: true });
  }

  restamp(serverHlc: Hlc): Promise<number> {
    return this.transact((transaction, effects) => restamp(transaction, serverHlc, this.now(), effects), false, {
      strict: true,
    });
  }

  applyPage(page: SyncResponse, settles: boolean): Promise<boolean> {
    return this.transact((transaction, effects) => applyPage(transaction, page, settles, effects), false);
  }

  /** The keys of all rows, as `rowKey` makes them. */
  async rowKeys(): Promise<Set<string>> {
    const keys = await this.store.read(["rows"], (transaction) => transaction.keys("rows"));
    return new Set(keys.map(([table, rowId]) => rowKey(table, rowId)));
  }

  applyCheckpointPiece(piece: SyncResponse, fresh: ReadonlySet<string>): Promise<void> {
    return this.transact((transaction, effects) => applyCheckpointPiece(transaction, piece, fresh, effects), false);
  }

  finishCheckpoint(cursor: Hlc, missing: Iterable<string>): Promise<void> {
    return this.transact((transaction, effects) => finishCheckpoint(transaction, cursor, missing, effects), false);
  }

  /** Go back to before the first sync: the next one begins with a checkpoint. */
  resetCursor(): Promise<void> {
    return this.transact(async (transaction) => {
      const state = (await transaction.get<StateRecord>("meta", "", "state"))!;
      writeState(transaction, { ...state, cursor: 0n });
    }, false);
  }

  private async transact<T>(
    body: (transaction: WriteTransaction, effects: Effects) => Promise<T>,
    local: boolean,
    options?: WriteOptions,
  ): Promise<T> {
    const effects = new Effects();
    const result = await this.store.write(ALL_STORES, (transaction) => body(transaction, effects), options);
    if (effects.rows.size > 0) {
      const rows = [...effects.rows].map(([table, ids]) => [table, ids.size > CHANGED_IDS_MAX ? null : ids] as const);
      this.tabs.post({ kind: "changed", rows: rows.map(([table, ids]) => [table, ids && [...ids]]) });
      this.emit("changed", { rows: new Map(rows), local });
    }
    for (const merge of effects.merges) this.emit("merged", merge);
    return result;
  }
}

async function identify(transaction: WriteTransaction, clientId: string | undefined): Promise<string> {
  const state = await transaction.get<StateRecord>("meta", "", "state");
  if (state && (clientId === undefined || clientId === state.clientId)) return state.clientId;
  if (state && state.pending > 0) {
    throw new Invalid(`edits of another client wait here. expected=${state.clientId} got=${clientId}`, "client_id_changed");
  }
  const fresh = { clock: 0n, observed: 0n, offsetMs: 0, cursor: 0n, pending: 0, dead: 0 };
  const named = { ...fresh, ...state, clientId: clientId ?? crypto.randomUUID() };
  writeState(transaction, named);
  return named.clientId;
}

async function readView(transaction: ReadTransaction, table: string, rowId: string): Promise<RowView | undefined> {
  const [record, touched] = await Promise.all([
    transaction.get<RowRecord>("rows", table, rowId),
    transaction.get<TouchedRecord>("touched", table, rowId),
  ]);
  return record && viewOf(rowId, record, touched);
}

function viewOf(rowId: string, record: RowRecord, touched: TouchedRecord | undefined): RowView | undefined {
  const values = valuesOf(record);
  return values && { rowId, values, pending: (touched?.pending ?? 0) > 0, merged: record.merged };
}
