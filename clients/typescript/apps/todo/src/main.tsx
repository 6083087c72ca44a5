/** Opens the local copy, starts the sync and shows the page; without a server the list is this device's own. */
import { LocalDB, LocalTransport, MemoryGateway, SyncCoordinator, WebSocketTransport } from "@mainstem/client";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { loadSettings } from "./settings";
import "./styles.css";

const settings = loadSettings();
const { server, gateway, token } = settings;
const root = createRoot(document.getElementById("root")!);

async function start(): Promise<void> {
  const db = await LocalDB.open({ name: `todo ${server || "local"} ${gateway}`, backend: "idb", ...clientOf(token) });
  const transport = server
    ? new WebSocketTransport({ baseUrl: server, gatewayId: gateway, ...(token ? { token } : {}) })
    : new LocalTransport(new MemoryGateway());
  const sync = new SyncCoordinator(db, transport);
  // Nothing is sent anywhere without a server: the edits stay queued for the day there is one.
  if (server) sync.startAutoSync();
  root.render(<App db={db} sync={sync} settings={settings} />);
}

/** With a token the client must be the token's subject, or the server would not believe us. */
function clientOf(jwt: string): { clientId?: string } {
  try {
    const claims = JSON.parse(atob(jwt.split(".")[1]!.replace(/-/g, "+").replace(/_/g, "/"))) as { sub?: string };
    return claims.sub ? { clientId: claims.sub } : {};
  } catch {
    return {};
  }
}

// Only the page's own files; without it the list still works, until a reload without a network.
if (import.meta.env.PROD) void navigator.serviceWorker?.register("./sw.js").catch(() => undefined);

start().catch((error: unknown) => {
  root.render(
    <main className="page">
      <h1>Todos</h1>
      <p className="notice" role="alert">
        The list cannot be opened in this browser. {error instanceof Error ? error.message : String(error)}
      </p>
    </main>,
  );
});
