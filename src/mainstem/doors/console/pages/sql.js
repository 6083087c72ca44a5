// SQL as far as an editor needs it: tokens to colour, words to complete, and where an error is.
const KEYWORDS = new Set(`select from where group by order having limit offset as on using join left right full outer inner cross
  union all distinct with case when then else end and or not in is null like ilike between exists asc desc over partition rows
  range filter qualify values cast interval true false count sum avg min max coalesce date_trunc arg_max row_number lateral unnest`.split(/\s+/));
const TOKEN = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*'?)|("(?:[^"]|"")*"?)|(\d+(?:\.\d+)?(?:e[+-]?\d+)?)|([A-Za-z_][A-Za-z0-9_]*)|(\s+|.)/gi;
const KINDS = ["comment", "string", "name", "number", "word", ""];

// The text as [kind, piece], which together are the text again.
export function tokens(text) {
  return [...text.matchAll(TOKEN)].map((found) => {
    const at = found.slice(1).findIndex((piece) => piece !== undefined);
    const kind = KINDS[at];
    return [kind === "word" ? (KEYWORDS.has(found[0].toLowerCase()) ? "keyword" : "") : kind, found[0]];
  });
}

// The word that ends at the caret: what is completed.
export const wordBefore = (text, at) => text.slice(0, at).match(/[A-Za-z0-9_."]*$/)[0];

// Tables by name, columns of the tables that the text names (or of all), keywords; at most `most`.
export function completions(word, text, tables, most = 6) {
  const wanted = word.replaceAll('"', "").toLowerCase();
  if (!wanted) return [];
  const named = tables.filter((table) => text.toLowerCase().includes(table.table.slice(table.table.lastIndexOf(".") + 1).toLowerCase()));
  const last = wanted.slice(wanted.lastIndexOf(".") + 1);
  const columns = [...new Set((named.length ? named : tables).flatMap((table) => table.columns.map((column) => column.name)))];
  const found = [
    ...tables.filter((table) => table.table.toLowerCase().includes(wanted)).map((table) => ({ kind: "table", text: table.table })),
    ...columns.filter((name) => last && name.toLowerCase().startsWith(last)).map((name) => ({ kind: "column", text: name, after: word.slice(0, word.lastIndexOf(".") + 1) })),
    ...[...KEYWORDS].filter((name) => name.startsWith(wanted) && name !== wanted).map((name) => ({ kind: "keyword", text: name.toUpperCase() })),
  ];
  return found.slice(0, most);
}

// Where a message says that the error is: [from, to] in the text, or null.
export function placeOf(message, text) {
  const line = message.match(/LINE (\d+): (.*)\n( *)\^/);
  if (line) {
    const lines = text.split("\n");
    const start = lines.slice(0, Number(line[1]) - 1).reduce((sum, each) => sum + each.length + 1, 0);
    const shown = line[2];
    const caret = line[3].length - `LINE ${line[1]}: `.length;
    // A long line is cut in the message: what follows the caret is looked for in the line itself.
    const from = shown.startsWith("...") ? lines[Number(line[1]) - 1]?.indexOf(shown.slice(caret).replace(/\.\.\.$/, "")) ?? -1 : caret;
    if (from >= 0) return [start + from, start + from + (text.slice(start + from).match(/^("[^"]*"|[\w.]+|.)/)?.[0].length ?? 1)];
  }
  const named = message.match(/at or near "([^"]+)"/)?.[1] ?? message.match(/(?:column|table|function)[^"\n]{0,40}"([^"]+)"/i)?.[1] ?? message.match(/got=([\w."]+)/)?.[1];
  if (!named) return null;
  const short = named.slice(named.lastIndexOf(".") + 1);
  const at = text.toLowerCase().indexOf(short.toLowerCase());
  return at < 0 ? null : [at, at + short.length];
}
