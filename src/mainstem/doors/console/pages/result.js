// Rows of an answer as a table: numbers to the right, nulls told from the text "null".
import { make } from "./dom.js";

const ROWS_SHOWN = 500;
export const isNumeric = (type) => /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|U?INTEGER|DECIMAL.*|DOUBLE|FLOAT|REAL)$/i.test(type);
export const isTime = (type) => /^(DATE|TIMESTAMP.*)$/i.test(type);

export function grid(answer) {
  const numbers = answer.columns.map((column) => isNumeric(column.type));
  const heads = answer.columns.map((column, n) => make("th", { class: numbers[n] ? "n" : "", title: column.type, scope: "col" }, column.name));
  const rows = answer.rows.slice(0, ROWS_SHOWN).map((row) => make("tr", {}, ...row.map((value, n) => cell(value, numbers[n]))));
  if (!rows.length) rows.push(make("tr", {}, make("td", { class: "empty", colspan: Math.max(1, heads.length) }, "No rows.")));
  return make("table", { class: "grid" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

function cell(value, isNumber) {
  if (value === null) return make("td", { class: `null${isNumber ? " n" : ""}` }, "null");
  const words = typeof value === "object" ? JSON.stringify(value) : String(value);
  return make("td", { class: isNumber ? "n" : "", title: words.length > 60 ? words : null }, words);
}
