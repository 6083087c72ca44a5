// Changes that did not fit their table: see why, mend them, send them again.
import { ago, card, make, number } from "./dom.js";
import { ask, post } from "./api.js";
import { List } from "./lists.js";

export function lettersCard(page, mayWrite) {
  const note = make("span", { class: "note", id: "letters-note" });
  const reasons = make("div", { class: "chips", id: "letters-reasons" });
  const told = make("p", { class: "note", role: "status", id: "letters-told" });
  const editor = make("div", { class: "mend", hidden: true });
  let only = null;
  const list = new List({
    id: "letters-list", label: "Dead letters", key: (letter) => letter.id, empty: "Every change fitted.",
    columns: [
      { head: "Key", cell: (letter) => letter.key },
      { head: "Why it did not fit", cell: (letter) => make("span", { class: "wrap" }, letter.reason) },
      { head: "Columns", phone: false, cell: (letter) => make("span", { class: "mono cut", title: JSON.stringify(letter.columns) }, JSON.stringify(letter.columns)) },
      { head: "Arrived", phone: false, cell: (letter) => ago(letter.arrivedMs) },
      { head: "", cell: (letter) => (letter.replayed ? make("span", { class: "pill good" }, "replayed")
        : mayWrite ? make("button", { type: "button", class: "small" }, "Mend") : make("span")) },
    ],
  });
  list.body.addEventListener("click", (event) => {
    const item = event.target.closest("tr")?.item;
    if (event.target.closest("button") && item) edit(item);
  });

  async function load() {
    const query = only === null ? "" : `&reason=${encodeURIComponent(only)}`;
    const found = await ask(`${page.path}/dead-letters?limit=50${query}`);
    note.textContent = found.total ? `${number(found.total - found.replayed)} waiting · ${number(found.replayed)} replayed` : "none";
    const chip = (reason, count) => make("button", { type: "button", class: `chip${reason === only ? " on" : ""}`, "aria-pressed": String(reason === only),
      onclick: () => { only = reason === only ? null : reason; load(); } }, reason, make("i", {}, number(count)));
    reasons.replaceChildren(...Object.entries(found.reasons).map(([reason, count]) => chip(reason, count)));
    list.show(found.letters);
    all.hidden = !mayWrite || found.total === found.replayed;
    all.textContent = only === null ? "Replay all as they are" : "Replay all of this reason as they are";
  }

  async function replay(body) {
    told.textContent = "replaying …";
    try {
      const done = await post(`${page.path}/dead-letters/replay`, body);
      const failures = done.failures.length ? `, ${number(done.failures.length)} could not be: ${done.failures[0].error}` : "";
      told.textContent = `${number(done.replayed)} replayed, ${number(done.duplicates)} had been before${failures}${done.remaining ? "; there are more: once more, please" : ""}`;
      editor.hidden = done.failures.length === 0 ? true : editor.hidden;
    } catch (error) { told.textContent = error.message; }
    await load();
  }

  function edit(letter) {
    const columns = make("textarea", { rows: 6, spellcheck: "false", "aria-label": "The columns, as JSON", id: "mend-columns" });
    columns.value = JSON.stringify(letter.columns ?? {}, null, 2);
    const wrong = make("p", { class: "trouble", role: "alert", hidden: true });
    const send = (event) => {
      event.preventDefault();
      let mended;
      try { mended = JSON.parse(columns.value); } catch (error) { wrong.hidden = false; wrong.textContent = `No JSON: ${error.message}`; return; }
      const isObject = mended !== null && typeof mended === "object" && !Array.isArray(mended);
      wrong.hidden = isObject;
      wrong.textContent = isObject ? "" : "The columns are an object.";
      if (isObject) replay(mendOf(letter, mended));
    };
    editor.hidden = false;
    editor.replaceChildren(make("h3", {}, `Mend ${letter.key}`), make("p", { class: "note" }, letter.reason),
      make("form", { onsubmit: send }, columns, wrong, make("div", { class: "row" },
        make("button", { type: "submit", class: "primary" }, "Replay it"), make("button", { type: "button", onclick: () => { editor.hidden = true; } }, "Leave it"),
        make("span", { class: "note" }, "It is sent under the clock that it had: what was written since stays."))));
    columns.focus();
  }

  const all = make("button", { type: "button", hidden: true, onclick: () => replay(only === null ? { all: true } : { reason: only }) });
  load().catch((error) => { note.textContent = error.message; });
  return card("Dead letters", { id: "letters-panel", more: note }, reasons, make("div", { class: "bounded" }, list.element), editor, make("div", { class: "row" }, all, told));
}

// Only what differs is sent: the server lays it over the letter as it came, whose numbers a browser might round.
export function mendOf(letter, mended) {
  const own = letter.columns !== null && typeof letter.columns === "object" ? letter.columns : {};
  const columns = Object.fromEntries(Object.entries(mended).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(own[name])));
  return { letters: [{ id: letter.id, columns, drop: Object.keys(own).filter((name) => !(name in mended)) }] };
}
