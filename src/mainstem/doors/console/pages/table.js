// One table: what it is, how fresh, its snapshots with a way back, its partitions and files, some rows, the changes of
// one key, and what did not fit.
import { ago, bytes, card, counted, literal, make, number, quoted, signed, span } from "./dom.js";
import { ask, may, post, repeat, tablePath, words } from "./api.js";
import { List } from "./lists.js";
import { lettersCard } from "./letters.js";
import { grid } from "./result.js";

const SAMPLE_ROWS = 20;
const CHANGES_SHOWN = 50;

export function tablePage(context, name) {
  const { view, signal } = context;
  document.title = `${name} · Mainstem`;
  const page = { ...context, name, path: tablePath(name) };
  const head = make("div", { class: "page-head" }, make("h2", { class: "title", id: "table-name" }, name));
  const facts = make("section", { class: "cards", id: "facts", "aria-label": "At a glance" });
  const trouble = make("p", { class: "trouble", role: "alert", hidden: true });
  const rest = make("div", { class: "stack" });
  view.append(head, trouble, facts, rest);
  let built = false;
  repeat(signal, 2000, async () => {
    let detail;
    try {
      detail = await ask(page.path);
    } catch (error) {
      trouble.hidden = false;
      trouble.textContent = error.message;
      return;
    }
    trouble.hidden = !detail.view.error;
    trouble.textContent = detail.view.error ?? "";
    if (!built) { built = true; build(page, head, rest, detail); }
    showFacts(facts, detail);
    page.shown?.(detail);
  });
}

function build(page, head, rest, detail) {
  const isState = !page.name.endsWith("_history") && !page.name.endsWith("_dead_letters");
  head.append(
    make("a", { class: "button", href: `/console/query?sql=${encodeURIComponent(`SELECT *\nFROM ${quoted(page.name)}\nLIMIT 100`)}` }, "Query it"),
    may("writer") ? action("Flush", "Carry everything accepted so far into the tables", () => post("/flush?timeoutS=30", {}), "flushed") : "",
    may("admin") ? action("Compact", "Rewrite small files, and fold deletes in", () => compact(page.name), "compaction queued") : "",
    make("span", { class: "note", role: "status", id: "action-note" }));
  const schema = schemaCard(detail);
  const snapshots = snapshotsCard(page, detail);
  page.shown = (now) => { schema.show(now); snapshots.show(now); };
  rest.append(schema.element, snapshots.element);
  rest.append(make("div", { class: "pair" }, partitionsCard(page), filesCard(page)));
  rest.append(rowsCard(page));
  if (isState && detail.history) rest.append(changesCard(page, detail.history));
  if (isState) {
    const letters = lettersCard(page, detail.mayWrite);
    rest.append(letters);
    if (new URLSearchParams(location.search).get("show") === "letters") setTimeout(() => letters.scrollIntoView(), 300);
  }
}

function action(label, title, work, done) {
  const button = make("button", { type: "button", title });
  button.textContent = label;
  button.addEventListener("click", async () => {
    const note = document.getElementById("action-note");
    button.disabled = true;
    note.textContent = `${label.toLowerCase()} …`;
    try { await work(); note.textContent = done; } catch (error) { note.textContent = words(error); } finally { button.disabled = false; }
  });
  return button;
}

function compact(name) {
  const at = name.lastIndexOf(".");
  return post("/v1/compaction/run", { namespace: name.slice(0, at), table: name.slice(at + 1) });
}

function showFacts(host, { view, freshness }) {
  const newest = view.current;
  const fact = (title, value, unit, note) => make("article", { class: "card" }, make("h2", {}, title),
    make("p", { class: "figure" }, make("b", {}, value), make("span", {}, unit)), make("p", { class: "note" }, note));
  const [size, unit] = bytes(newest?.bytes ?? 0).split(" ");
  const deletes = newest?.deleteFiles ? ` and ${number(newest.deleteFiles)} of deletes` : "";
  const facts = [
    fact("Rows", number(newest ? newest.rows : 0), "", `${view.format === "delta" ? "Delta" : "Iceberg"} v${view.formatVersion}`),
    fact("Behind", freshness.behindS < 10 ? freshness.behindS.toFixed(1) : number(freshness.behindS), "s", freshness.lagChanges ? `${number(freshness.lagChanges)} changes wait` : "holds every sealed change"),
    fact("Size", size, unit, `${counted(newest?.dataFiles ?? 0, "data file")}${deletes}`),
    fact("Last commit", freshness.lastCommitMs ? span((Date.now() - freshness.lastCommitMs) / 1000) : "never", freshness.lastCommitMs ? "ago" : "", counted(view.snapshotCount, view.format === "delta" ? "version" : "snapshot")),
  ];
  facts.forEach((made, n) => {
    const old = host.children[n];
    if (!old) host.append(made);
    else if (old.textContent !== made.textContent) old.replaceWith(made);
  });
}

