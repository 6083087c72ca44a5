/** The store in the browser: IndexedDB, which every tab of an origin shares and which serialises their writes. */
import { MainstemError } from "../errors.js";
import { STORES, type ReadTransaction, type Store, type StoreName, type WriteOptions, type WriteTransaction } from "./store.js";

const VERSION = 1;

export class IdbStore implements Store {
  private constructor(private readonly database: IDBDatabase) {}

  static async open(name: string): Promise<IdbStore> {
    const request = indexedDB.open(databaseName(name), VERSION);
    request.onupgradeneeded = () => {
      for (const store of STORES) {
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
    return run(this.database.transaction([...stores], "readonly"), body);
  }

  async write<T>(
    stores: readonly StoreName[],
    body: (transaction: WriteTransaction) => Promise<T>,
    options: WriteOptions = {},
  ): Promise<T> {
    const durability = options.strict ? "strict" : "relaxed";
    return run(this.database.transaction([...stores], "readwrite", { durability }), body);
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
    result = await body(new IdbTransaction(transaction));
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
  constructor(private readonly transaction: IDBTransaction) {}

  async get<T>(store: StoreName, group: string, id: string): Promise<T | undefined> {
    return settled(this.transaction.objectStore(store).get([group, id]) as IDBRequest<T | undefined>);
  }

  async scan<T>(store: StoreName, group: string, limit?: number): Promise<[string, T][]> {
    // An array sorts after every string, so this range is the whole group.
    const range = IDBKeyRange.bound([group], [group, []]);
    const objects = this.transaction.objectStore(store);
    const [keys, values] = await Promise.all([
      settled(objects.getAllKeys(range, limit)),
      settled(objects.getAll(range, limit) as IDBRequest<T[]>),
    ]);
    return keys.map((key, index) => [(key as [string, string])[1], values[index]!]);
  }

  async keys(store: StoreName): Promise<[string, string][]> {
    return (await settled(this.transaction.objectStore(store).getAllKeys())) as [string, string][];
  }

  put(store: StoreName, group: string, id: string, value: unknown): void {
    this.transaction.objectStore(store).put(value, [group, id]);
  }

  remove(store: StoreName, group: string, id: string): void {
    this.transaction.objectStore(store).delete([group, id]);
  }
}

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
