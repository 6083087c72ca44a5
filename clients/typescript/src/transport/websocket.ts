/**
 * Sync over one WebSocket: requests are answered in their order, and changes of others come by themselves.
 *
 * Connects when first used and, after a loss, with the next request. Checkpoints come over HTTP.
 */
import { ClockDrift, CursorExpired, Denied, Invalid, Overloaded, Unreachable } from "../errors.js";
import { CLOSE_OVERLOADED, CLOSE_REFUSED, CLOSE_TOO_LARGE, decodeFromServer, pullFrame, pushFrame } from "../wire/frames.js";
import type { SyncPull, SyncPush, SyncResponse } from "../wire/messages.js";
import { HttpTransport, type HttpTransportOptions } from "./http.js";
import { FEATURES, tokenOf, type LiveListener, type Transport } from "./transport.js";

export interface WebSocketTransportOptions extends HttpTransportOptions {
  /** For runtimes without a WebSocket of their own. */
  readonly WebSocket?: typeof WebSocket;
}

interface Waiting {
  resolve(response: SyncResponse): void;
  reject(error: Error): void;
}

export const SUBPROTOCOL = "lakesync.v1";

export class WebSocketTransport implements Transport {
  private readonly http: HttpTransport;
  private readonly listeners = new Set<LiveListener>();
  private connection: Promise<Connection> | undefined;
  /** The same connection, from before it is open. */
  private latest: Connection | undefined;

  constructor(private readonly options: WebSocketTransportOptions) {
    this.http = new HttpTransport(options);
  }

  push(push: SyncPush, signal: AbortSignal): Promise<SyncResponse> {
    return this.exchange(() => pushFrame(push), signal);
  }

  pull(pull: SyncPull, signal: AbortSignal): Promise<SyncResponse> {
    return this.exchange(() => pullFrame(pull), signal);
  }

  checkpoint(clientId: string, signal: AbortSignal): Promise<AsyncIterable<SyncResponse> | undefined> {
    return this.http.checkpoint(clientId, signal);
  }

  subscribe(listener: LiveListener): () => void {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) this.close();
    };
  }

  close(): void {
    this.abandon("closed");
  }

  reset(): void {
    this.abandon("the network changed");
  }

  private abandon(why: string): void {
    this.connection = undefined;
    this.latest?.abandon(why);
  }

  private async exchange(frame: () => Uint8Array, signal: AbortSignal): Promise<SyncResponse> {
    const connection = await unlessStopped(this.connection ?? this.connect(), signal);
    return connection.request(frame(), signal, this.options.timeoutMs ?? 30_000);
  }

  private connect(): Promise<Connection> {
    const opening = this.open();
    this.connection = opening;
    const forget = (): void => {
      if (this.connection === opening) this.connection = undefined;
    };
    const lost = (): void => {
      forget();
      for (const listener of this.listeners) listener.lost();
    };
    opening.then((connection) => connection.onClose(lost), forget);
    return opening;
  }

  private async open(): Promise<Connection> {
    const { baseUrl, gatewayId, token: source, timeoutMs = 30_000 } = this.options;
    const token = await tokenOf(source);
    const base = baseUrl.replace(/\/+$/, "").replace(/^http/, "ws");
    const url = `${base}/sync/${encodeURIComponent(gatewayId)}/ws?features=${FEATURES}`;
    // A page cannot set headers on a WebSocket; a subprotocol, unlike the address, stays out of logs.
    const protocols = token ? [SUBPROTOCOL, `bearer.${token}`] : [SUBPROTOCOL];
    const Socket = this.options.WebSocket ?? WebSocket;
    const connection = new Connection(new Socket(url, protocols), (response) => {
      for (const listener of this.listeners) listener.broadcast(response);
    });
    this.latest = connection;
    await connection.opened(timeoutMs);
    return connection;
  }
}

class Connection {
  private readonly waiting: Waiting[] = [];
  private readonly closing = new Set<() => void>();
  private closed: Error | undefined;

