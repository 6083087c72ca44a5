// Small plots, drawn as SVG: enough for a console, and nothing to install. A null is a gap.
const NS = "http://www.w3.org/2000/svg";
const EDGE = { left: 52, right: 12, top: 10, bottom: 24 };

function element(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Text would be squeezed with the rest where a window changes its width, or a phone is turned.
addEventListener("resize", () => { for (const host of document.querySelectorAll(".chart")) host.again?.(); });

// Three to six round numbers that hold the range.
function ticks(low, high) {
  if (!(high > low)) high = low + 1;
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const first = Math.floor(low / step) * step;
  const found = [];
  for (let n = 0; n < 12 && first + (n - 1) * step < high; n += 1) found.push(first + n * step);
  return found;
}

function short(value) {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= unit) return `${+(value / unit).toPrecision(3)}${name}`;
  }
  return `${+value.toPrecision(3)}`;
}

// Exact enough to tell it from the next one, `step` away: 1990 and 1995 are both 1.99k in short.
function exact(value, step) {
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  return Math.abs(value) < 1e6 && digits < 7 ? value.toFixed(digits) : `${+value.toPrecision(10)}`;
}

// A time, as exact as the range needs.
function moment(ms, range) {
  const iso = new Date(ms).toISOString();
  if (range > 3 * 86_400_000) return iso.slice(0, 10);
  return range > 3_600_000 ? iso.slice(5, 16).replace("T", " ") : iso.slice(11, 19);
}

function frame(host, low, high) {
  const width = host.clientWidth || 600;
  const height = host.clientHeight || 200;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
  const marks = ticks(low, high);
  const bottom = marks[0];
  const top = marks[marks.length - 1];
  const y = (value) => EDGE.top + (height - EDGE.top - EDGE.bottom) * (1 - (value - bottom) / (top - bottom));
  for (const mark of marks) {
    svg.append(element("line", { class: "gridline", x1: EDGE.left, x2: width - EDGE.right, y1: y(mark), y2: y(mark) }));
    svg.append(element("text", { x: EDGE.left - 8, y: y(mark) + 4, "text-anchor": "end" }, short(mark)));
  }
  return { svg, y, bottom, left: EDGE.left, right: width - EDGE.right, width, height };
}

// Runs of points without a gap in between.
function runs(points) {
  const found = [[]];
  for (const point of points) {
    if (point === null) found.push([]);
    else found[found.length - 1].push(point);
  }
  return found.filter((run) => run.length);
}

