/** The producer against servers on real sockets that answer as the protocol allows: late, never, twice, and with refusals. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { afterEach, expect, it } from "vitest";
import { WebSocket as NodeWebSocket, WebSocketServer, type WebSocket as Connection } from "ws";
import { CdcProducer, Denied, insert, Invalid, remove, Unreachable, update, type CdcProducerOptions } from "../src/cdc.js";
import { Outbox } from "../src/cdc/outbox.js";
import { OpenReceipt } from "../src/cdc/receipt.js";
import { SYSTEM_TIMING } from "../src/sync/timing.js";
import { until } from "./support.js";

interface Message {
  readonly type: string;
  readonly sequenceNumber?: number;
  readonly correlationId?: string;
  readonly lastAckSequence?: number;
  readonly retryCount?: number;
  readonly events?: readonly object[];
}

const cleanup: (() => void)[] = [];
afterEach(() => {
  for (const step of cleanup.splice(0)) step();
});

/** A server that does with each message as the test says; a greeting it answers itself, with the highest durable sequence. */
class FakeServer {
  readonly batches: Message[] = [];
  readonly offered: string[] = [];
  durable = 0;
  answer: (message: Message, socket: Connection) => void = (message, socket) => this.ack(message, socket);

  private constructor(readonly url: string) {}

  static async start(): Promise<FakeServer> {
    const sockets = new WebSocketServer({ port: 0, host: "127.0.0.1", handleProtocols: (offered) => [...offered][0] ?? false });
    await new Promise((resolve) => sockets.once("listening", resolve));
    const server = new FakeServer(`ws://127.0.0.1:${(sockets.address() as AddressInfo).port}/ws`);
    cleanup.push(() => {
      for (const socket of sockets.clients) socket.terminate();
      sockets.close();
    });
    sockets.on("connection", (socket, request) => {
      server.offered.push(request.headers["sec-websocket-protocol"] ?? "");
      socket.on("message", (data) => server.hear(JSON.parse(String(data)) as Message, socket));
    });
    return server;
  }

  ack(message: Message, socket: Connection, more: object = {}): void {
    this.durable = Math.max(this.durable, message.sequenceNumber ?? 0);
    const status = message.type === "flush_request" ? "persisted" : "ok";
    say(socket, { type: "ack", status, sequenceNumber: message.sequenceNumber ?? this.durable, correlationId: message.correlationId, ...more });
  }

  private hear(message: Message, socket: Connection): void {
    if (message.type === "connect") {
      say(socket, { type: "ack", status: "ok", sequenceNumber: this.durable, correlationId: message.correlationId });
      return;
    }
    if (message.type === "cdc_batch") this.batches.push(message);
    this.answer(message, socket);
  }
}

const say = (socket: Connection, message: object): void => socket.send(JSON.stringify(message));

const open = (url: string, more: Partial<CdcProducerOptions> = {}): Promise<CdcProducer> =>
  CdcProducer.connect({
    url,
    source: "shop",
    WebSocket: NodeWebSocket as unknown as typeof WebSocket,
    timing: { ...SYSTEM_TIMING, random: () => 0 },
    ...more,
  });

const row = (n: number): ReturnType<typeof insert> => insert("orders", n, { n });

it("numbers its batches from where the server is, and hears what became of each", async () => {
  const server = await FakeServer.start();
  server.durable = 41;
  server.answer = (message, socket) => server.ack(message, socket, { batchId: "1001-1003" });
  const producer = await open(server.url);
  const receipt = await producer.send([row(1), update("orders", 1, { n: null }), remove("carts", "c-1")]);
  expect(await receipt.durable()).toEqual({ sequence: 42, positions: [1001, 1003], duplicate: false });
  await producer.flush();
  await receipt.persisted();
  await producer.close();
  expect(server.batches[0]).toMatchObject({
    sequenceNumber: 42,
    events: [
      { operation: "INSERT", table: "orders", rowId: 1, after: { n: 1 } },
      { operation: "UPDATE", table: "orders", rowId: 1, after: { n: null } },
      { operation: "DELETE", table: "carts", rowId: "c-1" },
    ],
  });
});

it("sends again, under the same numbers and in order, what had no answer when the connection broke", async () => {
  const server = await FakeServer.start();
  server.answer = (message, socket) => {
    if (server.batches.length < 3) return;
    if (server.batches.length === 3) {
      // The first was durable; nobody heard of it.
      server.durable = 1;
      return socket.terminate();
    }
    server.ack(message, socket, message.sequenceNumber === 1 ? { status: "duplicate" } : {});
  };
  const troubles: (string | undefined)[] = [];
  const producer = await open(server.url, { onTrouble: (trouble) => troubles.push(trouble) });
  const receipts = await Promise.all([1, 2, 3].map((n) => producer.send([row(n)])));
  const known = await Promise.all(receipts.map((receipt) => receipt.durable()));
  expect(known.map(({ sequence, duplicate }) => [sequence, duplicate])).toEqual([[1, true], [2, false], [3, false]]);
  expect(server.batches.map(({ sequenceNumber, retryCount = 0 }) => [sequenceNumber, retryCount])).toEqual(
    [[1, 0], [2, 0], [3, 0], [1, 1], [2, 1], [3, 1]],
  );
  expect(server.batches.slice(0, 3).map(({ events }) => events)).toEqual(server.batches.slice(3).map(({ events }) => events));
  expect(troubles).toEqual([expect.stringContaining("closed"), undefined]);
  expect(producer.connections).toBe(2);
  await producer.close();
});

