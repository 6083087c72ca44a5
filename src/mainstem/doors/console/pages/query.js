// The query editor: colours, completion, history, results as a table, a plot where it is asked for or obviously right,
// exports, and errors at their place.
import { card, counted, make, number } from "./dom.js";
import { ask } from "./api.js";
import { completions, placeOf, tokens, wordBefore } from "./sql.js";
import { grid, isNumeric, isTime } from "./result.js";
import { ofResult } from "./plot.js";

const HISTORY_MAX = 50;
const HISTORY = "mainstem-queries";

export function query({ view }) {
  document.title = "Query · Mainstem";
  const editor = new Editor();
  const run = make("button", { class: "primary", id: "run", type: "submit" }, "Run");
  const freshness = select("freshness", ["snapshot", "latest"]);
  const limit = select("limit", ["100", "1000", "10000"], "1000");
  const note = make("span", { id: "query-note", class: "note", role: "status" });
  const wrong = make("pre", { id: "query-error", class: "trouble", role: "alert", hidden: true });
  const results = new Results();
  const history = new History((sql) => { editor.set(sql); editor.area.focus(); });
  let running = null;

  async function submit() {
    running?.abort();
    const mine = running = new AbortController();
    const sql = editor.area.value;
    wrong.hidden = true;
    editor.wrongAt(null);
    // What is shown is always of the query that was run last.
    results.clear();
    note.textContent = "running …";
    try {
      const body = { sql, limit: Number(limit.value), freshness: freshness.value, format: "json" };
      const answer = await ask("/v1/query", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal: mine.signal });
      history.add(sql);
      results.show(answer, body);
      note.textContent = summary(answer);
    } catch (error) {
      if (mine.signal.aborted) return;
      note.textContent = "";
      wrong.hidden = false;
      wrong.textContent = error.message;
      editor.wrongAt(placeOf(error.message, sql));
    }
  }

  editor.onrun = submit;
  const form = make("form", { id: "query", onsubmit: (event) => { event.preventDefault(); submit(); } }, editor.element,
    make("div", { class: "row" }, run, make("label", {}, "Freshness ", freshness), make("label", {}, "Rows ", limit), history.element, note));
  view.append(card("Query", { id: "query-panel", more: make("span", { class: "note wide" }, "read-only SQL · ", make("kbd", {}, "Ctrl"), " ", make("kbd", {}, "Enter"), " runs it · ", make("kbd", {}, "Tab"), " completes") }, form, wrong, results.element));
  const given = new URLSearchParams(location.search).get("sql");
  editor.set(given ?? "SELECT 1 AS one");
  ask("/v1/overview?limit=1000").then((found) => { editor.tables = found.tables; }, () => {});
  if (given) submit();
}

function select(id, values, chosen) {
  return make("select", { id }, ...values.map((value) => make("option", { selected: value === chosen }, value)));
}

function summary({ rows, truncated, stats }) {
  const snapshots = (stats.snapshots ?? []).map((each) => (each.position ? `${each.table} at ${number(each.position)}` : each.table)).join(", ");
  return `${counted(rows.length, "row")}${truncated ? " (there are more)" : ""} · ${Math.round(stats.elapsedMs ?? stats.elapsed_ms)} ms · ${stats.engine}${snapshots ? ` · ${snapshots}` : ""}`;
}

// A textarea over its own text in colours. The textarea is what is typed into, read aloud and selected.
class Editor {
  constructor() {
    this.tables = [];
    this.choices = [];
    this.chosen = 0;
    this.wrong = null;
    this.colours = make("pre", { class: "colours", "aria-hidden": "true" });
    this.list = make("ul", { class: "completions", role: "listbox", id: "completions", hidden: true });
    this.area = make("textarea", { id: "sql", rows: 7, spellcheck: "false", autocapitalize: "off", "aria-label": "SQL", "aria-controls": "completions", "aria-autocomplete": "list" });
    this.element = make("div", { class: "editor" }, this.colours, this.area, this.list);
    this.area.addEventListener("input", () => { this.wrong = null; this.draw(); this.complete(); });
    this.area.addEventListener("scroll", () => { this.colours.scrollTop = this.area.scrollTop; this.colours.scrollLeft = this.area.scrollLeft; });
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.area.addEventListener("blur", () => this.close());
    this.list.addEventListener("mousedown", (event) => { event.preventDefault(); const at = [...this.list.children].indexOf(event.target.closest("li")); if (at >= 0) this.take(at); });
  }

