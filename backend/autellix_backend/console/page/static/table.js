// A sortable table of any length; only the visible rows are in the document.

import { apart, el, setText } from "./dom.js";

const ROW_PIXELS = 30;
const MARGIN_ROWS = 8;
// Values that change move their rows at most this often, and never under the pointer.
const SORT_MS = 5000;

// A column: key, title, value(row) to sort by, text(row), and: isNumber, isLeast (left out below 1100 px), isMinor (on narrow
// screens), link(row), hover(row), style(row), hint, isShown(rows).
// Rows of groups have `group`, `isOpen` and `rows`; a click on one calls `onGroup`.
export class LongTable {
  constructor({ label, columns, sortKey, isDescending = false, rowId, empty, isShort = false, onGroup = null }) {
    this.columns = columns;
    this.sortKey = sortKey;
    this.isDescending = isDescending;
    this.rowId = rowId;
    this.empty = empty;
    this.onGroup = onGroup;
    this.ranks = new Map();
    this.sortedMs = -Infinity;
    this.mustSort = true;
    this.rows = this.given = [];
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
    this.emptyNote = el("p", { hidden: true }, empty);
    this.view = el("div", { class: isShort ? "scroll short" : "scroll", hidden: true, tabindex: 0, role: "region", "aria-label": label }, this.table);
    this.node = el("div", {}, this.view, this.emptyNote);
    this.view.addEventListener("scroll", () => this.draw(), { passive: true });
    this.view.addEventListener("keydown", (event) => this.onKey(event));
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.view);
    this.markSort();
  }

  headOf(column) {
    const classes = classesOf(column);
    const button = el("button", { type: "button", title: column.hint, click: () => this.sortBy(column.key) }, column.title);
    return el("th", { scope: "col", class: classes }, button);
  }

  sortBy(key) {
    const column = this.columns.find((each) => each.key === key);
    this.isDescending = this.sortKey === key ? !this.isDescending : Boolean(column.isNumber);
    this.sortKey = key;
    this.markSort();
    this.mustSort = true;
    this.show(this.given);
  }

  markSort() {
    this.columns.forEach((column, place) => {
      const order = this.isDescending ? "descending" : "ascending";
      this.heads[place].setAttribute("aria-sort", column.key === this.sortKey ? order : "none");
    });
  }

  // Rows keep their order for a while, and new ones come last.
  sorted(rows) {
    const isOld = performance.now() - this.sortedMs > SORT_MS;
    const isDue = this.mustSort || (isOld && !this.view.matches(":hover"));
    this.mustSort = false;
    const { value } = this.columns.find((column) => column.key === this.sortKey);
    const sign = this.isDescending ? -1 : 1;
    const rankOf = (id) => (isDue ? 0 : this.ranks.get(id) ?? Infinity);
    const order = (list) => {
      const keyed = list.map((row) => [rankOf(this.rowId(row)), value(row), this.rowId(row), row]);
      keyed.sort(([firstRank, first, firstId], [secondRank, second, secondId]) =>
        compare(firstRank, secondRank) || sign * compare(first, second) || compare(firstId, secondId));
      return keyed.map(([, , , row]) => row);
    };
    const found = order(rows).flatMap((row) => (row.isOpen ? [row, ...order(row.rows)] : [row]));
    if (isDue) this.sortedMs = performance.now();
    this.ranks = new Map(found.map((row, rank) => [this.rowId(row), rank]));
    return found;
  }

  show(rows) {
    const focused = this.focusedLine();
    const focusedId = focused && this.rowId(focused.row);
    this.given = rows;
    this.rows = this.sorted(rows);
    this.version += 1;
    this.table.setAttribute("aria-rowcount", String(this.rows.length + 1));
    this.emptyNote.hidden = this.rows.length > 0;
    this.view.hidden = this.rows.length === 0;
    this.showColumns();
    this.draw();
    if (focused) this.keepFocus(focused, focusedId);
  }

  // Columns that say nothing about any row are left out.
  showColumns() {
    const all = this.given.flatMap((row) => row.rows ?? [row]);
    this.columns.forEach((column, place) => {
      const isHidden = Boolean(column.isShown) && !column.isShown(all);
      if (this.heads[place].hidden === isHidden) return;
      this.heads[place].hidden = isHidden;
      for (const line of this.pool) line.cells[place].hidden = isHidden;
    });
  }

  focusedLine() {
    return this.pool.find((line) => line.node.contains(document.activeElement));
  }

  // The focus stays on its row when the order changes.
  keepFocus(before, id) {
    const line = this.pool.find((each) => !each.node.hidden && this.rowId(each.row) === id);
    if (line && line !== before) targetOf(line)?.focus({ preventScroll: true });
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
    const cells = this.columns.map((column, place) => {
      const holder = column.link ? [el("a", {}, apart("")), this.onGroup ? this.foldOf() : null] : apart("");
      const classes = classesOf(column);
      return el("td", { class: classes, hidden: this.heads[place].hidden }, holder);
    });
    const node = el("tr", {}, cells);
    this.pool.push({ node, cells });
    this.body.insertBefore(node, this.bottom);
  }

  fill(line, row, number) {
    Object.assign(line, { row, number, version: this.version });
    line.node.setAttribute("aria-rowindex", String(number + 2));
    line.node.classList.toggle("chosen", this.chosen !== null && this.rowId(row) === this.chosen);
    line.node.classList.toggle("group-row", row.rows !== undefined);
    line.node.classList.toggle("member", row.isMember === true);
    this.columns.forEach((column, place) => {
      const cell = line.cells[place];
      const text = column.text(row);
      if (column.link) this.fillLink(cell, column, row, text);
      else setText(cell.firstChild, text);
      const hover = column.hover?.(row) ?? "";
      if (cell.title !== hover) cell.title = hover;
      if (column.style) cell.className = column.style(row);
    });
  }

  fillLink(cell, column, row, text) {
    const [link, fold] = cell.children;
    const isGroup = row.rows !== undefined;
    if (fold) {
      fold.hidden = !isGroup;
      link.hidden = isGroup;
      fold.setAttribute("aria-expanded", String(Boolean(row.isOpen)));
    }
    if (isGroup) {
      setText(fold.firstChild, text);
      return;
    }
    setText(link.firstChild, text);
    const target = column.link(row);
    if (link.getAttribute("href") !== target) link.setAttribute("href", target);
  }

  foldOf() {
    return el("button", { type: "button", class: "fold", hidden: true, click: (event) => {
      const line = this.pool.find((each) => each.node.contains(event.currentTarget));
      this.onGroup(line.row.group);
    } }, apart(""));
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
    targetOf(line)?.focus({ preventScroll: true });
  }

  close() {
    this.sizes.disconnect();
  }
}

// On narrow screens minor columns are hidden, on all but wide ones the least.
function classesOf({ isNumber, isMinor, isLeast }) {
  return [isNumber && "n", isMinor && "minor", isLeast && "least"].filter(Boolean).join(" ");
}

function targetOf(line) {
  return line.node.querySelector("a:not([hidden]), button:not([hidden])");
}

function gapRow(width) {
  return el("tr", { class: "gap", "aria-hidden": "true" }, el("td", { colspan: width }));
}

const texts = new Intl.Collator("en", { numeric: true });

// Unknown values sort first; numbers in texts sort as numbers.
function compare(first, second) {
  if (first === second) return 0;
  if (first === null || first === undefined || Number.isNaN(first)) return -1;
  if (second === null || second === undefined || Number.isNaN(second)) return 1;
  if (typeof first === "string" && typeof second === "string") return texts.compare(first, second);
  return first < second ? -1 : 1;
}
