/** The way to a server. Each call either answers or throws one of the errors of errors.ts. */
import type { SyncPull, SyncPush, SyncResponse } from "../wire/messages.js";

export interface Transport {
  /** All deltas of the push are durable once this answers. Sending the same push again is safe. */
  push(push: SyncPush, signal: AbortSignal): Promise<SyncResponse>;
  pull(pull: SyncPull, signal: AbortSignal): Promise<SyncResponse>;
  /** The pieces of a checkpoint; undefined where the server has none and a pull from 0 is the way. */
  checkpoint(clientId: string, signal: AbortSignal): Promise<AsyncIterable<SyncResponse> | undefined>;
  /** Hear what others change as it happens. A transport without this is polled. */
  subscribe?(listener: LiveListener): () => void;
  /** The network came or went: what is open is probably dead, and waiting for it to time out helps nobody. */
  reset?(): void;
}

export interface LiveListener {
  broadcast(response: SyncResponse): void;
  /** The connection went away: a pull finds out what was missed, and connects again. */
  lost(): void;
}

/** A token, or a function that gets one and is asked before each use. */
export type TokenSource = string | (() => string | Promise<string>);

export async function tokenOf(source: TokenSource | undefined): Promise<string | undefined> {
  return typeof source === "function" ? source() : source;
}

/** What the server may send us beyond LakeSync's own messages. */
export const FEATURES = "evict";
