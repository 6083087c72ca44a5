/**
 * The store for Node: a journal of transactions in one file, and its contents in memory.
 *
 * A write is one frame at the end of the file: length, checksum, and the records that it put or removed. A strict write
 * has returned when the disk has it. A frame that a crash cut off is cut away when the file is opened, so a transaction
 * is there as a whole or not at all. When most of a journal is about records that are gone, it is written anew beside the
 * old one and takes its name. One process at a time has the file: a lock beside it names the process.
 */
import { closeSync, existsSync, fdatasyncSync, fsyncSync, ftruncateSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { dirname, resolve } from "node:path";
import { deserialize, serialize } from "node:v8";
import { crc32 } from "node:zlib";
import { Invalid, MainstemError } from "../errors.js";
import { lockFile, type FileLock } from "./file-lock.js";
import { MemoryStore, type Groups, type Step } from "./memory.js";
import { STORES, type ReadTransaction, type Store, type StoreName, type WriteOptions, type WriteTransaction } from "./store.js";

/** The first bytes of every journal. These, and the shape of a frame, are on people's disks. */
const MAGIC = Buffer.from("mainstem-journal-1\n");
const HEAD_BYTES = 8;
/** A journal is written anew when it has grown by this factor. */
const GROWTH = 4;
const COMPACT_BYTES_MIN = 1024 * 1024;
const RECORDS_PER_FRAME = 1_000;

export interface FileStoreOptions {
  /** A journal that is smaller is not worth writing anew. 1 MiB by default. */
  readonly compactBytesMin?: number;
}

export class FileStore implements Store {
  private failed: MainstemError | undefined;
  private closed = false;
  private compactAt: number;

  private constructor(
    private readonly path: string,
    private readonly lock: FileLock,
    private readonly memory: MemoryStore,
    private file: number,
    private bytes: number,
    private readonly compactBytesMin: number,
  ) {
    this.compactAt = this.nextCompaction();
  }

  /** Open or make the file. Throws `Invalid` where another process has it open, or where it is not one of ours. */
  static async open(path: string, options: FileStoreOptions = {}): Promise<FileStore> {
    const whole = resolve(path);
    mkdirSync(dirname(whole), { recursive: true });
    const lock = lockFile(`${whole}.lock`);
    try {
      return openJournal(whole, lock, options.compactBytesMin ?? COMPACT_BYTES_MIN, (...parts) => new FileStore(...parts));
    } catch (error) {
      lock.release();
      throw error;
    }
  }

  async read<T>(stores: readonly StoreName[], body: (transaction: ReadTransaction) => Promise<T>): Promise<T> {
    this.check();
    return this.memory.read(stores, body);
  }

  async write<T>(
    _stores: readonly StoreName[],
    body: (transaction: WriteTransaction) => Promise<T>,
    options: WriteOptions = {},
  ): Promise<T> {
    // What the disk refuses throws in the transaction, which then leaves nothing in memory either.
    return this.memory.writeAndKeep(body, (steps) => this.append(steps, options.strict ?? false));
  }

  close(): void {
    if (this.closed) return;
    this.closed = true;
    try {
      if (!this.failed) fdatasyncSync(this.file);
    } finally {
      closeSync(this.file);
      this.lock.release();
    }
  }

  private append(steps: readonly Step[], strict: boolean): void {
    this.check();
    const data = steps.length > 0 ? frame(steps) : Buffer.alloc(0);
    try {
      writeAll(this.file, data, this.bytes);
    } catch (error) {
      this.takeBack();
      throw failure(this.path, error);
    }
    // A disk that refused to sync may have lost pages and forgotten it: nothing after that can be trusted.
    if (strict) this.orFail(() => fdatasyncSync(this.file));
    this.bytes += data.length;
    if (this.bytes >= this.compactAt) this.compact();
  }

  /** Cut off what a failed write left behind, so that the next frame stands where the last good one ends. */
  private takeBack(): void {
    this.orFail(() => ftruncateSync(this.file, this.bytes));
  }

  private orFail(body: () => void): void {
    try {
      body();
    } catch (error) {
      this.failed = failure(this.path, error);
      throw this.failed;
    }
  }

  /** The memory has the transaction in hand already. */
  private compact(): void {
    const next = `${this.path}.next`;
    let file: number | undefined;
    let bytes: number;
    try {
      file = openSync(next, "w+");
      bytes = writeWhole(file, this.memory.contents());
      fsyncSync(file);
      renameSync(next, this.path);
    } catch {
      // The disk may be too full for two. The old journal is whole; the next try comes when it has grown again.
      if (file !== undefined) closeSync(file);
      rmSync(next, { force: true });
      this.compactAt = this.nextCompaction();
      return;
    }
    closeSync(this.file);
    this.file = file;
    this.bytes = bytes;
    this.compactAt = this.nextCompaction();
    this.orFail(() => syncFolder(dirname(this.path)));
  }

  private nextCompaction(): number {
    return Math.max(this.compactBytesMin, this.bytes * GROWTH);
  }

  private check(): void {
    if (this.failed) throw this.failed;
    if (this.closed) throw new Invalid(`the store is closed. got=${this.path}`, "closed");
  }
}

type Build = (
  path: string,
  lock: FileLock,
  memory: MemoryStore,
  file: number,
  bytes: number,
  compactBytesMin: number,
) => FileStore;

function openJournal(path: string, lock: FileLock, compactBytesMin: number, build: Build): FileStore {
  // What a crash left of a journal that was being written anew.
  rmSync(`${path}.next`, { force: true });
  const memory = new MemoryStore();
  const isNew = !existsSync(path);
  const file = openSync(path, isNew ? "wx+" : "r+");
  try {
    const data = readFileSync(path);
    const bytes = isNew || data.length < MAGIC.length ? begin(path, file, data) : replay(path, data, memory);
    if (bytes < data.length) {
      // Nothing that was strict is in there, but it is not ours to destroy unseen.
      writeFileSync(`${path}.torn`, data.subarray(bytes));
      ftruncateSync(file, bytes);
      fsyncSync(file);
    }
    return build(path, lock, memory, file, bytes, compactBytesMin);
  } catch (error) {
    closeSync(file);
    throw error;
  }
}

/** The first bytes of a new journal, or of one whose maker died at them. */
function begin(path: string, file: number, data: Buffer): number {
  if (!MAGIC.subarray(0, data.length).equals(data)) throw notOurs(path);
  writeAll(file, MAGIC, 0);
  fsyncSync(file);
  syncFolder(dirname(path));
  return MAGIC.length;
}

/** Fill the memory from the frames; answers where the last whole one ends. */
function replay(path: string, data: Buffer, memory: MemoryStore): number {
  if (!data.subarray(0, MAGIC.length).equals(MAGIC)) throw notOurs(path);
  let at = MAGIC.length;
  while (at + HEAD_BYTES <= data.length) {
    const ends = at + HEAD_BYTES + data.readUInt32LE(at);
    if (ends > data.length) break;
    const body = data.subarray(at + HEAD_BYTES, ends);
    if (crc32(body) !== data.readUInt32LE(at + 4)) break;
    memory.replay(deserialize(body) as Step[]);
    at = ends;
  }
  return at;
}

function frame(steps: readonly Step[]): Buffer {
  const body = serialize(steps);
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeUInt32LE(body.length, 0);
  head.writeUInt32LE(crc32(body), 4);
  return Buffer.concat([head, body]);
}

/** A journal of nothing but what there is; answers its length. */
function writeWhole(file: number, contents: ReadonlyMap<StoreName, Groups>): number {
  let at = writeAll(file, MAGIC, 0);
  let steps: Step[] = [];
  const spill = (): void => {
    if (steps.length > 0) at += writeAll(file, frame(steps), at);
    steps = [];
  };
  for (const store of STORES) {
    for (const [group, values] of contents.get(store) ?? []) {
      for (const [id, value] of values) {
        steps.push([store, group, id, value]);
        if (steps.length === RECORDS_PER_FRAME) spill();
      }
    }
  }
  spill();
  return at;
}

function writeAll(file: number, data: Buffer, at: number): number {
  let written = 0;
  while (written < data.length) written += writeSync(file, data, written, data.length - written, at + written);
  return written;
}

/** A new name survives a power cut only once its folder is on the disk. Windows has no such thing. */
function syncFolder(folder: string): void {
  if (process.platform === "win32") return;
  const file = openSync(folder, "r");
  try {
    fsyncSync(file);
  } finally {
    closeSync(file);
  }
}

const notOurs = (path: string): Invalid => new Invalid(`not a journal of Mainstem's. got=${path}`, "corrupt");

const failure = (path: string, error: unknown): MainstemError =>
  new MainstemError(`the file cannot be written: ${path}. got=${error instanceof Error ? error.message : String(error)}`);
