/**
 * A whole world from one seed: clients with drifting clocks, a network that drops, doubles, delays and reorders, and
 * crashes of clients and server at any store operation. The real coordinator runs, on time that the world moves.
 */
import { LocalDB, MemoryGateway, MemoryStore, SyncCoordinator, Unreachable, type Json, type SyncStatus } from "../src/index.js";
import { rowKey } from "../src/db/replica.js";
import type { RowRecord } from "../src/db/records.js";
import { canonical, compareText } from "../src/model/json.js";
import type { Row } from "../src/model/merge.js";
import type { ReadTransaction, Store, StoreName, WriteTransaction } from "../src/store/store.js";
import type { Timing } from "../src/sync/timing.js";
import { LocalTransport } from "../src/transport/local.js";
import type { LiveListener, Transport } from "../src/transport/transport.js";
import type { SyncPull, SyncPush, SyncResponse } from "../src/wire/messages.js";
import { START_MS } from "./support.js";

const TABLES = ["todos", "notes"];
const COLUMNS = ["title", "done", "rank"];

/** Mulberry32: small, seeded and the same everywhere. */
export function chanceFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

class Crash extends Error {}

/** A store that dies with its client: at the chosen operation, before or after it took effect. */
class MortalStore implements Store {
  dead = false;
  private left = Infinity;
  private afterwards = false;

  constructor(readonly durable: MemoryStore) {}

  dieIn(operations: number, afterwards: boolean): void {
    this.left = operations;
    this.afterwards = afterwards;
  }

  read<T>(stores: readonly StoreName[], body: (transaction: ReadTransaction) => Promise<T>): Promise<T> {
    return this.mortal(() => this.durable.read(stores, body));
  }

  write<T>(stores: readonly StoreName[], body: (transaction: WriteTransaction) => Promise<T>): Promise<T> {
    return this.mortal(() => this.durable.write(stores, body));
  }

  close(): void {}

  private async mortal<T>(run: () => Promise<T>): Promise<T> {
    const last = --this.left <= 0;
    if (this.dead || (last && !this.afterwards)) {
      this.dead = true;
      throw new Crash("crashed before an operation");
    }
    const result = await run();
    if (last || this.dead) {
      this.dead = true;
      throw new Crash("crashed after an operation");
    }
    return result;
  }
}

interface Parcel {
  readonly client: Client;
  deliver(): void;
  lose(): void;
}

class Client {
  store!: MortalStore;
  db!: LocalDB;
  sync!: SyncCoordinator;
  status: SyncStatus | undefined;
  readonly durable = new MemoryStore();
  skewMs: number;
  /** Whether its clock was ever so far ahead that the server may have refused it. */
  ranAhead: boolean;
  private lives = 0;

  constructor(
    readonly id: string,
    private readonly world: World,
  ) {
    this.skewMs = world.pick([0, 0, -3_600_000, -2_000, 2_000, 30_000, 3_600_000]);
    this.ranAhead = this.skewMs > 5_000;
  }

  async start(): Promise<void> {
    this.store = new MortalStore(this.durable);
    const now = (): number => this.world.nowMs + this.skewMs;
    this.db = await LocalDB.open({ name: `${this.id}#${this.lives++}`, backend: this.store, clientId: this.id, now });
    const timing: Timing = { now: () => this.world.nowMs, random: this.world.chance, sleep: (ms, signal) => this.world.sleep(ms, signal) };
    this.sync = new SyncCoordinator(this.db, this.world.transport(this), { timing, pushMax: 5, pullMax: 4 });
    this.sync.on("status", (status) => (this.status = status));
    this.sync.startAutoSync();
  }

  async restart(): Promise<void> {
    this.store.dead = true;
    this.world.forget(this);
    void this.sync.stop().catch(() => undefined);
    await this.start();
  }
}

export class World {
  nowMs = START_MS;
  readonly chance: () => number;
  readonly gateway: MemoryGateway;
  readonly clients: Client[] = [];
  /** What each successful write wrote; the server must have each of these exactly once. */
  readonly written = new Set<string>();
  private parcels: Parcel[] = [];
  private readonly sleepers = new Set<() => void>();
  private readonly listeners = new Map<Client, { listener: LiveListener; told: bigint | undefined }>();
  private calm = false;
  private tokens = 0;

