/** A table's rows, kept current while someone watches: after a change only the rows that changed are read again. */
import { compareText } from "../model/json.js";
import type { ChangedRows, LocalDB } from "./local-db.js";
import type { RowView } from "./records.js";

export class LiveTable {
  /** The rows by id, a new array after each change; undefined until the first read is done. */
  rows: readonly RowView[] | undefined;
  private byId = new Map<string, RowView>();
  private readonly listeners = new Set<() => void>();
  private stop: (() => void) | undefined;
  /** Rows to read again; null for all of them, undefined for none. */
  private stale: Set<string> | null | undefined = null;
  private reading = false;

  constructor(
    private readonly db: LocalDB,
    readonly table: string,
  ) {}

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    if (!this.stop) {
      this.stale = null;
      this.stop = this.db.on("changed", ({ rows }) => this.note(rows));
      void this.refresh();
    }
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size > 0) return;
      this.stop?.();
      this.stop = undefined;
    };
  }

  private note(changed: ChangedRows): void {
    const ids = changed.get(this.table);
    if (ids === undefined) return;
    if (this.stale !== null) this.stale = ids === null ? null : new Set([...(this.stale ?? []), ...ids]);
    void this.refresh();
  }

  /** One read at a time; what changes meanwhile is read in the next round. */
  private async refresh(): Promise<void> {
    if (this.reading) return;
    this.reading = true;
    try {
      while (this.stale !== undefined && this.stop) {
        const stale: Set<string> | null = this.stale;
        this.stale = undefined;
        await this.readAgain(stale);
        for (const listener of [...this.listeners]) listener();
      }
    } catch {
      // The store is closed or broken: writes say so where the app can act. The next change reads everything again.
      this.stale = null;
    } finally {
      this.reading = false;
    }
  }

  private async readAgain(ids: Set<string> | null): Promise<void> {
    if (ids === null) {
      this.byId = new Map((await this.db.all(this.table)).map((row) => [row.rowId, row]));
    } else {
      const fresh = await this.db.getMany(this.table, ids);
      for (const id of ids) {
        const row = fresh.get(id);
        if (row) this.byId.set(id, row);
        else this.byId.delete(id);
      }
    }
    this.rows = [...this.byId.values()].sort((left, right) => compareText(left.rowId, right.rowId));
  }
}
