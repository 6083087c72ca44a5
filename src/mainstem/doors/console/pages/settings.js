// The settings as they are now, who changed them, and what can be changed while the server runs.
import { ago, card, make } from "./dom.js";
import { ask, words } from "./api.js";

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
      make("td", {}, name, found.changed.includes(name) ? make("span", { class: "pill warn" }, "changed") : null),
      make("td", {}, Array.isArray(value) ? value.join(", ") || "none" : String(value)),
      make("td", {}, Array.isArray(value) ? null : make("button", { type: "button", class: "small", onclick: () => edit(name, value) }, "Change"))));
    const changes = found.changes.slice(0, 20).map((each) => make("li", {}, `${ago(each.atMs)} by ${each.by}: ${JSON.stringify(each.after)}`));
    host.replaceChildren(
      card("Settings of the running server", { id: "settings-panel" }, told, editor,
        make("div", { class: "scroll" }, make("table", { class: "grid", id: "settings" }, make("thead", {}, make("tr", {}, ...["Setting", "Value", ""].map((each) => make("th", { scope: "col" }, each)))), make("tbody", {}, ...rows)))),
      card("Who changed what", {}, changes.length ? make("ul", {}, ...changes) : make("p", { class: "empty" }, "Everything is as the configuration file has it.")));
  }

  const editor = make("div", { hidden: true });
  function edit(name, value) {
    const field = make("input", { value: String(value), "aria-label": name });
    const save = async (event) => {
      event.preventDefault();
      const given = typeof value === "boolean" ? field.value === "true" : typeof value === "number" ? Number(field.value) : field.value;
      try {
        await ask("/v1/config", { method: "PATCH", headers: { "content-type": "application/json" }, body: JSON.stringify({ [name]: given }) });
        editor.hidden = true;
        told.textContent = `${name} is ${given} now`;
        await load();
      } catch (error) { told.textContent = error.message; }
    };
    editor.hidden = false;
    editor.replaceChildren(make("form", { class: "row", onsubmit: save }, make("label", {}, `${name} `, field), make("button", { class: "primary", type: "submit" }, "Save"),
      make("button", { type: "button", onclick: () => { editor.hidden = true; } }, "Leave it")));
    field.focus();
  }
  await load();
}
