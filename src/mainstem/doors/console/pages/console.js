"use strict";
// The console: asks the server's own API again and again, and shows what it says. It keeps nothing.
(() => {
  const KEPT = 300;
  const ROWS_SHOWN = 500;
  const $ = (id) => document.getElementById(id);
  const history = { times: [], rate: [], carried: [], lag: [] };
  let last = null;
  let result = null;
  const opened = new Set();

  // --- words and numbers ---

  const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));

  function bytes(value) {
    if (value === null || value === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let n = 0;
    let size = value;
    while (size >= 1024 && n < units.length - 1) { size /= 1024; n += 1; }
    return `${n === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[n]}`;
  }

  function span(seconds) {
    if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
    return `${Math.round(seconds / 86400)} days`;
  }

  const ago = (ms) => (ms ? `${span((Date.now() - ms) / 1000)} ago` : "never");
  const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

  function make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  const text = (id, value) => { $(id).textContent = value; };

  function mark(where, kind, words) {
    where.className = `pill ${kind}`;
    where.textContent = words;
  }

  // --- asking ---

  class Refused extends Error {
    constructor(status, message) { super(message); this.status = status; }
  }

  async function ask(path, options) {
    const answer = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
    const body = answer.headers.get("content-type")?.includes("json") ? await answer.json() : null;
    if (answer.status === 401) { location.reload(); }
    if (!answer.ok) throw new Refused(answer.status, body?.error?.message ?? body?.detail ?? `the server answered ${answer.status}`);
    return body;
  }

  // Again and again, never twice at once, and less often while nobody looks.
  function repeat(everyMs, work) {
    const turn = async () => {
      try { await work(); } finally { setTimeout(turn, document.hidden ? everyMs * 5 : everyMs); }
    };
    turn();
  }

  // --- at a glance ---

  const MOODS = { idle: "good", receiving: "good", flushing: "good", recovering: "warn", error: "bad" };

  async function showStatus() {
    let status;
    try {
      status = await ask("/status");
    } catch (error) {
      mark($("state"), "bad", "no answer");
      $("trouble").hidden = false;
      text("trouble", error instanceof Refused ? error.message : "The server does not answer. It is asked again every second.");
      return;
    }
    const now = performance.now() / 1000;
    const carried = status.log.durable - status.buffer.eventCount;
    if (last) {
      const passed = now - last.at;
      push(now, Math.max(0, (status.log.durable - last.durable) / passed), Math.max(0, (carried - last.carried) / passed), status.buffer.eventCount);
    } else {
      push(now, 0, 0, status.buffer.eventCount);
    }
    last = { at: now, durable: status.log.durable, carried };
    mark($("state"), MOODS[status.state] ?? "", status.state);
    showPasses(status.pipeline);
    showGroups(status.groups ?? {});
    text("version", `version ${status.gateway.version}`);
    text("uptime", `up ${span(status.gateway.uptimeS)}`);
    $("trouble").hidden = !status.lastError;
    text("trouble", status.lastError ?? "");
    text("rate", number(average(history.rate, 5)));
    text("rate-note", `${number(status.log.durable)} since the beginning`);
    text("lag", number(status.buffer.eventCount));
    text("lag-note", status.buffer.oldestBatchTime ? `oldest unsealed ${ago(status.buffer.oldestBatchTime)}` : "nothing waits to be sealed");
    const [size, unit] = bytes(status.buffer.totalSizeBytes).split(" ");
    text("buffer", size);
    text("buffer-unit", unit);
    text("buffer-note", `${(status.buffer.utilization * 100).toFixed(1)} % of the room`);
    fill($("buffer-bar"), status.buffer.utilization, 0.5, 0.8);
    text("connections", number(status.gateway.connections));
    text("connections-note", `gateway ${bytes(status.gateway.rssBytes)}`);
    const pipeline = status.pipeline;
    text("pipeline", pipeline.state);
    const restarts = pipeline.restarts ? `${pipeline.restarts} restarts` : "no restarts";
    text("pipeline-note", pipeline.circuitBreaker && pipeline.circuitBreaker.state !== "closed" ? `breaker ${pipeline.circuitBreaker.state}` : restarts);
    Plot.overTime($("chart-rate"), history.times, [{ name: "a", values: history.rate }, { name: "b", values: history.carried }]);
    Plot.overTime($("chart-lag"), history.times, [{ name: "c", values: history.lag }]);
  }

  function push(time, rate, carried, lag) {
    for (const [name, value] of Object.entries({ times: time, rate, carried, lag })) {
      history[name].push(value);
      if (history[name].length > KEPT) history[name].shift();
    }
  }

  function average(values, count) {
    const taken = values.slice(-count);
    return taken.length ? taken.reduce((sum, value) => sum + value, 0) / taken.length : 0;
  }

  function fill(bar, share, warn, bad) {
    bar.style.width = `${Math.min(100, Math.max(share > 0 ? 1 : 0, share * 100))}%`;
    bar.className = share >= bad ? "bad" : share >= warn ? "warn" : "";
  }

  function showGroups(groups) {
    const rows = Object.entries(groups).flatMap(([group, topics]) => Object.entries(topics).map(([topic, lag]) =>
      make("tr", {}, make("td", {}, group), make("td", {}, topic), make("td", { class: "n" }, number(lag)))));
    $("groups-panel").hidden = !rows.length;
    text("groups-note", number(Object.keys(groups).length));
    $("groups").tBodies[0].replaceChildren(...rows);
  }

  // --- tables ---

  async function showTables() {
    const found = await ask("/v1/overview");
    const wanted = $("tables-filter").value.trim().toLowerCase();
    const shown = found.tables.filter((table) => table.table.toLowerCase().includes(wanted));
    text("tables-note", `${number(found.tables.length)}${found.truncated ? "+" : ""}`);
    const rows = shown.flatMap((table) => (opened.has(table.table) ? [tableRow(table), detailRow(table)] : [tableRow(table)]));
    if (!rows.length) rows.push(make("tr", {}, make("td", { colspan: "7", class: "empty" }, "No tables yet. They come with the first changes.")));
    $("tables").tBodies[0].replaceChildren(...rows);
  }

  function tableRow(table) {
    const newest = table.snapshots[0];
    const [name, namespace] = [table.table.slice(table.table.lastIndexOf(".") + 1), table.table.slice(0, table.table.lastIndexOf("."))];
    const toggle = () => { opened.has(table.table) ? opened.delete(table.table) : opened.add(table.table); showTables(); };
    const lag = make("td", { class: "n" }, table.lagChanges === null ? "–" : number(table.lagChanges));
    if (table.error) lag.replaceChildren(make("span", { class: "pill bad", title: table.error }, "broken"));
    return make("tr", {
      class: `open-able${opened.has(table.table) ? " open" : ""}`, onclick: toggle, tabindex: "0", "data-table": table.table,
      onkeydown: (event) => { if (event.key === "Enter") toggle(); },
    },
      make("td", {}, make("span", { class: "twist" }, "›"), make("span", { class: "name" }, name, " ", make("small", {}, namespace))),
      lag,
      make("td", { class: "n" }, number(newest?.rows ?? 0)),
      make("td", { class: "n" }, newest ? `${number(newest.dataFiles)}${newest.deleteFiles ? ` + ${number(newest.deleteFiles)}` : ""}` : "0"),
      make("td", { class: "n" }, bytes(newest?.bytes ?? 0)),
      make("td", { class: "n" }, number(table.snapshotCount)),
      make("td", {}, newest ? ago(newest.atMs) : "never"));
  }

  function detailRow(table) {
    const columns = table.columns.map((column) => make("span", { class: "chip" }, column.name, make("i", {}, column.type)));
    const snapshots = table.snapshots.map((each) => make("tr", {},
      make("td", { class: "mono" }, each.snapshotId), make("td", {}, each.operation), make("td", {}, ago(each.atMs)),
      make("td", { class: "n" }, number(each.rows)), make("td", { class: "n" }, number(each.dataFiles)), make("td", { class: "n" }, number(each.position))));
    const query = () => { $("sql").value = `SELECT *\nFROM ${quoted(table.table)}\nLIMIT 100`; $("query-panel").scrollIntoView({ behavior: "smooth" }); run(); };
    return make("tr", { class: "detail" }, make("td", { colspan: "7" },
      table.error ? make("p", { class: "trouble" }, table.error) : null,
      make("div", { class: "detail-grid" },
        make("div", {},
          make("h3", {}, `Schema · ${table.columns.length} columns · ${table.format === "delta" ? "Delta" : "Iceberg"} v${table.formatVersion}${table.partitioning.length ? ` · by ${table.partitioning.join(", ")}` : ""}`),
          make("div", { class: "chips" }, ...columns),
          make("p", { class: "path" }, table.location),
          make("p", {}, make("button", { type: "button", onclick: query }, "Query it"))),
        make("div", {},
          make("h3", {}, `${table.format === "delta" ? "Versions" : "Snapshots"} · the latest of ${number(table.snapshotCount)}`),
          make("table", { class: "grid" },
            make("thead", {}, make("tr", {}, ...["Id", "Operation", "When"].map((each) => make("th", {}, each)), ...["Rows", "Files", "Position"].map((each) => make("th", { class: "n" }, each)))),
            make("tbody", {}, ...snapshots))))));
  }

  const quoted = (name) => name.split(".").map((part) => (/^[a-z_][a-z0-9_]*$/.test(part) ? part : `"${part.replaceAll('"', '""')}"`)).join(".");

  // --- query ---

  async function run() {
    const sql = $("sql").value;
    $("query-error").hidden = true;
    $("run").disabled = true;
    text("query-note", "running …");
    try {
      const body = { sql, limit: Number($("limit").value), freshness: $("freshness").value, format: "json" };
      result = await ask("/v1/query", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
      showResult();
    } catch (error) {
      text("query-note", "");
      $("query-error").hidden = false;
      text("query-error", error.message);
    } finally {
      $("run").disabled = false;
    }
  }

  function showResult() {
    const { columns, rows, stats, truncated } = result;
    const snapshots = (stats.snapshots ?? []).map((each) => (each.position ? `${each.table} at ${number(each.position)}` : each.table)).join(", ");
    text("query-note", `${number(rows.length)} rows${truncated ? " (there are more)" : ""} · ${Math.round(stats.elapsed_ms ?? stats.elapsedMs)} ms · ${stats.engine}${snapshots ? ` · ${snapshots}` : ""}`);
    const isNumber = columns.map((_, n) => rows.some((row) => row[n] !== null) && rows.every((row) => row[n] === null || typeof row[n] === "number"));
    $("result").tHead.replaceChildren(make("tr", {}, ...columns.map((column, n) => make("th", { class: isNumber[n] ? "n" : "", title: column.type }, column.name))));
    $("result").tBodies[0].replaceChildren(...rows.slice(0, ROWS_SHOWN).map((row) => make("tr", {}, ...row.map((value, n) => cell(value, isNumber[n])))));
    const numeric = columns.map((_, n) => n).filter((n) => isNumber[n]);
    $("plot-panel").hidden = !numeric.length || rows.length < 2;
    if ($("plot-panel").hidden) return;
    const choices = (chosen, of) => of.map((n) => { const made = make("option", { value: n }, columns[n].name); made.selected = n === chosen; return made; });
    const every = columns.map((_, n) => n);
    const up = numeric.find((n) => n > 0) ?? numeric[0];
    const across = every.find((n) => n !== up) ?? up;
    $("plot-x").replaceChildren(...choices(across, every));
    $("plot-y").replaceChildren(...choices(up, numeric));
    const isText = rows.some((row) => typeof row[across] === "string" && Number.isNaN(Date.parse(row[across])));
    $("plot-kind").value = isText ? "bar" : "line";
    plot();
  }

  function cell(value, isNumber) {
    if (value === null) return make("td", { class: `null${isNumber ? " n" : ""}` }, "null");
    const words = typeof value === "object" ? JSON.stringify(value) : String(value);
    return make("td", { class: isNumber ? "n" : "", title: words.length > 60 ? words : "" }, words);
  }

  function plot() {
    if (!result || $("plot-panel").hidden) return;
    const rows = result.rows.slice(0, 2000);
    const [x, y] = [Number($("plot-x").value), Number($("plot-y").value)];
    Plot.ofResult($("plot"), $("plot-kind").value, rows.map((row) => row[x]), rows.map((row) => row[y]));
  }

  // --- jobs, errors, bounds ---

  const NEEDS_ADMIN = "A token for everything, with the role admin, shows this.";

  async function showJobs() {
    const body = $("jobs").tBodies[0];
    let jobs;
    try {
      jobs = await ask("/v1/compaction/jobs");
    } catch (error) {
      body.replaceChildren(make("tr", {}, make("td", { colspan: "5", class: "empty" }, error.status === 403 ? NEEDS_ADMIN : error.message)));
      return;
    }
    const list = Array.isArray(jobs) ? jobs : jobs.jobs ?? [];
    text("jobs-note", `${list.filter((job) => job.state === "running").length} running · ${list.filter((job) => job.state === "queued").length} waiting`);
    const moods = { running: "good", queued: "", done: "", failed: "bad", cancelled: "warn" };
    const rows = list.slice(0, 12).map((job) => make("tr", {},
      make("td", {}, job.table), make("td", {}, job.steps.join(", ")),
      make("td", {}, make("span", { class: `pill ${moods[job.state] ?? ""}`, title: job.error ?? "" }, job.state)),
      make("td", {}, progress(job.progress)), make("td", {}, job.startedMs ? ago(job.startedMs) : "–")));
    if (!rows.length) rows.push(make("tr", {}, make("td", { colspan: "5", class: "empty" }, "No jobs. Tables are compacted by themselves.")));
    body.replaceChildren(...rows);
  }

  // --- what Spark did: newest first ---

  function showPasses(pipeline) {
    const { passes = [], totals = {} } = pipeline;
    text("passes-note", totals.passes ? `${number(totals.passes)} since the start · ${number(totals.rows_read)} changes read · ${number(totals.rows_written)} rows written` : "");
    const seconds = (value) => `${value.toFixed(2)} s`;
    const rows = passes.slice(-8).reverse().map((pass) => make("tr", {},
      make("td", {}, pass.batch), make("td", {}, number(pass.tables)), make("td", {}, number(pass.rowsRead)),
      make("td", {}, number(pass.rowsWritten)), make("td", {}, number(pass.files)),
      make("td", {}, seconds(pass.jobS)), make("td", {}, seconds(pass.commitS))));
    if (!rows.length) rows.push(make("tr", {}, make("td", { colspan: "7", class: "empty" }, "None yet. Spark takes up new segments by itself.")));
    $("passes").tBodies[0].replaceChildren(...rows);
  }

  const progress = (steps) => Object.entries(steps ?? {}).map(([step, told]) => `${step}: ${Object.entries(told).map(([name, value]) => `${value} ${name}`).join(", ")}`).join("; ") || "–";

  async function showErrors() {
    let told;
    try {
      told = await ask("/v1/errors");
    } catch (error) {
      $("errors").replaceChildren(make("li", { class: "empty" }, error.status === 403 ? NEEDS_ADMIN : error.message));
      return;
    }
    text("errors-note", told.total ? `${number(told.total)} since the start` : "");
    const rows = told.errors.slice(0, 30).map((each) => make("li", {},
      make("time", { title: new Date(each.atMs).toISOString() }, clock(each.atMs)),
      make("span", {}, make("span", { class: `level ${each.level.toLowerCase()}` }, each.level.toLowerCase()), " ", make("small", { class: "note" }, each.logger)),
      make("p", {}, each.message)));
    $("errors").replaceChildren(...(rows.length ? rows : [make("li", { class: "empty" }, "Nothing went wrong.")]));
  }

  async function showBounds() {
    const [scaling, memory] = await Promise.all([ask("/v1/scaling/status"), ask("/v1/memory-stats")]);
    text("scaling-note", scaling.advice.length ? scaling.advice.join("; ") : `${scaling.state} · ${scaling.cores} cores${scaling.loadAverage === null ? "" : ` · load ${scaling.loadAverage}`}`);
    const isBytes = (name) => ["backlog", "pipeline heap", "memory"].includes(name);
    const bars = scaling.bounds.map((bound) => {
      const show = isBytes(bound.name) ? bytes : number;
      const bar = make("i");
      fill(bar, bound.utilization, 0.7, 0.95);
      return make("div", {}, make("span", {}, bound.name, make("em", {}, `${show(bound.used)} of ${show(bound.limit)}`)), make("div", { class: "bar" }, bar));
    });
    const plain = [["gateway, resident", memory.gateway.residentBytes], ["pipeline, resident", memory.pipeline.jvmRssBytes]]
      .filter(([, value]) => value).map(([name, value]) => make("div", {}, make("span", {}, name, make("em", {}, bytes(value)))));
    $("bounds").replaceChildren(...bars, ...plain);
  }

  // --- the page ---

  $("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("mainstem-theme", theme); } catch { /* storage may be off */ }
  });
  $("sign-out").hidden = document.body.dataset.signedIn !== "true";
  $("sign-out").addEventListener("click", async () => { await fetch("/console/sign-out", { method: "POST" }); location.reload(); });
  $("query").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  $("sql").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
  $("tables-filter").addEventListener("input", showTables);
  for (const id of ["plot-kind", "plot-x", "plot-y"]) $(id).addEventListener("change", plot);
  addEventListener("resize", plot);

  const quietly = (work) => async () => { try { await work(); } catch (error) { console.warn(error.message); } };
  repeat(1000, showStatus);
  repeat(2000, quietly(showTables));
  repeat(2000, quietly(showJobs));
  repeat(3000, quietly(showErrors));
  repeat(3000, quietly(showBounds));
})();
