/** Sync within the process, with a `MemoryGateway`. Messages go through their bytes, so that nothing is shared. */
import type { MemoryGateway } from "../gateway/memory-gateway.js";
import { decodePull, decodePush, decodeResponse, encodePull, encodePush, encodeResponse } from "../wire/messages.js";
import type { SyncPull, SyncPush, SyncResponse } from "../wire/messages.js";
import type { LiveListener, Transport } from "./transport.js";

export class LocalTransport implements Transport {
  /** How far this client has been told; broadcasts begin once a pull has caught up. */
  private told: bigint | undefined;

  constructor(private readonly gateway: MemoryGateway) {}

  async push(push: SyncPush): Promise<SyncResponse> {
    return copy(this.gateway.push(decodePush(encodePush(push))));
  }

  async pull(pull: SyncPull): Promise<SyncResponse> {
    const response = this.gateway.pull(decodePull(encodePull(pull)));
    if (!response.hasMore) this.told = response.serverHlc;
    return copy(response);
  }

  async checkpoint(): Promise<AsyncIterable<SyncResponse> | undefined> {
    if (this.gateway.newest === 0n) return undefined;
    const pieces = this.gateway.checkpoint();
    return (async function* () {
      for (const piece of pieces) yield copy(piece);
    })();
  }

  subscribe(listener: LiveListener): () => void {
    return this.gateway.onArrival(() => {
      const since = this.told;
      if (since === undefined || this.gateway.newest <= since) return;
      const response = copy(this.gateway.pull({ clientId: "", sinceHlc: since, maxDeltas: 1_000 }));
      // More than a broadcast holds: the client pulls when it meets the gap.
      this.told = response.hasMore ? undefined : response.serverHlc;
      queueMicrotask(() => listener.broadcast({ ...response, hasMore: false }));
    });
  }
}

const copy = (response: SyncResponse): SyncResponse => decodeResponse(encodeResponse(response));
