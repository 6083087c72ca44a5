/**
 * Places in a list, as texts that sort: between any two there is always another, so a move writes one row only.
 *
 * A digit is one of 36; no rank ends in the lowest digit, or nothing would fit before it.
 */
const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz";

/** A rank after `before` and before `after`; undefined stands for the ends of the list. */
export function rankBetween(before: string | undefined, after: string | undefined): string {
  // Two devices may have given one rank to two rows: then there is no room, and right after the first is good enough.
  if (before !== undefined && after !== undefined && before >= after) return `${before}i`;
  let rank = "";
  let upper = after;
  for (let place = 0; ; place++) {
    const low = digit(before, place, 0);
    const high = upper === undefined ? DIGITS.length : digit(upper, place, 0);
    if (high - low > 1) return rank + DIGITS[(low + high) >> 1];
    rank += DIGITS[low];
    // One below the upper bound's digit: whatever follows is below the bound.
    if (high > low) upper = undefined;
  }
}

function digit(rank: string | undefined, place: number, fallback: number): number {
  const found = DIGITS.indexOf(rank?.[place] ?? "");
  return rank?.[place] === undefined || found < 0 ? fallback : found;
}
