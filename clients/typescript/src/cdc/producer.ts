/**
 * A producer's end of the CDC protocol, for Node and browsers.
 *
 *     const producer = await CdcProducer.connect({ url: "ws://127.0.0.1:8181/ws", source: "shop" });
 *     const receipt = await producer.send([insert("orders", 1, { total: 9.5 })]);
 *     await receipt.durable();
 *     await producer.close();
 *
 * It numbers its batches, keeps a bounded number of them on their way, and sends again what it has no answer for when a
 * connection breaks, until it hears that each is durable. Sending a batch twice changes nothing: the server tells
 * duplicates by source and sequence. One producer at a time sends for a source. What waits here is in memory.
 */
import { Denied, Invalid, MainstemError, Overloaded, Unreachable } from "../errors.js";
import { SYSTEM_TIMING, type Timing } from "../sync/timing.js";
import { tokenOf, type TokenSource } from "../transport/transport.js";
import { encodeChanges, type Change } from "./changes.js";
import { Outbox } from "./outbox.js";
import { OpenReceipt, type Receipt } from "./receipt.js";

export interface CdcProducerOptions {
  /** Of the server's CDC door, such as `ws://127.0.0.1:8181/ws`. */
  readonly url: string;
  /** Who sends: 1 to 256 printable characters. */
  readonly source: string;
  readonly token?: TokenSource;
  readonly priority?: "low" | "normal" | "high";
  /** Batches without an answer; `send` waits beyond that. */
  readonly windowMax?: number;
  /** Their characters. */
  readonly windowCharactersMax?: number;
  readonly openTimeoutMs?: number;
  readonly closeTimeoutMs?: number;
  /** For runtimes without a WebSocket of their own: Node 20 has none, `ws` will do. */
  readonly WebSocket?: typeof WebSocket;
  /** Hears that there is no connection and why, and of the next one with `undefined`. */
  readonly onTrouble?: (trouble: string | undefined) => void;
  readonly timing?: Timing;
}

interface Answer {
  readonly type: string;
  readonly status?: string;
  readonly sequenceNumber?: number;
  readonly correlationId?: string;
  readonly batchId?: string;
  readonly reason?: string;
  readonly errorMessage?: string;
  readonly shouldRetry?: boolean;
  readonly retryDelayMs?: number;
  readonly details?: { readonly suggestedDelayMs?: number };
}

interface Flush {
  resolve(sequence: number): void;
  reject(error: Error): void;
}

const RETRY_MS_MIN = 100;
const RETRY_MS_MAX = 30_000;
const GREETING = "hello";
const SUBPROTOCOL = "mainstem.cdc.v1";

export class CdcProducer {
  private readonly outbox = new Outbox();
  private readonly flushes = new Map<string, Flush>();
  private readonly ending = new AbortController();
  private readonly timing: Timing;
  private flushesToSend: string[] = [];
  private flushesAsked = 0;
  private sequenceNext = 1;
  private lastAcked = 0;
  private pausedUntilMs = 0;
  private failures = 0;
  private trouble: string | undefined;
  private fatal: Error | undefined;
  /** A refusal of a batch whose receipt nobody may be waiting for: `close` tells. */
  private refused: Error | undefined;
  private socket: WebSocket | undefined;
  private greeted = false;
  private progress = promise();
  private readonly running: Promise<void>;
  /** How often a connection was made: 1 means that none was lost. */
  connections = 0;

  private constructor(private readonly options: CdcProducerOptions) {
    this.timing = options.timing ?? SYSTEM_TIMING;
    this.running = this.run();
  }

  /** Answers when the server has greeted. Throws `Unreachable` where it does not in time, and `Denied` for a bad token. */
  static async connect(options: CdcProducerOptions): Promise<CdcProducer> {
    const producer = new CdcProducer(options);
    const waited = options.openTimeoutMs ?? 30_000;
    const late = await producer.until(() => producer.greeted || producer.fatal !== undefined, waited);
    if (late || producer.fatal) {
      const why = producer.trouble ? `: ${producer.trouble}` : "";
      const error = producer.fatal ?? new Unreachable(`no greeting from ${options.url} within ${waited} ms${why}`);
      await producer.stop(error);
      throw error;
    }
    return producer;
  }

  /**
   * Hand over a batch. Waits only while the window is full. Without a `sequence` the producer counts on from what the
   * server has; with one (an offset of the source's own) the batch counts once per sequence, whoever sends it again.
   */
  async send(changes: readonly Change[], options: { readonly sequence?: number } = {}): Promise<Receipt> {
    const payload = encodeChanges(changes);
    await this.until(() => this.fatal !== undefined || this.ending.signal.aborted || !this.isFull());
    this.checkOpen();
    const receipt = new OpenReceipt(options.sequence ?? this.sequenceNext, changes.length);
    this.outbox.put(payload, receipt);
    this.sequenceNext = Math.max(this.sequenceNext, receipt.sequence + 1);
    this.sendAll();
    return receipt;
  }

