/**
 * The merge rule: a row is a join semilattice, so replicas agree whatever the order of arrival.
 *
 * Each column keeps its own latest (clock, source) → value. A delete is a tombstone with its (clock, source). A column
 * that is not newer than the tombstone is gone; a later write brings the row back with only what was written after.
 * The twin of `mainstem.model.merge`, against the same test vectors.
 */
import type { RowDelta } from "./delta.js";
import type { Hlc } from "./hlc.js";
import { canonical, compareText, type Json } from "./json.js";

/** When and by whom. */
export interface Stamp {
  readonly hlc: Hlc;
  readonly source: string;
}

export interface Cell extends Stamp {
  readonly value: Json;
}

/** The merged state of one key. The row is there for a reader if any cell is alive. */
export interface Row {
  readonly cells: ReadonlyMap<string, Cell>;
  readonly tombstone?: Stamp | undefined;
}

export const EMPTY: Row = { cells: new Map() };

export function compareStamps(left: Stamp, right: Stamp): number {
  if (left.hlc !== right.hlc) return left.hlc < right.hlc ? -1 : 1;
  return compareText(left.source, right.source);
}

/** The row that one delta makes on its own. */
export function rowOf(delta: RowDelta): Row {
  const stamp = { hlc: delta.hlc, source: delta.clientId };
  if (delta.op === "DELETE") return { cells: new Map(), tombstone: stamp };
  return { cells: new Map(delta.columns.map(({ column, value }) => [column, { ...stamp, value }])) };
}

/** The least row that holds what both know. Commutative, associative, idempotent. */
export function join(left: Row, right: Row): Row {
  const tombstone = laterStamp(left.tombstone, right.tombstone);
  const cells = new Map<string, Cell>();
  const keep = (name: string, cell: Cell): void => {
    if (!tombstone || compareStamps(cell, tombstone) > 0) cells.set(name, cell);
  };
  for (const [name, cell] of left.cells) {
    const other = right.cells.get(name);
    keep(name, other ? laterCell(cell, other) : cell);
  }
  for (const [name, cell] of right.cells) if (!left.cells.has(name)) keep(name, cell);
  return tombstone ? { cells, tombstone } : { cells };
}

/** Merge deltas of one row, in any order, onto a row. */
export function merge(deltas: Iterable<RowDelta>, onto: Row = EMPTY): Row {
  let row = onto;
  for (const delta of deltas) row = join(row, rowOf(delta));
  return row;
}

/** The row as readers see it, or undefined where there is none. */
export function valuesOf(row: Row): Record<string, Json> | undefined {
  if (row.cells.size === 0) return undefined;
  // fromEntries, since a column may be called __proto__.
  return Object.fromEntries(Array.from(row.cells, ([name, cell]) => [name, cell.value]));
}

function laterStamp(left: Stamp | undefined, right: Stamp | undefined): Stamp | undefined {
  if (!left || !right) return left ?? right;
  return compareStamps(left, right) >= 0 ? left : right;
}

function laterCell(left: Cell, right: Cell): Cell {
  const order = compareStamps(left, right);
  if (order !== 0) return order > 0 ? left : right;
  // One source never writes a column twice with one clock; if it does, the order must still not matter.
  return compareText(canonical(left.value), canonical(right.value)) >= 0 ? left : right;
}
