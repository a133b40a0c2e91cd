// Charts over a common axis, drawn by uPlot (vendor/), which index.html loads.

import { el, setText } from "./dom.js";
import { UNKNOWN } from "./format.js";

const HEIGHT = 130;
const dark = window.matchMedia("(prefers-color-scheme: dark)");

// A line: `name`, `color` (a variable of page.css). Stacked lines are filled, the first at the bottom. `show` is the
// text of a value; `unit`, a factor and a suffix, that of a place on the axis. A quiet legend has values only under the
// cursor: its chart's title has those of the whole range.
export class Chart {
  constructor({ label, lines, show, unit = [1, ""], isStacked = false, most = null, height = HEIGHT, x = timeAxis(), isLogarithmic = false, group = null, isQuiet = false }) {
    Object.assign(this, { label, lines, show, unit, isStacked, most, height, x, isLogarithmic, group, isQuiet });
    this.plot = null;
    this.data = null;
    this.place = el("div", { class: "plot", tabindex: 0, role: "img", "aria-label": label, keydown: (event) => this.onKey(event), blur: () => this.point(null) });
    this.values = lines.map(() => el("b", {}));
    const entries = lines.map(({ name, color }, number) => el("li", {}, el("i", { class: `c-${color}` }), name, " ", this.values[number]));
    this.node = el("div", { class: "plot-box" }, this.place, el("ul", { class: "legend" }, entries));
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.place);
    this.onScheme = () => this.make();
    dark.addEventListener("change", this.onScheme);
  }

  close() {
    this.sizes.disconnect();
    dark.removeEventListener("change", this.onScheme);
    this.plot?.destroy();
  }

  // Draws values by line over `xs`; null is unknown.
  draw(xs, rows) {
    this.rows = rows;
    this.data = [xs, ...(this.isStacked ? summed(rows).reverse() : rows)];
    if (this.plot) this.plot.setData(this.data);
    else this.make();
    if (!this.isPointed) this.tell(null);
  }

  make() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.place.clientWidth;
    if (!this.data || !width) return;
    this.plot = new uPlot(this.options(width), this.data, this.place);
  }

  resize() {
    const width = this.place.clientWidth;
    if (!this.plot) this.make();
    else if (width && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  options(width) {
    const soft = colorOf("soft");
    const axis = { stroke: soft, font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: colorOf("line"), width: 1 } };
    const order = this.isStacked ? [...this.lines].reverse() : this.lines;
    const series = order.map(({ color }) => {
      const stroke = colorOf(color);
      return { stroke, width: this.isStacked ? 0.5 : 1.75, fill: this.isStacked ? stroke : undefined, spanGaps: !this.isStacked, points: { show: false } };
    });
    return {
      width, height: this.height, padding: [8, 16, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false }, ...(this.group ? { sync: { key: this.group } } : {}) },
      scales: { x: this.x.scale, y: this.isLogarithmic ? { distr: 3 } : { range: (_, __, high) => [0, this.most ?? (high > 0 ? high * 1.08 : 1)] } },
      axes: [
        { ...axis, ...this.x.axis, size: 22 },
        { ...axis, size: 52, space: 28, values: (_, places, __, ___, step) => places.map((place) => (place === null ? "" : this.axisText(place, step))) },
      ],
      series: [{}, ...series],
      hooks: { setCursor: [(plot) => this.onCursor(plot)] },
    };
  }

  // All texts of a linear axis have the decimals of its steps.
  axisText(value, step) {
    const [factor, unit] = this.unit;
    if (this.isLogarithmic) return `${Number((value * factor).toPrecision(3))}${unit}`;
    const decimals = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
    return `${(value * factor).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })}${unit}`;
  }

  onCursor(plot) {
    this.isPointed = plot.cursor.idx !== null && plot.cursor.idx !== undefined;
    this.tell(this.isPointed ? plot.cursor.idx : null);
  }

  // The legend has the values under the cursor, else the last ones or none.
  tell(place) {
    this.rows.forEach((row, number) => {
      if (place === null && this.isQuiet) return setText(this.values[number], "");
      const value = place === null ? lastKnown(row) : row[place];
      return setText(this.values[number], value === null || value === undefined ? UNKNOWN : this.show(value));
    });
  }

  onKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.plot) return;
    event.preventDefault();
    const last = this.data[0].length - 1;
    this.point(Math.min(last, Math.max(0, (this.plot.cursor.idx ?? last + 1) + step)));
  }

  point(place) {
    if (!this.plot) return;
    const left = place === null ? -10 : this.plot.valToPos(this.data[0][place], "x");
    this.plot.setCursor({ left, top: place === null ? -10 : 1 });
  }
}

export function timeAxis() {
  const text = (time) => new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return { scale: { time: true }, axis: { space: 60, incrs: [60, 300, 600, 900, 1800, 3600], values: (_, places) => places.map(text) } };
}

export function percentAxis() {
  return { scale: { time: false }, axis: { space: 60, values: (_, places) => places.map((place) => `${place} %`) } };
}

function colorOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function lastKnown(row) {
  for (let place = row.length - 1; place >= 0; place -= 1) if (row[place] !== null) return row[place];
  return null;
}

// Each row on top of those before it; a step is unknown if all its values are.
function summed(rows) {
  const below = rows[0].map(() => 0);
  return rows.map((row) => row.map((value, place) => {
    if (rows.every((each) => each[place] === null)) return null;
    below[place] += value ?? 0;
    return below[place];
  }));
}
