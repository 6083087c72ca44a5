/** Where the list is synced to: from the address, then from what was chosen here before, then this page's own server. */
export interface Settings {
  /** Empty: this device only. */
  readonly server: string;
  readonly gateway: string;
  readonly token: string;
}

const KEY = "mainstem-todo-settings";

export function loadSettings(): Settings {
  const query = new URLSearchParams(location.search);
  const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Settings>;
  const own = location.protocol.startsWith("http") ? location.origin : "";
  return {
    server: query.get("server") ?? stored.server ?? own,
    gateway: query.get("gateway") ?? stored.gateway ?? "todos",
    token: stored.token ?? "",
  };
}

export function saveSettings(settings: Settings): void {
  localStorage.setItem(KEY, JSON.stringify(settings));
  // What the address said has been overruled.
  location.assign(location.pathname);
}
