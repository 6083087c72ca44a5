// The console: one page of HTML, whose view follows the address. It asks the server's own API, and keeps nothing but
// what a person chose: the theme, and the queries that were run.
import { $, make, mark, span } from "./dom.js";
import { Refused, ask, repeat } from "./api.js";
import { overview } from "./overview.js";
import { query } from "./query.js";
import { activity } from "./activity.js";
import { settings } from "./settings.js";
import { tablePage } from "./table.js";
import { showTree } from "./tree.js";

const MOODS = { idle: "good", receiving: "good", flushing: "good", recovering: "warn", error: "bad" };
// Pages that want the status as it comes.
const listeners = new Set();
let leave = null;
let newest = null;

const onStatus = (signal, listener) => {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
  if (newest) listener(newest);
};

function route() {
  leave?.abort();
  leave = new AbortController();
  const path = location.pathname.replace(/\/+$/, "");
  const pages = { "/console": overview, "/console/query": query, "/console/activity": activity, "/console/settings": settings };
  const context = { signal: leave.signal, onStatus: (listener) => onStatus(leave.signal, listener), go, view: $("view") };
  const table = path.match(/^\/console\/tables\/([^/]+)$/);
  for (const link of document.querySelectorAll(".top nav a")) link.toggleAttribute("aria-current", link.getAttribute("href") === path);
  for (const link of document.querySelectorAll("#tree a")) link.toggleAttribute("aria-current", link.getAttribute("href") === location.pathname);
  $("view").replaceChildren();
  document.title = "Mainstem console";
  if (table) tablePage(context, decodeURIComponent(table[1]));
  else (pages[path] ?? overview)(context);
  $("tree-panel").open = matchMedia("(min-width: 901px)").matches;
  scrollTo(0, 0);
}

function go(path) {
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  route();
}

addEventListener("popstate", route);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/console']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

async function showStatus() {
  try {
    newest = await ask("/status");
  } catch (error) {
    mark($("state"), "bad", "no answer");
    $("trouble").hidden = false;
    $("trouble").textContent = error instanceof Refused ? error.message : "The server does not answer. It is asked again every second.";
    return;
  }
  mark($("state"), newest.lastError && MOODS[newest.state] === "good" ? "warn" : MOODS[newest.state] ?? "", newest.state);
  $("version").textContent = `version ${newest.gateway.version}`;
  $("uptime").textContent = `up ${span(newest.gateway.uptimeS)}`;
  $("trouble").hidden = !newest.lastError;
  $("trouble").textContent = newest.lastError ?? "";
  showLetters(newest.deadLetters ?? {});
  for (const listener of listeners) listener(newest);
}

// Changes that did not fit are no error of the server's, and must be seen all the same.
function showLetters(letters) {
  const waiting = Object.entries(letters).map(([table, told]) => [table, told.total - told.replayed]).filter(([, count]) => count > 0);
  const told = JSON.stringify(waiting);
  if ($("letters").told === told) return;
  $("letters").told = told;
  $("letters").hidden = !waiting.length;
  const total = waiting.reduce((sum, [, count]) => sum + count, 0);
  $("letters").replaceChildren(`${total.toLocaleString("en-US")} ${total === 1 ? "change" : "changes"} did not fit: `,
    ...waiting.slice(0, 8).flatMap(([table, count], n) => [n ? ", " : "",
      make("a", { href: `/console/tables/${encodeURIComponent(table)}?show=letters` }, `${table} (${count.toLocaleString("en-US")})`)]),
    waiting.length > 8 ? " …" : "");
}

$("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("mainstem-theme", theme); } catch { /* storage may be off */ }
});
$("sign-out").hidden = document.body.dataset.signedIn !== "true";
$("sign-out").addEventListener("click", async () => { await fetch("/console/sign-out", { method: "POST" }); location.reload(); });

const forever = new AbortController().signal;
repeat(forever, 1000, showStatus);
repeat(forever, 3000, () => showTree($("tree")));
route();
