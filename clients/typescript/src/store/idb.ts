/**
 * The store in the browser: IndexedDB, which every tab of an origin shares and which serialises their writes.
 *
 * A record of its own costs about as much as a hundred rows within one, so rows that come together for the first time
 * (`putNew`) lie in blocks: those of one bucket, which a hash of the id decides, are one record. A block is written once.
 * Whatever is written to a row later is a record of the row's own in `rows`, which hides the one in the block; a row that
 * is gone, though a block has it, is a null there.
 */
import { packRows, unpackRows, type RowRecord } from "../db/records.js";
import { MainstemError } from "../errors.js";
import type { RowDelta } from "../model/delta.js";
import { STORES, type ReadTransaction, type Store, type StoreName, type WriteOptions, type WriteTransaction } from "./store.js";

const VERSION = 2;
const ROWS = "rows";
const BLOCKS = "blocks";
/** With 100,000 rows a bucket has some 200: little to read for one row, and few enough records for all. */
const BUCKETS = 512;

type Rows = Map<string, RowRecord>;

export class IdbStore implements Store {
  private constructor(private readonly database: IDBDatabase) {}

  static async open(name: string): Promise<IdbStore> {
    const request = indexedDB.open(databaseName(name), VERSION);
    request.onupgradeneeded = () => {
      for (const store of [...STORES, BLOCKS]) {
        if (!request.result.objectStoreNames.contains(store)) request.result.createObjectStore(store);
      }
    };
    const database = await settled(request);
    // Another tab wants to upgrade or delete the database: make way instead of blocking it for ever.
    database.onversionchange = () => database.close();
    return new IdbStore(database);
  }

  static async destroy(name: string): Promise<void> {
    await settled(indexedDB.deleteDatabase(databaseName(name)));
  }

  async read<T>(stores: readonly StoreName[], body: (transaction: ReadTransaction) => Promise<T>): Promise<T> {
    return run(this.database.transaction(withBlocks(stores), "readonly"), body);
  }

  async write<T>(
    stores: readonly StoreName[],
    body: (transaction: WriteTransaction) => Promise<T>,
    options: WriteOptions = {},
  ): Promise<T> {
    const durability = options.strict ? "strict" : "relaxed";
    return run(this.database.transaction(withBlocks(stores), "readwrite", { durability }), body);
  }

  close(): void {
    this.database.close();
  }
}

async function run<T>(transaction: IDBTransaction, body: (transaction: WriteTransaction) => Promise<T>): Promise<T> {
  const finished = new Promise<void>((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(failure(transaction.error, "a transaction was aborted"));
  });
  // The body's own error is the one to tell; the abort that follows from it is not another.
  finished.catch(() => undefined);
  let result: T;
  try {
    const records = new IdbTransaction(transaction);
    result = await body(records);
    await records.finish();
  } catch (error) {
    try {
      transaction.abort();
    } catch {
      // It had ended by itself, with the error that we are about to tell.
    }
    throw error;
  }
  await finished;
  return result;
}

class IdbTransaction implements WriteTransaction {
  /** Buckets that were read in this transaction. */
  private readonly buckets = new Map<string, Promise<Rows>>();
  private readonly removals: Promise<void>[] = [];

  constructor(private readonly transaction: IDBTransaction) {}

  async get<T>(store: StoreName, group: string, id: string): Promise<T | undefined> {
    const found = await settled(this.transaction.objectStore(store).get([group, id]) as IDBRequest<T | null | undefined>);
    if (store !== ROWS || found !== undefined) return found ?? undefined;
    return (await this.bucket(group, bucketOf(id))).get(id) as T | undefined;
  }

  async scan<T>(store: StoreName, group: string, limit?: number): Promise<[string, T][]> {
    const range = wholeOf([group]);
    const objects = this.transaction.objectStore(store);
    const [keys, values, blocks] = await Promise.all([
      settled(objects.getAllKeys(range, limit)),
      settled(objects.getAll(range, limit) as IDBRequest<T[]>),
      store === ROWS ? this.blocks(range) : [],
    ]);
    const own = keys.map((key, index): [string, T] => [(key as [string, string])[1], values[index]!]);
    if (store !== ROWS) return own;
    const rows = new Map(blocks.flat() as [string, unknown][] as [string, T][]);
    for (const [id, value] of own) {
      if (value === null) rows.delete(id);
      else rows.set(id, value);
    }
    return [...rows].sort(([left], [right]) => (left < right ? -1 : 1)).slice(0, limit);
  }

