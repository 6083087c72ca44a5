/** The store in a file: what was strict is there after any crash, and the store in memory is the judge of the rest. Needs `npm run build`. */
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterEach, beforeEach, expect, it } from "vitest";
import { LocalDB, LocalTransport, MemoryGateway, MemoryStore, SyncCoordinator, SyncTracker, type Store, type StoreName } from "../src/index.js";
import { FileStore } from "../src/node.js";
import { chanceFrom } from "./simulation.js";

const NODE_MODULE = new URL("../dist/node.js", import.meta.url).href;
/** Writes pairs of records, strictly, and says each number once it is written. */
const WRITER = `
import { FileStore } from ${JSON.stringify(NODE_MODULE)};
const store = await FileStore.open(process.argv[1], { compactBytesMin: 4_000 });
for (let n = Number(process.argv[2] ?? 0); ; n++) {
  await store.write(["queue"], async (t) => {
    t.put("queue", "left", String(n), "x".repeat(n % 700));
    t.put("queue", "right", String(n), "x".repeat(n % 700));
    if (n % 3 === 2) for (const group of ["left", "right"]) t.remove("queue", group, String(n - 1));
  }, { strict: true });
  console.log(n);
}
`;

let folder: string;
let path: string;
const children: ChildProcess[] = [];

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "mainstem-file-"));
  path = join(folder, "deep", "app.journal");
});
afterEach(() => {
  for (const child of children.splice(0)) child.kill("SIGKILL");
  rmSync(folder, { recursive: true });
});

async function contents(store: Store, name: StoreName): Promise<unknown[]> {
  return store.read([name], async (transaction) => {
    const groups = [...new Set((await transaction.keys(name)).map(([group]) => group))].sort();
    return Promise.all(groups.map(async (group) => [group, await transaction.scan(name, group)]));
  });
}

it.each([1, 2, 3])("holds what a store in memory holds, through every reopening, seed %i", async (seed) => {
  const chance = chanceFrom(seed);
  const memory = new MemoryStore();
  let file = await FileStore.open(path, { compactBytesMin: 3_000 });
  for (let step = 0; step < 300; step++) {
    const die = chance();
    const id = `id-${Math.floor(chance() * 40)}`;
    const group = die < 0.5 ? "a" : "b";
    const value = { cells: new Map([["ü", { hlc: BigInt(step) << 40n, value: null }]]), merged: undefined, long: "x".repeat(die * 50) };
    const fails = chance() < 0.1;
    for (const store of [file, memory] as Store[]) {
      const writing = store.write(["rows"], async (transaction) => {
        if (die < 0.3) transaction.remove("rows", group, id);
        else transaction.put("rows", group, id, value);
        if (fails) throw new Error("changed my mind");
      });
      await (fails ? expect(writing).rejects.toThrow("changed my mind") : writing);
    }
    if (step % 20 === 0) {
      file.close();
      file = await FileStore.open(path, { compactBytesMin: 3_000 });
      expect(await contents(file, "rows")).toEqual(await contents(memory, "rows"));
    }
  }
  expect(await contents(file, "rows")).toEqual(await contents(memory, "rows"));
  // 40 records of a hundred bytes or so, written 300 times.
  expect(statSync(path).size).toBeLessThan(30_000);
  file.close();
});

it("drops a frame that is cut off anywhere, and keeps what it cut", async () => {
  let store = await FileStore.open(path);
  await store.write(["meta"], async (transaction) => transaction.put("meta", "", "first", 1));
  const before = statSync(path).size;
  await store.write(["meta"], async (transaction) => transaction.put("meta", "", "second", 2));
  store.close();
  const whole = readFileSync(path);
  for (let length = before; length < whole.length; length++) {
    writeFileSync(path, whole);
    truncateSync(path, length);
    store = await FileStore.open(path);
    expect(await contents(store, "meta"), `cut at ${length}`).toEqual([["", [["first", 1]]]]);
    store.close();
    expect(statSync(path).size).toBe(before);
    if (length > before) expect(statSync(`${path}.torn`).size).toBe(length - before);
  }
  const flipped = Buffer.from(whole);
  flipped[whole.length - 1]! ^= 1;
  writeFileSync(path, flipped);
  store = await FileStore.open(path);
  expect(await contents(store, "meta")).toEqual([["", [["first", 1]]]]);
  await store.write(["meta"], async (transaction) => transaction.put("meta", "", "third", 3), { strict: true });
  store.close();
  store = await FileStore.open(path);
  expect(await contents(store, "meta")).toEqual([["", [["first", 1], ["third", 3]]]]);
  store.close();
});

