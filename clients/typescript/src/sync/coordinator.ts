/**
 * Keeps the local copy and the server in step: pushes the queue, pulls what arrived, and tries again by itself.
 *
 * Of several tabs one leads and talks to the server; the others wake it and show its status. Every step may be cut off
 * anywhere: a push that was not acknowledged is sent again and counts once, a page and its cursor are stored together.
 */
import { Emitter } from "../db/emitter.js";
import type { LocalDB } from "../db/local-db.js";
import type { MergedMark } from "../db/records.js";
import { rowKey } from "../db/replica.js";
import { withLock } from "../db/tabs.js";
import { SyncTracker } from "../db/tracker.js";
import { ClockDrift, CursorExpired, Invalid, Overloaded, Unreachable } from "../errors.js";
import type { RowDelta } from "../model/delta.js";
import type { Transport } from "../transport/transport.js";
import type { SyncResponse } from "../wire/messages.js";
import { STOPPED, type SyncStatus } from "./status.js";
import { retryDelayMs, SYSTEM_TIMING, type Timing } from "./timing.js";

export interface SyncCoordinatorOptions {
  /** Deltas in one push, and in one page of a pull. */
  readonly pushMax?: number;
  readonly pullMax?: number;
  /** How often to look for changes: 5 s, or 60 s where the transport tells of them. */
  readonly pollMs?: number;
  readonly timing?: Timing;
}

export interface SyncEvents {
  status: SyncStatus;
  /** Someone else's change met an edit made here. */
  merged: { readonly table: string; readonly rowId: string; readonly mark: MergedMark };
  /** A delta was refused for good; it waits in `db.deadLetters()`. */
  deadLetter: { readonly delta: RowDelta; readonly reason: string; readonly message: string };
  /** Rows of the first sync that are in so far. */
  progress: { readonly rows: number; readonly done: boolean };
}

const STALE_PAGES_MAX = 10;
/** Deltas of a checkpoint that are stored in one transaction: more at once are quicker, and take more memory. */
const CHECKPOINT_DELTAS = 20_000;

export class SyncCoordinator extends Emitter<SyncEvents> {
  readonly tracker: SyncTracker;
  private readonly timing: Timing;
  private readonly pushMax: number;
  private readonly pullMax: number;
  private readonly pollMs: number;
  private current: SyncStatus = STOPPED;
  private batchMax: number;
  private running: { stop: AbortController; done: Promise<void> } | undefined;
  /** Ends the pause between two rounds. Writes end it only while all is well, so that they cannot hammer a server. */
  private interrupt: ((evenWhenRetrying: boolean) => void) | undefined;
  private again = false;

  constructor(
    readonly db: LocalDB,
    private readonly transport: Transport,
    options: SyncCoordinatorOptions = {},
  ) {
    super();
    this.tracker = new SyncTracker(db);
    this.timing = options.timing ?? SYSTEM_TIMING;
    this.pushMax = this.batchMax = options.pushMax ?? 500;
    this.pullMax = options.pullMax ?? 1_000;
    this.pollMs = options.pollMs ?? (transport.subscribe ? 60_000 : 5_000);
    db.on("merged", (merge) => this.emit("merged", merge));
    db.on("changed", ({ local }) => {
      if (local) void this.noteLocalWrite();
    });
    db.tabs.subscribe((message) => {
      if (message.kind === "wake") this.wake(false);
      if (message.kind === "status" && this.running && !this.current.leader) {
        this.setStatus({ ...(message.status as SyncStatus), leader: false });
      }
    });
  }

  get status(): SyncStatus {
    return this.current;
  }

  /** Sync from now on, until `stop`. Calling it twice changes nothing. */
  startAutoSync(): void {
    if (this.running) return;
    const stop = new AbortController();
    const nudge = (): void => this.wake(true);
    const changed = (): void => {
      this.transport.reset?.();
      nudge();
    };
    for (const event of ["online", "offline"]) globalThis.addEventListener?.(event, changed, { signal: stop.signal });
    globalThis.document?.addEventListener("visibilitychange", nudge, { signal: stop.signal });
    this.setStatus({ phase: "waiting" });
    const done = withLock(`${this.db.name}:sync`, stop.signal, () => this.lead(stop.signal));
    this.running = { stop, done };
  }