  /** Resolves when the tables show everything sent so far, with the sequence up to which that holds. */
  async flush(): Promise<number> {
    await Promise.allSettled(this.outbox.receipts().map((receipt) => receipt.durable()));
    this.checkOpen();
    const name = `flush-${++this.flushesAsked}`;
    return new Promise<number>((resolve, reject) => {
      this.flushes.set(name, { resolve, reject });
      this.flushesToSend.push(name);
      this.sendAll();
    }).finally(() => this.flushes.delete(name));
  }

  /** Waits until every batch has an answer. Throws where one was refused, or has none in time: it may not have arrived. */
  async close(): Promise<void> {
    const late = await this.until(() => this.outbox.size === 0 || this.fatal !== undefined, this.options.closeTimeoutMs ?? 30_000);
    const error = late
      ? new Unreachable(`closed too early: ${this.outbox.size} batches have no answer`)
      : (this.fatal ?? this.refused);
    await this.stop(error ?? new Unreachable("the producer is closed"));
    if (error) throw error;
  }

  // The connection

  private async run(): Promise<void> {
    const { signal } = this.ending;
    while (!signal.aborted && !this.fatal) {
      let askedMs = 0;
      try {
        await this.converse();
      } catch (error) {
        if (error instanceof Overloaded) askedMs = error.retryAfterMs;
        else if (error instanceof Unreachable) this.tellTrouble(error.message);
        else return this.giveUp(error instanceof MainstemError ? error : new MainstemError(String(error)));
      }
      this.socket = undefined;
      this.outbox.rewind();
      this.flushesToSend = [...this.flushes.keys()];
      const ceilingMs = Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** Math.min(this.failures++, 20));
      const delayMs = RETRY_MS_MIN + this.timing.random() * (ceilingMs - RETRY_MS_MIN);
      await this.timing.sleep(Math.max(askedMs, delayMs), signal);
    }
  }

  /** One connection from its beginning to its end, which is always an error. */
  private async converse(): Promise<never> {
    const token = await tokenOf(this.options.token);
    const Socket = this.options.WebSocket ?? globalThis.WebSocket;
    if (!Socket) throw new Invalid("this runtime has no WebSocket: pass one, such as that of the package ws");
    return new Promise<never>((_, reject) => {
      // A page cannot set headers on a WebSocket; a subprotocol, unlike the address, stays out of logs.
      const socket = new Socket(this.options.url, token ? [SUBPROTOCOL, `bearer.${token}`] : [SUBPROTOCOL]);
      const end = (error: Error): void => {
        clearTimeout(timer);
        this.ending.signal.removeEventListener("abort", stopped);
        socket.close();
        reject(error);
      };
      const stopped = (): void => end(new Unreachable("the producer is closed"));
      const timer = setTimeout(() => end(new Unreachable("no greeting in time")), this.options.openTimeoutMs ?? 30_000);
      this.ending.signal.addEventListener("abort", stopped);
      if (this.ending.signal.aborted) return stopped();
      socket.onopen = () => socket.send(this.hello());
      socket.onerror = (event) => end(connectionError((event as { message?: string }).message));
      socket.onclose = ({ code, reason }) => end(new Unreachable(`the connection was closed. got=${code} ${reason}`));
      socket.onmessage = ({ data }: MessageEvent) => {
        try {
          const greeted = this.hear(JSON.parse(String(data)) as Answer, this.socket === socket);
          if (!greeted) return;
          clearTimeout(timer);
          this.welcome(socket);
        } catch (error) {
          end(error instanceof MainstemError ? error : new Unreachable(`the server's answer cannot be read. got=${String(error)}`));
        }
      };
    });
  }

  private hello(): string {
    const { source, priority = "normal" } = this.options;
    return JSON.stringify({
      type: "connect",
      timestamp: this.timing.now(),
      correlationId: GREETING,
      sourceDoId: source,
      lastAckSequence: this.lastAcked,
      priority,
    });
  }

  private welcome(socket: WebSocket): void {
    this.socket = socket;
    this.greeted = true;
    this.connections++;
    this.failures = 0;
    this.pausedUntilMs = 0;
    if (this.trouble !== undefined) {
      this.trouble = undefined;
      this.options.onTrouble?.(undefined);
    }
    this.sendAll();
    this.tell();
  }

  private sendAll(): void {
    const { socket } = this;
    if (!socket || socket.readyState !== 1) return;
    const pauseMs = this.pausedUntilMs - this.timing.now();
    if (pauseMs > 0) {
      void this.timing.sleep(pauseMs, this.ending.signal).then(() => this.sendAll());
      return;
    }
    for (let parcel = this.outbox.next(); parcel; parcel = this.outbox.next()) {
      const { payload, attempts, receipt } = parcel;
      const retry = attempts > 1 ? `,"isRetry":true,"retryCount":${attempts - 1}` : "";
      const source = JSON.stringify(this.options.source);
      socket.send(
        `{"type":"cdc_batch","timestamp":${this.timing.now()},"sourceDoId":${source},"sequenceNumber":${receipt.sequence}${retry},"events":${payload}}`,
      );
    }
    for (const correlationId of this.flushesToSend.splice(0)) {
      const timestamp = this.timing.now();
      socket.send(JSON.stringify({ type: "flush_request", timestamp, correlationId, sourceDoId: this.options.source, reason: "manual" }));
    }
  }

  // Answers

  /** Take in an answer. Says whether it is the greeting. */
  private hear(answer: Answer, greeted: boolean): boolean {
    const { type, status, sequenceNumber = 0, correlationId = "" } = answer;
    if (type === "ack" && correlationId === GREETING && !greeted) {
      this.sequenceNext = Math.max(this.sequenceNext, sequenceNumber + 1);
      return true;
    }
    if (type === "nack" && !greeted) throw refusal(answer);
    if (type === "ack" && status === "persisted") {
      this.outbox.persisted(sequenceNumber);
      this.flushes.get(correlationId)?.resolve(sequenceNumber);
    } else if (type === "ack") {
      this.outbox.acknowledge({ sequence: sequenceNumber, positions: positionsOf(answer.batchId), duplicate: status === "duplicate" });
      this.lastAcked = Math.max(this.lastAcked, sequenceNumber);
      this.pause(answer.details?.suggestedDelayMs ?? 0);
    } else if (type === "nack") this.hearNack(answer);
    this.sendAll();
    this.tell();
    return false;
  }

  private hearNack(nack: Answer): void {
    const error = refusal(nack);
    const flush = this.flushes.get(nack.correlationId ?? "");
    if (flush) {
      // A server that stops is followed by another one, which is asked again.
      if (nack.reason !== "shutting_down") flush.reject(error);
    } else if (error instanceof Overloaded) {
      this.outbox.postpone(nack.sequenceNumber ?? 0);
      this.pause(error.retryAfterMs);
    } else {
      this.refused ??= error;
      this.outbox.refuse(nack.sequenceNumber ?? 0, error);
    }
  }

  private pause(delayMs: number): void {
    this.pausedUntilMs = Math.max(this.pausedUntilMs, this.timing.now() + delayMs);
  }

  // Waiting, and the end

  private isFull(): boolean {
    const { windowMax = 64, windowCharactersMax = 16 * 1024 * 1024 } = this.options;
    return this.outbox.size >= windowMax || this.outbox.length >= windowCharactersMax;
  }

  private checkOpen(): void {
    if (this.fatal) throw this.fatal;
    if (this.ending.signal.aborted) throw new Invalid("the producer is closed", "closed");
  }

  /** Wait for a condition, looked at after each answer. Says whether the time was over first. */
  private async until(condition: () => boolean, timeoutMs?: number): Promise<boolean> {
    let late = false;
    const timer = timeoutMs === undefined ? undefined : setTimeout(() => ((late = true), this.tell()), timeoutMs);
    while (!condition() && !late) await this.progress.promise;
    clearTimeout(timer);
    return !condition();
  }

  private tell(): void {
    this.progress.resolve();
    this.progress = promise();
  }

  private tellTrouble(trouble: string): void {
    if (this.ending.signal.aborted || trouble === this.trouble) return;
    this.trouble = trouble;
    this.options.onTrouble?.(trouble);
  }

  private giveUp(error: Error): void {
    this.fatal = error;
    this.outbox.abandon(error);
    for (const flush of this.flushes.values()) flush.reject(error);
    this.tell();
  }

  private async stop(error: Error): Promise<void> {
    this.ending.abort();
    await this.running;
    this.giveUp(this.fatal ?? error);
  }
}

function refusal({ errorMessage = "refused", shouldRetry, retryDelayMs, reason }: Answer): Overloaded | Invalid {
  return shouldRetry ? new Overloaded(errorMessage, retryDelayMs ?? 1_000) : new Invalid(errorMessage, reason);
}

/** `ws` says with which status the handshake was refused; a browser says nothing at all. */
function connectionError(message = ""): Denied | Unreachable {
  if (/\b40[13]\b/.test(message)) return new Denied(`the server does not let us in. expected=a good token got=${message}`);
  return new Unreachable(message || "the connection failed");
}

function positionsOf(batchId = ""): readonly [number, number] | undefined {
  const found = /^(\d+)-(\d+)$/.exec(batchId);
  return found ? [Number(found[1]), Number(found[2])] : undefined;
}

function promise(): { readonly promise: Promise<void>; resolve(): void } {
  let resolve!: () => void;
  return { promise: new Promise<void>((done) => (resolve = done)), resolve: () => resolve() };
}
