// @vitest-environment happy-dom
/** The hooks, in a React that renders into a document. */
import { act } from "react";
import { createRoot } from "react-dom/client";
import { it } from "vitest";
import { LocalDB, LocalTransport, MemoryGateway, SyncCoordinator } from "../src/index.js";
import { useRow, useSyncStatus, useTable } from "../src/react.js";
import { until } from "./support.js";

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;

it("shows a table, a row and the status, and follows them", async () => {
  const db = await LocalDB.open({ name: "react", backend: "memory" });
  const sync = new SyncCoordinator(db, new LocalTransport(new MemoryGateway()));
  function View() {
    const rows = useTable(db, "todos");
    const row = useRow(db, "todos", "a");
    const { phase, pending } = useSyncStatus(sync);
    return (
      <p>
        {rows ? rows.map(({ rowId }) => rowId).join() : "reading"}|{String(row?.values["title"])}|{phase}|{pending}
      </p>
    );
  }
  const container = document.createElement("div");
  const root = createRoot(container);
  const shows = (text: string): Promise<void> =>
    act(() => until(`it shows ${text}`, async () => (await act(async () => undefined), container.textContent === text)));
  await act(async () => root.render(<View />));
  await shows("|undefined|stopped|0");
  await act(() => sync.tracker.insert("todos", "a", { title: "one" }));
  await shows("a|one|stopped|1");
  await act(() => sync.syncOnce());
  await shows("a|one|idle|0");
  await act(() => sync.tracker.delete("todos", "a"));
  await shows("|undefined|idle|1");
  await act(async () => root.unmount());
});