it.each([1, 2, 3])("loses nothing strict and halves nothing when its process is killed, time %i", async (time) => {
  let told = -1;
  for (let life = 0; life < 3; life++) {
    const child = start(WRITER, path, String(told + 1));
    const enough = told + 1 + 20 * time + life;
    for await (const line of createInterface({ input: child.stdout! })) {
      told = Number(line);
      if (told >= enough) break;
    }
    child.kill("SIGKILL");
    await new Promise((resolve) => child.once("exit", resolve));
    const store = await FileStore.open(path);
    const [[, left], [, right]] = (await contents(store, "queue")) as [string, [string, string][]][] as [[string, unknown[]], [string, unknown[]]];
    expect(left).toEqual(right);
    const ids = new Set((left as [string, string][]).map(([id]) => Number(id)));
    const gone = (n: number): boolean => n % 3 === 1 && [...ids].some((other) => other > n);
    for (let n = 0; n <= told; n++) expect(ids.has(n), `batch ${n} of ${told}`).toBe(!gone(n));
    // What was not told of may be there too.
    told = Math.max(...ids);
    store.close();
  }
});

it("says that the disk is full, keeps what was written before, and goes on when there is room", async () => {
  const full = spawnSync(
    "bash",
    ["-c", `trap '' XFSZ; ulimit -f 64; exec "$0" --input-type=module -e "$1" "$2"`, process.execPath, WRITER, path],
    { encoding: "utf8" },
  );
  expect(full.stderr).toContain("the file cannot be written");
  const told = full.stdout.trim().split("\n").length - 1;
  expect(told).toBeGreaterThan(50);
  const store = await FileStore.open(path);
  const ids = new Set((await store.read(["queue"], (transaction) => transaction.scan("queue", "left"))).map(([id]) => Number(id)));
  expect(ids.has(told)).toBe(true);
  expect(ids.has(told + 1)).toBe(false);
  await store.write(["queue"], async (transaction) => transaction.put("queue", "left", "more", "y".repeat(100_000)), { strict: true });
  store.close();
});

it("is one process's at a time, and a dead one's is taken over", async () => {
  const child = start(WRITER, path);
  await new Promise((resolve) => child.stdout!.once("data", resolve));
  await expect(FileStore.open(path)).rejects.toThrow(`in use by process ${child.pid}`);
  child.kill("SIGKILL");
  await new Promise((resolve) => child.once("exit", resolve));
  const store = await FileStore.open(path);
  await expect(FileStore.open(path)).rejects.toThrow("in use by this process");
  store.close();
  expect(existsSync(`${path}.lock`)).toBe(false);
  // In a container the process that died had the id that ours has now.
  writeFileSync(`${path}.lock`, `${process.pid}-1`);
  (await FileStore.open(path)).close();
  // Its maker died before it could write its name.
  writeFileSync(`${path}.lock`, "");
  (await FileStore.open(path)).close();
});

it("refuses a file that is not its own, and leaves it as it was", async () => {
  const other = join(folder, "notes.txt");
  writeFileSync(other, "milk, bread, and what else there is to buy");
  await expect(FileStore.open(other)).rejects.toThrow("not a journal of Mainstem's");
  expect(readFileSync(other, "utf8")).toContain("milk");
  expect(existsSync(`${other}.lock`)).toBe(false);
});

it("keeps an app's rows, waiting edits and cursor from one start to the next", async () => {
  const gateway = new MemoryGateway();
  let store = await FileStore.open(path);
  let db = await LocalDB.open({ name: "app", backend: store });
  const { clientId } = db;
  await new SyncTracker(db).insert("todos", "1", { title: "synced" });
  await new SyncCoordinator(db, new LocalTransport(gateway)).syncOnce();
  await new SyncTracker(db).update("todos", "1", { title: "waits" });
  db.close();
  store = await FileStore.open(path);
  db = await LocalDB.open({ name: "app", backend: store });
  expect(db.clientId).toBe(clientId);
  expect(await db.get("todos", "1")).toMatchObject({ values: { title: "waits" }, pending: true });
  await new SyncCoordinator(db, new LocalTransport(gateway)).syncOnce();
  expect(await db.get("todos", "1")).toMatchObject({ values: { title: "waits" }, pending: false });
  const other = await LocalDB.open({ name: "other", backend: "memory" });
  await new SyncCoordinator(other, new LocalTransport(gateway)).syncOnce();
  expect((await other.get("todos", "1"))?.values).toEqual({ title: "waits" });
  db.close();
});

function start(script: string, ...words: string[]): ChildProcess {
  const child = spawn(process.execPath, ["--input-type=module", "-e", script, ...words], { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  return child;
}
