/** What several test files share: a hand-set clock and a transport that does as the test says. */
import { MemoryGateway } from "../src/gateway/memory-gateway.js";
import { LocalTransport } from "../src/transport/local.js";
import type { LiveListener, Transport } from "../src/transport/transport.js";
import type { SyncPull, SyncPush, SyncResponse } from "../src/wire/messages.js";
import type { Timing } from "../src/sync/timing.js";

export const START_MS = 1_764_000_000_000;

/** Time that moves only when it is told to, or when the sync sleeps. */
export class ManualTiming implements Timing {
  readonly slept: number[] = [];
  private readonly sleepers = new Set<() => void>();

  constructor(public nowMs = START_MS) {}

  now = (): number => this.nowMs;
  random = (): number => 0;

  sleep(ms: number, signal: AbortSignal): Promise<void> {
    this.slept.push(ms);
    return new Promise((resolve) => {
      if (signal.aborted) return resolve();
      const due = this.nowMs + ms;
      const check = (): void => {
        if (!signal.aborted && this.nowMs < due) return;
        this.sleepers.delete(check);
        resolve();
      };
      this.sleepers.add(check);
      signal.addEventListener("abort", check);
    });
  }

  advance(ms: number): void {
    this.nowMs += ms;
    for (const check of [...this.sleepers]) check();
  }
}

/** A LocalTransport whose calls fail when the test says so. */
export class FaultyTransport implements Transport {
  /** Thrown before the server sees the request. */
  before: Error | undefined;
  /** Thrown after the server has done it: the reply is lost. */
  after: Error | undefined;
  readonly pushes: SyncPush[] = [];
  readonly pulls: SyncPull[] = [];
  private readonly local: LocalTransport;

  constructor(gateway: MemoryGateway) {
    this.local = new LocalTransport(gateway);
  }

  async push(push: SyncPush): Promise<SyncResponse> {
    this.pushes.push(push);
    if (this.before) throw this.before;
    const response = await this.local.push(push);
    if (this.after) throw this.after;
    return response;
  }

  async pull(pull: SyncPull): Promise<SyncResponse> {
    this.pulls.push(pull);
    if (this.before) throw this.before;
    return this.local.pull(pull);
  }

  checkpoint(): Promise<AsyncIterable<SyncResponse> | undefined> {
    return this.local.checkpoint();
  }
}

export class LiveFaultyTransport extends FaultyTransport {
  constructor(private readonly source: MemoryGateway) {
    super(source);
    this.live = new LocalTransport(source);
  }

  private readonly live: LocalTransport;

  override async pull(pull: SyncPull): Promise<SyncResponse> {
    const response = await super.pull(pull);
    await this.live.pull(pull);
    return response;
  }

  subscribe(listener: LiveListener): () => void {
    return this.live.subscribe(listener);
  }

  get gateway(): MemoryGateway {
    return this.source;
  }
}

/** Wait until something is true, by the turns of the event loop and not by the clock. */
export async function until(what: string, condition: () => boolean | Promise<boolean>, turns = 5_000): Promise<void> {
  for (let turn = 0; turn < turns; turn++) {
    if (await condition()) return;
    await new Promise((resolve) => setImmediate(resolve));
  }
  throw new Error(`never happened: ${what}`);
}
