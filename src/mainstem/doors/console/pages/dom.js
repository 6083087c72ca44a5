// Elements, words and numbers. Everything that comes from the server is put in as text: it can never be markup.
export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export const counted = (value, word) => `${number(value)} ${word}${value === 1 ? "" : "s"}`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let n = 0;
  let size = value;
  while (size >= 1024 && n < units.length - 1) { size /= 1024; n += 1; }
  return `${n === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[n]}`;
}

export function span(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const ago = (ms) => (ms ? `${span((Date.now() - ms) / 1000)} ago` : "never");
export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
export const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));
export const seconds = (value) => `${value.toFixed(2)} s`;

export function mark(where, kind, words) {
  where.className = `pill ${kind}`;
  where.textContent = words;
}

export function fill(bar, share, warn, bad) {
  bar.style.width = `${Math.min(100, Math.max(share > 0 ? 1 : 0, share * 100))}%`;
  bar.className = share >= bad ? "bad" : share >= warn ? "warn" : "";
}

export const quoted = (name) => name.split(".").map(identifier).join(".");
export const identifier = (part) => (/^[a-z_][a-z0-9_]*$/.test(part) ? part : `"${part.replaceAll('"', '""')}"`);
export const literal = (text) => `'${text.replaceAll("'", "''")}'`;

// `more` stands beside the title.
export const card = (title, { more = null, ...attributes }, ...children) => make("section", { class: "card", ...attributes },
  make("div", { class: "head" }, make("h2", {}, title), more), ...children);
