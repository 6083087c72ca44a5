/**
 * The storage boundary: a handful of key-value stores with atomic transactions.
 *
 * The contract that both backends keep: write transactions over one database run one after the other, in every tab;
 * a transaction whose body throws leaves nothing behind; a `write` that has returned survives a closed tab.
 * A body must not wait for anything but its own transaction (IndexedDB would commit it underway).
 */
import type { RowDelta } from "../model/delta.js";

export const STORES = ["rows", "queue", "dead", "touched", "meta"] as const;
export type StoreName = (typeof STORES)[number];

/** A key is a group (the table, or "") and an id within it; `scan` reads one group in the order of its ids. */
export interface ReadTransaction {
  get<T>(store: StoreName, group: string, id: string): Promise<T | undefined>;
  scan<T>(store: StoreName, group: string, limit?: number): Promise<[id: string, value: T][]>;
  /** Every key of a store, in no order that matters. */
  keys(store: StoreName): Promise<[group: string, id: string][]>;
}

export interface WriteTransaction extends ReadTransaction {
  /**
   * Put many rows of one table, none of which `keys("rows")` has; of each all its deltas. A store may keep them together:
   * one by one, the rows of a first sync cost more than all the rest of it.
   */
  putNew(group: string, rows: readonly (readonly RowDelta[])[]): void;
  put(store: StoreName, group: string, id: string, value: unknown): void;
  remove(store: StoreName, group: string, id: string): void;
}

export interface WriteOptions {
  /** Wait for the disk, not just for the browser: for what exists nowhere else yet. */
  readonly strict?: boolean;
}

export interface Store {
  read<T>(stores: readonly StoreName[], body: (transaction: ReadTransaction) => Promise<T>): Promise<T>;
  write<T>(
    stores: readonly StoreName[],
    body: (transaction: WriteTransaction) => Promise<T>,
    options?: WriteOptions,
  ): Promise<T>;
  close(): void;
}
