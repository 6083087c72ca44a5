/** What a program holds for a batch that it sent. Wait for as much as you need to know; the producer goes on in any case. */
export interface Receipt {
  readonly sequence: number;
  readonly count: number;
  /** Resolves when the batch survives a crash of the server. Rejects with `Invalid` where it was refused for good. */
  durable(): Promise<Durable>;
  /** Resolves when the tables show the batch. */
  persisted(): Promise<void>;
}

/** A batch is in the log. `positions` is its first and last where the server told; a duplicate was there before. */
export interface Durable {
  readonly sequence: number;
  readonly positions: readonly [first: number, last: number] | undefined;
  readonly duplicate: boolean;
}

/** Receipts whose tables somebody waits for: they must not be collected meanwhile. */
const waitedFor = new Set<OpenReceipt>();

export class OpenReceipt implements Receipt {
  private readonly inLog = promised<Durable>();
  private readonly inTables = promised<void>();
  private settled = false;

  constructor(
    readonly sequence: number,
    readonly count: number,
  ) {}

  durable(): Promise<Durable> {
    return this.inLog.promise;
  }

  persisted(): Promise<void> {
    if (!this.settled) waitedFor.add(this);
    return this.inTables.promise;
  }

  settleDurable(durable: Durable): void {
    this.inLog.resolve(durable);
  }

  settlePersisted(): void {
    this.end();
    this.inTables.resolve();
  }

  /** Nothing further will be known. What is known already stays. */
  settleFailed(error: Error): void {
    this.end();
    this.inLog.reject(error);
    this.inTables.reject(error);
  }

  private end(): void {
    this.settled = true;
    waitedFor.delete(this);
  }
}

interface Promised<T> {
  readonly promise: Promise<T>;
  resolve(value: T): void;
  reject(error: Error): void;
}

function promised<T>(): Promised<T> {
  let settle!: Pick<Promised<T>, "resolve" | "reject">;
  const promise = new Promise<T>((resolve, reject) => (settle = { resolve, reject }));
  // A program that waits for no receipt hears of a refusal from `close`; it must not die of it.
  promise.catch(() => undefined);
  return { promise, ...settle };
}
