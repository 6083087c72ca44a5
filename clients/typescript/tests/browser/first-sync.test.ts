/**
 * How long a new browser takes for its first sync: FIRST_SYNC_ROWS rows, into IndexedDB, over HTTP.
 *
 * Beside it, in the same run, the floor: storing as many plain objects in IndexedDB without any sync.
 */
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { DevServer } from "../../dev/server.js";
import { withId } from "../../src/model/delta.js";
import { pack } from "../../src/model/hlc.js";
import { launch } from "./support.js";

const rows = Number(process.env["FIRST_SYNC_ROWS"] ?? 20_000);
// As text: Vitest would rewrite the import of a function's body.
const SYNC = `(async () => {
  const { LocalDB, SyncCoordinator, HttpTransport } = await import(location.href);
  const db = await LocalDB.open({ name: "first", backend: "idb" });
  const sync = new SyncCoordinator(db, new HttpTransport({ baseUrl: location.origin, gatewayId: "g" }));
  const start = performance.now();
  await sync.syncOnce();
  return { seconds: (performance.now() - start) / 1_000, count: (await db.all("people")).length };
})()`;
const FLOOR = `(async () => {
  const open = indexedDB.open("floor", 1);
  open.onupgradeneeded = () => open.result.createObjectStore("rows");
  await new Promise((resolve) => (open.onsuccess = resolve));
  const start = performance.now();
  for (let at = 0; at < ${rows}; at += 1_000) {
    const transaction = open.result.transaction("rows", "readwrite", { durability: "relaxed" });
    for (let index = at; index < at + 1_000; index++) {
      const row = { name: "Person " + index, email: "person." + index + "@example.org", age: index % 90, active: index % 3 === 0, note: "The quick brown fox jumps over the lazy dog." };
      transaction.objectStore("rows").put(row, ["people", "person-" + index]);
    }
    await new Promise((resolve) => (transaction.oncomplete = resolve));
  }
  return (performance.now() - start) / 1_000;
})()`;
const FLOORS_MAX = 6;

it(`brings ${rows} rows into a new browser`, { timeout: 300_000 }, async () => {
  const server = await DevServer.start({ statics: fileURLToPath(new URL("../../dist/", import.meta.url)) });
  const browser = await launch();
  try {
    fill(server, rows);
    const page = await browser.newPage();
    await page.goto(`${server.url}/index.js`);
    const { seconds, count } = await page.evaluate<{ seconds: number; count: number }>(SYNC);
    const floor = await page.evaluate<number>(FLOOR);
    console.info(`first sync of ${rows} rows in Chromium: ${seconds.toFixed(2)} s; IndexedDB alone: ${floor.toFixed(2)} s`);
    expect(count).toBe(rows);
    expect(seconds / floor).toBeLessThan(FLOORS_MAX);
  } finally {
    await browser.close();
    await server.stop();
  }
});

function fill(server: DevServer, count: number): void {
  const hlc = pack(BigInt(Date.now()), 0n);
  const deltas = Array.from({ length: count }, (_, index) =>
    withId({
      op: "INSERT",
      table: "people",
      rowId: `person-${index}`,
      columns: [
        { column: "name", value: `Person ${index}` },
        { column: "email", value: `person.${index}@example.org` },
        { column: "age", value: index % 90 },
        { column: "active", value: index % 3 === 0 },
        { column: "note", value: "The quick brown fox jumps over the lazy dog." },
      ],
      hlc: hlc + BigInt(index),
      clientId: "writer",
    }),
  );
  for (let at = 0; at < count; at += 10_000) {
    server.gateway("g").push({ clientId: "writer", deltas: deltas.slice(at, at + 10_000), lastSeenHlc: 0n });
  }
}
