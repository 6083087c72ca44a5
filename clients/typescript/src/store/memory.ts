/** The store for tests, servers and pages that keep nothing: plain maps, with the same transactions. */
import type { RowDelta } from "../model/delta.js";
import { compareText } from "../model/json.js";
import { merge } from "../model/merge.js";
import type { ReadTransaction, Store, StoreName, WriteTransaction } from "./store.js";

export type Groups = Map<string, Map<string, unknown>>;
/** One record that a transaction put; without a value it was removed. */
export type Step = readonly [store: StoreName, group: string, id: string, value?: unknown];

export class MemoryStore implements Store {
  private readonly stores = new Map<StoreName, Groups>();
  private last: Promise<unknown> = Promise.resolve();

  read<T>(_stores: readonly StoreName[], body: (transaction: ReadTransaction) => Promise<T>): Promise<T> {
    return this.inTurn(() => body(new MemoryTransaction(this.stores)));
  }

  write<T>(_stores: readonly StoreName[], body: (transaction: WriteTransaction) => Promise<T>): Promise<T> {
    return this.writeAndKeep(body, () => undefined);
  }

  /** `keep` gets what the body did, at its end. Where it throws, the body did nothing. */
  writeAndKeep<T>(body: (transaction: WriteTransaction) => Promise<T>, keep: (steps: readonly Step[]) => void): Promise<T> {
    return this.inTurn(async () => {
      const transaction = new MemoryTransaction(this.stores);
      try {
        const result = await body(transaction);
        keep(transaction.steps);
        return result;
      } catch (error) {
        transaction.undo();
        throw error;
      }
    });
  }

  /** Do again what a transaction did. */
  replay(steps: readonly Step[]): void {
    const transaction = new MemoryTransaction(this.stores);
    for (const [store, group, id, ...value] of steps) {
      if (value.length > 0) transaction.put(store, group, id, value[0]);
      else transaction.remove(store, group, id);
    }
  }

  contents(): ReadonlyMap<StoreName, Groups> {
    return this.stores;
  }

  close(): void {}

  private inTurn<T>(body: () => Promise<T>): Promise<T> {
    const result = this.last.then(body);
    this.last = result.catch(() => undefined);
    return result;
  }
}

class MemoryTransaction implements WriteTransaction {
  readonly steps: Step[] = [];
  private readonly undoing: (() => void)[] = [];

  constructor(private readonly stores: Map<StoreName, Groups>) {}

  async get<T>(store: StoreName, group: string, id: string): Promise<T | undefined> {
    return this.stores.get(store)?.get(group)?.get(id) as T | undefined;
  }

  async scan<T>(store: StoreName, group: string, limit = Infinity): Promise<[string, T][]> {
    const entries = [...((this.stores.get(store)?.get(group) ?? new Map()) as Map<string, T>)];
    entries.sort(([left], [right]) => compareText(left, right));
    return entries.slice(0, limit);
  }

  async keys(store: StoreName): Promise<[string, string][]> {
    const groups = [...(this.stores.get(store) ?? [])];
    return groups.flatMap(([group, values]) => [...values.keys()].map((id): [string, string] => [group, id]));
  }

  putNew(group: string, rows: readonly (readonly RowDelta[])[]): void {
    for (const deltas of rows) this.put("rows", group, deltas[0]!.rowId, merge(deltas));
  }

  put(store: StoreName, group: string, id: string, value: unknown): void {
    const values = this.group(store, group);
    this.remember(values, id);
    values.set(id, value);
    this.steps.push([store, group, id, value]);
  }

  remove(store: StoreName, group: string, id: string): void {
    const values = this.group(store, group);
    this.remember(values, id);
    values.delete(id);
    this.steps.push([store, group, id]);
  }

  undo(): void {
    for (const step of this.undoing.reverse()) step();
  }

  private remember(values: Map<string, unknown>, id: string): void {
    const had = values.has(id);
    const before = values.get(id);
    this.undoing.push(() => (had ? values.set(id, before) : values.delete(id)));
  }

  private group(store: StoreName, group: string): Map<string, unknown> {
    let groups = this.stores.get(store);
    if (!groups) this.stores.set(store, (groups = new Map()));
    let values = groups.get(group);
    if (!values) groups.set(group, (values = new Map()));
    return values;
  }
}