  constructor(readonly seed: number) {
    this.chance = chanceFrom(seed);
    this.gateway = new MemoryGateway({ now: () => this.nowMs });
    this.gateway.onArrival(() => this.broadcast());
  }

  async run(steps: number): Promise<void> {
    const count = 3 + Math.floor(this.chance() * 8);
    for (let index = 0; index < count; index++) this.clients.push(new Client(`client-${index}`, this));
    for (const client of this.clients) await client.start();
    for (let step = 0; step < steps; step++) {
      await this.step();
      for (const client of this.clients) if (client.store.dead) await client.restart();
      await turn();
    }
    await this.settle();
  }

  pick<T>(items: readonly T[]): T {
    return items[Math.floor(this.chance() * items.length)]!;
  }

  sleep(ms: number, signal: AbortSignal): Promise<void> {
    const due = this.nowMs + ms;
    return new Promise((resolve) => {
      const check = (): void => {
        if (!signal.aborted && this.nowMs < due) return;
        this.sleepers.delete(check);
        resolve();
      };
      this.sleepers.add(check);
      signal.addEventListener("abort", check);
      check();
    });
  }

  forget(client: Client): void {
    this.listeners.delete(client);
    this.parcels = this.parcels.filter((parcel) => parcel.client !== client || (parcel.lose(), false));
  }

  transport(client: Client): Transport {
    const local = new LocalTransport(this.gateway);
    return {
      push: (push: SyncPush) => this.exchange(client, () => local.push(push)),
      pull: (pull: SyncPull) =>
        this.exchange(client, async () => {
          const response = await local.pull(pull);
          const live = this.listeners.get(client);
          if (live && !response.hasMore) live.told = response.serverHlc;
          return response;
        }),
      checkpoint: async () => {
        const pieces = await this.exchange(client, () => local.checkpoint());
        return pieces && this.brittle(pieces);
      },
      subscribe: (listener) => {
        this.listeners.set(client, { listener, told: undefined });
        return () => void (this.listeners.get(client)?.listener === listener && this.listeners.delete(client));
      },
    };
  }

  private async *brittle(pieces: AsyncIterable<SyncResponse>): AsyncGenerator<SyncResponse> {
    for await (const piece of pieces) {
      if (!this.calm && this.chance() < 0.2) throw new Unreachable("the checkpoint broke off");
      yield piece;
    }
  }

