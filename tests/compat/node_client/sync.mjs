// An app that keeps its data in a file, on the installed package: node sync.mjs BASE_URL GATEWAY FILE STEP.
import { HttpTransport, LocalDB, SyncCoordinator, SyncTracker } from "@mainstem/client";
import { FileStore } from "@mainstem/client/node";

const [baseUrl, gatewayId, file, step] = process.argv.slice(2);
const db = await LocalDB.open({ name: gatewayId, backend: await FileStore.open(file) });
const coordinator = new SyncCoordinator(db, new HttpTransport({ baseUrl, gatewayId }));
const tracker = new SyncTracker(db);
if (step === "write") {
  await tracker.insert("todos", "1", { title: "ink", done: false });
  await coordinator.syncOnce();
  await tracker.update("todos", "1", { done: true });
  await tracker.insert("todos", "2", { title: "offline" });
} else await coordinator.syncOnce();
const rows = await db.all("todos");
console.log(JSON.stringify({ client: db.clientId, rows: rows.map(({ rowId, values, pending }) => ({ rowId, values, pending })) }));
// Without a close: as a process that is killed.
process.kill(process.pid, "SIGKILL");