  /** Stop and wait until nothing is under way. What is queued stays queued. */
  async stop(): Promise<void> {
    const running = this.running;
    if (!running) return;
    this.running = undefined;
    running.stop.abort();
    await running.done;
    this.setStatus({ phase: "stopped", leader: false, retryAtMs: undefined });
  }

  /** Sync once, now. With auto sync running this only hurries it. */
  async syncOnce(): Promise<void> {
    if (this.running) {
      this.wake(true);
      this.db.tabs.post({ kind: "wake" });
      return;
    }
    const { signal } = new AbortController();
    await withLock(`${this.db.name}:sync`, signal, () => this.round(signal));
  }

  /** Send what waits, oldest first. Throws what a later try may mend; puts aside what no try can. */
  async push(signal: AbortSignal = new AbortController().signal): Promise<void> {
    for (;;) {
      const deltas = await this.db.queued(this.batchMax);
      if (deltas.length === 0) return;
      const { cursor } = await this.db.state();
      try {
        await this.transport.push({ clientId: this.db.clientId, deltas, lastSeenHlc: cursor }, signal);
      } catch (error) {
        await this.afterRefusal(error, deltas);
        continue;
      }
      await this.db.acknowledge(deltas);
      this.batchMax = Math.min(this.pushMax, this.batchMax * 2);
      await this.count();
    }
  }

  /** Bring in what arrived at the server since our cursor, page by page. */
  async pull(signal: AbortSignal = new AbortController().signal): Promise<void> {
    for (let stale = 0; stale < STALE_PAGES_MAX; ) {
      let { cursor } = await this.db.state();
      if (cursor === 0n && (await this.bootstrap(signal))) ({ cursor } = await this.db.state());
      const page = await this.pullPage(cursor, signal);
      // A server that refuses even the cursor of its own checkpoint must not be asked without end.
      if (!page) {
        stale++;
        continue;
      }
      if (page.hasMore && page.serverHlc <= cursor) throw new Unreachable("a page with more to come moves no cursor");
      const applied = await this.db.applyPage({ ...page, sinceHlc: cursor }, !page.hasMore);
      if (!applied) stale++;
      else if (!page.hasMore) return;
    }
    throw new Unreachable("the cursor moved under every page");
  }

  private async pullPage(cursor: bigint, signal: AbortSignal): Promise<SyncResponse | undefined> {
    try {
      return await this.transport.pull({ clientId: this.db.clientId, sinceHlc: cursor, maxDeltas: this.pullMax }, signal);
    } catch (error) {
      if (!(error instanceof CursorExpired) || cursor === 0n) throw error;
      await this.db.resetCursor();
      return undefined;
    }
  }

  /** First sync by checkpoint. False where the server has none. */
  private async bootstrap(signal: AbortSignal): Promise<boolean> {
    const pieces = await this.transport.checkpoint(this.db.clientId, signal);
    if (!pieces) return false;
    const had = await this.db.rowKeys();
    const seen = new Set<string>();
    // One part is stored while the next one is received and read.
    let storing: Promise<void> = Promise.resolve();
    for await (const piece of together(pieces, CHECKPOINT_DELTAS)) {
      const keys = piece.deltas.map(({ table, rowId }) => rowKey(table, rowId));
      const fresh = new Set(keys.filter((key) => !had.has(key) && !seen.has(key)));
      for (const key of keys) seen.add(key);
      await storing;
      storing = this.db.applyCheckpointPiece(piece, fresh);
      // It is awaited below; until then its failure must not count as unhandled.
      storing.catch(() => undefined);
      if (!piece.hasMore) {
        await storing;
        await this.db.finishCheckpoint(piece.serverHlc, [...had].filter((key) => !seen.has(key)));
      }
      this.emit("progress", { rows: seen.size, done: !piece.hasMore });
    }
    await storing;
    return true;
  }

