/**
 * A Protobuf codec of the few things that the schema uses, driven by the tables generated from the schema file.
 *
 * Pure: bytes in, plain objects out. Everything that a truncated or hostile message can do ends in `Invalid`.
 */
import { Invalid } from "../errors.js";
import { MESSAGES, type Field, type MessageName, type Scalar } from "./schema.generated.js";
import { textOf } from "./text.js";

type Message = Record<string, unknown>;

const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;
const FIXED32 = 5;

const encoder = new TextEncoder();

const WIRE_TYPES: Record<Scalar, number> = {
  string: BYTES,
  bytes: BYTES,
  fixed64: FIXED64,
  uint32: VARINT,
  bool: VARINT,
  enum: VARINT,
};

export function encodeMessage(name: MessageName, message: object): Uint8Array {
  const writer = new Writer();
  writeMessage(writer, name, message as Message);
  return writer.finish();
}

export function decodeMessage(name: MessageName, bytes: Uint8Array): Message {
  return readMessage(new Reader(bytes), name);
}

/** What the reader has left, as a message. The messages within share the reader: one of their own costs as much as they. */
function readMessage(reader: Reader, name: MessageName): Message {
  const fields = BY_NUMBER[name];
  const message = emptyMessage(name);
  while (!reader.done) {
    const tag = reader.uint32();
    const wireType = tag & 7;
    const field = fields.get(tag >>> 3);
    if (!field) {
      reader.skip(wireType, tag >>> 3);
      continue;
    }
    const [, key, kind, repeated] = field;
    if (wireType !== (WIRE_TYPES[kind as Scalar] ?? BYTES)) {
      throw new Invalid(`${name}.${key} has a wrong wire type. got=${wireType}`, "invalid_protobuf");
    }
    const value = isScalar(kind) ? readScalar(reader, kind) : readPart(reader, kind);
    if (repeated) (message[key] as unknown[]).push(value);
    else message[key] = value;
  }
  return message;
}

function readPart(reader: Reader, name: MessageName): Message {
  const outer = reader.enter();
  const message = readMessage(reader, name);
  reader.leave(outer);
  return message;
}

function writeMessage(writer: Writer, name: MessageName, message: Message): void {
  for (const [number, key, kind, repeated] of MESSAGES[name] as readonly Field[]) {
    const value = message[key];
    if (!isScalar(kind)) {
      for (const item of (repeated ? value : [value]) as Message[]) {
        writer.tag(number, BYTES);
        writer.sized(() => writeMessage(writer, kind, item));
      }
    } else if (!isDefault(value)) {
      writer.tag(number, WIRE_TYPES[kind]);
      writeScalar(writer, kind, value);
    }
  }
}

function writeScalar(writer: Writer, kind: Scalar, value: unknown): void {
  if (kind === "string") writer.text(value as string);
  else if (kind === "bytes") writer.bytes(value as Uint8Array);
  else if (kind === "fixed64") writer.fixed64(value as bigint);
  else writer.varint(Number(value));
}

function readScalar(reader: Reader, kind: Scalar): unknown {
  switch (kind) {
    case "string":
      return reader.text();
    case "bytes":
      return reader.bytes();
    case "fixed64":
      return reader.fixed64();
    case "bool":
      return reader.varint() !== 0n;
    default:
      return Number(BigInt.asUintN(32, reader.varint()));
  }
}

// Proto3 leaves out what has its type's zero value.
function isDefault(value: unknown): boolean {
  return !value || (value instanceof Uint8Array && value.length === 0);
}

function isScalar(kind: Scalar | MessageName): kind is Scalar {
  return kind in WIRE_TYPES;
}

const ZERO: Record<Scalar, unknown> = { string: "", bytes: new Uint8Array(0), fixed64: 0n, uint32: 0, bool: false, enum: 0 };

function emptyMessage(name: MessageName): Message {
  const message: Message = {};
  for (const [, key, kind, repeated] of MESSAGES[name] as readonly Field[]) {
    message[key] = repeated ? [] : isScalar(kind) ? ZERO[kind] : undefined;
  }
  return message;
}

const BY_NUMBER = Object.fromEntries(
  Object.entries(MESSAGES).map(([name, fields]) => [
    name,
    new Map((fields as readonly Field[]).map((field) => [field[0], field])),
  ]),
) as Record<MessageName, Map<number, Field>>;

class Writer {
  private buffer = new Uint8Array(128);
  private length = 0;

