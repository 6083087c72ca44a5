/** How the coordinator meets failures, refusals, gaps and other tabs. */
import "fake-indexeddb/auto";
import { afterEach, describe, expect, it } from "vitest";
import { ClockDrift, CursorExpired, Denied, Invalid, LocalDB, MemoryGateway, MemoryStore, Overloaded, SyncCoordinator, Unreachable } from "../src/index.js";
import { retryDelayMs } from "../src/sync/timing.js";
import type { SyncStatus } from "../src/sync/status.js";
import { FaultyTransport, LiveFaultyTransport, ManualTiming, START_MS, until } from "./support.js";

const cleanup: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const step of cleanup.splice(0).reverse()) await step();
});

let names = 0;
async function client(gateway: MemoryGateway, clientId: string, options: { live?: boolean; store?: MemoryStore; clockAheadMs?: number } = {}) {
  const timing = new ManualTiming();
  const now = (): number => timing.nowMs + (options.clockAheadMs ?? 0);
  const db = await LocalDB.open({ name: `c${names++}`, backend: options.store ?? "memory", clientId, now });
  const transport = options.live ? new LiveFaultyTransport(gateway) : new FaultyTransport(gateway);
  const sync = new SyncCoordinator(db, transport, { timing, pushMax: 8, pullMax: 3 });
  cleanup.push(() => sync.stop());
  return { db, transport, sync, timing, tracker: sync.tracker };
}

const newGateway = (accept?: (delta: { columns: readonly { column: string }[] }) => void): MemoryGateway =>
  new MemoryGateway({ now: () => START_MS, ...(accept ? { accept } : {}) });

