// A comparison of runs: the distributions of program latencies, and which programs gained or lost.

import { apart, el, legendOf, setText, svg } from "./dom.js";
import { count, factor, oneOrMany, seconds, UNKNOWN, wholeSeconds } from "./format.js";
import { changesBetween, mean, METRICS, quantile, readRun, valuesOf, verdictOf } from "./runs.js";
import { LongTable } from "./table.js";

const MOST_RUNS = 6;
const MOST_FILE_BYTES = 256 * 2 ** 20;
const CHART = { width: 640, height: 260, left: 46, bottom: 34, top: 10, right: 12 };
const MOST_CURVE_POINTS = 400;
const BINS = 31;

export class CompareView {
  constructor() {
    this.runs = [];
    this.metric = METRICS[0][0];
    this.problem = el("p", { class: "bad", role: "alert" });
    this.results = el("div", {});
    this.tables = [];
    this.file = el("input", { type: "file", multiple: true, accept: ".json,.jsonl", id: "result-files", change: () => this.readFiles([...this.file.files]) });
    const own = el("div", { class: "card drop", dragover: (event) => event.preventDefault(), drop: (event) => this.onDrop(event) },
      el("label", { for: "result-files" }, "Files to compare: results of "), el("code", {}, "autellix bench replay --out FILE"), ", or traces that a gateway recorded. ",
      "The first one is what the others are compared to. They stay in this browser.", el("p", {}, this.file, " ", el("button", { type: "button", click: () => this.clear() }, "Clear")));
    this.node = el("div", {}, el("h1", {}, "Compare"), own, this.problem, this.results);
  }

  open() {
    this.draw();
  }

  close() {
    this.tables.forEach((table) => table.close());
  }

  onDrop(event) {
    event.preventDefault();
    this.readFiles([...event.dataTransfer.files]);
  }

  async readFiles(files) {
    setText(this.problem, "");
    for (const file of files) {
      try {
        if (file.size > MOST_FILE_BYTES) throw new Error(`${file.name}: is larger than 256 MiB.`);
        if (this.runs.length >= MOST_RUNS) throw new Error(`${file.name}: left out; ${MOST_RUNS} runs can be compared at once.`);
        this.runs.push(readRun(file.name, await file.text()));
      } catch (error) {
        setText(this.problem, error.message);
      }
    }
    this.file.value = "";
    this.draw();
  }

  clear() {
    this.runs = [];
    setText(this.problem, "");
    this.draw();
  }

  draw() {
    this.close();
    this.tables = [];
    if (!this.runs.length) {
      this.results.replaceChildren();
      return;
    }
    const [base, ...others] = this.runs;
    this.results.replaceChildren(
      el("h2", {}, "Distributions"), this.metricChoice(), legendOf(this.runs.map((run, place) => [`run-${place}`, apart(run.label)])),
      el("div", { class: "two" }, el("div", { class: "card" }, curves(this.runs, this.metric)), statisticsTable(this.runs)),
      ...others.map((run, place) => this.changes(base, run, place + 1)),
    );
  }

  metricChoice() {
    const known = METRICS.filter(([metric]) => this.runs.some((run) => valuesOf(run, metric).length));
    const buttons = known.map(([metric, title, hint]) => el("button", {
      type: "button", title: hint, "aria-pressed": String(metric === this.metric),
      click: () => {
        this.metric = metric;
        this.draw();
      },
    }, title));
    return el("div", { class: "tools-row" }, el("span", { class: "group", role: "group", "aria-label": "What to compare" }, buttons));
  }

  changes(base, run, place) {
    const changes = changesBetween(base, run);
    const number = (key, title, value, text) => ({ key, title, value, text, isNumber: true });
    const table = new LongTable({
      label: `Programs under ${run.label} against ${base.label}`, sortKey: "ratio", rowId: (row) => row.program, isShort: true, empty: "The runs have no program in common.",
      columns: [
        { key: "program", title: "Program", value: (row) => row.program, text: (row) => row.program },
        { key: "name", title: "Name", value: (row) => row.name ?? "", text: (row) => row.name || UNKNOWN },
        number("base", base.label, (row) => row.base_s, (row) => seconds(row.base_s)),
        number("other", run.label, (row) => row.other_s, (row) => seconds(row.other_s)),
        { ...number("ratio", "Ratio", (row) => row.ratio, (row) => factor(row.ratio)), style: (row) => `n ${{ gain: "good", loss: "bad", same: "" }[verdictOf(row.ratio)]}` },
      ],
    });
    this.tables.push(table);
    table.show(changes);
    const verdicts = { gain: 0, loss: 0, same: 0 };
    for (const change of changes) verdicts[verdictOf(change.ratio)] += 1;
    return el("section", { "data-run": place },
      el("h2", {}, "Who gained and lost: ", apart(run.label), " against ", apart(base.label)),
      el("p", {}, `Of ${oneOrMany(changes.length, "program")}, ${count(verdicts.gain)} took less time by over 5 %, ${count(verdicts.loss)} more, ${count(verdicts.same)} about the same.`),
      changes.length ? el("div", { class: "two" }, el("div", { class: "card" }, histogram(changes)), table.node) : table.node);
  }
}