function schemaCard({ view }) {
  const list = new List({
    label: "Columns", key: (column) => column.name, empty: "No columns yet.",
    columns: [{ head: "Column", cell: (column) => column.name }, { head: "Type", cell: (column) => column.type }, { head: "Required", cell: (column) => (column.required ? "yes" : "") }],
  });
  const note = make("span", { class: "note" });
  const element = card("Schema", { id: "schema-panel", more: note }, make("div", { class: "bounded" }, list.element), make("p", { class: "path" }, view.location));
  const show = (detail) => {
    list.show(detail.view.columns);
    const by = detail.view.partitioning.length ? ` · by ${detail.view.partitioning.join(", ")}` : "";
    note.textContent = `${detail.view.columns.length} columns · ${detail.view.schemas} ${detail.view.schemas === 1 ? "version" : "versions"}${by}`;
  };
  return { element, show };
}

function snapshotsCard(page, detail) {
  const isDelta = detail.view.format === "delta";
  const chosen = [];
  const told = make("div", { class: "diff", role: "status", hidden: true });
  const pick = (each) => {
    chosen.push(each.snapshotId);
    if (chosen.length > 2) chosen.shift();
    if (chosen.length === 2 && chosen[0] !== chosen[1]) compare(page, told, chosen);
    else { told.hidden = false; told.textContent = `Choose another snapshot to compare ${each.snapshotId} with.`; }
  };
  const buttons = (each, isCurrent) => make("span", { class: "buttons" },
    make("button", { type: "button", class: "small", "data-do": "diff" }, "Compare"),
    detail.mayRollBack && !isCurrent ? make("button", { type: "button", class: "small", "data-do": "rollback", title: "Put the table back to this snapshot" }, "Roll back") : null);
  const list = new List({
    id: "snapshots", label: "Snapshots", key: (each) => each.snapshotId, empty: "No snapshot yet.",
    columns: [
      { head: "Id", phone: false, cell: (each) => each.snapshotId },
      { head: "When", cell: (each) => make("span", {}, ago(each.atMs), " ", each.isCurrent ? make("span", { class: "pill good" }, "current") : null) },
      { head: "Operation", phone: false, cell: (each) => each.operation },
      { head: "Rows", n: true, cell: (each) => number(each.rows) },
      { head: "Change", n: true, cell: (each) => (each.change === null ? "–" : signed(each.change)) },
      { head: "Files", n: true, phone: false, cell: (each) => number(each.dataFiles) },
      { head: "Position", n: true, phone: false, cell: (each) => number(each.position) },
      { head: "", cell: (each) => buttons(each, each.isCurrent) },
    ],
  });
  list.body.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    const item = event.target.closest("tr")?.item;
    if (!button || !item) return;
    if (button.dataset.do === "diff") pick(item);
    else rollBack(page, told, item, isDelta);
  });
  const show = (now) => list.show(now.view.snapshots.map((each, n, all) => {
    const before = all[n + 1];
    const known = before && before.rows !== null && each.rows !== null;
    return { ...each, isCurrent: each.snapshotId === now.view.current?.snapshotId, change: known ? each.rows - before.rows : null };
  }));
  const note = make("span", { class: "note" }, `the latest of ${number(detail.view.snapshotCount)}`);
  return { element: card(isDelta ? "Versions" : "Snapshots", { id: "snapshots-panel", more: note }, list.element, told), show };
}

async function compare(page, host, ids) {
  host.hidden = false;
  try {
    const [before, after] = [...ids].sort((one, other) => (BigInt(one) < BigInt(other) ? -1 : 1));
    let found = await ask(`${page.path}/diff?before=${before}&after=${after}`);
    if (found.before.atMs > found.after.atMs) found = await ask(`${page.path}/diff?before=${after}&after=${before}`);
    const line = (label, name, show) => {
      const [was, now] = [found.before[name], found.after[name]];
      const change = was === null || now === null ? "" : ` (${now - was > 0 ? "+" : ""}${show(now - was)})`;
      return make("li", {}, `${label}: ${show(was)} → ${show(now)}${change}`);
    };
    const columns = found.columns.map((each) => make("li", {}, `${each.name}: ${each.before ?? "not there"} → ${each.after ?? "gone"}`));
    host.replaceChildren(
      make("h3", {}, `From ${found.before.snapshotId} (${ago(found.before.atMs)}) to ${found.after.snapshotId} (${ago(found.after.atMs)})`),
      make("ul", {}, line("rows", "rows", number), line("data files", "dataFiles", number), line("delete files", "deleteFiles", number),
        make("li", {}, `size: ${bytes(found.before.bytes)} → ${bytes(found.after.bytes)}`), ...columns,
        columns.length ? null : make("li", {}, "the columns are the same")));
  } catch (error) {
    host.textContent = error.message;
  }
}