  /** A request and its reply, each of them a parcel that the network may lose, keep or repeat. */
  private exchange<T>(client: Client, serve: () => Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const lost = (): void => reject(new Unreachable("lost"));
      const deliver = (): void =>
        void serve().then(
          (response) => this.parcels.push({ client, deliver: () => resolve(response), lose: lost }),
          (error: unknown) => this.parcels.push({ client, deliver: () => reject(error), lose: lost }),
        );
      this.parcels.push({ client, deliver, lose: lost });
    });
  }

  private broadcast(): void {
    for (const [client, live] of this.listeners) {
      if (live.told === undefined || live.told >= this.gateway.newest) continue;
      const response = this.gateway.pull({ clientId: "", sinceHlc: live.told, maxDeltas: 100 });
      live.told = response.hasMore ? undefined : response.serverHlc;
      this.parcels.push({ client, deliver: () => live.listener.broadcast({ ...response, hasMore: false }), lose: () => undefined });
    }
  }

  private async step(): Promise<void> {
    const die = this.chance();
    if (die < 0.35) return this.write(this.pick(this.clients));
    if (die < 0.75) return this.network();
    if (die < 0.9) return this.pass(this.pick([1, 100, 1_000, 5_000, 30_000]));
    if (die < 0.95) {
      const client = this.pick(this.clients);
      return client.store.dieIn(1 + Math.floor(this.chance() * 12), this.chance() < 0.5);
    }
    if (die < 0.97) {
      const client = this.pick(this.clients);
      client.skewMs += this.pick([-600_000, -1_000, 1_000, 4_000, 600_000]);
      client.ranAhead ||= client.skewMs > 5_000;
      return undefined;
    }
    return this.crashServer();
  }

  private async write(client: Client): Promise<void> {
    const token = `${client.id}/${this.tokens++}`;
    const table = this.pick(TABLES);
    const rowId = `row-${Math.floor(this.chance() * 4)}`;
    const column = this.pick(COLUMNS);
    const values: Record<string, Json> = this.chance() < 0.3 ? { [column]: token, [this.pick(COLUMNS)]: token } : { [column]: token };
    const die = this.chance();
    try {
      if (die < 0.2) await client.sync.tracker.delete(table, rowId);
      else if (die < 0.5) await this.noted(token, client.sync.tracker.update(table, rowId, values));
      else await this.noted(token, client.sync.tracker.insert(table, rowId, values).then(() => true));
    } catch (error) {
      if (!(error instanceof Crash)) throw error;
    }
  }

  private async noted(token: string, write: Promise<boolean>): Promise<void> {
    if (await write) this.written.add(token);
  }

  private network(): void {
    const index = Math.floor(this.chance() * this.parcels.length);
    const parcel = this.parcels[index];
    if (!parcel) return;
    const die = this.calm ? 0.5 : this.chance();
    // Given up on, but still under way: it may arrive much later.
    if (die < 0.1) return parcel.lose();
    if (die < 0.2) return parcel.deliver();
    this.parcels.splice(index, 1);
    if (die < 0.3) parcel.lose();
    else parcel.deliver();
  }

  private pass(ms: number): void {
    this.nowMs += ms;
    for (const check of [...this.sleepers]) check();
  }

  private crashServer(): void {
    for (const parcel of this.parcels.splice(0)) parcel.lose();
    for (const live of this.listeners.values()) {
      live.told = undefined;
      live.listener.lost();
    }
  }

  /** No more faults: everything must come to rest, everywhere the same. */
  private async settle(): Promise<void> {
    this.calm = true;
    this.crashServer();
    for (const client of this.clients) await client.restart();
    for (let round = 0; round < 20_000; round++) {
      await turn();
      if (this.parcels.length > 0) {
        this.parcels.shift()!.deliver();
      } else if (await this.rested()) {
        return;
      } else {
        this.pass(1_000);
      }
    }
    throw new Error("the world does not come to rest");
  }

  private async rested(): Promise<boolean> {
    for (const { db, status } of this.clients) {
      const state = await db.state();
      if (state.pending > 0 || state.cursor !== this.gateway.newest || status?.phase !== "idle") return false;
    }
    return true;
  }

  /** Every row with its stamps, as text that can be compared. */
  serverRows(): string[] {
    return TABLES.flatMap((table) => [...this.gateway.table(table)].map(([rowId, row]) => show(table, rowId, row))).sort(compareText);
  }

  async clientRows(client: Client): Promise<string[]> {
    const tables = await Promise.all(
      TABLES.map(async (table) => {
        const rows = await client.durable.read(["rows"], (transaction) => transaction.scan<RowRecord>("rows", table));
        return rows.map(([rowId, row]) => show(table, rowId, row));
      }),
    );
    return tables.flat().sort(compareText);
  }

  /** The ids of the deltas in which each token arrived. */
  arrivals(): Map<string, string[]> {
    const ids = new Map<string, string[]>();
    let cursor = 0n;
    for (;;) {
      const page = this.gateway.pull({ clientId: "", sinceHlc: cursor, maxDeltas: 1_000 });
      for (const { columns, deltaId } of page.deltas) {
        const token = columns[0]?.value;
        if (typeof token === "string") ids.set(token, [...(ids.get(token) ?? []), deltaId]);
      }
      if (!page.hasMore) return ids;
      cursor = page.serverHlc;
    }
  }

  async stop(): Promise<void> {
    for (const { sync } of this.clients) await sync.stop();
  }
}

function show(table: string, rowId: string, row: Row): string {
  const cells = [...row.cells].sort(([a], [b]) => compareText(a, b)).map(([name, { hlc, source, value }]) => `${name}=${canonical(value)}@${hlc}/${source}`);
  return `${rowKey(table, rowId)} ${cells.join(" ")} †${row.tombstone ? `${row.tombstone.hlc}/${row.tombstone.source}` : ""}`;
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
