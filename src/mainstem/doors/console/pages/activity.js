// Who sends and reads, and what is being done to the tables.
import { ago, card, counted, make, number } from "./dom.js";
import { ask, may, post, repeat, words } from "./api.js";
import { List } from "./lists.js";
import { passList, showErrors } from "./overview.js";

export function activity({ view, signal, onStatus }) {
  document.title = "Activity · Mainstem";
  const clients = new List({
    id: "clients", label: "Producers and sync clients", key: (client) => `${client.kind} ${client.name}`, empty: "Nobody has sent anything yet.",
    columns: [
      { head: "Name", cell: (client) => client.name }, { head: "Kind", phone: false, cell: (client) => client.kind },
      { head: "Sequence", n: true, cell: (client) => number(client.sequence) }, { head: "In the tables", n: true, phone: false, cell: (client) => number(client.persisted) },
      { head: "Waiting", n: true, cell: (client) => number(client.waiting) }, { head: "Last heard", cell: (client) => ago(client.lastHeardMs) },
    ],
  });
  const clientsNote = make("span", { class: "note" });
  const groups = new List({
    id: "groups", label: "Consumer groups", key: (each) => `${each.group} ${each.topic}`, empty: "No consumer group.",
    columns: [{ head: "Group", cell: (each) => each.group }, { head: "Topic", cell: (each) => each.topic }, { head: "Lag (records)", n: true, cell: (each) => number(each.lag) }],
  });
  const passes = passList();
  const jobs = jobsCard(signal);
  const errors = make("ol", { id: "errors", class: "errors" });
  const groupsCard = card("Kafka's consumer groups", { id: "groups-panel", hidden: true }, groups.element);
  view.append(card("Producers and sync clients", { id: "clients-panel", more: clientsNote }, clients.element), groupsCard,
    card("Spark's passes", { id: "passes-panel", more: passes.note }, passes.list.element), jobs, card("Last errors", { id: "errors-panel" }, errors));
  onStatus((status) => {
    passes.show(status.pipeline);
    const rows = Object.entries(status.groups ?? {}).flatMap(([group, topics]) => Object.entries(topics).map(([topic, lag]) => ({ group, topic, lag })));
    groupsCard.hidden = !rows.length;
    groups.show(rows);
  });
  repeat(signal, 2000, async () => {
    const found = await ask("/v1/clients");
    // Connections are told to tokens without bounds: those of others are among them.
    const connected = found.cdcConnections === null ? "" : ` · ${counted(found.cdcConnections, "producer")} and ${counted(found.syncConnections, "sync client")} connected`;
    clientsNote.textContent = `${number(found.total)} remembered${connected}`;
    clients.show(found.clients);
  });
  repeat(signal, 3000, () => showErrors(errors));
}

function jobsCard(signal) {
  const note = make("span", { class: "note", id: "jobs-note", role: "status" });
  const button = (label, work, done) => {
    const made = make("button", { type: "button" }, label);
    made.addEventListener("click", async () => {
      made.disabled = true;
      try { await work(); note.textContent = done; } catch (error) { note.textContent = words(error); } finally { made.disabled = false; }
    });
    return made;
  };
  const moods = { running: "good", failed: "bad", cancelled: "warn" };
  const list = new List({
    id: "jobs", label: "Jobs", key: (job) => job.id, empty: "No jobs. Tables are compacted by themselves.",
    columns: [
      { head: "Table", cell: (job) => job.table }, { head: "Steps", phone: false, cell: (job) => job.steps.join(", ") },
      { head: "State", cell: (job) => make("span", { class: `pill ${moods[job.state] ?? ""}`, title: job.error ?? "" }, job.state) },
      { head: "Progress", phone: false, cell: (job) => make("span", { class: "wrap" }, progress(job.progress)) }, { head: "Started", cell: (job) => (job.startedMs ? ago(job.startedMs) : "–") },
    ],
  });
  repeat(signal, 2000, async () => {
    try { list.show((await ask("/v1/compaction/jobs")).slice(0, 30)); } catch (error) { list.fail(words(error)); }
  });
  const buttons = make("span", { class: "buttons end" }, note,
    may("writer") ? button("Flush", () => post("/flush?timeoutS=30", {}), "everything accepted is in the tables") : null,
    may("admin") ? button("Look at every table", () => post("/v1/compaction/auto", {}), "what is worth it was queued") : null);
  return card("Jobs", { id: "jobs-panel", more: buttons }, list.element);
}

const progress = (steps) => Object.entries(steps ?? {}).map(([step, told]) => `${step}: ${Object.entries(told).map(([name, value]) => `${value} ${name}`).join(", ")}`).join("; ") || "–";
