/** The changes that a producer sends, as the CDC protocol has them (docs/protocol/cdc.md). */
import { checkText, type Json } from "../model/json.js";
import { Invalid } from "../errors.js";

export type Columns = Readonly<Record<string, Json>>;

export interface Change {
  readonly operation: "INSERT" | "UPDATE" | "DELETE" | "READ";
  /** `orders` is the table `default.orders`; `sales.orders` has its namespace with it. */
  readonly table: string;
  readonly rowId: string | number;
  /** The columns that were written: null sets a column to null, one that is missing is not touched. */
  readonly after?: Columns;
  readonly before?: Columns;
  readonly timestamp?: number;
  readonly metadata?: Columns;
}

export const insert = (table: string, rowId: string | number, after: Columns): Change => ({ operation: "INSERT", table, rowId, after });

export const update = (table: string, rowId: string | number, after: Columns, before?: Columns): Change =>
  before ? { operation: "UPDATE", table, rowId, after, before } : { operation: "UPDATE", table, rowId, after };

export const remove = (table: string, rowId: string | number): Change => ({ operation: "DELETE", table, rowId });

/** The text of a batch's events. JSON would silently turn NaN and half characters into something else: they are refused. */
export function encodeChanges(changes: readonly Change[]): string {
  if (changes.length === 0) throw new Invalid("a batch must have a change");
  return JSON.stringify(changes, (key: string, value: unknown) => {
    if (typeof value === "number" && !Number.isFinite(value)) throw new Invalid(`${key}: a number must be finite. got=${value}`, "invalid_value");
    if (typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value)) {
      throw new Invalid(`${key}: beyond 2^53 a number is not exact; send it as text. got=${value}`, "invalid_value");
    }
    if (typeof value === "bigint") throw new Invalid(`${key}: a bigint is not JSON; send it as text. got=${value}`, "invalid_value");
    if (typeof value === "string") checkText(value, key);
    return value;
  });
}
