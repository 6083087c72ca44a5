// Rows of an answer as a table: numbers to the right, nulls told from the text "null".
import { make } from "./dom.js";

const ROWS_SHOWN = 500;
export const isNumeric = (type) => /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|U?INTEGER|DECIMAL.*|DOUBLE|FLOAT|REAL)$/i.test(type);
export const isTime = (type) => /^(DATE|TIMESTAMP.*)$/i.test(type);

export function grid(answer) {
  const numbers = answer.columns.map((column) => isNumeric(column.type));
  const heads = answer.columns.map((column, n) => make("th", { class: numbers[n] ? "n" : "", title: column.type, scope: "col" }, column.name));
  const shown = answer.columns.map(({ type }) => (isTime(type) ? brief : type === "BLOB" ? text : (value) => value));
  const rows = answer.rows.slice(0, ROWS_SHOWN).map((row) => make("tr", {}, ...row.map((value, n) => cell(shown[n](value), numbers[n]))));
  const told = (words) => make("tr", {}, make("td", { class: "empty", colspan: Math.max(1, heads.length) }, words));
  if (!rows.length) rows.push(told("No rows."));
  if (answer.rows.length > ROWS_SHOWN) rows.push(told(`The first ${ROWS_SHOWN} of ${answer.rows.length} rows; a file has all of them.`));
  return make("table", { class: "grid values" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

// A time without the zeros at its end, which say nothing: they take the room that a phone has.
const brief = (value) => (typeof value === "string" ? value.replace(/(\.\d*?)0+(?=Z|[+-]|$)/, "$1").replace(/\.(?=Z|[+-]|$)/, "").replace("T", " ") : value);

// Bytes come as base64. What Kafka's clients send is text more often than not: such bytes are shown as what they say.
function text(value) {
  if (typeof value !== "string") return value;
  try {
    const told = new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(atob(value), (each) => each.charCodeAt(0)));
    return /[\x00-\x08\x0e-\x1f]/.test(told) ? value : told;
  } catch { return value; }
}

function cell(value, isNumber) {
  if (value === null) return make("td", { class: `null${isNumber ? " n" : ""}` }, "null");
  const words = typeof value === "object" ? JSON.stringify(value) : String(value);
  return make("td", { class: isNumber ? "n" : "", title: words.length > 20 ? words : null }, words);
}