function path(points) {
  return points.map(([x, y], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

// Lines over time: series of {name, values}, all at the same `times` (seconds).
export function overTime(host, times, series) {
  host.again = () => overTime(host, times, series);
  const every = series.flatMap((one) => one.values).filter((value) => value !== null);
  const f = frame(host, 0, Math.max(1, ...every));
  const first = times[0] ?? 0;
  const newest = times[times.length - 1] ?? 0;
  const span = Math.max(60, newest - first);
  const x = (time) => f.right - ((newest - time) / span) * (f.right - f.left);
  for (const { name, values } of series) {
    for (const points of runs(values.map((value, n) => (value === null ? null : [x(times[n]), f.y(value)])))) {
      if (points.length < 2) continue;
      const base = f.y(0);
      const area = `${path(points)}L${points[points.length - 1][0]} ${base}L${points[0][0]} ${base}Z`;
      f.svg.append(element("path", { class: `area ${name}`, d: area }));
      f.svg.append(element("path", { class: `line ${name}`, d: path(points) }));
    }
  }
  for (const share of [0, 0.5, 1]) {
    const ago = Math.round(span * (1 - share));
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    const label = ago === 0 ? "now" : ago % 60 === 0 ? `${ago / 60} min ago` : `${ago} s ago`;
    f.svg.append(element("text", { x: f.left + share * (f.right - f.left), y: f.height - 4, "text-anchor": anchor }, label));
  }
  host.replaceChildren(f.svg);
}

// A result. `across` are times, numbers or texts, as their column's type says: a text is never taken for a year.
export function ofResult(host, kind, across, up, type) {
  host.again = () => ofResult(host, kind, across, up, type);
  const value = (given) => (given === null || given === "" ? null : Number.isFinite(Number(given)) ? Number(given) : null);
  const values = up.map(value);
  const known = values.filter((each) => each !== null);
  if (!known.length) { nothing(host, "Nothing to plot: every value is null."); return; }
  const isText = kind === "bar" || type === "text";
  const places = across.map((given, n) => (isText ? n : given === null ? null : type === "time" ? Date.parse(/[Zz]|[+-]\d\d:?\d\d$/.test(given) ? given : `${given}${given.length > 10 ? "Z" : "T00:00:00Z"}`) : value(given)));
  const order = places.map((_, n) => n).filter((n) => places[n] !== null);
  if (!order.length) { nothing(host, "Nothing to plot: every place is null."); return; }
  if (!isText) order.sort((one, other) => places[one] - places[other]);
  const f = frame(host, Math.min(0, ...known), Math.max(0, ...known));
  const low = Math.min(...order.map((n) => places[n]));
  const high = Math.max(...order.map((n) => places[n]));
  const slot = (f.right - f.left) / places.length;
  const x = (n) => (isText ? f.left + slot * (n + 0.5) : high > low ? f.left + ((places[n] - low) / (high - low)) * (f.right - f.left) : (f.left + f.right) / 2);
  if (kind === "line") {
    for (const points of runs(order.map((n) => (values[n] === null ? null : [x(n), f.y(values[n])])))) {
      // A point alone between two gaps is no line.
      const [[px, py]] = points;
      f.svg.append(points.length > 1 ? element("path", { class: "line a", d: path(points) }) : element("circle", { class: "mark a", cx: px, cy: py, r: 2 }));
    }
  }
  for (const n of order) {
    if (values[n] === null || (kind === "line" && order.length > 120)) continue;
    const mark = kind === "bar" ? barAt(f, x(n), slot, values[n]) : element("circle", { class: "mark a", cx: x(n), cy: f.y(values[n]), r: kind === "dots" ? 3.5 : 3 });
    mark.append(element("title", {}, `${across[n]}: ${values[n]}`));
    f.svg.append(mark);
  }
  const isNumber = !isText && type !== "time";
  const marks = isNumber ? ticks(low, high).filter((each) => each >= low && each <= high) : [];
  // Round numbers, as long as two of them fit in the range.
  if (marks.length > 1) label(f, marks.map((mark) => [f.left + ((mark - low) / (high - low)) * (f.right - f.left), exact(mark, marks[1] - marks[0])]));
  else label(f, order.map((n) => [x(n), isText ? String(across[n] ?? "null") : isNumber ? String(across[n]) : moment(places[n], high - low)]));
  host.replaceChildren(f.svg);
}

// Labels below, each at its place and inside of the frame; one that would touch the one before it is left out.
function label(f, labels) {
  let end = -Infinity;
  for (const [at, full] of labels) {
    const text = full.length > 14 ? `${full.slice(0, 13)}…` : full;
    const half = text.length * 3.3;
    const middle = Math.max(f.left + half - 14, Math.min(f.right - half, at));
    if (middle - half < end + 12) continue;
    f.svg.append(element("text", { x: middle, y: f.height - 4, "text-anchor": "middle" }, text));
    end = middle + half;
  }
}

function nothing(host, words) {
  const said = document.createElement("p");
  said.className = "empty";
  said.textContent = words;
  host.replaceChildren(said);
}

function barAt(f, x, slot, value) {
  const wide = Math.min(96, Math.max(1, slot * 0.72));
  const top = f.y(Math.max(0, value));
  return element("rect", { class: "mark a", x: x - wide / 2, width: wide, y: top, height: Math.max(1, f.y(Math.min(0, value)) - top), rx: Math.min(3, wide / 3) });
}
