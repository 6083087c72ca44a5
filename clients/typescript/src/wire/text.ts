/**
 * UTF-8 as text. Most texts of a sync are short and plain ASCII, and for those a call of the browser's decoder costs more
 * than the reading itself.
 */
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Longer ones are the decoder's. */
const SHORT_MAX = 48;
const SPACE = 0x20;
const DELETE = 0x7f;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/** Throws a TypeError where the bytes are not UTF-8. */
export function textOf(bytes: Uint8Array, start = 0, end = bytes.length): string {
  return plainText(bytes, start, end) ?? decoder.decode(bytes.subarray(start, end));
}

/** The value of a JSON text that is a string without anything escaped; undefined for any other. */
export function plainString(bytes: Uint8Array): string | undefined {
  const last = bytes.length - 1;
  if (last < 1 || bytes[0] !== QUOTE || bytes[last] !== QUOTE) return undefined;
  return plainText(bytes, 1, last);
}

/** Printable ASCII without quotes and backslashes, if it is that and short. */
function plainText(bytes: Uint8Array, start: number, end: number): string | undefined {
  if (end - start > SHORT_MAX) return undefined;
  let text = "";
  for (let index = start; index < end; index++) {
    const unit = bytes[index]!;
    if (unit < SPACE || unit >= DELETE || unit === QUOTE || unit === BACKSLASH) return undefined;
    text += String.fromCharCode(unit);
  }
  return text;
}
