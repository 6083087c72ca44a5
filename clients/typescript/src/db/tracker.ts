/** The app's way to write: inserts, updates and deletes become column deltas in the queue. */
import { Invalid } from "../errors.js";
import { checkName } from "../model/delta.js";
import type { Json } from "../model/json.js";
import type { LocalDB } from "./local-db.js";
import type { LocalWrite } from "./replica.js";

export type Columns = Readonly<Record<string, Json>>;

export class SyncTracker {
  constructor(private readonly db: LocalDB) {}

  /** Write a row with these columns. Over a row that is there, they are set as an update would set them. */
  async insert(table: string, rowId: string, columns: Columns): Promise<void> {
    await this.batch([{ op: "INSERT", table, rowId, columns }]);
  }

  /** Set columns; only those whose value differs travel. False if the row is not there or nothing differs. */
  async update(table: string, rowId: string, columns: Columns): Promise<boolean> {
    return (await this.batch([{ op: "UPDATE", table, rowId, columns }])) > 0;
  }

  /** False if the row is not there. */
  async delete(table: string, rowId: string): Promise<boolean> {
    return (await this.batch([{ op: "DELETE", table, rowId }])) > 0;
  }

  /** Several writes that are stored together or not at all. How many of them changed something. */
  async batch(writes: readonly LocalWrite[]): Promise<number> {
    for (const write of writes) check(write);
    const made = await this.db.write(writes);
    return made.filter((delta) => delta !== undefined).length;
  }
}

function check(write: LocalWrite): void {
  checkName(write.table, "a table's name");
  checkName(write.rowId, "a row's id");
  if (write.op === "DELETE") return;
  const names = Object.keys(write.columns);
  if (write.op === "INSERT" && names.length === 0) throw new Invalid("a row needs a column", "invalid_format");
  for (const name of names) checkName(name, "a column's name");
}