  set(text) { this.area.value = text; this.wrong = null; this.draw(); }

  wrongAt(place) {
    this.wrong = place;
    this.draw();
    if (place) { this.area.focus(); this.area.setSelectionRange(place[0], place[0]); }
  }

  draw() {
    let at = 0;
    const pieces = tokens(this.area.value).map(([kind, text]) => {
      const isWrong = this.wrong && at < this.wrong[1] && at + text.length > this.wrong[0];
      at += text.length;
      return kind || isWrong ? make("span", { class: `${kind}${isWrong ? " wrong" : ""}` }, text) : text;
    });
    this.colours.replaceChildren(...pieces, "\n");
  }

  complete() {
    const word = wordBefore(this.area.value, this.area.selectionStart);
    this.choices = word.length < 2 ? [] : completions(word, this.area.value, this.tables);
    this.chosen = 0;
    this.word = word;
    this.showChoices();
  }

  showChoices() {
    this.list.hidden = !this.choices.length;
    this.list.replaceChildren(...this.choices.map((each, n) => make("li", { role: "option", "aria-selected": String(n === this.chosen) }, each.text, " ", make("small", {}, each.kind))));
    if (this.choices.length) this.place();
  }

  // Below the line that is typed, or above it where there is more room: never over it, and never outside of the editor.
  place() {
    const frame = this.element.getBoundingClientRect();
    const line = this.caret();
    const [above, below] = [line.top - frame.top - 6, frame.bottom - line.bottom - 6];
    const isBelow = below >= Math.min(above, 90);
    this.list.style.maxHeight = `${isBelow ? below : above}px`;
    this.list.style.top = isBelow ? `${line.bottom - frame.top + 3}px` : "";
    this.list.style.bottom = isBelow ? "" : `${frame.bottom - line.top + 3}px`;
    this.list.style.left = `${Math.max(4, Math.min(line.left - frame.left, frame.width - this.list.offsetWidth - 4))}px`;
  }

  // Where the word that is typed begins, by the coloured text behind the field.
  caret() {
    const range = document.createRange();
    const walk = document.createTreeWalker(this.colours, NodeFilter.SHOW_TEXT);
    let left = this.area.selectionStart - this.word.length;
    let node = walk.nextNode();
    for (; node && left >= node.length; node = walk.nextNode()) left -= node.length;
    if (!node) return this.colours.getBoundingClientRect();
    range.setStart(node, left);
    range.setEnd(node, left + 1);
    return range.getBoundingClientRect();
  }

  close() { this.choices = []; this.showChoices(); }

  take(n) {
    const { text, kind, after = "" } = this.choices[n];
    const end = this.area.selectionStart;
    const put = kind === "keyword" || !/[^A-Za-z0-9_.]/.test(text) ? text : text.split(".").map((part) => (/^[a-z_][a-z0-9_]*$/.test(part) ? part : `"${part.replaceAll('"', '""')}"`)).join(".");
    this.area.setRangeText(after + put, end - this.word.length, end, "end");
    this.close();
    this.draw();
  }

  key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.close(); this.onrun(); return; }
    if (!this.choices.length) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      this.chosen = (this.chosen + (event.key === "ArrowDown" ? 1 : this.choices.length - 1)) % this.choices.length;
      this.showChoices();
    } else if (event.key === "Tab" || (event.key === "Enter" && this.word.length > 2)) { event.preventDefault(); this.take(this.chosen); } else if (event.key === "Escape") this.close();
  }
}

// What was run here, kept in this browser.
class History {
  constructor(onchoose) {
    this.element = make("select", { id: "history", "aria-label": "Earlier queries" });
    this.element.addEventListener("change", () => { const sql = this.queries[this.element.selectedIndex - 1]; if (sql !== undefined) onchoose(sql); this.element.selectedIndex = 0; });
    try { this.queries = JSON.parse(localStorage.getItem(HISTORY) ?? "[]").filter((each) => typeof each === "string"); } catch { this.queries = []; }
    this.draw();
  }

  add(sql) {
    this.queries = [sql, ...this.queries.filter((each) => each !== sql)].slice(0, HISTORY_MAX);
    try { localStorage.setItem(HISTORY, JSON.stringify(this.queries)); } catch { /* storage may be off */ }
    this.draw();
  }

