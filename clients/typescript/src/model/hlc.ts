/**
 * Hybrid logical clocks: 64 bits, wall milliseconds << 16 | counter, as a bigint.
 *
 * The wall time is an argument throughout, so that tests decide what time it is. The twin of `mainstem.model.hlc`.
 */
import { ClockDrift, Invalid } from "../errors.js";

export type Hlc = bigint;

export const COUNTER_BITS = 16n;
export const COUNTER_MAX = 0xffffn;
export const DRIFT_MS_MAX = 5_000n;
/** Parquet, Iceberg and Delta have no unsigned 64-bit column. */
export const HLC_MAX = (1n << 63n) - 1n;

/** Build a clock value; a counter past 65,535 carries into the wall part. */
export function pack(wallMs: bigint, counter: bigint): Hlc {
  const value = (wallMs << COUNTER_BITS) + counter;
  if (wallMs < 0n || counter < 0n || value > HLC_MAX) {
    throw new Invalid(`clock out of range. expected=0..${HLC_MAX} got=${wallMs}ms+${counter}`, "clock_range");
  }
  return value;
}

export const wallMs = (hlc: Hlc): bigint => hlc >> COUNTER_BITS;

export const counter = (hlc: Hlc): bigint => hlc & COUNTER_MAX;

/** Refuse a remote clock that runs more than 5 s ahead of ours. One that is behind is fine. */
export function checkDrift(remote: Hlc, nowMs: bigint): void {
  if (remote < 0n || remote > HLC_MAX) {
    throw new Invalid(`clock out of range. expected=0..${HLC_MAX} got=${remote}`, "clock_range");
  }
  const aheadMs = wallMs(remote) - nowMs;
  if (aheadMs > DRIFT_MS_MAX) {
    throw new ClockDrift(`clock drift. expected=at most ${DRIFT_MS_MAX} ms ahead got=${aheadMs} ms`, pack(nowMs, 0n));
  }
}

/** The first of `count` consecutive values that come after `last`, whatever the wall clock does. */
export function tick(last: Hlc, nowMs: bigint, count = 1n): { first: Hlc; last: Hlc } {
  const wall = pack(nowMs, 0n);
  const first = wall > last ? wall : last + 1n;
  return { first, last: pack(0n, first + count - 1n) };
}

/** A clock for those that keep it in memory. Whoever restarts one passes the last durable value. */
export class HlcClock {
  constructor(public last: Hlc = 0n) {}

  /** Issue `count` consecutive values and return the first one. */
  tick(nowMs: bigint, count = 1n): Hlc {
    if (count < 1n) throw new RangeError(`a tick issues at least one value. got=${count}`);
    const issued = tick(this.last, nowMs, count);
    this.last = issued.last;
    return issued.first;
  }

  /** Take note of a remote clock, so that what is issued next comes after it. */
  observe(remote: Hlc, nowMs: bigint): void {
    checkDrift(remote, nowMs);
    if (remote > this.last) this.last = remote;
  }
}
