/**
 * Several tabs on one database: they hear of each other's changes, and one of them talks to the server.
 *
 * Without BroadcastChannel or Web Locks (Node, tests) the same code runs as the only tab there is.
 */
export type TabMessage =
  /** Rows changed; null ids mean "read the table again". */
  | { readonly kind: "changed"; readonly rows: readonly (readonly [table: string, ids: readonly string[] | null])[] }
  /** There is something to push: whoever leads should not wait. */
  | { readonly kind: "wake" }
  /** What the leading tab shows: a `SyncStatus`, which is not this module's to know. */
  | { readonly kind: "status"; readonly status: unknown };

export class TabChannel {
  private readonly channel: BroadcastChannel | undefined;
  private readonly listeners = new Set<(message: TabMessage) => void>();

  constructor(name: string, shared: boolean) {
    if (!shared || typeof BroadcastChannel === "undefined") return;
    this.channel = new BroadcastChannel(`mainstem:${name}`);
    this.channel.onmessage = (event: { data: unknown }) => {
      for (const listener of this.listeners) listener(event.data as TabMessage);
    };
    // In Node an open channel would keep the process alive.
    (this.channel as { unref?: () => void }).unref?.();
  }

  post(message: TabMessage): void {
    this.channel?.postMessage(message);
  }

  subscribe(listener: (message: TabMessage) => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  close(): void {
    this.channel?.close();
  }
}

const inProcess = new Map<string, Promise<unknown>>();

/** Run the body while holding the lock that only one tab can hold. An aborted wait ends without running it. */
export async function withLock(name: string, signal: AbortSignal, body: () => Promise<void>): Promise<void> {
  const locks = (globalThis.navigator as Navigator | undefined)?.locks;
  if (locks) {
    try {
      await locks.request(`mainstem:${name}`, { signal }, () => (signal.aborted ? undefined : body()));
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    return;
  }
  const turn = (inProcess.get(name) ?? Promise.resolve()).then(() => (signal.aborted ? undefined : body()));
  const settled = turn.catch(() => undefined);
  inProcess.set(name, settled);
  try {
    await turn;
  } finally {
    if (inProcess.get(name) === settled) inProcess.delete(name);
  }
}
