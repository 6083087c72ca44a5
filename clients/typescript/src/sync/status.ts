/** What an app shows of the sync. */
export interface SyncStatus {
  /**
   * stopped: not started. waiting: another tab leads and no word from it yet. syncing: at work. idle: all is in step.
   * retrying: the last try failed and the next one comes by itself.
   */
  readonly phase: "stopped" | "waiting" | "syncing" | "idle" | "retrying";
  /** Whether the server answered last; undefined before the first try. */
  readonly online: boolean | undefined;
  /** Whether this tab is the one that talks to the server. */
  readonly leader: boolean;
  readonly pending: number;
  readonly deadLetters: number;
  readonly lastSyncMs: number | undefined;
  readonly retryAtMs: number | undefined;
  /** Why the last try failed: the error's class and its words. */
  readonly error: { readonly name: string; readonly message: string } | undefined;
}

export const STOPPED: SyncStatus = {
  phase: "stopped",
  online: undefined,
  leader: false,
  pending: 0,
  deadLetters: 0,
  lastSyncMs: undefined,
  retryAtMs: undefined,
  error: undefined,
};
