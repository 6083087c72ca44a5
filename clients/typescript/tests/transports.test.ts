/** The transports against a server on a real socket: the development gateway. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, it } from "vitest";
import { WebSocket as NodeWebSocket } from "ws";
import { DevServer, type DevServerOptions } from "../dev/server.js";
import {
  ClockDrift,
  CursorExpired,
  Denied,
  HttpTransport,
  Invalid,
  LocalDB,
  Overloaded,
  SyncCoordinator,
  Unreachable,
  WebSocketTransport,
  type RowDelta,
  type SyncPush,
  type Transport,
} from "../src/index.js";
import { withId } from "../src/model/delta.js";
import { pack } from "../src/model/hlc.js";
import { retryAfterMs } from "../src/transport/http.js";
import { closeError } from "../src/transport/websocket.js";
import { until } from "./support.js";

const cleanup: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const step of cleanup.splice(0).reverse()) await step();
});

const WebSocketClass = NodeWebSocket as unknown as typeof WebSocket;
const signal = new AbortController().signal;

async function serve(options: DevServerOptions = {}): Promise<DevServer> {
  const server = await DevServer.start(options);
  cleanup.push(() => server.stop());
  return server;
}

const delta = (rowId: string, aheadMs = 0, clientId = "ada"): RowDelta =>
  withId({ op: "INSERT", table: "todos", rowId, columns: [{ column: "title", value: `${rowId} é😀` }], hlc: pack(BigInt(Date.now() + aheadMs), 0n), clientId });
const push = (...deltas: RowDelta[]): SyncPush => ({ clientId: "ada", deltas, lastSeenHlc: 0n });

const KINDS = {
  protobuf: (baseUrl: string, token?: string): Transport => new HttpTransport({ baseUrl, gatewayId: "my gw", ...(token ? { token } : {}) }),
  json: (baseUrl: string, token?: string): Transport => new HttpTransport({ baseUrl, gatewayId: "my gw", encoding: "json", ...(token ? { token: () => token } : {}) }),
  websocket: (baseUrl: string, token?: string): Transport => {
    const transport = new WebSocketTransport({ baseUrl, gatewayId: "my gw", WebSocket: WebSocketClass, ...(token ? { token: async () => token } : {}) });
    cleanup.push(() => transport.close());
    return transport;
  },
};

describe.each(Object.entries(KINDS))("%s", (_, make) => {
  it("pushes, pulls page by page and starts from a checkpoint", async () => {
    const server = await serve();
    const transport = make(server.url);
    expect(await transport.checkpoint("ada", signal)).toBeUndefined();
    const deltas = ["a", "b", "c"].map((id) => delta(id));
    await transport.push(push(...deltas), signal);
    await transport.push(push(...deltas), signal);
    const first = await transport.pull({ clientId: "bob", sinceHlc: 0n, maxDeltas: 2 }, signal);
    expect(first).toMatchObject({ deltas: deltas.slice(0, 2), hasMore: true });
    const second = await transport.pull({ clientId: "bob", sinceHlc: first.serverHlc, maxDeltas: 2 }, signal);
    expect(second).toMatchObject({ deltas: deltas.slice(2), hasMore: false, serverHlc: server.gateway("my gw").newest });
    const pieces = [];
    for await (const piece of (await transport.checkpoint("ada", signal))!) pieces.push(piece);
    expect(pieces.flatMap((piece) => piece.deltas.map(({ rowId }) => rowId))).toEqual(["a", "b", "c"]);
    expect(pieces.at(-1)).toMatchObject({ hasMore: false, serverHlc: second.serverHlc });
  });

  it("moves nothing where one delta of a push is refused, and says which", async () => {
    const bad = delta("bad");
    const server = await serve({
      accept: ({ rowId, deltaId }) => {
        if (rowId === "bad") throw new Invalid("no such column", "schema_mismatch", deltaId);
      },
    });
    await expect(make(server.url).push(push(delta("a"), bad), signal)).rejects.toMatchObject({ name: "Invalid", reason: "schema_mismatch", deltaId: bad.deltaId });
    expect(server.gateway("my gw").deltaCount).toBe(0);
  });

  it("knows its errors", async () => {
    let next: Error | undefined;
    const server = await serve({
      intercept: () => {
        if (next) throw next;
      },
    });
    const transport = make(server.url);
    await expect(transport.push(push(delta("a", 60_000)), signal)).rejects.toBeInstanceOf(ClockDrift);
    const drift = (await transport.push(push(delta("a", 60_000)), signal).catch((error: unknown) => error)) as ClockDrift;
    expect(drift.serverHlc).toBeGreaterThan(pack(BigInt(Date.now() - 60_000), 0n));
    await expect(transport.push(push(delta("a", 0, "eve")), signal)).rejects.toBeInstanceOf(Denied);
    await expect(transport.pull({ clientId: "a", sinceHlc: 99n, maxDeltas: 1 }, signal)).rejects.toBeInstanceOf(CursorExpired);
    next = new Overloaded("busy", 7_000);
    await expect(transport.push(push(delta("a")), signal)).rejects.toMatchObject({ name: "Overloaded", retryAfterMs: 7_000 });
    next = new TypeError("a bug");
    await expect(transport.push(push(delta("a")), signal)).rejects.toBeInstanceOf(Unreachable);
    next = undefined;
    await transport.push(push(delta("a")), signal);
  });

  it("is let in with the right token only", async () => {
    const server = await serve({ token: "a.jwt.token" });
    await expect(make(server.url).pull({ clientId: "a", sinceHlc: 0n, maxDeltas: 1 }, signal)).rejects.toBeInstanceOf(Denied);
    await expect(make(server.url, "wrong").pull({ clientId: "a", sinceHlc: 0n, maxDeltas: 1 }, signal)).rejects.toBeInstanceOf(Denied);
    expect(await make(server.url, "a.jwt.token").pull({ clientId: "a", sinceHlc: 0n, maxDeltas: 1 }, signal)).toMatchObject({ deltas: [] });
  });

  it("says so where there is no server", async () => {
    const server = await DevServer.start();
    const { url } = server;
    await server.stop();
    await expect(make(url).push(push(delta("a")), signal)).rejects.toBeInstanceOf(Unreachable);
  });

  it("stops waiting when it is told to", async () => {
    const silent = createServer(() => undefined);
    silent.on("upgrade", () => undefined);
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    cleanup.push(() => (silent.closeAllConnections(), void silent.close()));
    const stop = new AbortController();
    const waiting = make(`http://127.0.0.1:${(silent.address() as AddressInfo).port}`).push(push(delta("a")), stop.signal);
    stop.abort();
    await expect(waiting).rejects.toBeInstanceOf(Unreachable);
  });
});

it.each([400, 404, 409, 413, 422, 200])("takes a stranger's %i for no answer at all", async (status) => {
  const portal = createServer((_, response) => response.writeHead(status, { "Content-Type": "text/html" }).end("<h1>Log in to the hotel</h1>"));
  await new Promise<void>((resolve) => portal.listen(0, "127.0.0.1", resolve));
  cleanup.push(() => void portal.close());
  const transport = new HttpTransport({ baseUrl: `http://127.0.0.1:${(portal.address() as AddressInfo).port}`, gatewayId: "g" });
  await expect(transport.push(push(delta("a")), signal)).rejects.toBeInstanceOf(Unreachable);
});

describe("WebSocket", () => {
  const client = async (server: DevServer, clientId: string) => {
    const db = await LocalDB.open({ name: `ws-${clientId}-${server.url}`, backend: "memory", clientId });
    const transport = new WebSocketTransport({ baseUrl: server.url, gatewayId: "g", WebSocket: WebSocketClass });
    const sync = new SyncCoordinator(db, transport);
    cleanup.push(() => sync.stop());
    sync.startAutoSync();
    await until("idle", () => sync.status.phase === "idle", 100_000);
    return { db, sync };
  };

  it("shows another's edit without a pull, and goes on after the network was lost", async () => {
    const server = await serve();
    const [ada, bob] = [await client(server, "ada"), await client(server, "bob")];
    await ada.sync.tracker.insert("todos", "r", { title: "live" });
    await until("bob sees it", async () => (await bob.db.get("todos", "r")) !== undefined, 100_000);
    await until("the cursor moved with it", async () => (await bob.db.state()).cursor === server.gateway("g").newest, 100_000);
    server.dropSockets();
    await ada.sync.tracker.update("todos", "r", { title: "after the loss" });
    await until("bob sees that too", async () => (await bob.db.get("todos", "r"))?.values["title"] === "after the loss", 2_000_000);
  });

  it.each([
    ["text", "hello", 1003],
    ["an unknown tag", new Uint8Array([9, 1, 2]), 1002],
    ["a short frame", new Uint8Array([1]), 1002],
    ["a broken message", new Uint8Array([1, 0x0a, 0xff]), 1008],
  ])("is closed on %s", async (_, frame, code) => {
    const server = await serve();
    const socket = new NodeWebSocket(`${server.url.replace("http", "ws")}/sync/g/ws`, ["lakesync.v1"]);
    const closed = new Promise<number>((resolve) => socket.on("close", resolve));
    socket.on("open", () => socket.send(frame));
    expect(await closed).toBe(code);
  });

  it("blames the oldest request only", async () => {
    const server = await serve();
    const transport = KINDS.websocket(server.url);
    await transport.pull({ clientId: "ada", sinceHlc: 0n, maxDeltas: 1 }, signal);
    const bad = transport.push(push(delta("a", 60_000)), signal);
    const good = transport.push(push(delta("b")), signal);
    await expect(bad).rejects.toBeInstanceOf(ClockDrift);
    await expect(good).rejects.toBeInstanceOf(Unreachable);
  });

  it("gives up what is open or opening when the network changes, and connects again", async () => {
    const server = await serve();
    const transport = KINDS.websocket(server.url) as WebSocketTransport;
    const pull = { clientId: "ada", sinceHlc: 0n, maxDeltas: 1 };
    const opening = transport.pull(pull, signal);
    await Promise.resolve();
    transport.reset();
    await expect(opening).rejects.toBeInstanceOf(Unreachable);
    await transport.pull(pull, signal);
    const waiting = transport.pull(pull, signal);
    await Promise.resolve();
    transport.reset();
    await expect(waiting).rejects.toBeInstanceOf(Unreachable);
    expect(await transport.pull(pull, signal)).toMatchObject({ deltas: [] });
  });

  it("reads why it was closed", () => {
    expect(closeError(1008, "denied")).toBeInstanceOf(Denied);
    expect(closeError(1009, "")).toMatchObject({ reason: "too_large" });
    expect(closeError(1008, "schema_mismatch delta_id=abc")).toMatchObject({ reason: "schema_mismatch", deltaId: "abc" });
    expect(closeError(1008, "clock_drift server_hlc=12")).toMatchObject({ serverHlc: 12n });
    expect(closeError(1008, "clock_drift server_hlc=x")).toMatchObject({ serverHlc: undefined });
    expect(closeError(1013, "overloaded retry_after_s=2.5")).toMatchObject({ retryAfterMs: 2_500 });
    for (const code of [1000, 1001, 1002, 1003, 1006, 1011]) expect(closeError(code, "")).toBeInstanceOf(Unreachable);
    expect(closeError(1008, "")).toBeInstanceOf(Unreachable);
  });
});

it("reads Retry-After as seconds or as a date", () => {
  expect(retryAfterMs("2")).toBe(2_000);
  expect(retryAfterMs("Wed, 21 Oct 2026 07:28:00 GMT", Date.parse("Wed, 21 Oct 2026 07:27:50 GMT"))).toBe(10_000);
  for (const odd of [null, "", "soon"]) expect(retryAfterMs(odd)).toBe(1_000);
});
