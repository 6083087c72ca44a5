/** The local copy, the same on both stores. */
import "fake-indexeddb/auto";
import { afterEach, describe, expect, it } from "vitest";
import { LocalDB, Invalid, MemoryStore, Overloaded, SyncTracker, type RowDelta, type RowView } from "../src/index.js";
import { withId } from "../src/model/delta.js";
import { pack } from "../src/model/hlc.js";
import type { SyncResponse } from "../src/wire/messages.js";
import { START_MS, until } from "./support.js";

let count = 0;
const opened: LocalDB[] = [];
afterEach(() => {
  for (const db of opened.splice(0)) db.close();
});

const theirs = (ms: number, columns: Record<string, string | null>, op: RowDelta["op"] = "UPDATE"): RowDelta =>
  withId({
    op,
    table: "todos",
    rowId: "r",
    columns: Object.entries(columns).map(([column, value]) => ({ column, value })),
    hlc: pack(BigInt(START_MS + ms), 0n),
    clientId: "bob",
  });

const page = (since: bigint, server: bigint, deltas: RowDelta[]): SyncResponse => ({ deltas, sinceHlc: since, serverHlc: server, hasMore: false });

describe.each(["idb", "memory"] as const)("%s", (kind) => {
  const open = async (options: { queueMax?: number; clientId?: string; store?: MemoryStore; name?: string } = {}) => {
    const name = options.name ?? `test-${count++}`;
    const backend = options.store ?? kind;
    const { queueMax = 1_000, clientId = "ada" } = options;
    const db = await LocalDB.open({ name, backend, clientId, queueMax, now: () => START_MS });
    opened.push(db);
    return { db, tracker: new SyncTracker(db) };
  };
  const values = async (db: LocalDB): Promise<unknown> => (await db.get("todos", "r"))?.values;

  it("reads what was written, at once", async () => {
    const { db, tracker } = await open();
    await tracker.insert("todos", "r", { title: "Milk", done: false, tags: ["a"], note: null });
    expect(await db.get("todos", "r")).toEqual({
      rowId: "r",
      values: { title: "Milk", done: false, tags: ["a"], note: null },
      pending: true,
      merged: undefined,
    });
    expect(await db.all("todos")).toHaveLength(1);
    expect(await db.all("todo")).toHaveLength(0);
  });

  it("sends only the columns that differ", async () => {
    const { db, tracker } = await open();
    await tracker.insert("todos", "r", { title: "Milk", done: false });
    expect(await tracker.update("todos", "r", { title: "Milk", done: true })).toBe(true);
    expect(await tracker.update("todos", "r", { title: "Milk", done: true })).toBe(false);
    const [, update, ...rest] = await db.queued(10);
    expect(update).toMatchObject({ op: "UPDATE", columns: [{ column: "done", value: true }] });
    expect(rest).toEqual([]);
  });

  it("updates and deletes only rows that are there", async () => {
    const { db, tracker } = await open();
    expect(await tracker.update("todos", "r", { x: 1 })).toBe(false);
    expect(await tracker.delete("todos", "r")).toBe(false);
    await tracker.insert("todos", "r", { x: 1, y: 1 });
    expect(await tracker.delete("todos", "r")).toBe(true);
    expect(await db.get("todos", "r")).toBeUndefined();
    await tracker.insert("todos", "r", { x: 2 });
    expect(await values(db)).toEqual({ x: 2 });
  });

  it("stamps in order within one millisecond", async () => {
    const { db, tracker } = await open();
    await Promise.all(Array.from({ length: 20 }, (_, index) => tracker.insert("todos", `r${index}`, { index })));
    const clocks = (await db.queued(100)).map(({ hlc }) => hlc);
    expect(new Set(clocks).size).toBe(20);
    expect(clocks).toEqual([...clocks].sort((a, b) => (a < b ? -1 : 1)));
  });

  it("keeps all of a batch or nothing", async () => {
    const { db, tracker } = await open();
    const bad = tracker.batch([
      { op: "INSERT", table: "todos", rowId: "r", columns: { x: 1 } },
      { op: "INSERT", table: "todos", rowId: "s", columns: { x: Number.NaN } },
    ]);
    await expect(bad).rejects.toThrow(Invalid);
    expect(await db.all("todos")).toEqual([]);
    expect((await db.state()).pending).toBe(0);
  });

  it.each([
    ["an empty table", "", "r", { x: 1 }],
    ["an empty id", "todos", "", { x: 1 }],
    ["an empty column", "todos", "r", { "": 1 }],
    ["no columns", "todos", "r", {}],
    ["a long name", "t".repeat(256), "r", { x: 1 }],
    ["a control character", "todos", "a\u0000b", { x: 1 }],
  ])("refuses %s", async (_, table, rowId, columns) => {
    const { tracker } = await open();
    await expect(tracker.insert(table, rowId, columns as Record<string, number>)).rejects.toThrow(Invalid);
  });

  it("refuses writes beyond the queue's bound and takes them again after an ack", async () => {
    const { db, tracker } = await open({ queueMax: 2 });
    await tracker.insert("todos", "a", { x: 1 });
    await tracker.insert("todos", "b", { x: 1 });
    await expect(tracker.insert("todos", "c", { x: 1 })).rejects.toThrow(Overloaded);
    await db.acknowledge(await db.queued(1));
    await tracker.insert("todos", "c", { x: 1 });
    expect((await db.state()).pending).toBe(2);
  });

  it("applies a page and its cursor together, and only from its cursor on", async () => {
    const { db } = await open();
    expect(await db.applyPage(page(0n, 10n, [theirs(0, { title: "one" })]), true)).toBe(true);
    expect(await db.applyPage(page(0n, 20n, [theirs(1, { title: "gap" })]), true)).toBe(false);
    expect(await values(db)).toEqual({ title: "one" });
    expect((await db.state()).cursor).toBe(10n);
  });

  it("writes after what it has seen, even with a slow clock", async () => {
    const { db, tracker } = await open();
    await db.applyPage(page(0n, 10n, [theirs(60_000, { title: "from the future" })]), true);
    await tracker.update("todos", "r", { title: "mine" });
    await db.applyPage(page(10n, 20n, [theirs(60_000, { title: "from the future" })]), true);
    expect(await values(db)).toEqual({ title: "mine" });
  });

  it("marks a row where another's change met ours", async () => {
    const { db, tracker } = await open();
    const merges: unknown[] = [];
    db.on("merged", (merge) => merges.push(merge));
    await tracker.insert("todos", "r", { title: "mine", note: "mine" });
    await db.applyPage(page(0n, 10n, [theirs(1, { title: "theirs" }), theirs(-1, { note: "old", done: "yes" })]), false);
    const row = await db.get("todos", "r");
    expect(row?.values).toEqual({ title: "theirs", note: "mine", done: "yes" });
    expect(row?.merged).toMatchObject({ by: "bob", took: ["title", "done"], kept: ["note"] });
    expect(merges).toHaveLength(1);
    await db.dismissMerged("todos", "r");
    expect((await db.get("todos", "r"))?.merged).toBeUndefined();
  });

  it("marks a row where ours is newer throughout, and not again for a repetition", async () => {
    const { db, tracker } = await open();
    await tracker.insert("todos", "r", { title: "mine" });
    const merges: unknown[] = [];
    db.on("merged", (merge) => merges.push(merge));
    await db.applyPage(page(0n, 10n, [theirs(-1, { title: "older" })]), false);
    expect((await db.get("todos", "r"))?.merged).toMatchObject({ by: "bob", took: [], kept: ["title"] });
    const later = theirs(1, { note: "theirs" });
    await db.applyPage(page(10n, 20n, [later]), false);
    await db.applyPage(page(20n, 30n, [later]), false);
    expect(merges).toHaveLength(2);
  });

  it("marks nothing once our edit is settled", async () => {
    const { db, tracker } = await open();
    await tracker.insert("todos", "r", { title: "mine" });
    await db.acknowledge(await db.queued(10));
    await db.applyPage(page(0n, 10n, []), true);
    await db.applyPage(page(10n, 20n, [theirs(1, { title: "theirs" })]), true);
    expect(await db.get("todos", "r")).toMatchObject({ values: { title: "theirs" }, pending: false, merged: undefined });
  });

  it("forgets an evicted row without a tombstone, but not our waiting edits", async () => {
    const { db, tracker } = await open();
    await db.applyPage(page(0n, 10n, [theirs(0, { title: "one", note: "n" })]), true);
    const evict: RowDelta = { ...theirs(5, {}), op: "EVICT", deltaId: "" };
    await db.applyPage(page(10n, 20n, [evict]), true);
    expect(await values(db)).toBeUndefined();
    await db.applyPage(page(20n, 30n, [theirs(0, { title: "one", note: "n" })]), true);
    expect(await values(db)).toEqual({ title: "one", note: "n" });
    await tracker.update("todos", "r", { note: "mine" });
    await db.applyPage(page(30n, 40n, [evict]), true);
    expect(await values(db)).toEqual({ note: "mine" });
  });

  it("sweeps what a checkpoint does not have, but not our waiting edits", async () => {
    const { db, tracker } = await open();
    await db.applyPage(page(0n, 10n, [theirs(0, { title: "stale" })]), true);
    await tracker.insert("todos", "sent", { title: "newer than the checkpoint" });
    await db.acknowledge(await db.queued(1));
    await tracker.insert("todos", "mine", { title: "waiting" });
    await db.finishCheckpoint(50n, await db.rowKeys());
    expect((await db.all("todos")).map(({ rowId }) => rowId)).toEqual(["mine", "sent"]);
    expect((await db.state()).cursor).toBe(50n);
    // The pull that follows does not have it either: it was older than the checkpoint, and is hidden.
    await db.applyPage(page(50n, 60n, []), true);
    expect((await db.all("todos")).map(({ rowId }) => rowId)).toEqual(["mine"]);
  });

  it("keeps a row that a checkpoint does not have and the pull after it does", async () => {
    const { db, tracker } = await open();
    await tracker.insert("todos", "sent", { title: "newer than the checkpoint" });
    const [sent] = await db.queued(1);
    await db.acknowledge([sent!]);
    await db.finishCheckpoint(50n, await db.rowKeys());
    await db.applyPage({ ...page(50n, 55n, [sent!]), hasMore: true }, false);
    await db.applyPage(page(55n, 60n, []), true);
    expect((await db.all("todos")).map(({ rowId }) => rowId)).toEqual(["sent"]);
  });

  it("puts a refused delta aside, retries it and gives it up", async () => {
    const { db, tracker } = await open();
    await tracker.insert("todos", "r", { title: "odd" });
    const [delta] = await db.queued(1);
    await db.bury(delta!, "schema_mismatch", "no such column");
    expect(await db.deadLetters()).toMatchObject([{ id: delta!.deltaId, reason: "schema_mismatch", message: "no such column" }]);
    expect(await db.get("todos", "r")).toMatchObject({ pending: false, values: { title: "odd" } });
    expect(await db.state()).toMatchObject({ pending: 0, dead: 1 });
    expect(await db.retryDeadLetter(delta!.deltaId)).toBe(true);
    expect(await db.retryDeadLetter(delta!.deltaId)).toBe(false);
    expect(await db.queued(10)).toEqual([delta]);
    await db.bury(delta!, "schema_mismatch", "still");
    await db.applyPage(page(0n, 10n, []), true);
    expect(await db.discardDeadLetter(delta!.deltaId)).toBe(true);
    expect(await db.state()).toMatchObject({ pending: 0, dead: 0, cursor: 0n });
    expect(await values(db)).toBeUndefined();
  });

  it("stamps again what ran ahead of the server, in its order", async () => {
    const { db, tracker } = await open();
    await tracker.insert("todos", "r", { title: "one", n: 1 });
    await tracker.update("todos", "r", { title: "two" });
    await tracker.insert("todos", "s", { n: 2 });
    await tracker.delete("todos", "s");
    const serverMs = START_MS - 60_000;
    expect(await db.restamp(pack(BigInt(serverMs), 3n))).toBe(4);
    const queue = await db.queued(10);
    expect(queue.map(({ op }) => op)).toEqual(["INSERT", "UPDATE", "INSERT", "DELETE"]);
    expect(queue.every(({ hlc }) => hlc < pack(BigInt(serverMs + 5_000), 0n))).toBe(true);
    expect(queue.map((delta) => withId(delta))).toEqual(queue);
    expect(await values(db)).toEqual({ title: "two", n: 1 });
    expect(await db.get("todos", "s")).toBeUndefined();
    await tracker.update("todos", "r", { title: "three" });
    expect((await db.queued(10)).at(-1)!.hlc).toBeLessThan(pack(BigInt(serverMs + 5_000), 0n));
  });

  it("follows a table while it is watched", async () => {
    const { db, tracker } = await open();
    const seen: (readonly RowView[])[] = [];
    const stop = db.watch("todos", (rows) => seen.push(rows));
    await tracker.insert("todos", "b", { x: 1 });
    await tracker.insert("todos", "a", { x: 2 });
    await until("both rows are seen", () => seen.at(-1)?.length === 2);
    expect(seen.at(-1)!.map(({ rowId }) => rowId)).toEqual(["a", "b"]);
    await tracker.delete("todos", "b");
    await until("the delete is seen", () => seen.at(-1)?.length === 1);
    stop();
    const times = seen.length;
    await tracker.delete("todos", "a");
    expect(await db.all("todos")).toEqual([]);
    expect(seen).toHaveLength(times);
  });

  it("refuses to push another client's edits under a new name", async () => {
    const store = new MemoryStore();
    const name = `named-${kind}`;
    const backend = kind === "memory" ? { store } : {};
    const { tracker, db } = await open({ name, ...backend });
    await tracker.insert("todos", "r", { x: 1 });
    await expect(open({ name, clientId: "eve", ...backend })).rejects.toThrow("edits of another client");
    await db.acknowledge(await db.queued(1));
    expect((await open({ name, clientId: "eve", ...backend })).db.clientId).toBe("eve");
  });
});

