// Lists that are refreshed again and again. A row is known by its key and stays the element that it is: so focus,
// a selection of text and whatever is open in it outlive the refresh. Columns become narrower only where there is no room.
import { make } from "./dom.js";

addEventListener("resize", () => { for (const host of document.querySelectorAll(".scroll")) host.again?.(); });

export class List {
  // columns: [{ head, n (a number), phone: false (left out where there is no room), cell: (item) => text or element }]
  constructor({ columns, key, empty, onopen, id, label }) {
    this.columns = columns;
    this.key = key;
    this.empty = empty;
    this.onopen = onopen;
    this.rows = new Map();
    const heads = columns.map((column) => make("th", { class: classOf(column), scope: "col" }, column.head));
    this.body = make("tbody");
    this.table = make("table", { class: "grid", id, "aria-label": label }, make("thead", {}, make("tr", {}, ...heads)), this.body);
    this.element = make("div", { class: "scroll" }, this.table);
    this.element.again = () => this.#keepWidths();
    this.heads = heads;
  }

  show(items) {
    const seen = new Set();
    let before = null;
    for (const item of items) {
      const key = String(this.key(item));
      if (seen.has(key)) continue;
      seen.add(key);
      const row = this.rows.get(key) ?? this.#row(key);
      row.item = item;
      this.#fill(row, item);
      // Moved only where it is not in its place: moving an element takes its focus away.
      const wanted = before ? before.nextSibling : this.body.firstChild;
      if (row !== wanted) this.body.insertBefore(row, wanted);
      before = row;
    }
    for (const [key, row] of this.rows) if (!seen.has(key)) { row.remove(); this.rows.delete(key); }
    this.#showEmpty(seen.size === 0);
    this.#keepWidths();
  }

  #keepWidths() {
    const room = this.element.clientWidth;
    // Another room, or no room for all that was kept: the browser shares it out anew.
    if (room !== this.room || this.table.offsetWidth > room) for (const head of this.heads) head.style.minWidth = "";
    this.room = room;
    // All are read before one is set: setting one makes the others narrower.
    const widths = this.heads.map((head) => head.getBoundingClientRect().width);
    this.heads.forEach((head, n) => { head.style.minWidth = `${widths[n]}px`; });
  }

  fail(message) {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.#showEmpty(true, message);
  }

  #row(key) {
    const row = make("tr", { "data-key": key });
    row.append(...this.columns.map((column) => make("td", { class: classOf(column) })));
    if (this.onopen) {
      row.className = "open-able";
      row.tabIndex = 0;
      row.addEventListener("click", (event) => { if (!event.target.closest("button, a, input")) this.onopen(row.item); });
      row.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target === row) this.onopen(row.item); });
    }
    this.rows.set(key, row);
    return row;
  }

  #fill(row, item) {
    this.columns.forEach((column, n) => {
      const cell = row.children[n];
      const value = column.cell(item);
      if (value instanceof Node) {
        // An element is made anew only where it says something new.
        const told = value.outerHTML;
        if (cell.told !== told) { cell.told = told; cell.replaceChildren(value); }
      } else if (cell.told !== value) { cell.told = value; cell.textContent = value; }
    });
  }

  #showEmpty(isEmpty, message) {
    this.nothing?.remove();
    this.nothing = null;
    if (!isEmpty) return;
    this.nothing = make("tr", {}, make("td", { colspan: this.columns.length, class: "empty" }, message ?? this.empty));
    this.body.append(this.nothing);
  }
}

const classOf = (column) => [column.n ? "n" : "", column.phone === false ? "wide" : ""].join(" ").trim();