function rollBack(page, host, item, isDelta) {
  const again = isDelta ? "Changes that the table has had do not come again." : "Changes that the log still keeps may come into the table again.";
  const confirm = make("button", { type: "button", class: "primary", id: "confirm-rollback" }, "Put it back");
  confirm.addEventListener("click", async () => {
    try {
      const done = await post(`${page.path}/rollback`, { snapshotId: item.snapshotId });
      host.textContent = `The table is at ${done.snapshotId} again. Rolling back to ${done.was} undoes it.`;
    } catch (error) { host.textContent = error.message; }
  });
  host.hidden = false;
  host.replaceChildren(make("p", {}, `Put ${page.name} back to snapshot ${item.snapshotId} of ${ago(item.atMs)}, with ${number(item.rows)} rows? Later ones stay, and can be gone back to. ${again}`), confirm);
  confirm.focus();
}

function partitionsCard(page) {
  const list = new List({
    label: "Partitions", key: (each) => each.partition, empty: "The table has no partitions.",
    columns: [
      { head: "Partition", cell: (each) => each.partition || "(whole table)" }, { head: "Rows", n: true, cell: (each) => number(Math.max(0, each.records - each["deleted-records"])) },
      { head: "Files", n: true, cell: (each) => number(each["data-files"]) }, { head: "Size", n: true, phone: false, cell: (each) => bytes(each.bytes) },
    ],
  });
  const at = page.name.lastIndexOf(".");
  const levels = page.name.slice(0, at).split(".").map(encodeURIComponent).join("%1F");
  repeat(page.signal, 5000, async () => {
    try { list.show((await ask(`/v1/namespaces/${levels}/tables/${encodeURIComponent(page.name.slice(at + 1))}/partition-stats`)).partitions); } catch (error) { list.fail(error.message); }
  });
  return card("Partitions", { id: "partitions-panel" }, make("div", { class: "bounded" }, list.element));
}

function filesCard(page) {
  const note = make("span", { class: "note" });
  const list = new List({
    label: "Files", key: (file) => file.path, empty: "No files yet.",
    columns: [
      { head: "File", cell: (file) => make("span", { class: "mono cut", title: file.path }, file.path.split("/").pop()) }, { head: "Rows", n: true, cell: (file) => number(file.rows) },
      { head: "Deleted", n: true, phone: false, cell: (file) => number(file.deletedRows) }, { head: "Size", n: true, cell: (file) => bytes(file.bytes) },
    ],
  });
  repeat(page.signal, 5000, async () => {
    const found = await ask(`${page.path}/files?limit=50`);
    note.textContent = `the largest of ${number(found.total)}`;
    list.show(found.files);
  });
  return card("Files", { id: "files-panel", more: note }, make("div", { class: "bounded" }, list.element));
}

function rowsCard(page) {
  const host = make("div", { class: "scroll result" });
  const load = async () => {
    try {
      host.replaceChildren(grid(await post("/v1/query", { sql: `SELECT * FROM ${quoted(page.name)} LIMIT ${SAMPLE_ROWS}`, format: "json", timeoutMs: 20000 })));
    } catch (error) { host.replaceChildren(make("p", { class: "empty" }, error.message)); }
  };
  load();
  return card("Some rows", { id: "rows-panel", more: make("button", { type: "button", class: "small end", onclick: load }, "Other rows now") }, host);
}

function changesCard(page, history) {
  const host = make("div", { class: "scroll result" });
  const key = make("input", { type: "search", placeholder: "Key, or nothing for all", "aria-label": "Key" });
  const load = async () => {
    const only = key.value ? ` WHERE _key = ${literal(key.value)}` : "";
    const sql = `SELECT _time AS arrived, _op AS operation, _key AS "key", _columns AS columns, _source AS source, _position AS position FROM ${quoted(history)}${only} ORDER BY _position DESC LIMIT ${CHANGES_SHOWN}`;
    try { host.replaceChildren(grid(await post("/v1/query", { sql, format: "json", timeoutMs: 20000 }))); } catch (error) { host.replaceChildren(make("p", { class: "empty" }, error.message)); }
  };
  const form = make("form", { class: "end", onsubmit: (event) => { event.preventDefault(); load(); } }, key, make("button", { type: "submit", class: "small" }, "Show"));
  load();
  return card("Recent changes", { id: "changes-panel", more: form }, host);
}
