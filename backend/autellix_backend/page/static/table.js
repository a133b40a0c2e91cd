// A sortable table of any length; only the visible rows are in the document.

import { apart, el, setText } from "./dom.js";

export const ROW_PIXELS = 30;
const MARGIN_ROWS = 8;

// A column: key, title, value(row) to sort by, text(row), and: isNumber, isMinor (left out on narrow
// screens), link(row), style(row), hint.
export class LongTable {
  constructor({ label, columns, sortKey, isDescending = false, rowId, empty, isShort = false, onSort = null }) {
    this.columns = columns;
    this.sortKey = sortKey;
    this.isDescending = isDescending;
    this.rowId = rowId;
    this.empty = empty;
    this.onSort = onSort;
    this.rows = [];
    this.pool = [];
    this.first = 0;
    this.version = 0;
    this.chosen = null;
    this.heads = columns.map((column) => this.headOf(column));
    this.top = gapRow(columns.length);
    this.bottom = gapRow(columns.length);
    this.body = el("tbody", {}, this.top, this.bottom);
    this.table = el(
      "table",
      { "aria-label": label },
      el("thead", {}, el("tr", { "aria-rowindex": 1 }, this.heads)),
      this.body,
    );
    this.emptyNote = el("p", { class: "soft", hidden: true }, empty);
    this.view = el("div", { class: isShort ? "scroll short" : "scroll", tabindex: 0, role: "region", "aria-label": label }, this.table);
    this.node = el("div", {}, this.view, this.emptyNote);
    this.view.addEventListener("scroll", () => this.draw(), { passive: true });
    this.view.addEventListener("keydown", (event) => this.onKey(event));
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.view);
    this.markSort();
  }

  headOf(column) {
    const classes = `${column.isNumber ? "n" : ""} ${column.isMinor ? "minor" : ""}`.trim();
    const button = el("button", { type: "button", title: column.hint, click: () => this.sortBy(column.key) }, column.title);
    return el("th", { scope: "col", class: classes }, button);
  }

  sortBy(key) {
    const column = this.columns.find((each) => each.key === key);
    this.isDescending = this.sortKey === key ? !this.isDescending : Boolean(column.isNumber);
    this.sortKey = key;
    this.markSort();
    if (this.onSort) this.onSort();
    else this.show(this.rows);
  }

  markSort() {
    this.columns.forEach((column, place) => {
      const order = this.isDescending ? "descending" : "ascending";
      this.heads[place].setAttribute("aria-sort", column.key === this.sortKey ? order : "none");
    });
  }

  sorted(rows) {
    const { value } = this.columns.find((column) => column.key === this.sortKey);
    const sign = this.isDescending ? -1 : 1;
    const keyed = rows.map((row) => [value(row), this.rowId(row), row]);
    keyed.sort(([first, firstId], [second, secondId]) => sign * compare(first, second) || compare(firstId, secondId));
    return keyed.map(([, , row]) => row);
  }

  show(rows) {
    const focused = this.focusedLine();
    const focusedId = focused && this.rowId(focused.row);
    this.rows = this.sorted(rows);
    this.version += 1;
    this.table.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.emptyNote.hidden = this.rows.length > 0;
    this.view.hidden = this.rows.length === 0;
    this.draw();
    if (focused) this.keepFocus(focused, focusedId);
  }

  focusedLine() {
    return this.pool.find((line) => line.node.contains(document.activeElement));
  }

  // The focus stays on its row when the order changes.
  keepFocus(before, id) {
    const line = this.pool.find((each) => !each.node.hidden && this.rowId(each.row) === id);
    if (line && line !== before) line.node.querySelector("a")?.focus({ preventScroll: true });
  }

  draw() {
    const height = this.view.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW_PIXELS) - MARGIN_ROWS);
    const last = Math.min(this.rows.length, first + Math.ceil(height / ROW_PIXELS) + 2 * MARGIN_ROWS);
    this.turnPool(first);
    while (this.pool.length < last - first) this.addRow();
    this.pool.forEach((line, place) => {
      const number = first + place;
      if (line.node.hidden !== number >= last) line.node.hidden = number >= last;
      const isFilled = line.number === number && line.version === this.version;
      if (number < last && !isFilled) this.fill(line, this.rows[number], number);
    });
    this.top.firstChild.style.height = `${first * ROW_PIXELS}px`;
    this.bottom.firstChild.style.height = `${(this.rows.length - last) * ROW_PIXELS}px`;
  }

  // Rows that scroll out at one end are reused at the other; visible ones stay as they are.
  turnPool(first) {
    const shift = first - this.first;
    this.first = first;
    if (Math.abs(shift) >= this.pool.length) return;
    for (let count = 0; count < shift; count += 1) {
      const line = this.pool.shift();
      this.pool.push(line);
      this.body.insertBefore(line.node, this.bottom);
    }
    for (let count = 0; count > shift; count -= 1) {
      const line = this.pool.pop();
      this.body.insertBefore(line.node, this.pool[0].node);
      this.pool.unshift(line);
    }
  }

  addRow() {
    const cells = this.columns.map((column) => {
      const holder = column.link ? el("a", {}, apart("")) : apart("");
      const classes = `${column.isNumber ? "n" : ""} ${column.isMinor ? "minor" : ""}`.trim();
      return el("td", { class: classes }, holder);
    });
    const node = el("tr", {}, cells);
    this.pool.push({ node, cells });
    this.body.insertBefore(node, this.bottom);
  }

  fill(line, row, number) {
    Object.assign(line, { row, number, version: this.version });
    line.node.setAttribute("aria-rowindex", String(number + 2));
    line.node.classList.toggle("chosen", this.chosen !== null && this.rowId(row) === this.chosen);
    this.columns.forEach((column, place) => {
      const cell = line.cells[place];
      const text = column.text(row);
      const holder = cell.firstChild;
      setText(column.link ? holder.firstChild : holder, text);
      if (column.link) {
        const target = column.link(row);
        if (holder.getAttribute("href") !== target) holder.setAttribute("href", target);
        if (cell.title !== text) cell.title = text;
      }
      if (column.style) cell.className = column.style(row);
    });
  }

  choose(id) {
    this.chosen = id;
    this.version += 1;
    const number = this.rows.findIndex((row) => this.rowId(row) === id);
    if (number >= 0) this.view.scrollTop = Math.max(0, (number - 3) * ROW_PIXELS);
    this.draw();
  }

  // Arrows, Page Up and Down, Home and End move between all rows, also those not in the document.
  onKey(event) {
    const page = Math.max(1, Math.floor(this.view.clientHeight / ROW_PIXELS) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey || !this.rows.length) return;
    const line = this.focusedLine();
    const from = line ? this.rows.indexOf(line.row) : -1;
    const number = Math.min(this.rows.length - 1, Math.max(0, from + step));
    event.preventDefault();
    this.focusRow(number);
  }

  focusRow(number) {
    const top = number * ROW_PIXELS;
    const headPixels = this.heads[0].offsetHeight;
    const height = this.view.clientHeight - headPixels;
    if (top < this.view.scrollTop) this.view.scrollTop = top;
    else if (top + ROW_PIXELS > this.view.scrollTop + height) this.view.scrollTop = top + ROW_PIXELS - height;
    this.draw();
    const line = this.pool.find((each) => !each.node.hidden && each.row === this.rows[number]);
    const target = line.node.querySelector("a");
    if (target) target.focus({ preventScroll: true });
  }

  close() {
    this.sizes.disconnect();
  }
}

function gapRow(width) {
  return el("tr", { class: "gap", "aria-hidden": "true" }, el("td", { colspan: width }));
}

const texts = new Intl.Collator("en", { numeric: true });

// Unknown values sort first; numbers in texts sort as numbers.
export function compare(first, second) {
  if (first === second) return 0;
  if (first === null || first === undefined || Number.isNaN(first)) return -1;
  if (second === null || second === undefined || Number.isNaN(second)) return 1;
  if (typeof first === "string" && typeof second === "string") return texts.compare(first, second);
  return first < second ? -1 : 1;
}