it("keeps the order where a batch is refused for now: nothing newer overtakes it", async () => {
  const server = await FakeServer.start();
  const kept: number[] = [];
  let refusals = 0;
  server.answer = (message, socket) => {
    const sequence = message.sequenceNumber!;
    // As the server does it: until the one that was refused has come back, newer ones are refused too.
    if (sequence > (kept.at(-1) ?? 0) + 1 || (sequence === 2 && refusals === 0)) {
      refusals++;
      return say(socket, { type: "nack", sequenceNumber: sequence, reason: "buffer_full", errorMessage: "full", shouldRetry: true, retryDelayMs: 20 });
    }
    kept.push(sequence);
    server.ack(message, socket);
  };
  const producer = await open(server.url);
  const receipts = await Promise.all([1, 2, 3].map((n) => producer.send([row(n)])));
  receipts.push(await producer.send([row(4)]));
  await Promise.all(receipts.map((receipt) => receipt.durable()));
  expect(kept).toEqual([1, 2, 3, 4]);
  expect(refusals).toBeGreaterThan(1);
  await producer.close();
});

it("tells of a batch that was refused for good at its receipt and at the end, and goes on with the others", async () => {
  const server = await FakeServer.start();
  server.answer = (message, socket) => {
    if (message.sequenceNumber !== 1) return server.ack(message, socket);
    say(socket, { type: "nack", sequenceNumber: 1, reason: "invalid_format", errorMessage: "table: no such name", shouldRetry: false });
  };
  const producer = await open(server.url);
  const [bad, good] = [await producer.send([row(1)]), await producer.send([row(2)])];
  await expect(bad.durable()).rejects.toThrow(Invalid);
  expect((await good.durable()).sequence).toBe(2);
  await expect(producer.close()).rejects.toThrow("table: no such name");
});

it("holds no receipts that nobody holds while the tables are behind, and those that are waited for", async () => {
  setFlagsFromString("--expose_gc");
  const collect = runInNewContext("gc") as () => void;
  const outbox = new Outbox();
  const fill = (): void => {
    for (let sequence = 1; sequence <= 1_000; sequence++) {
      outbox.put("[]", new OpenReceipt(sequence, 1));
      outbox.next();
      outbox.acknowledge({ sequence, positions: undefined, duplicate: false });
    }
  };
  fill();
  const asked = ((): Promise<void> => {
    const receipt = new OpenReceipt(2_000, 1);
    outbox.put("[]", receipt);
    outbox.next();
    outbox.acknowledge({ sequence: 2_000, positions: undefined, duplicate: false });
    return receipt.persisted();
  })();
  await until("the receipts are collected", () => {
    collect();
    return outbox.waitingForTables < 100;
  });
  outbox.persisted(2_000);
  await asked;
});

it("waits at a full window, and says at the end what had no answer", async () => {
  const server = await FakeServer.start();
  const held: [Message, Connection][] = [];
  server.answer = (message, socket) => void held.push([message, socket]);
  const producer = await open(server.url, { windowMax: 2, closeTimeoutMs: 50 });
  await producer.send([row(1)]);
  await producer.send([row(2)]);
  let passed = false;
  const third = producer.send([row(3)]).then(() => (passed = true));
  while (held.length < 2) await new Promise((resolve) => setImmediate(resolve));
  expect(passed).toBe(false);
  server.ack(...held[0]!);
  await third;
  await expect(producer.close()).rejects.toThrow("2 batches have no answer");
});

it("gives up at once on a bad token, and says who does not answer where nobody does", async () => {
  const http = createServer().on("upgrade", (_, socket) => socket.end("HTTP/1.1 401 Unauthorized\r\n\r\n"));
  await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
  cleanup.push(() => http.close());
  const url = `ws://127.0.0.1:${(http.address() as AddressInfo).port}/ws`;
  await expect(open(url, { token: "wrong" })).rejects.toThrow(Denied);
  await new Promise((resolve) => http.close(resolve));
  const trying = open(url, { openTimeoutMs: 100 });
  await expect(trying).rejects.toThrow(Unreachable);
  await expect(trying).rejects.toThrow(/ECONNREFUSED/);
});

it("offers its token as a subprotocol, asked for at each connection", async () => {
  const server = await FakeServer.start();
  let asked = 0;
  const producer = await open(server.url, { token: async () => `t${++asked}` });
  server.answer = (message, socket) => (asked === 1 ? socket.terminate() : server.ack(message, socket));
  await (await producer.send([row(1)])).durable();
  await producer.close();
  expect(server.offered).toEqual(["mainstem.cdc.v1,bearer.t1", "mainstem.cdc.v1,bearer.t2"]);
});

it.each([
  ["NaN", { n: Number.NaN }],
  ["an integer beyond 2^53", { n: 2 ** 53 }],
  ["a bigint", { n: 1n as unknown as number }],
  ["half of a character", { text: "\ud800" }],
])("refuses %s at once instead of changing it", async (_, columns) => {
  const server = await FakeServer.start();
  const producer = await open(server.url);
  await expect(producer.send([insert("orders", 1, columns)])).rejects.toThrow(Invalid);
  await expect(producer.send([])).rejects.toThrow(Invalid);
  await producer.close();
  expect(server.batches).toEqual([]);
});
