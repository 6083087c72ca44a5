/** Hooks for React. A component shows what the local copy holds and follows it. */
import { useCallback, useMemo, useSyncExternalStore } from "react";
import type { LocalDB } from "./db/local-db.js";
import type { RowView } from "./db/records.js";
import type { SyncCoordinator } from "./sync/coordinator.js";
import type { SyncStatus } from "./sync/status.js";

/** The rows of a table, by id; undefined until they are read for the first time. */
export function useTable(db: LocalDB, table: string): readonly RowView[] | undefined {
  const live = useMemo(() => db.live(table), [db, table]);
  const subscribe = useCallback((listener: () => void) => live.subscribe(listener), [live]);
  const read = (): readonly RowView[] | undefined => live.rows;
  return useSyncExternalStore(subscribe, read, read);
}

/** One row; undefined while it is not there. */
export function useRow(db: LocalDB, table: string, rowId: string): RowView | undefined {
  return useTable(db, table)?.find((row) => row.rowId === rowId);
}

/** The state of the sync. */
export function useSyncStatus(coordinator: SyncCoordinator): SyncStatus {
  const subscribe = useCallback((listener: () => void) => coordinator.on("status", listener), [coordinator]);
  const read = (): SyncStatus => coordinator.status;
  return useSyncExternalStore(subscribe, read, read);
}
