// The tables by namespace, each with an address of its own. What was folded stays so while it is refreshed.
import { $, make, number } from "./dom.js";
import { ask } from "./api.js";

const SUFFIXES = ["_history", "_dead_letters"];
let told = "";

export async function showTree(host) {
  const found = await ask("/v1/overview?limit=1000");
  const wanted = $("tree-filter").value.trim().toLowerCase();
  const names = found.tables.map((table) => [table.table, table.current ? table.current.rows : 0, table.error]);
  const now = JSON.stringify([names, wanted, location.pathname]);
  host.dispatchEvent(new CustomEvent("tables", { detail: found }));
  if (now === told) return;
  told = now;
  const byNamespace = new Map();
  for (const [name, rows, error] of names) {
    if (!name.toLowerCase().includes(wanted)) continue;
    const at = name.lastIndexOf(".");
    const space = name.slice(0, at);
    if (!byNamespace.has(space)) byNamespace.set(space, []);
    byNamespace.get(space).push([name, name.slice(at + 1), rows, error]);
  }
  const folded = new Set([...host.querySelectorAll("details:not([open])")].map((each) => each.dataset.space));
  const focused = document.activeElement?.closest?.("#tree a")?.getAttribute("href");
  host.replaceChildren(...[...byNamespace].map(([space, tables]) => make("details", { open: !folded.has(space), "data-space": space },
    make("summary", { title: space }, make("span", {}, space), " ", make("small", {}, number(tables.length))),
    make("ul", {}, ...tables.map(([name, short, rows, error]) => {
      const href = `/console/tables/${encodeURIComponent(name)}`;
      const own = SUFFIXES.some((suffix) => short.endsWith(suffix)) ? "own" : "";
      return make("li", { class: own }, make("a", { href, title: name, "aria-current": location.pathname === href && "page" },
        make("span", {}, short), error ? make("span", { class: "pill bad" }, "broken") : make("small", {}, number(rows))));
    })))));
  if (!byNamespace.size) host.append(make("p", { class: "empty" }, wanted ? "No such table." : "No tables yet. They come with the first changes."));
  if (focused) [...host.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus();
}

$("tree-filter").addEventListener("input", () => showTree($("tree")));