describe("IndexedDB", () => {
  it("has everything after it is opened again", async () => {
    const first = await LocalDB.open({ name: "again", now: () => START_MS });
    await new SyncTracker(first).insert("todos", "r", { title: "kept" });
    const [queued] = await first.queued(1);
    first.close();
    const second = await LocalDB.open({ name: "again", now: () => START_MS - 60_000 });
    opened.push(second);
    expect(second.clientId).toBe(first.clientId);
    expect((await second.get("todos", "r"))?.values).toEqual({ title: "kept" });
    await new SyncTracker(second).update("todos", "r", { title: "later" });
    const [one, two] = await second.queued(2);
    expect(one).toEqual(queued);
    expect(two!.hlc > one!.hlc).toBe(true);
  });

  it("never issues one stamp to two tabs, and tells them of each other's writes", async () => {
    const tabs = await Promise.all([0, 1].map(() => LocalDB.open({ name: "tabs", clientId: "ada", now: () => START_MS })));
    opened.push(...tabs);
    const [left, right] = tabs as [LocalDB, LocalDB];
    let seen: readonly RowView[] = [];
    const stop = right.watch("todos", (rows) => (seen = rows));
    await Promise.all(
      Array.from({ length: 20 }, (_, index) => new SyncTracker(index % 2 ? left : right).insert("todos", `r${index}`, { index })),
    );
    const clocks = (await left.queued(100)).map(({ hlc }) => hlc);
    expect(new Set(clocks).size).toBe(20);
    await until("the other tab sees all rows", () => seen.length === 20);
    stop();
  });
});
