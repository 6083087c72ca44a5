/** Places in the todo list: there is always one between two others. */
import fc from "fast-check";
import { expect, it } from "vitest";
import { rankBetween } from "../apps/todo/src/rank.js";

it("finds a place anywhere, again and again", () => {
  fc.assert(
    fc.property(fc.array(fc.nat({ max: 1_000 }), { maxLength: 200 }), (places) => {
      const ranks: string[] = [];
      for (const place of places) {
        const at = place % (ranks.length + 1);
        ranks.splice(at, 0, rankBetween(ranks[at - 1], ranks[at]));
      }
      expect([...ranks].sort()).toEqual(ranks);
      expect(new Set(ranks).size).toBe(ranks.length);
    }),
  );
});

it.each([0, 1])("stays short enough where everything goes to one end (%i)", (end) => {
  const ranks = [rankBetween(undefined, undefined)];
  for (let index = 0; index < 200; index++) {
    if (end === 0) ranks.unshift(rankBetween(undefined, ranks[0]));
    else ranks.push(rankBetween(ranks.at(-1), undefined));
  }
  expect([...ranks].sort()).toEqual(ranks);
  expect(Math.max(...ranks.map((rank) => rank.length))).toBeLessThan(60);
});

it("makes do where two rows have one rank", () => {
  expect(rankBetween("i", "i") > "i").toBe(true);
});
