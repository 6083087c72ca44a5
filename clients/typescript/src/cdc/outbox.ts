/**
 * What a producer has sent or will send, and where each batch stands. No I/O.
 *
 * The order of the batches is the order of the changes, and the tables keep the last one: so a batch that the server
 * refused for now is sent again before anything newer, and only once every answer that was still on its way is in.
 */
import { Invalid } from "../errors.js";
import type { Durable, OpenReceipt } from "./receipt.js";

/** A batch that is not known to be durable. */
export interface Parcel {
  readonly order: number;
  /** Its events as JSON text: what is sent again must be the same. */
  readonly payload: string;
  readonly receipt: OpenReceipt;
  attempts: number;
}

export class Outbox {
  private waiting: Parcel[] = [];
  private readonly sent = new Map<number, Parcel>();
  private readonly open = new Set<number>();
  /** Weak: who holds no receipt does not wait for the tables, and these may be behind for long. */
  private readonly unpersisted = new Map<number, WeakRef<OpenReceipt>>();
  private readonly collected = new FinalizationRegistry<number>((sequence) => {
    if (!this.unpersisted.get(sequence)?.deref()) this.unpersisted.delete(sequence);
  });
  private orders = 0;
  private characters = 0;
  /** After a refusal nothing leaves until all answers are in. */
  private regrouping = false;

  get size(): number {
    return this.waiting.length + this.sent.size;
  }

  /** Of the payloads that are held, in characters. */
  get length(): number {
    return this.characters;
  }

  receipts(): OpenReceipt[] {
    return [...this.sent.values(), ...this.waiting].map(({ receipt }) => receipt);
  }

  put(payload: string, receipt: OpenReceipt): void {
    if (this.open.has(receipt.sequence)) {
      throw new Invalid(`sequence is on its way already. got=${receipt.sequence}`, "invalid_sequence");
    }
    this.open.add(receipt.sequence);
    this.waiting.push({ order: this.orders++, payload, receipt, attempts: 0 });
    this.characters += payload.length;
  }

  /** The batch to send now, which counts as sent from here on. */
  next(): Parcel | undefined {
    if (this.regrouping) return undefined;
    const parcel = this.waiting.shift();
    if (!parcel) return undefined;
    parcel.attempts++;
    this.sent.set(parcel.receipt.sequence, parcel);
    return parcel;
  }

  /** The connection is gone: what has no answer is to be sent again, in order. */
  rewind(): void {
    this.requeue([...this.sent.values()]);
    this.sent.clear();
    this.regrouping = false;
  }

  acknowledge(durable: Durable): void {
    const parcel = this.answer(durable.sequence);
    if (!parcel) return;
    this.unpersisted.set(durable.sequence, new WeakRef(parcel.receipt));
    this.collected.register(parcel.receipt, durable.sequence);
    parcel.receipt.settleDurable(durable);
  }

  refuse(sequence: number, error: Error): void {
    this.answer(sequence)?.receipt.settleFailed(error);
  }

  /** Refused for now. */
  postpone(sequence: number): void {
    const parcel = this.sent.get(sequence);
    if (!parcel) return;
    this.sent.delete(sequence);
    this.requeue([parcel]);
    this.regrouping = this.sent.size > 0;
  }

  /** The tables have every durable batch up to a sequence. */
  persisted(upTo: number): void {
    for (const [sequence, receipt] of this.unpersisted) {
      if (sequence > upTo) continue;
      this.unpersisted.delete(sequence);
      receipt.deref()?.settlePersisted();
    }
  }

  /** Nothing further will be known of anything. */
  abandon(error: Error): void {
    for (const receipt of this.receipts()) receipt.settleFailed(error);
    for (const receipt of this.unpersisted.values()) receipt.deref()?.settleFailed(error);
    this.waiting = [];
    this.sent.clear();
    this.open.clear();
    this.unpersisted.clear();
    this.characters = 0;
  }

  /** Durable batches whose receipts are held, or were not collected yet. */
  get waitingForTables(): number {
    return this.unpersisted.size;
  }

  private answer(sequence: number): Parcel | undefined {
    const parcel = this.sent.get(sequence);
    if (parcel) {
      this.sent.delete(sequence);
      this.open.delete(sequence);
      this.characters -= parcel.payload.length;
    }
    if (this.sent.size === 0) this.regrouping = false;
    return parcel;
  }

  private requeue(parcels: Parcel[]): void {
    this.waiting = [...parcels, ...this.waiting].sort((left, right) => left.order - right.order);
  }
}
