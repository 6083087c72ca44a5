/**
 * One process at a time has a file. Node has no locks of the operating system, so a file beside it names the holder.
 *
 * A holder is a process id with the time at which that process started (where /proc tells): in a container each start has
 * the same small ids. The lock of a process that is gone is taken over; so that two do not take it over at once, the one
 * that may is the one that makes the claim, a file named by the dead holder.
 */
import { readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { Invalid } from "../errors.js";

export interface FileLock {
  release(): void;
}

const held = new Set<string>();

export function lockFile(path: string): FileLock {
  if (held.has(path)) throw inUse(path, "this process");
  const own = identity(process.pid) ?? `${process.pid}-`;
  if (!create(path, own)) takeOver(path, own);
  held.add(path);
  return {
    release: () => {
      if (held.delete(path)) rmSync(path, { force: true });
    },
  };
}

function takeOver(path: string, own: string): void {
  const holder = read(path);
  if (holder !== undefined && isAlive(holder)) throw inUse(path, `process ${holder.split("-")[0]}`);
  const claim = `${path}.${holder || "empty"}`;
  if (!create(claim, own)) throw inUse(path, "a process that takes it over");
  try {
    // Somebody may have taken it over between the look and the claim.
    if (read(path) !== holder) throw inUse(path, "another process");
    const next = `${path}.${own}.next`;
    writeFileSync(next, own);
    renameSync(next, path);
  } finally {
    rmSync(claim, { force: true });
  }
}

/** Make a file that nobody else has made. */
function create(path: string, text: string): boolean {
  try {
    writeFileSync(path, text, { flag: "wx" });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

function read(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}

function isAlive(holder: string): boolean {
  const [pid = "", started = ""] = holder.split("-");
  // Its maker died between making the file and writing into it.
  if (!/^\d+$/.test(pid)) return false;
  try {
    process.kill(Number(pid), 0);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ESRCH") return false;
  }
  const now = identity(Number(pid));
  // An id that was given to another process since, ourselves included.
  return now === undefined || !started ? Number(pid) !== process.pid : now === holder;
}

/** A process id and the time at which it started; undefined where nobody tells. */
function identity(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The name, in parentheses, may have blanks; the start is the 20th field after it.
    return `${pid}-${stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]}`;
  } catch {
    return undefined;
  }
}

const inUse = (path: string, by: string): Invalid =>
  new Invalid(`the database is in use by ${by}. If that is not so, remove ${path}`, "in_use");
