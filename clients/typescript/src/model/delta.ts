/** The delta: one write to one row, with only the columns that were written. */
import { Invalid } from "../errors.js";
import type { Hlc } from "./hlc.js";
import { canonical, checkText, type Json } from "./json.js";
import { sha256Hex } from "./sha256.js";

/** `EVICT` comes from the server alone: the row left this client's view. */
export type Operation = "INSERT" | "UPDATE" | "DELETE" | "EVICT";

export interface ColumnDelta {
  readonly column: string;
  readonly value: Json;
}

export interface RowDelta {
  readonly op: Operation;
  readonly table: string;
  readonly rowId: string;
  readonly columns: readonly ColumnDelta[];
  readonly hlc: Hlc;
  readonly clientId: string;
  readonly deltaId: string;
}

export const NAME_LENGTH_MAX = 255;

const encoder = new TextEncoder();

/** The id under which the server counts a delta once, for ever. */
export function deltaIdOf(delta: Omit<RowDelta, "deltaId" | "op">): string {
  const content = canonical({
    clientId: delta.clientId,
    columns: delta.columns.map(({ column, value }) => ({ column, value })),
    hlc: String(delta.hlc),
    rowId: delta.rowId,
    table: delta.table,
  });
  return sha256Hex(encoder.encode(content));
}

export function withId(delta: Omit<RowDelta, "deltaId">): RowDelta {
  return { ...delta, deltaId: deltaIdOf(delta) };
}

/** Names that every part of the system can carry. The server has the last word on tables. */
export function checkName(name: string, what: string): void {
  if (name.length === 0 || name.length > NAME_LENGTH_MAX) {
    throw new Invalid(`${what} has a bad length. expected=1..${NAME_LENGTH_MAX} got=${name.length}`, "invalid_name");
  }
  if (/[\u0000-\u001f\u007f]/.test(name)) throw new Invalid(`${what} has a control character`, "invalid_name");
  checkText(name, what);
}
