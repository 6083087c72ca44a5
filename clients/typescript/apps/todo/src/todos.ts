/** The list itself: rows of the table `todos` as the page shows them, and what can be done to them. */
import type { LocalWrite, MergedMark, RowView, SyncTracker } from "@mainstem/client";
import { rankBetween } from "./rank";

export const TABLE = "todos";

export interface Todo {
  readonly id: string;
  readonly title: string;
  readonly done: boolean;
  readonly rank: string;
  readonly pending: boolean;
  readonly merged: MergedMark | undefined;
}

/** In the order of the list. A column that another app left out or filled oddly has a harmless stand-in. */
export function todosOf(rows: readonly RowView[], synced: boolean): Todo[] {
  return rows
    .map(({ rowId, values, pending, merged }) => ({
      id: rowId,
      title: typeof values["title"] === "string" ? values["title"] : "",
      done: values["done"] === true,
      rank: typeof values["rank"] === "string" ? values["rank"] : "i",
      pending: pending && synced,
      merged,
    }))
    .sort((left, right) => (left.rank < right.rank ? -1 : left.rank > right.rank ? 1 : left.id < right.id ? -1 : 1));
}

export class TodoList {
  constructor(private readonly tracker: SyncTracker) {}

  async add(todos: readonly Todo[], title: string): Promise<void> {
    const rank = rankBetween(undefined, todos[0]?.rank);
    await this.tracker.insert(TABLE, crypto.randomUUID(), { title, done: false, rank });
  }

  rename(id: string, title: string): Promise<boolean> {
    return this.tracker.update(TABLE, id, { title });
  }

  complete(id: string, done: boolean): Promise<boolean> {
    return this.tracker.update(TABLE, id, { done });
  }

  remove(todos: readonly Todo[]): Promise<number> {
    return this.tracker.batch(todos.map(({ id }): LocalWrite => ({ op: "DELETE", table: TABLE, rowId: id })));
  }

  restore(todos: readonly Todo[]): Promise<number> {
    return this.tracker.batch(
      todos.map(({ id, title, done, rank }): LocalWrite => ({ op: "INSERT", table: TABLE, rowId: id, columns: { title, done, rank } })),
    );
  }

  /** Put a row where another one stands now. Only the moved row changes. */
  move(todos: readonly Todo[], id: string, to: number): Promise<boolean> {
    const others = todos.filter((todo) => todo.id !== id);
    const place = Math.max(0, Math.min(to, others.length));
    return this.tracker.update(TABLE, id, { rank: rankBetween(others[place - 1]?.rank, others[place]?.rank) });
  }
}