  constructor(
    private readonly socket: WebSocket,
    private readonly broadcast: (response: SyncResponse) => void,
  ) {
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event: MessageEvent) => this.receive(event.data);
    // A close follows each error and says what there is to say; without a handler Node would throw it at the process.
    socket.onerror = () => this.end(new Unreachable("the connection failed"));
    socket.onclose = (event: CloseEvent) => this.end(closeError(event.code, event.reason));
  }

  opened(timeoutMs: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.abandon(`no connection within ${timeoutMs} ms`), timeoutMs);
      this.socket.onopen = () => {
        clearTimeout(timer);
        resolve();
      };
      this.closing.add(() => {
        clearTimeout(timer);
        reject(this.closed!);
      });
    });
  }

  request(frame: Uint8Array, signal: AbortSignal, timeoutMs: number): Promise<SyncResponse> {
    return new Promise((resolve, reject) => {
      if (this.closed) return reject(this.closed);
      if (signal.aborted) return reject(new Unreachable("stopped"));
      // Replies have no names, only an order: after one is given up on, none that follows could be told apart.
      const timer = setTimeout(() => this.abandon(`no reply within ${timeoutMs} ms`), timeoutMs);
      const stopped = (): void => this.abandon("stopped");
      signal.addEventListener("abort", stopped);
      const tidy = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", stopped);
      };
      this.waiting.push({
        resolve: (response) => (tidy(), resolve(response)),
        reject: (error) => (tidy(), reject(error)),
      });
      this.socket.send(frame as Uint8Array<ArrayBuffer>);
    });
  }

  onClose(listener: () => void): void {
    if (this.closed) listener();
    else this.closing.add(listener);
  }

  abandon(why: string): void {
    this.end(new Unreachable(why));
    this.socket.close();
  }

  private receive(data: unknown): void {
    try {
      if (!(data instanceof ArrayBuffer)) throw new Invalid("the server sent text");
      const { broadcast, response } = decodeFromServer(new Uint8Array(data));
      if (broadcast) return this.broadcast(response);
      const waiting = this.waiting.shift();
      if (!waiting) throw new Invalid("the server sent a reply to no request");
      waiting.resolve(response);
    } catch (error) {
      this.abandon(`the server's frame cannot be read. got=${String(error)}`);
    }
  }

  private end(error: Error): void {
    if (this.closed) return;
    this.closed = error;
    // A refusal is about the oldest request; of those behind it nobody knows anything.
    for (const [index, { reject }] of this.waiting.splice(0).entries()) {
      reject(index === 0 ? error : new Unreachable("the connection was closed"));
    }
    for (const listener of this.closing) listener();
  }
}

/** The promise's own result, or an end to the waiting when the signal aborts. */
function unlessStopped<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stopped = (): void => reject(new Unreachable("stopped"));
    if (signal.aborted) stopped();
    signal.addEventListener("abort", stopped);
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stopped));
  });
}

/**
 * The close reason's first word says what is wrong; `key=value` words after it say more. Only a refusal with a word of
 * the protocol may put a delta aside.
 */
export function closeError(code: number, text: string): Error {
  const [reason = "", ...rest] = text.split(" ");
  const details = new Map(rest.map((word) => word.split("=", 2) as [string, string | undefined]));
  const message = `the connection was closed. got=${code} ${text}`;
  if (code === CLOSE_OVERLOADED) return new Overloaded(message, Number(details.get("retry_after_s") ?? 1) * 1_000 || 1_000);
  if (code === CLOSE_TOO_LARGE) return new Invalid("refused: too_large", "too_large");
  if (code !== CLOSE_REFUSED || !reason) return new Unreachable(message);
  if (reason === "denied") return new Denied(message);
  if (reason === "cursor_expired") return new CursorExpired(message);
  if (reason === "clock_drift") {
    const clock = details.get("server_hlc");
    return new ClockDrift(message, clock && /^\d+$/.test(clock) ? BigInt(clock) : undefined);
  }
  return new Invalid(`refused: ${reason}`, reason, details.get("delta_id"));
}
