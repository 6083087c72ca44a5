/**
 * The development gateway: a `MemoryGateway` behind the protocol's HTTP routes and WebSocket, on one port.
 *
 * For trying out and for tests of the transports. It keeps nothing on disk; the server of the product is in Python.
 */
import { readFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join, normalize } from "node:path";
import { WebSocketServer, type WebSocket } from "ws";
import { ClockDrift, CursorExpired, Denied, Invalid, Overloaded } from "../src/errors.js";
import { MemoryGateway } from "../src/gateway/memory-gateway.js";
import type { RowDelta } from "../src/model/delta.js";
import { SUBPROTOCOL } from "../src/transport/websocket.js";
import {
  broadcastFrame,
  checkpointPiece,
  CLOSE_INTERNAL,
  CLOSE_OVERLOADED,
  CLOSE_PROTOCOL,
  CLOSE_REFUSED,
  CLOSE_TEXT,
  decodeRequest,
} from "../src/wire/frames.js";
import { CONTENT_TYPE_JSON, CONTENT_TYPE_PROTOBUF, decodePush, encodeResponse, pushFromJson, toJson, type SyncResponse } from "../src/wire/messages.js";

export interface DevServerOptions {
  readonly port?: number;
  readonly host?: string;
  /** A folder whose files are served at the root: the built todo app. */
  readonly statics?: string;
  /** If set, the only token that is let in. */
  readonly token?: string;
  readonly accept?: (delta: RowDelta) => void;
  /** Looks at each request first; what it throws is answered. For tests of refusals. */
  readonly intercept?: (path: string) => void;
}

const BODY_BYTES_MAX = 16 * 1024 * 1024;
const BROADCAST_DELTAS_MAX = 1_000;
const MEDIA: Record<string, string> = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".map": "application/json" };

export class DevServer {
  private readonly gateways = new Map<string, MemoryGateway>();
  private readonly http: Server;
  private readonly sockets = new WebSocketServer({ noServer: true, maxPayload: BODY_BYTES_MAX, handleProtocols: () => SUBPROTOCOL });

  private constructor(private readonly options: DevServerOptions) {
    this.http = createServer((request, response) => void this.answer(request, response));
    this.http.on("upgrade", (request, socket, head) => {
      const gateway = this.route(request, "ws");
      if (!gateway) return socket.destroy();
      return this.sockets.handleUpgrade(request, socket, head, (open) => this.converse(open, request, gateway));
    });
  }

  static async start(options: DevServerOptions = {}): Promise<DevServer> {
    const server = new DevServer(options);
    await new Promise<void>((resolve, reject) => {
      server.http.once("error", reject);
      server.http.listen(options.port ?? 0, options.host ?? "127.0.0.1", resolve);
    });
    return server;
  }

  get url(): string {
    return `http://${this.options.host ?? "127.0.0.1"}:${(this.http.address() as AddressInfo).port}`;
  }

  gateway(id: string): MemoryGateway {
    let gateway = this.gateways.get(id);
    const { accept } = this.options;
    if (!gateway) this.gateways.set(id, (gateway = new MemoryGateway(accept ? { accept } : {})));
    return gateway;
  }

  /** Cut every WebSocket, as a lost network does. */
  dropSockets(): void {
    for (const socket of this.sockets.clients) socket.terminate();
  }

  async stop(): Promise<void> {
    this.dropSockets();
    this.http.closeAllConnections();
    await new Promise((resolve) => this.http.close(resolve));
  }