  draw() {
    const short = (sql) => { const line = sql.replace(/\s+/g, " ").trim(); return line.length > 80 ? `${line.slice(0, 79)}…` : line; };
    this.element.replaceChildren(make("option", {}, this.queries.length ? "Earlier queries" : "No earlier queries"), ...this.queries.map((sql) => make("option", { title: sql }, short(sql))));
  }
}

class Results {
  constructor() {
    this.table = make("div", { class: "scroll result", id: "result" });
    this.kind = select("plot-kind", ["bar", "line", "dots"]);
    this.x = make("select", { id: "plot-x" });
    this.y = make("select", { id: "plot-y" });
    this.host = make("div", { id: "plot", class: "chart tall", role: "img", "aria-label": "Plot of the result" });
    this.panel = make("div", { id: "plot-panel", hidden: true }, make("div", { class: "row" }, make("label", {}, "Plot ", this.kind), make("label", {}, "across ", this.x), make("label", {}, "up ", this.y)), this.host);
    this.asks = make("button", { type: "button", id: "plot-it", onclick: () => this.plotIt() }, "Plot");
    const exports = [["csv", "CSV"], ["parquet", "Parquet"], ["arrow", "Arrow"]].map(([format, name]) => make("button", { type: "button", class: "small", "data-format": format, onclick: () => this.download(format) }, name));
    this.told = make("span", { class: "note", role: "status" });
    this.tools = make("div", { class: "row", id: "result-tools", hidden: true }, this.asks, make("span", {}, "Save as"), ...exports, this.told);
    this.element = make("div", {}, this.tools, this.panel, this.table);
    for (const choice of [this.kind, this.x, this.y]) choice.addEventListener("change", () => this.draw());
  }

  clear() {
    this.answer = null;
    this.table.replaceChildren();
    this.panel.hidden = true;
    this.tools.hidden = true;
  }

  show(answer, asked) {
    this.answer = answer;
    this.asked = asked;
    this.table.replaceChildren(grid(answer));
    this.tools.hidden = false;
    this.told.textContent = "";
    const numeric = answer.columns.map((_, n) => n).filter((n) => isNumeric(answer.columns[n].type));
    this.asks.hidden = !numeric.length || answer.rows.length < 2;
    if (this.isObvious()) this.plotIt();
  }

  // Two columns: what each value of the first has. Anything else is plotted where somebody asks for it.
  isObvious() {
    const { columns, rows } = this.answer;
    if (columns.length !== 2 || !isNumeric(columns[1].type) || rows.length < 2) return false;
    const isDistinct = new Set(rows.map((row) => JSON.stringify(row[0]))).size === rows.length;
    return isDistinct && (isTime(columns[0].type) || (rows.length <= 40 && !isNumeric(columns[0].type)));
  }

  plotIt() {
    const { columns } = this.answer;
    const every = columns.map((_, n) => n);
    const numeric = every.filter((n) => isNumeric(columns[n].type));
    const up = numeric.find((n) => n > 0) ?? numeric[0];
    const across = every.find((n) => n !== up && isTime(columns[n].type)) ?? every.find((n) => n !== up) ?? up;
    const options = (chosen, of) => of.map((n) => make("option", { value: n, selected: n === chosen }, columns[n].name));
    this.x.replaceChildren(...options(across, every));
    this.y.replaceChildren(...options(up, numeric));
    this.kind.value = isTime(columns[across].type) ? "line" : isNumeric(columns[across].type) ? "dots" : "bar";
    this.panel.hidden = false;
    this.asks.hidden = true;
    this.draw();
  }

  draw() {
    const [x, y] = [Number(this.x.value), Number(this.y.value)];
    const rows = this.answer.rows.slice(0, 2000);
    const type = this.answer.columns[x].type;
    ofResult(this.host, this.kind.value, rows.map((row) => row[x]), rows.map((row) => row[y]), isTime(type) ? "time" : isNumeric(type) ? "number" : "text");
  }

  async download(format) {
    this.told.textContent = "saving …";
    const answer = await fetch("/v1/query", { method: "POST", headers: { "content-type": "application/json" }, credentials: "same-origin", body: JSON.stringify({ ...this.asked, format }) });
    if (!answer.ok) { this.told.textContent = (await answer.json()).error?.message ?? `the server answered ${answer.status}`; return; }
    const url = URL.createObjectURL(await answer.blob());
    const link = make("a", { href: url, download: `result.${format}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    this.told.textContent = `result.${format} is saved`;
  }
}
