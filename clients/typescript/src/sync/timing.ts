/** Time and chance of the sync, as arguments, so that tests replay. */
export interface Timing {
  now(): number;
  random(): number;
  /** Resolves after the time or at once when the signal aborts. */
  sleep(ms: number, signal: AbortSignal): Promise<void>;
}

export const SYSTEM_TIMING: Timing = {
  now: () => Date.now(),
  random: () => Math.random(),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal.aborted) return resolve();
      const done = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", done);
    }),
};

export const RETRY_MS_MIN = 1_000;
export const RETRY_MS_MAX = 30_000;
/** A server that asks for more patience than this is asked again anyway. */
export const RETRY_AFTER_MS_MAX = 300_000;

/** How long to wait after the n-th failure in a row (from 1): doubling, with up to a quarter of chance on top. */
export function retryDelayMs(failures: number, random: number, retryAfterMs = 0): number {
  const doubled = RETRY_MS_MIN * 2 ** Math.min(failures - 1, 10);
  const delay = Math.min(RETRY_MS_MAX, doubled * (1 + random / 4));
  return Math.max(delay, Math.min(retryAfterMs, RETRY_AFTER_MS_MAX));
}
