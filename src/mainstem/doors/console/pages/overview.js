// At a glance: figures, charts of the last hour (the server keeps them), the tables, what Spark did, what went wrong.
import { ago, bytes, card, clock, fill, make, number, seconds, span } from "./dom.js";
import { ask, repeat, words } from "./api.js";
import { List } from "./lists.js";
import { overTime } from "./plot.js";

export function overview({ view, signal, onStatus, go }) {
  const figures = new Figures();
  const charts = new Charts();
  const tables = new List({
    id: "tables", label: "Tables", key: (table) => table.table, empty: "No tables yet. They come with the first changes.",
    onopen: (table) => go(`/console/tables/${encodeURIComponent(table.table)}`), columns: TABLE_COLUMNS,
  });
  const filter = make("input", { id: "tables-filter", type: "search", placeholder: "Filter", "aria-label": "Filter tables" });
  const passes = passList();
  const errors = make("ol", { id: "errors", class: "errors" });
  const bounds = make("div", { id: "bounds", class: "bounds" });
  const advice = make("span", { class: "note", id: "scaling-note" });
  view.append(
    figures.element, charts.element,
    card("Tables", { id: "tables-panel", more: filter }, tables.element),
    card("Spark's passes", { id: "passes-panel", more: passes.note }, passes.list.element),
    make("div", { class: "pair" },
      card("Last errors", { id: "errors-panel" }, errors),
      card("Memory and bounds", { more: advice }, bounds)));
  onStatus((status) => { figures.show(status); passes.show(status.pipeline); });
  repeat(signal, 2000, () => charts.refresh(figures));
  let found = [];
  const showTables = () => tables.show(found.filter((table) => table.table.toLowerCase().includes(filter.value.trim().toLowerCase())));
  filter.addEventListener("input", showTables);
  repeat(signal, 2000, async () => { found = (await ask("/v1/overview")).tables; showTables(); });
  repeat(signal, 3000, () => showErrors(errors));
  repeat(signal, 3000, () => showBounds(bounds, advice));
}

const TABLE_COLUMNS = [
  { head: "Table", cell: (table) => {
    const at = table.table.lastIndexOf(".");
    return make("a", { class: "name", href: `/console/tables/${encodeURIComponent(table.table)}` }, table.table.slice(at + 1), " ", make("small", {}, table.table.slice(0, at)));
  } },
  { head: "Lag", n: true, cell: (table) => (table.error ? make("span", { class: "pill bad", title: table.error }, "broken") : number(table.lagChanges)) },
  { head: "Rows", n: true, cell: (table) => number(table.current ? table.current.rows : 0) },
  { head: "Files", n: true, phone: false, cell: (table) => number(table.current?.dataFiles ?? 0) },
  { head: "Size", n: true, phone: false, cell: (table) => bytes(table.current?.bytes ?? 0) },
  { head: "Snapshots", n: true, phone: false, cell: (table) => number(table.snapshotCount) },
  { head: "Last commit", cell: (table) => (table.current ? ago(table.current.atMs) : "never") },
];

class Figures {
  constructor() {
    this.parts = {};
    const figure = (id, title, unit) => {
      const parts = { value: make("b", { id }, "–"), unit: make("span", {}, unit), note: make("p", { class: "note" }) };
      this.parts[id] = parts;
      return make("article", { class: "card" }, make("h2", {}, title), make("p", { class: "figure" }, parts.value, parts.unit), parts.note);
    };
    this.bar = make("i");
    const buffer = figure("buffer", "Buffer", "");
    buffer.append(make("div", { class: "bar" }, this.bar));
    this.element = make("section", { class: "cards", "aria-label": "At a glance" },
      figure("rate", "Throughput", "changes/s"), figure("lag", "Lag", "changes"), buffer,
      figure("dead", "Dead letters", "waiting"), figure("connections", "Connections", "open"), figure("pipeline", "Pipeline", ""));
  }

  set(id, value, note, unit) {
    const parts = this.parts[id];
    parts.value.textContent = value;
    if (note !== undefined) parts.note.textContent = note;
    if (unit !== undefined) parts.unit.textContent = unit;
  }

  show(status) {
    const { buffer, pipeline } = status;
    this.set("lag", number(buffer.eventCount), buffer.oldestBatchTime ? `oldest unsealed ${ago(buffer.oldestBatchTime)}` : "nothing waits to be sealed");
    const [size, unit] = bytes(buffer.totalSizeBytes).split(" ");
    this.set("buffer", size, `${(buffer.utilization * 100).toFixed(1)} % of the room`, unit);
    fill(this.bar, buffer.utilization, 0.5, 0.8);
    const letters = Object.values(status.deadLetters ?? {});
    const sum = (name) => letters.reduce((total, each) => total + each[name], 0);
    this.set("dead", number(sum("total") - sum("replayed")), `${number(sum("replayed"))} replayed, in ${number(letters.length)} tables`);
    this.set("connections", number(status.gateway.connections), `gateway ${bytes(status.gateway.rssBytes)}`);
    const breaker = pipeline.circuitBreaker;
    const restarts = pipeline.restarts ? `${pipeline.restarts} restarts` : "no restarts";
    this.set("pipeline", pipeline.state, breaker && breaker.state !== "closed" ? `breaker ${breaker.state}` : restarts);
    this.set("rate", this.parts.rate.value.textContent, `${number(status.log.durable)} since the beginning`);
  }
}

