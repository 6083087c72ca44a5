// The settings as they are now, who changed them, and what can be changed while the server runs.
import { ago, card, make } from "./dom.js";
import { ask, words } from "./api.js";

// A name that may be broken between its words, where there is no room for it.
const breakable = (name) => name.split(/(?=[A-Z])/).flatMap((word, n) => (n ? [make("wbr"), word] : [word]));

export async function settings({ view, signal }) {
  document.title = "Settings · Mainstem";
  const told = make("p", { class: "note", role: "status", id: "settings-told" });
  const host = make("div", { class: "stack" });
  view.append(host);

  async function load() {
    let found;
    try { found = await ask("/v1/config/server"); } catch (error) { host.replaceChildren(card("Settings", {}, make("p", { class: "empty" }, words(error)))); return; }
    if (signal.aborted) return;
    const rows = Object.entries(found.settings).map(([name, value]) => make("tr", { "data-key": name },
      make("td", {}, ...breakable(name), found.changed.includes(name) ? [" ", make("span", { class: "pill warn" }, "changed")] : null),
      make("td", {}, Array.isArray(value) ? value.join(", ") || "none" : String(value)),
      make("td", {}, make("span", { class: "buttons" }, make("button", { type: "button", class: "small", onclick: () => edit(name, value) }, "Change"),
        found.changed.includes(name) ? make("button", { type: "button", class: "small", title: "Back to what the configuration file has", onclick: () => change(name, null) }, "As in the file") : null))));
    const changes = found.changes.slice(0, 20).map((each) => make("li", {}, `${ago(each.atMs)} by ${each.by}: ${JSON.stringify(each.after)}`));
    host.replaceChildren(
      card("Settings of the running server", { id: "settings-panel" }, told, editor,
        make("div", { class: "scroll" }, make("table", { class: "grid", id: "settings" }, make("thead", {}, make("tr", {}, ...["Setting", "Value", ""].map((each) => make("th", { scope: "col" }, each)))), make("tbody", {}, ...rows)))),
      card("Who changed what", {}, changes.length ? make("ul", {}, ...changes) : make("p", { class: "empty" }, "Everything is as the configuration file has it.")));
  }

  // A text as the kind of value that the setting has. What is no number, or neither true nor false, the server names.
  function read(text, old) {
    if (Array.isArray(old)) return text.split(",").map((each) => each.trim()).filter(Boolean);
    if (typeof old === "boolean") return { true: true, false: false }[text] ?? text;
    return typeof old === "number" && text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  }

  async function change(name, given) {
    try {
      await ask("/v1/config", { method: "PATCH", headers: { "content-type": "application/json" }, body: JSON.stringify({ [name]: given }) });
      editor.hidden = true;
      told.textContent = given === null ? `${name} is as the configuration file has it` : `${name} is ${Array.isArray(given) ? given.join(", ") || "none" : given} now`;
      await load();
    } catch (error) { told.textContent = error.message; }
  }

  const editor = make("div", { hidden: true });
  function edit(name, value) {
    const field = make("input", { value: Array.isArray(value) ? value.join(", ") : String(value), "aria-label": name });
    const save = (event) => {
      event.preventDefault();
      change(name, read(field.value.trim(), value));
    };
    editor.hidden = false;
    editor.replaceChildren(make("form", { class: "row", onsubmit: save }, make("label", {}, `${name} `, field), make("button", { class: "primary", type: "submit" }, "Save"),
      make("button", { type: "button", onclick: () => { editor.hidden = true; } }, "Leave it")));
    field.focus();
  }
  await load();
}
