// Asking the server.
export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  if (answer.status === 401) location.reload();
  const body = answer.headers.get("content-type")?.includes("json") ? await answer.json() : null;
  if (!answer.ok) throw new Refused(answer.status, body?.error?.message ?? body?.detail ?? `the server answered ${answer.status}`);
  return body;
}

export const post = (path, body) => ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

export const tablePath = (name) => `/v1/tables/${encodeURIComponent(name)}`;

// Again and again until the page is left, never twice at once, and less often while nobody looks.
export function repeat(signal, everyMs, work) {
  const turn = async () => {
    if (signal.aborted) return;
    try { await work(); } catch (error) { if (!signal.aborted) console.warn(error.message); }
    if (!signal.aborted) setTimeout(turn, document.hidden ? everyMs * 5 : everyMs);
  };
  turn();
}

// What the token lets one do, as the server wrote it into the page: a button that it would refuse is not shown.
const ROLES = ["client", "reader", "writer", "admin"];
export const may = (role) => ROLES.indexOf(document.body.dataset.role) >= ROLES.indexOf(role);

export const NEEDS_ADMIN = "A token for everything, with the role admin, shows this.";
export const words = (error) => (error.status === 403 ? NEEDS_ADMIN : error.message);
