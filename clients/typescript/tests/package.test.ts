/** What people install: small, typed, and with React only where it is asked for. Needs `npm run build`. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, it } from "vitest";

const BYTES_MAX = 30_000;
const dist = (name: string): URL => new URL(`../dist/${name}`, import.meta.url);

const modules = readdirSync(dist("")).filter((name) => name.endsWith(".js"));

it("is under 30 kB gzipped, hooks and the producer included", () => {
  const pages = modules.filter((name) => name !== "node.js");
  const total = pages.reduce((sum, name) => sum + gzipSync(readFileSync(dist(name)), { level: 9 }).length, 0);
  console.info(`@mainstem/client: ${total} bytes gzipped in ${pages.length} modules`);
  expect(total).toBeLessThan(BYTES_MAX);
});

it("has its types and no dependencies", () => {
  for (const name of ["index.d.ts", "react.d.ts", "node.d.ts", "cdc.d.ts"]) expect(existsSync(dist(name)), name).toBe(true);
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as { dependencies?: object };
  expect(manifest.dependencies).toBeUndefined();
  for (const name of modules.filter((module) => module !== "react.js")) {
    const foreign = [...readFileSync(dist(name), "utf8").matchAll(/from\s*["']([^."'][^"']*)/g)].map(([, module]) => module);
    expect(foreign.filter((module) => name !== "node.js" || !module!.startsWith("node:")), name).toEqual([]);
  }
});

it("is used as the README says", async () => {
  const { LocalDB, SyncCoordinator, SyncTracker, HttpTransport, LocalTransport, WebSocketTransport, MemoryGateway } = (await import(
    dist("index.js").href
  )) as typeof import("../src/index.js");
  const db = await LocalDB.open({ name: "readme", backend: "memory" });
  const transport = new LocalTransport(new MemoryGateway());
  const coordinator = new SyncCoordinator(db, transport);
  coordinator.startAutoSync();
  await new SyncTracker(db).insert("todos", "1", { title: "Milk" });
  expect((await db.all("todos"))[0]?.values).toEqual({ title: "Milk" });
  await coordinator.stop();
  expect([typeof HttpTransport, typeof WebSocketTransport]).toEqual(["function", "function"]);
});

it("names no download host in its lock file", () => {
  expect(readFileSync(new URL("../package-lock.json", import.meta.url), "utf8")).not.toContain('"resolved"');
});
