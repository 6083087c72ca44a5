/** What the stores hold. These shapes are on people's disks: change them only with a new IndexedDB version. */
import type { RowDelta } from "../model/delta.js";
import type { Hlc } from "../model/hlc.js";
import type { Json } from "../model/json.js";
import type { Row } from "../model/merge.js";

/** `meta`: one record, read and written in every transaction that stamps or moves the cursor. */
export interface StateRecord {
  readonly clientId: string;
  /** The last clock value issued or seen. */
  readonly clock: Hlc;
  /** The highest clock that the server is known to have accepted: stamping again must stay after it. */
  readonly observed: Hlc;
  /** What to add to the wall clock; learnt when the server refuses our clock. */
  readonly offsetMs: number;
  /** The server's arrival clock up to which everything is here; 0 before the first sync. */
  readonly cursor: Hlc;
  readonly pending: number;
  readonly dead: number;
}

/** `rows`: the merged row, and what a merge last did to an edit made here. */
export interface RowRecord extends Row {
  readonly merged?: MergedMark | undefined;
}

/** Someone else's change met ours. `took`: columns that are now theirs; `kept`: where ours is newer. */
export interface MergedMark {
  readonly by: string;
  readonly hlc: Hlc;
  readonly took: readonly string[];
  readonly kept: readonly string[];
}

/** `queue`, by clock: what the server has not acknowledged yet. */
export interface QueueRecord {
  readonly delta: RowDelta;
}

/** `dead`, by clock: what the server refused for good. */
export interface DeadRecord extends QueueRecord {
  readonly reason: string;
  readonly message: string;
  readonly atMs: number;
}

/** `touched`: rows edited here that no completed pull has followed yet. */
export interface TouchedRecord {
  readonly pending: number;
  readonly columns: readonly string[];
}

/** A row as the app sees it. */
export interface RowView {
  readonly rowId: string;
  readonly values: Readonly<Record<string, Json>>;
  /** Edits of this row that wait for the server. */
  readonly pending: boolean;
  readonly merged: MergedMark | undefined;
}

export const queueId = (hlc: Hlc): string => hlc.toString(16).padStart(16, "0");
