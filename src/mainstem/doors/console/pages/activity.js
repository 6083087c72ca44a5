// Who sends and reads, and what is being done to the tables.
import { ago, card, make, number } from "./dom.js";
import { ask, post, repeat, words } from "./api.js";
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
    card("Spark's micro-batches", { id: "passes-panel", more: passes.note }, passes.list.element), jobs, card("Last errors", { id: "errors-panel" }, errors));
  onStatus((status) => {
    passes.show(status.pipeline);
    const rows = Object.entries(status.groups ?? {}).flatMap(([group, topics]) => Object.entries(topics).map(([topic, lag]) => ({ group, topic, lag })));
    groupsCard.hidden = !rows.length;
    groups.show(rows);
  });
  repeat(signal, 2000, async () => {
    const found = await ask("/v1/clients");
    clientsNote.textContent = `${number(found.total)} remembered · ${number(found.cdcConnections)} producers and ${number(found.syncConnections)} sync clients connected`;
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
      { head: "Progress", phone: false, cell: (job) => progress(job.progress) }, { head: "Started", cell: (job) => (job.startedMs ? ago(job.startedMs) : "–") },
    ],
  });
  repeat(signal, 2000, async () => {
    try { list.show((await ask("/v1/compaction/jobs")).slice(0, 30)); } catch (error) { list.fail(words(error)); }
  });
  const buttons = make("span", { class: "buttons end" }, button("Flush", () => post("/flush?timeoutS=30", {}), "everything accepted is in the tables"),
    button("Look at every table", () => post("/v1/compaction/auto", {}), "what is worth it was queued"));
  return card("Jobs", { id: "jobs-panel", more: make("span", { class: "buttons end" }, note, buttons) }, list.element);
}

const progress = (steps) => Object.entries(steps ?? {}).map(([step, told]) => `${step}: ${Object.entries(told).map(([name, value]) => `${value} ${name}`).join(", ")}`).join("; ") || "–";