  private async afterRefusal(error: unknown, deltas: readonly RowDelta[]): Promise<void> {
    if (error instanceof ClockDrift && error.serverHlc !== undefined && (await this.db.restamp(error.serverHlc)) > 0) return;
    if (!(error instanceof Invalid)) throw error;
    const culprit = deltas.length === 1 ? deltas[0] : deltas.find(({ deltaId }) => deltaId === error.deltaId);
    if (!culprit) {
      // One of them is bad and the server did not say which: halve until it stands alone.
      this.batchMax = Math.ceil(deltas.length / 2);
      return;
    }
    const { reason, message } = error;
    await this.db.bury(culprit, reason, message);
    this.emit("deadLetter", { delta: culprit, reason, message });
    await this.count();
  }

  private async round(signal: AbortSignal): Promise<void> {
    this.setStatus({ phase: "syncing" });
    await this.push(signal);
    await this.pull(signal);
    const lastSyncMs = this.timing.now();
    this.setStatus({ phase: "idle", online: true, lastSyncMs, error: undefined, retryAtMs: undefined });
    await this.count();
  }

  private async lead(signal: AbortSignal): Promise<void> {
    this.setStatus({ leader: true });
    const unsubscribe = this.transport.subscribe?.({
      broadcast: (response) => void this.receive(response),
      lost: () => this.wake(false),
    });
    let failures = 0;
    while (!signal.aborted) {
      this.again = false;
      let delayMs = this.pollMs;
      try {
        await this.round(signal);
        failures = 0;
      } catch (error) {
        if (signal.aborted) break;
        delayMs = retryDelayMs(++failures, this.timing.random(), error instanceof Overloaded ? error.retryAfterMs : 0);
        this.fail(error, delayMs);
        await this.count();
      }
      await this.pause(delayMs, failures > 0, signal);
    }
    unsubscribe?.();
  }

  private async receive(response: SyncResponse): Promise<void> {
    // Before the first pull of a new connection there is no cursor to follow, and `applyPage` says so.
    const applied = await this.db.applyPage(response, false).catch(() => false);
    if (!applied) this.wake(false);
  }

  private async pause(ms: number, retrying: boolean, signal: AbortSignal): Promise<void> {
    if (this.again && !retrying) return;
    const early = new AbortController();
    this.interrupt = (evenWhenRetrying) => {
      if (!retrying || evenWhenRetrying) early.abort();
    };
    await this.timing.sleep(ms, AbortSignal.any([signal, early.signal]));
    this.interrupt = undefined;
  }

  private wake(evenWhenRetrying: boolean): void {
    this.again = true;
    this.interrupt?.(evenWhenRetrying);
  }

  private async noteLocalWrite(): Promise<void> {
    if (this.current.leader) this.wake(false);
    else this.db.tabs.post({ kind: "wake" });
    await this.count();
  }

  /** Only for show: where even this read fails, the round that follows fails too and says why. */
  private async count(): Promise<void> {
    const state = await this.db.state().catch(() => undefined);
    if (state) this.setStatus({ pending: state.pending, deadLetters: state.dead });
  }

  private fail(error: unknown, delayMs: number): void {
    const { name, message } = error instanceof Error ? error : new Error(String(error));
    this.setStatus({
      phase: "retrying",
      online: !(error instanceof Unreachable),
      error: { name, message },
      retryAtMs: this.timing.now() + delayMs,
    });
  }

  private setStatus(change: Partial<SyncStatus>): void {
    this.current = { ...this.current, ...change };
    this.emit("status", this.current);
    if (this.current.leader) this.db.tabs.post({ kind: "status", status: this.current });
  }
}

/** The pieces, several as one. */
async function* together(pieces: AsyncIterable<SyncResponse>, deltasMax: number): AsyncGenerator<SyncResponse> {
  let deltas: RowDelta[] = [];
  for await (const piece of pieces) {
    deltas = deltas.length === 0 ? [...piece.deltas] : deltas.concat(piece.deltas);
    if (piece.hasMore && deltas.length < deltasMax) continue;
    yield { ...piece, deltas };
    deltas = [];
  }
}