  tag(number: number, wireType: number): void {
    this.varint((number << 3) | wireType);
  }

  varint(value: number): void {
    this.reserve(5);
    let rest = value >>> 0;
    while (rest > 0x7f) {
      this.buffer[this.length++] = (rest & 0x7f) | 0x80;
      rest >>>= 7;
    }
    this.buffer[this.length++] = rest;
  }

  fixed64(value: bigint): void {
    this.reserve(8);
    new DataView(this.buffer.buffer).setBigUint64(this.length, value, true);
    this.length += 8;
  }

  bytes(value: Uint8Array): void {
    this.varint(value.length);
    this.reserve(value.length);
    this.buffer.set(value, this.length);
    this.length += value.length;
  }

  text(value: string): void {
    // A UTF-16 code unit takes three bytes at most.
    this.sized(() => {
      this.reserve(value.length * 3);
      this.length += encoder.encodeInto(value, this.buffer.subarray(this.length)).written;
    });
  }

  /** Write something and its length before it. Most are short: one byte is kept for that, and more are made if needed. */
  sized(write: () => void): void {
    this.reserve(1);
    const start = ++this.length;
    write();
    const size = this.length - start;
    if (size < 0x80) {
      this.buffer[start - 1] = size;
      return;
    }
    const head = size < 0x4000 ? 2 : size < 0x200000 ? 3 : size < 0x10000000 ? 4 : 5;
    this.reserve(head);
    this.buffer.copyWithin(start - 1 + head, start, this.length);
    this.length = start - 1;
    this.varint(size);
    this.length += size;
  }

  finish(): Uint8Array {
    return this.buffer.subarray(0, this.length);
  }

  private reserve(count: number): void {
    if (this.length + count <= this.buffer.length) return;
    const larger = new Uint8Array(Math.max(this.buffer.length * 2, this.length + count));
    larger.set(this.buffer.subarray(0, this.length));
    this.buffer = larger;
  }
}

class Reader {
  private offset = 0;
  private end: number;
  private readonly view: DataView;

  constructor(private readonly buffer: Uint8Array) {
    this.end = buffer.length;
    this.view = new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  }

  get done(): boolean {
    return this.offset >= this.end;
  }

  /** Go into a part that has its length before it: until `leave` there is nothing behind it. Answers where that ends. */
  enter(): number {
    const outer = this.end;
    const length = this.uint32();
    this.need(length);
    this.end = this.offset + length;
    return outer;
  }

  leave(outer: number): void {
    this.end = outer;
  }

  varint(): bigint {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.byte();
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
    throw new Invalid("a varint is longer than ten bytes", "invalid_protobuf");
  }

  /** A tag or a length: the common case is one byte, without a bigint. */
  uint32(): number {
    const first = this.byte();
    if (first < 0x80) return first;
    this.offset--;
    const value = this.varint();
    if (value > 0xffffffffn) throw new Invalid(`a length or tag is too large. got=${value}`, "invalid_protobuf");
    return Number(value);
  }

  fixed64(): bigint {
    this.need(8);
    const value = this.view.getBigUint64(this.offset, true);
    this.offset += 8;
    return value;
  }

  bytes(): Uint8Array {
    const start = this.sized();
    return this.buffer.subarray(start, this.offset);
  }

  text(): string {
    const start = this.sized();
    try {
      return textOf(this.buffer, start, this.offset);
    } catch {
      throw new Invalid("a text is not UTF-8", "invalid_protobuf");
    }
  }

  skip(wireType: number, number: number): void {
    if (number === 0) throw new Invalid("a field has the number 0", "invalid_protobuf");
    if (wireType === VARINT) this.varint();
    else if (wireType === FIXED64) this.fixed64();
    else if (wireType === BYTES) this.bytes();
    else if (wireType === FIXED32) {
      this.need(4);
      this.offset += 4;
    } else throw new Invalid(`a field has an unknown wire type. got=${wireType}`, "invalid_protobuf");
  }

  /** Pass over something with its length before it; where it starts. */
  private sized(): number {
    const length = this.uint32();
    this.need(length);
    this.offset += length;
    return this.offset - length;
  }

  private byte(): number {
    this.need(1);
    return this.buffer[this.offset++]!;
  }

  private need(count: number): void {
    const left = this.end - this.offset;
    if (count > left) throw new Invalid(`a message is cut off. expected=${count} more bytes got=${left}`, "invalid_protobuf");
  }
}