class Charts {
  constructor() {
    const chart = (id, title, label, ...legend) => {
      const host = make("div", { id, class: "chart", role: "img", "aria-label": label });
      const made = make("article", { class: "card" }, make("h2", {}, title),
        make("ul", { class: "legend" }, ...legend.map(([name, text]) => make("li", { class: name }, text))), host);
      return [made, host];
    };
    const [rate, rateHost] = chart("chart-rate", "Changes per second", "Changes per second over the last hour", ["a", "made durable"], ["b", "into tables"]);
    const [lag, lagHost] = chart("chart-lag", "Behind", "Changes that wait for the tables, over the last hour", ["c", "changes that wait for the tables"]);
    this.rate = rateHost;
    this.lag = lagHost;
    this.element = make("section", { class: "charts" }, rate, lag);
  }

  async refresh(figures) {
    let told;
    try {
      told = await ask("/v1/charts");
    } catch (error) {
      // A token with bounds sees no traffic but its own tables'.
      this.element.hidden = error.status === 403;
      throw error;
    }
    this.element.hidden = false;
    const { atMs, durable, carried, lagChanges } = told;
    const times = atMs.map((ms) => ms / 1000);
    // Null where the server was down in between: a gap, not a slope.
    const rates = (positions) => positions.map((position, n) => {
      const passed = n ? times[n] - times[n - 1] : 0;
      return passed > 0 && passed < 30 ? Math.max(0, (position - positions[n - 1]) / passed) : null;
    });
    const made = rates(durable);
    overTime(this.rate, times, [{ name: "a", values: made }, { name: "b", values: rates(carried) }]);
    overTime(this.lag, times, [{ name: "c", values: lagChanges }]);
    const last = made.slice(-3).filter((value) => value !== null);
    figures.set("rate", number(last.length ? last.reduce((sum, value) => sum + value, 0) / last.length : 0));
  }
}

// Spark's own progress of the micro-batch: the rows of its source, and its two longest steps. Spark tells nothing of a
// pass that catches up, and of a micro-batch only when it is over.
function progressOf(batch, microBatches) {
  const told = microBatches.find((each) => each.batch === batch);
  if (!told) return "";
  const steps = Object.entries(told.steps).filter(([name, taken]) => name !== "triggerExecution" && taken > 0);
  const longest = steps.sort((a, b) => b[1] - a[1]).slice(0, 2).map(([name, taken]) => `${name} ${seconds(taken)}`);
  return [`${number(told.rowsIn)} rows in`, ...longest].join(" · ");
}

export function passList() {
  const note = make("span", { class: "note", id: "passes-note" });
  const list = new List({
    // A micro-batch may take several passes, and catching up as well.
    id: "passes", label: "Spark's passes", key: (pass) => pass.number, empty: "None yet. Spark takes up new segments by itself.",
    columns: [
      { head: "Batch", cell: (pass) => pass.batch },
      { head: "Tables", n: true, phone: false, cell: (pass) => number(pass.tables) },
      { head: "Changes read", n: true, cell: (pass) => number(pass.rowsRead) },
      { head: "Rows written", n: true, cell: (pass) => number(pass.rowsWritten) },
      { head: "Files", n: true, phone: false, cell: (pass) => number(pass.files) },
      { head: "Spark's job", n: true, cell: (pass) => seconds(pass.jobS) },
      { head: "Lookup and commit", n: true, phone: false, cell: (pass) => seconds(pass.commitS) },
      { head: "Spark's own progress", phone: false, cell: (pass) => pass.progress },
    ],
  });
  const show = ({ passes = [], totals = {}, microBatches = [] }) => {
    note.textContent = totals.passes ? `${number(totals.passes)} passes since the start · ${number(totals.rows_read)} changes read · ${number(totals.rows_written)} rows written · ${span(totals.job_s ?? 0)} of jobs` : "";
    list.show(passes.slice(-8).reverse().map((pass) => ({ ...pass, progress: progressOf(pass.batch, microBatches) })));
  };
  return { note, list, show };
}

export async function showErrors(host) {
  let told;
  try {
    told = await ask("/v1/errors");
  } catch (error) {
    host.replaceChildren(make("li", { class: "empty" }, words(error)));
    return;
  }
  const now = JSON.stringify(told.errors.slice(0, 30));
  if (host.told === now) return;
  host.told = now;
  const rows = told.errors.slice(0, 30).map((each) => make("li", {},
    make("time", { title: new Date(each.atMs).toISOString() }, clock(each.atMs)),
    make("span", {}, make("span", { class: `level ${each.level.toLowerCase()}` }, each.level.toLowerCase()), " ", make("small", { class: "note" }, each.logger)),
    make("p", {}, each.message)));
  host.replaceChildren(...(rows.length ? rows : [make("li", { class: "empty" }, "The server has logged no error since it started.")]));
}

async function showBounds(host, advice) {
  const [scaling, memory] = await Promise.all([ask("/v1/scaling/status"), ask("/v1/memory-stats")]);
  advice.textContent = scaling.advice.length ? scaling.advice.join("; ") : `${scaling.state} · ${scaling.cores} cores${scaling.loadAverage === null ? "" : ` · load ${scaling.loadAverage}`}`;
  const isBytes = (name) => ["backlog", "pipeline heap", "memory"].includes(name);
  const bars = scaling.bounds.map((bound) => {
    const show = isBytes(bound.name) ? bytes : number;
    const bar = make("i");
    fill(bar, bound.utilization, 0.7, 0.95);
    return make("div", {}, make("span", {}, bound.name, make("em", {}, `${show(bound.used)} of ${show(bound.limit)}`)), make("div", { class: "bar" }, bar));
  });
  const plain = [["gateway, resident", memory.gateway.residentBytes], ["pipeline, resident", memory.pipeline.jvmRssBytes]]
    .filter(([, value]) => value).map(([name, value]) => make("div", {}, make("span", {}, name, make("em", {}, bytes(value)))));
  host.replaceChildren(...bars, ...plain);
}
