/** Rows of a first sync lie in blocks in IndexedDB, and nobody can tell: the store in memory, which has none, is the judge. */
import "fake-indexeddb/auto";
import { expect, it } from "vitest";
import { LocalDB, SyncTracker, type RowDelta } from "../src/index.js";
import { rowKey } from "../src/db/replica.js";
import { pack } from "../src/model/hlc.js";
import { chanceFrom } from "./simulation.js";
import { START_MS } from "./support.js";

const ROWS = 300;
const STEPS = 60;

/** Two databases to which the same happens. */
class Twins {
  cursor = 0n;
  private clock = 0n;

  constructor(
    readonly idb: LocalDB,
    readonly memory: LocalDB,
  ) {}

  static async open(name: string): Promise<Twins> {
    const options = { name, clientId: "ada", now: () => START_MS };
    return new Twins(await LocalDB.open({ ...options, backend: "idb" }), await LocalDB.open({ ...options, backend: "memory" }));
  }

  async both<T>(body: (db: LocalDB) => Promise<T>): Promise<void> {
    const outcomes = [await body(this.idb), await body(this.memory)];
    expect(outcomes[0]).toEqual(outcomes[1]);
  }

  delta(op: RowDelta["op"], rowId: string, columns: Record<string, string>): RowDelta {
    const listed = Object.entries(columns).map(([column, value]) => ({ column, value }));
    return { op, table: "t", rowId, columns: listed, hlc: pack(BigInt(START_MS), this.clock++), clientId: "bob", deltaId: "" };
  }

  async page(...deltas: RowDelta[]): Promise<void> {
    const since = this.cursor++;
    await this.both((db) => db.applyPage({ deltas, sinceHlc: since, serverHlc: this.cursor, hasMore: false }, true));
  }

  /** A checkpoint in parts, as the coordinator stores it. */
  async checkpoint(ids: readonly string[], parts: number): Promise<void> {
    const deltas = ids.flatMap((id) => {
      const first = this.delta("INSERT", id, { title: `of ${id}`, __proto__x: "ü" });
      return id.endsWith("7") ? [this.delta("DELETE", id, {}), first, this.delta("INSERT", id, { later: "x" })] : [first];
    });
    await this.both(async (db) => {
      const had = await db.rowKeys();
      const seen = new Set<string>();
      const size = Math.ceil(ids.length / parts);
      for (let at = 0; at < ids.length; at += size) {
        const some = new Set(ids.slice(at, at + size));
        const part = deltas.filter(({ rowId }) => some.has(rowId));
        const fresh = new Set([...some].map((id) => rowKey("t", id)).filter((key) => !had.has(key) && !seen.has(key)));
        for (const id of some) seen.add(rowKey("t", id));
        await db.applyCheckpointPiece({ deltas: part, sinceHlc: 0n, serverHlc: this.cursor, hasMore: true }, fresh);
      }
      await db.finishCheckpoint(this.cursor, [...had].filter((key) => !seen.has(key)));
    });
  }

  async agree(): Promise<void> {
    await this.both((db) => db.all("t"));
    await this.both((db) => db.all("nothing"));
  }
}

it.each([1, 2, 3])("shows the same rows as a store without blocks, seed %i", async (seed) => {
  const chance = chanceFrom(seed);
  const pick = (): string => `row-${Math.floor(chance() * ROWS * 1.2)}`;
  const twins = await Twins.open(`blocks-${seed}`);
  const ids = Array.from({ length: ROWS }, (_, index) => `row-${index}`);
  await new SyncTracker(twins.idb).insert("t", "row-5", { title: "mine" });
  await new SyncTracker(twins.memory).insert("t", "row-5", { title: "mine" });
  await twins.checkpoint(ids, 3);
  await twins.agree();
  for (let step = 0; step < STEPS; step++) {
    const id = pick();
    const die = chance();
    if (die < 0.3) await twins.page(twins.delta("UPDATE", id, { title: `step ${step}` }));
    else if (die < 0.45) await twins.page(twins.delta("DELETE", id, {}));
    else if (die < 0.6) await twins.page({ ...twins.delta("EVICT", id, {}), hlc: 0n }, twins.delta("INSERT", pick(), { title: "back" }));
    else if (die < 0.75) await twins.both((db) => new SyncTracker(db).update("t", id, { mine: `step ${step}` }));
    else if (die < 0.85) await twins.both((db) => new SyncTracker(db).delete("t", id));
    else if (die < 0.97) await twins.both((db) => db.get("t", id));
    else {
      await twins.both((db) => db.resetCursor());
      await twins.checkpoint(ids.filter(() => chance() < 0.8), 2);
    }
    if (step % 10 === 0) await twins.agree();
  }
  await twins.agree();
  twins.idb.close();
  const again = await LocalDB.open({ name: `blocks-${seed}`, backend: "idb", clientId: "ada", now: () => START_MS });
  expect(await again.all("t")).toEqual(await twins.memory.all("t"));
  again.close();
});

it("keeps a first sync in few records", async () => {
  const twins = await Twins.open("few");
  await twins.checkpoint(Array.from({ length: 5_000 }, (_, index) => `row-${index}`), 1);
  const open = indexedDB.open("mainstem:few");
  await new Promise((resolve) => (open.onsuccess = resolve));
  const count = (store: string): Promise<number> =>
    new Promise((resolve) => {
      const request = open.result.transaction(store).objectStore(store).count();
      request.onsuccess = () => resolve(request.result);
    });
  expect(await count("rows")).toBe(0);
  expect(await count("blocks")).toBeLessThanOrEqual(512);
  open.result.close();
  expect((await twins.idb.get("t", "row-4321"))?.values).toEqual({ title: "of row-4321", __proto__x: "ü" });
});