describe("one round", () => {
  it("brings two clients to the same rows", async () => {
    const gateway = newGateway();
    const [ada, bob] = [await client(gateway, "ada"), await client(gateway, "bob")];
    for (let index = 0; index < 10; index++) await ada.tracker.insert("todos", `r${index}`, { title: `${index}`, done: false });
    await ada.sync.syncOnce();
    await bob.sync.syncOnce();
    await bob.tracker.update("todos", "r1", { done: true });
    await ada.tracker.update("todos", "r1", { title: "new" });
    await bob.tracker.delete("todos", "r2");
    for (const { sync } of [ada, bob, ada]) await sync.syncOnce();
    const plain = async (db: LocalDB) => (await db.all("todos")).map(({ rowId, values, pending }) => ({ rowId, values, pending }));
    expect(await plain(bob.db)).toEqual(await plain(ada.db));
    expect((await ada.db.get("todos", "r1"))?.values).toEqual({ title: "new", done: true });
    expect(await ada.db.all("todos")).toHaveLength(9);
    expect(ada.sync.status).toMatchObject({ phase: "idle", online: true, pending: 0 });
  });

  it("brings a late change with an old clock to everyone", async () => {
    const gateway = newGateway();
    const [early, late] = [await client(gateway, "early"), await client(gateway, "late", { clockAheadMs: -3_600_000 })];
    await late.tracker.insert("todos", "old", { title: "written an hour ago" });
    await early.tracker.insert("todos", "new", { title: "now" });
    await early.sync.syncOnce();
    await late.sync.syncOnce();
    await early.sync.syncOnce();
    expect(await early.db.all("todos")).toHaveLength(2);
  });

  it("counts a push once when its reply is lost", async () => {
    const gateway = newGateway();
    const { transport, sync, tracker, db } = await client(gateway, "ada");
    await tracker.insert("todos", "r", { x: 1 });
    transport.after = new Unreachable("lost");
    await expect(sync.syncOnce()).rejects.toThrow(Unreachable);
    expect((await db.state()).pending).toBe(1);
    transport.after = undefined;
    await sync.syncOnce();
    expect(gateway.deltaCount).toBe(1);
    expect((await db.state()).pending).toBe(0);
  });

  it("starts from a checkpoint and goes on from its cursor", async () => {
    const gateway = newGateway();
    const [ada, bob] = [await client(gateway, "ada"), await client(gateway, "bob")];
    for (let index = 0; index < 20; index++) await ada.tracker.insert("todos", `r${index}`, { n: index });
    await ada.tracker.delete("todos", "r0");
    await ada.sync.syncOnce();
    const progress: unknown[] = [];
    bob.sync.on("progress", (event) => progress.push(event));
    await bob.sync.syncOnce();
    expect(await bob.db.all("todos")).toHaveLength(19);
    expect(progress.at(-1)).toEqual({ rows: 20, done: true });
    expect(bob.transport.pulls).toMatchObject([{ sinceHlc: gateway.newest }]);
  });

  it("keeps a tombstone of the checkpoint against a late write", async () => {
    const gateway = newGateway();
    const [ada, bob, old] = [await client(gateway, "ada"), await client(gateway, "bob"), await client(gateway, "old", { clockAheadMs: -60_000 })];
    await old.tracker.insert("todos", "r", { title: "old" });
    await ada.tracker.insert("todos", "r", { title: "new" });
    await ada.tracker.delete("todos", "r");
    await ada.sync.syncOnce();
    await bob.sync.syncOnce();
    await old.sync.syncOnce();
    await bob.sync.syncOnce();
    expect(await bob.db.all("todos")).toEqual([]);
    expect(await old.db.all("todos")).toEqual([]);
  });

  it("begins again where the server no longer has what follows the cursor", async () => {
    const gateway = newGateway();
    const { db, sync, tracker } = await client(gateway, "ada");
    await tracker.insert("todos", "r", { x: 1 });
    await sync.syncOnce();
    await db.applyPage({ deltas: [], sinceHlc: gateway.newest, serverHlc: gateway.newest + 99n, hasMore: false }, true);
    await sync.syncOnce();
    expect((await db.state()).cursor).toBe(gateway.newest);
    expect(await db.all("todos")).toHaveLength(1);
  });

  it("finds the refused delta in a batch, puts it aside and sends the others", async () => {
    const gateway = newGateway(({ columns }) => {
      if (columns.some(({ column }) => column === "bad")) throw new Invalid("no such column", "schema_mismatch");
    });
    const { db, sync, tracker } = await client(gateway, "ada");
    for (let index = 0; index < 20; index++) await tracker.insert("todos", `r${index}`, index === 6 ? { bad: 1 } : { n: index });
    const dead: string[] = [];
    sync.on("deadLetter", ({ delta }) => dead.push(delta.rowId));
    await sync.syncOnce();
    expect(dead).toEqual(["r6"]);
    expect(gateway.deltaCount).toBe(19);
    expect(await db.state()).toMatchObject({ pending: 0, dead: 1 });
    expect(sync.status).toMatchObject({ deadLetters: 1, pending: 0 });
  });

  it("gives a dead letter up and has the server's row again", async () => {
    let closed = false;
    const gateway = newGateway(() => {
      if (closed) throw new Invalid("read only", "schema_mismatch");
    });
    const { db, sync, tracker } = await client(gateway, "ada");
    await tracker.insert("todos", "r", { title: "server's" });
    await sync.syncOnce();
    closed = true;
    await tracker.update("todos", "r", { title: "mine" });
    await sync.syncOnce();
    expect((await db.get("todos", "r"))?.values).toEqual({ title: "mine" });
    await db.discardDeadLetter((await db.deadLetters())[0]!.id);
    await sync.syncOnce();
    expect((await db.get("todos", "r"))?.values).toEqual({ title: "server's" });
  });

  it("mends a clock that runs ahead", async () => {
    const gateway = newGateway();
    const [fast, other] = [await client(gateway, "fast", { clockAheadMs: 3_600_000 }), await client(gateway, "other")];
    await fast.tracker.insert("todos", "r", { title: "one" });
    await fast.tracker.update("todos", "r", { title: "two" });
    await fast.sync.syncOnce();
    await fast.tracker.update("todos", "r", { title: "three" });
    await fast.sync.syncOnce();
    await other.sync.syncOnce();
    expect((await other.db.get("todos", "r"))?.values).toEqual({ title: "three" });
    expect((await fast.db.get("todos", "r"))?.values).toEqual({ title: "three" });
    expect((await fast.db.deadLetters())).toEqual([]);
  });

  it("puts nothing aside for errors that may pass", async () => {
    const { db, transport, sync, tracker } = await client(newGateway(), "ada");
    await tracker.insert("todos", "r", { x: 1 });
    const passing = [new Unreachable("x"), new Denied("x"), new Overloaded("x", 5), new ClockDrift("x"), new CursorExpired("x"), new TypeError("bug")];
    for (const error of passing) {
      transport.before = error;
      await expect(sync.syncOnce()).rejects.toThrow(error);
      expect(await db.state()).toMatchObject({ pending: 1, dead: 0 });
    }
  });
});