  /** Of rows, those that are gone are among them. */
  async keys(store: StoreName): Promise<[string, string][]> {
    const objects = this.transaction.objectStore(store);
    const own = (await settled(objects.getAllKeys())) as [string, string][];
    if (store !== ROWS) return own;
    const places = (await settled(this.transaction.objectStore(BLOCKS).getAllKeys())) as [string, number, string][];
    const groups = new Map(own.map(([group, id]) => [JSON.stringify([group, id]), [group, id] as [string, string]]));
    for (const group of new Set(places.map(([name]) => name))) {
      for (const block of await this.blocks(wholeOf([group]))) {
        for (const [id] of block) groups.set(JSON.stringify([group, id]), [group, id]);
      }
    }
    return [...groups.values()];
  }

  put(store: StoreName, group: string, id: string, value: unknown): void {
    this.transaction.objectStore(store).put(value, [group, id]);
  }

  putNew(group: string, rows: readonly (readonly RowDelta[])[]): void {
    const blocks = new Map<number, (readonly RowDelta[])[]>();
    for (const deltas of rows) {
      const bucket = bucketOf(deltas[0]!.rowId);
      const block = blocks.get(bucket);
      if (block) block.push(deltas);
      else blocks.set(bucket, [deltas]);
    }
    const objects = this.transaction.objectStore(BLOCKS);
    for (const [bucket, block] of blocks) {
      // No row is in two blocks, so its first row names a block.
      objects.put(packRows(block), [group, bucket, block[0]![0]!.rowId]);
      this.buckets.delete(placeOf(group, bucket));
    }
  }

  remove(store: StoreName, group: string, id: string): void {
    const objects = this.transaction.objectStore(store);
    objects.delete([group, id]);
    if (store !== ROWS) return;
    const hide = async (): Promise<void> => {
      if ((await this.bucket(group, bucketOf(id))).has(id)) objects.put(null, [group, id]);
    };
    this.removals.push(hide());
  }

  /** The last thing of a transaction: removed rows that a block has are hidden. None of them is put in it as well. */
  async finish(): Promise<void> {
    await Promise.all(this.removals);
  }

  private bucket(group: string, bucket: number): Promise<Rows> {
    const place = placeOf(group, bucket);
    let rows = this.buckets.get(place);
    if (!rows) {
      rows = this.blocks(wholeOf([group, bucket])).then((blocks) => new Map(blocks.flat()));
      this.buckets.set(place, rows);
    }
    return rows;
  }

  private async blocks(range: IDBKeyRange): Promise<[string, RowRecord][][]> {
    return (await settled(this.transaction.objectStore(BLOCKS).getAll(range) as IDBRequest<string[]>)).map(unpackRows);
  }
}

/** FNV-1a over the code units. These numbers are on people's disks. */
export function bucketOf(id: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < id.length; index++) hash = Math.imul(hash ^ id.charCodeAt(index), 0x01000193);
  return ((hash ^ (hash >>> 15)) >>> 0) % BUCKETS;
}

const placeOf = (group: string, bucket: number): string => `${bucket} ${group}`;

// An array sorts after every string and number, so this range is all that begins so.
const wholeOf = (start: readonly (string | number)[]): IDBKeyRange => IDBKeyRange.bound([...start], [...start, []]);

const withBlocks = (stores: readonly StoreName[]): string[] => (stores.includes(ROWS) ? [...stores, BLOCKS] : [...stores]);

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(failure(request.error, "a request failed"));
  });
}

function failure(error: DOMException | null, what: string): MainstemError {
  return new MainstemError(`IndexedDB: ${what}. got=${error?.name ?? "nothing"} ${error?.message ?? ""}`);
}

const databaseName = (name: string): string => `mainstem:${name}`;