function statisticsTable(runs) {
  const heads = ["", "Programs", "Mean", "Median", "p95", "p99"];
  const rows = METRICS.flatMap(([metric, title]) => runs.map((run) => {
    const values = valuesOf(run, metric);
    if (!values.length) return null;
    const numbers = [mean(values), quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99)];
    return el("tr", {}, el("th", { scope: "row", class: "plain" }, `${title}: `, apart(run.label)), el("td", { class: "n" }, count(values.length)), numbers.map((value) => el("td", { class: "n" }, seconds(value))));
  }));
  return el("div", { class: "scroll short", tabindex: 0, role: "region", "aria-label": "Statistics of the runs" }, el("table", { "aria-label": "Statistics of the runs" },
    el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place ? "plain n" : "plain" }, head)))), el("tbody", {}, rows)));
}

// The share of programs below each value, on a logarithmic axis.
function curves(runs, metric) {
  const all = runs.map((run) => valuesOf(run, metric));
  const positive = all.flat().filter((value) => value > 0);
  const low = Math.log10(positive.reduce((least, value) => Math.min(least, value), Infinity));
  const high = Math.log10(positive.reduce((most, value) => Math.max(most, value), 0));
  if (!positive.length) return el("p", { class: "soft" }, "Nothing to draw: all values are zero.");
  const span = Math.max(high - low, 0.1);
  const plot = { width: CHART.width - CHART.left - CHART.right, height: CHART.height - CHART.top - CHART.bottom };
  const x = (value) => CHART.left + (Math.max(0, Math.log10(Math.max(value, 10 ** low)) - low) / span) * plot.width;
  const y = (part) => CHART.top + (1 - part) * plot.height;
  const lines = all.map((values, place) => {
    const step = Math.max(1, Math.floor(values.length / MOST_CURVE_POINTS));
    const points = values.map((value, number) => [value, (number + 1) / values.length]).filter((_, number) => number % step === 0 || number === values.length - 1);
    const corners = points.map(([value, part]) => `${x(value).toFixed(1)},${y(part).toFixed(1)}`);
    return svg("polyline", { class: `curve run-${place}`, points: [`${values.length ? x(values[0]).toFixed(1) : 0},${y(0)}`, ...corners].join(" ") });
  });
  const marks = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
    for (const unit of span < 2.2 ? [1, 2, 5] : [1]) marks.push(unit * 10 ** power);
  }
  const axis = marks.filter((value) => Math.log10(value) >= low - 1e-9 && Math.log10(value) <= low + span + 1e-9).map((value) => [
    svg("line", { class: "grid", x1: x(value), x2: x(value), y1: CHART.top, y2: CHART.height - CHART.bottom }),
    svg("text", { x: x(value), y: CHART.height - CHART.bottom + 15, "text-anchor": "middle" }, value >= 1 ? wholeSeconds(value) : seconds(value)),
  ]);
  const shares = [0, 0.25, 0.5, 0.75, 1].map((part) => [
    svg("line", { class: "grid", x1: CHART.left, x2: CHART.width - CHART.right, y1: y(part), y2: y(part) }),
    svg("text", { x: CHART.left - 5, y: y(part) + 4, "text-anchor": "end" }, `${part * 100} %`),
  ]);
  return svg("svg", { class: "fluid", viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": "Share of programs below each value; the table below has the statistics" }, axis, shares, lines,
    svg("text", { x: CHART.width - CHART.right, y: CHART.height - 4, "text-anchor": "end" }, "share of programs that took at most so long"));
}

// How many programs changed by which factor.
function histogram(changes) {
  const most = Math.max(0.2, ...[quantileOf(changes, 0.01), quantileOf(changes, 0.99)].map((ratio) => Math.abs(Math.log(Math.max(ratio, 1e-6)))));
  const bins = new Array(BINS).fill(0);
  for (const { ratio } of changes) {
    const place = Math.round(((Math.log(Math.max(ratio, 1e-6)) / most + 1) / 2) * (BINS - 1));
    bins[Math.min(BINS - 1, Math.max(0, place))] += 1;
  }
  const highest = Math.max(...bins);
  const width = (CHART.width - CHART.left - CHART.right) / BINS;
  const plotHeight = CHART.height - CHART.top - CHART.bottom;
  const ratioAt = (place) => Math.exp(((place / (BINS - 1)) * 2 - 1) * most);
  const boxes = bins.map((number, place) => svg("rect", {
    class: verdictOf(ratioAt(place)), x: CHART.left + place * width + 1, width: width - 2, height: (number / highest) * plotHeight, y: CHART.top + plotHeight - (number / highest) * plotHeight,
  }));
  const texts = [0, (BINS - 1) / 4, (BINS - 1) / 2, (3 * (BINS - 1)) / 4, BINS - 1].map((place) =>
    svg("text", { x: CHART.left + (place + 0.5) * width, y: CHART.height - CHART.bottom + 15, "text-anchor": "middle" }, factor(ratioAt(place))));
  return svg("svg", { class: "fluid", viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": "Number of programs by the factor that their latency changed by" }, boxes, texts,
    svg("text", { x: CHART.left, y: CHART.height - 4 }, "← sooner"), svg("text", { x: CHART.width - CHART.right, y: CHART.height - 4, "text-anchor": "end" }, "later →"),
    svg("text", { x: CHART.left - 5, y: CHART.top + 9, "text-anchor": "end" }, count(highest)));
}

function quantileOf(changes, part) {
  return changes[Math.round(part * (changes.length - 1))].ratio;
}