describe("auto sync", () => {
  it("retries from 1 s to 30 s, as the server asks, and hears of the network's return", async () => {
    const { transport, sync, tracker, timing, db } = await client(newGateway(), "ada");
    transport.before = new Unreachable("offline");
    const seen: SyncStatus[] = [];
    sync.on("status", (status) => seen.push(status));
    sync.startAutoSync();
    await tracker.insert("todos", "r", { x: 1 });
    for (const [index, delay] of [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000].entries()) {
      await until(`sleep ${index}`, () => timing.slept.length === index + 1);
      expect(timing.slept[index]).toBe(delay);
      expect(sync.status).toMatchObject({ phase: "retrying", online: false, error: { name: "Unreachable", message: "offline" } });
      timing.advance(delay);
    }
    await until("the next failure", () => timing.slept.length === 8);
    transport.before = new Overloaded("busy", 45_000);
    timing.advance(30_000);
    await until("the server's wish", () => timing.slept.at(-1) === 45_000);
    transport.before = undefined;
    timing.advance(45_000);
    await until("all is in step", () => sync.status.phase === "idle" && sync.status.pending === 0);
    expect((await db.state()).pending).toBe(0);
    await sync.stop();
    expect(sync.status.phase).toBe("stopped");
  });

  it("does not let writes hurry a failing server, but does let them end an idle wait", async () => {
    const gateway = newGateway();
    const { transport, sync, tracker, timing } = await client(gateway, "ada");
    transport.before = new Unreachable("offline");
    sync.startAutoSync();
    await until("the first failure", () => timing.slept.length === 1);
    for (let index = 0; index < 5; index++) await tracker.insert("todos", `r${index}`, { x: 1 });
    expect(timing.slept).toHaveLength(1);
    transport.before = undefined;
    await sync.syncOnce();
    await until("the queue is empty", () => gateway.deltaCount === 5 && sync.status.phase === "idle");
    await tracker.insert("todos", "more", { x: 1 });
    await until("the write is pushed without any time passing", () => gateway.deltaCount === 6);
    expect(timing.nowMs).toBe(START_MS);
  });

  it("shows another's edit as it happens", async () => {
    const gateway = newGateway();
    const [ada, bob] = [await client(gateway, "ada", { live: true }), await client(gateway, "bob", { live: true })];
    for (const { sync } of [ada, bob]) sync.startAutoSync();
    for (const { timing } of [ada, bob]) await until("both are idle", () => timing.slept.length > 0);
    const pulls = bob.transport.pulls.length;
    await ada.tracker.insert("todos", "r", { title: "live" });
    await until("bob sees it", async () => (await bob.db.get("todos", "r")) !== undefined);
    expect(bob.transport.pulls).toHaveLength(pulls);
    expect(bob.timing.nowMs).toBe(START_MS);
  });

  it("may be started, stopped and started", async () => {
    const gateway = newGateway();
    const { sync, tracker } = await client(gateway, "ada");
    sync.startAutoSync();
    sync.startAutoSync();
    await sync.stop();
    await sync.stop();
    await tracker.insert("todos", "r", { x: 1 });
    sync.startAutoSync();
    await until("it is pushed", () => gateway.deltaCount === 1);
  });
});

describe("tabs", () => {
  it("have one that leads, and another that takes over", async () => {
    const gateway = newGateway();
    const name = "tabs-lead";
    const tab = async () => {
      const timing = new ManualTiming();
      const db = await LocalDB.open({ name, clientId: "ada", now: timing.now });
      const transport = new FaultyTransport(gateway);
      const sync = new SyncCoordinator(db, transport, { timing });
      cleanup.push(async () => (await sync.stop(), db.close()));
      sync.startAutoSync();
      return { db, sync, transport };
    };
    const first = await tab();
    await until("the first leads", () => first.sync.status.leader);
    const second = await tab();
    await second.sync.tracker.insert("todos", "r", { x: 1 });
    await until("the first pushes what the second wrote", () => gateway.deltaCount === 1);
    expect(second.transport.pushes).toEqual([]);
    await until("the second shows it", () => second.sync.status.phase === "idle" && second.sync.status.pending === 0);
    expect(second.sync.status.leader).toBe(false);
    await first.sync.stop();
    await until("the second leads", () => second.sync.status.leader);
    await first.sync.tracker.insert("todos", "s", { x: 1 });
    await until("the second pushes what the first wrote", () => gateway.deltaCount === 2);
  });
});

it("waits between 1 s and 30 s, or as long as the server says", () => {
  for (let failures = 1; failures < 60; failures++) {
    for (const random of [0, 0.5, 0.999]) {
      const delay = retryDelayMs(failures, random);
      expect(delay).toBeGreaterThanOrEqual(1_000);
      expect(delay).toBeLessThanOrEqual(30_000);
    }
  }
  expect(retryDelayMs(1, 0, 120_000)).toBe(120_000);
  expect(retryDelayMs(1, 0, 86_400_000)).toBe(300_000);
});