  private async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    for (const [name, value] of Object.entries(CORS)) response.setHeader(name, value);
    if (request.method === "OPTIONS") return void response.writeHead(204).end();
    try {
      const gateway = this.route(request);
      if (gateway) await this.sync(gateway, request, response);
      else await this.file(request, response);
    } catch (error) {
      refuse(error, response);
    }
    return undefined;
  }

  private route(request: IncomingMessage, only?: string): MemoryGateway | undefined {
    const [, id, action] = /^(?:\/v1)?\/sync\/([^/]+)\/(\w+)$/.exec(urlOf(request).pathname) ?? [];
    if (!id || (only && action !== only)) return undefined;
    return this.gateway(decodeURIComponent(id));
  }

  private admit(request: IncomingMessage): void {
    const url = urlOf(request);
    this.options.intercept?.(url.pathname);
    if (!this.options.token) return;
    const offered = [
      request.headers.authorization?.replace(/^Bearer /, ""),
      url.searchParams.get("token"),
      /bearer\.([^,\s]+)/.exec(request.headers["sec-websocket-protocol"] ?? "")?.[1],
    ];
    if (!offered.includes(this.options.token)) throw new Denied("a valid token is needed");
  }

  private async sync(gateway: MemoryGateway, request: IncomingMessage, response: ServerResponse): Promise<void> {
    this.admit(request);
    const url = urlOf(request);
    const action = url.pathname.split("/").at(-1);
    if (action === "push" && request.method === "POST") {
      const body = await bodyOf(request);
      const json = request.headers["content-type"]?.startsWith(CONTENT_TYPE_JSON);
      return send(request, response, gateway.push(json ? pushFromJson(body.toString("utf8")) : decodePush(body)));
    }
    if (action === "pull") {
      const since = url.searchParams.get("since") ?? "0";
      if (!/^\d{1,20}$/.test(since)) throw new Invalid(`since must be a decimal number. got=${since}`, "clock_range");
      const maxDeltas = Number(url.searchParams.get("limit") ?? 0);
      return send(request, response, gateway.pull({ clientId: url.searchParams.get("clientId") ?? "", sinceHlc: BigInt(since), maxDeltas }));
    }
    if (action === "checkpoint") {
      if (gateway.newest === 0n) return void response.writeHead(404, JSON_HEADERS).end('{"error":"no checkpoint yet","reason":"no_checkpoint"}');
      response.writeHead(200, { "Content-Type": CONTENT_TYPE_PROTOBUF });
      for (const piece of gateway.checkpoint()) response.write(checkpointPiece(piece));
      return void response.end();
    }
    return void response.writeHead(404).end();
  }

  private converse(socket: WebSocket, request: IncomingMessage, gateway: MemoryGateway): void {
    try {
      this.admit(request);
    } catch (error) {
      return closeFor(socket, error);
    }
    let told: bigint | undefined;
    const stop = gateway.onArrival(() => {
      if (told === undefined || gateway.newest <= told) return;
      const page = gateway.pull({ clientId: "", sinceHlc: told, maxDeltas: BROADCAST_DELTAS_MAX });
      told = page.hasMore ? undefined : page.serverHlc;
      socket.send(broadcastFrame({ ...page, hasMore: false }));
    });
    socket.on("close", stop);
    socket.on("message", (data, binary) => {
      if (!binary) return socket.close(CLOSE_TEXT, "binary frames only");
      try {
        this.options.intercept?.("ws");
        const message = decodeRequest(new Uint8Array(data as Buffer));
        const reply = "push" in message ? gateway.push(message.push) : gateway.pull(message.pull);
        if ("pull" in message && !reply.hasMore) told = reply.serverHlc;
        socket.send(encodeResponse(reply));
      } catch (error) {
        closeFor(socket, error);
      }
    });
  }

  private async file(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { statics } = this.options;
    const path = normalize(decodeURIComponent(urlOf(request).pathname));
    if (!statics || path.includes("..")) return void response.writeHead(404).end();
    try {
      const name = path.endsWith("/") ? "index.html" : path;
      const content = await readFile(join(statics, name));
      response.writeHead(200, { "Content-Type": MEDIA[extname(name)] ?? "application/octet-stream" }).end(content);
    } catch {
      response.writeHead(404).end();
    }
  }
}

const JSON_HEADERS = { "Content-Type": CONTENT_TYPE_JSON };
const CORS = {
  "Access-Control-Allow-Origin": "*",
  "Access-Control-Allow-Headers": "Authorization, Content-Type",
  "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
  "Access-Control-Expose-Headers": "Retry-After",
  "Access-Control-Max-Age": "600",
};

function urlOf(request: IncomingMessage): URL {
  return new URL(request.url ?? "/", "http://localhost");
}

async function bodyOf(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > BODY_BYTES_MAX) throw new Invalid(`a body is too large. expected=at most ${BODY_BYTES_MAX} bytes`, "too_large");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function send(request: IncomingMessage, response: ServerResponse, message: SyncResponse): void {
  if (request.headers.accept?.includes(CONTENT_TYPE_PROTOBUF)) {
    response.writeHead(200, { "Content-Type": CONTENT_TYPE_PROTOBUF }).end(encodeResponse(message));
  } else {
    response.writeHead(200, JSON_HEADERS).end(toJson(message));
  }
}

function refuse(error: unknown, response: ServerResponse): void {
  const message = error instanceof Error ? error.message : String(error);
  const answer = (status: number, reason: string, more: object = {}, headers: Record<string, string> = {}): void => {
    response.writeHead(status, { ...JSON_HEADERS, ...headers }).end(JSON.stringify({ error: message, reason, ...more }));
  };
  if (error instanceof Denied) return answer(message.includes("token") ? 401 : 403, "denied");
  if (error instanceof ClockDrift) return answer(409, "clock_drift", { serverHlc: String(error.serverHlc) });
  if (error instanceof CursorExpired) return answer(410, "cursor_expired");
  if (error instanceof Overloaded) return answer(503, "overloaded", {}, { "Retry-After": String(error.retryAfterMs / 1_000) });
  if (error instanceof Invalid) {
    const status = error.reason === "too_large" ? 413 : error.reason === "schema_mismatch" ? 422 : 400;
    return answer(status, error.reason, error.deltaId ? { deltaId: error.deltaId } : {});
  }
  return answer(500, "internal");
}

function closeFor(socket: WebSocket, error: unknown): void {
  if (error instanceof Denied) return socket.close(CLOSE_REFUSED, "denied");
  if (error instanceof ClockDrift) return socket.close(CLOSE_REFUSED, `clock_drift server_hlc=${error.serverHlc}`);
  if (error instanceof CursorExpired) return socket.close(CLOSE_REFUSED, "cursor_expired");
  if (error instanceof Overloaded) return socket.close(CLOSE_OVERLOADED, `overloaded retry_after_s=${error.retryAfterMs / 1_000}`);
  if (error instanceof Invalid && error.reason === "unknown_tag") return socket.close(CLOSE_PROTOCOL, error.reason);
  if (error instanceof Invalid) return socket.close(CLOSE_REFUSED, error.deltaId ? `${error.reason} delta_id=${error.deltaId}` : error.reason);
  return socket.close(CLOSE_INTERNAL, "internal");
}
