/**
 * JSON values, and the one text that a value has.
 *
 * The canonical text is compact, with keys sorted by UTF-16 code units and numbers as ECMAScript writes them (RFC 8785).
 * Delta ids hash it and ties are broken by it, so every client must arrive at the same bytes.
 */
import { Invalid } from "../errors.js";

export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** The server refuses deeper values too. */
export const DEPTH_MAX = 64;

/** The canonical text of a value; anything that JSON cannot carry unchanged is refused. */
export function canonical(value: Json, depth = 0): string {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") {
    if (!Number.isFinite(value)) throw new Invalid(`a number must be finite. got=${value}`, "invalid_value");
    return JSON.stringify(value);
  }
  if (typeof value === "string") return text(value);
  if (depth >= DEPTH_MAX) throw new Invalid(`a value is nested too deep. expected=at most ${DEPTH_MAX} levels`, "invalid_value");
  if (Array.isArray(value)) return `[${value.map((item: Json) => canonical(item, depth + 1)).join(",")}]`;
  if (typeof value === "object" && isPlain(value)) {
    const members = value as { readonly [key: string]: Json };
    const parts = Object.keys(members)
      .sort()
      .map((key) => `${text(key)}:${canonical(members[key] as Json, depth + 1)}`);
    return `{${parts.join(",")}}`;
  }
  throw new Invalid(`a value must be JSON. got=${typeof value}`, "invalid_value");
}

/** Order of two texts by code point, which is also the order of their UTF-8 bytes. */
export function compareText(left: string, right: string): number {
  const length = Math.min(left.length, right.length);
  for (let index = 0; index < length; index++) {
    const a = left.charCodeAt(index);
    const b = right.charCodeAt(index);
    if (a !== b) return rank(a) - rank(b);
  }
  return left.length - right.length;
}

/** Text that has a UTF-8 form: a lone surrogate would reach the server as something else. */
export function checkText(value: string, what: string): void {
  if (/[\ud800-\udfff]/u.test(value)) throw new Invalid(`${what} has half of a surrogate pair`, "invalid_value");
}

function text(value: string): string {
  checkText(value, "a text");
  return JSON.stringify(value);
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype || Object.getPrototypeOf(prototype) === null;
}

// Surrogates stand for code points above U+FFFF, so they come after every other code unit.
const rank = (unit: number): number => (unit >= 0xd800 && unit <= 0xdfff ? unit + 0x10000 : unit);
