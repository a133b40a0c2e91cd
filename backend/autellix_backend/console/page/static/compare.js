// A comparison of runs: recent programs simulated under other policies, or files of results.

import { Chart, percentAxis } from "./charts.js";
import { apart, el, setText } from "./dom.js";
import { count, factor, oneOrMany, seconds, shortId, UNKNOWN } from "./format.js";
import { changesBetween, mean, METRICS, quantile, readRun, runsOfReplay, valuesOf, verdictOf } from "./runs.js";
import { LongTable } from "./table.js";

const MOST_RUNS = 6;
const MOST_FILE_BYTES = 256 * 2 ** 20;
const MINUTES = 10;
// A simulation that is further off than this says nothing of the differences between policies.
const MOST_ERROR_PERCENT = 15;
const PERCENTS = Array.from({ length: 101 }, (_, percent) => percent);

export class CompareView {
  constructor(source, onStatus, onFailure) {
    Object.assign(this, { source, onFailure });
    this.runs = [];
    this.shownParts = [];
    this.metric = METRICS[0][0];
    this.problem = el("p", { class: "bad", role: "alert" });
    this.note = el("p", { class: "soft", role: "status" });
    this.results = el("div", {});
    this.replayButton = el("button", { type: "button", class: "main", click: () => this.replay() }, `Replay the last ${MINUTES} minutes`);
    this.file = el("input", { type: "file", multiple: true, accept: ".json,.jsonl", id: "result-files", class: "unseen", change: () => this.readFiles([...this.file.files]) });
    this.clearButton = el("button", { type: "button", hidden: true, click: () => this.show([]) }, "Clear");
    this.node = el("div", {}, el("h1", {}, "Compare"),
      el("div", { class: "two" },
        el("section", { class: "card" }, el("h2", {}, "Recent programs under other policies"),
          el("p", {}, `Simulates the programs that ended in the last ${MINUTES} minutes under vLLM's own order (fcfs), under plas and under the default, with the arrivals, tokens and tools that were measured.`),
          el("p", {}, this.replayButton)),
        el("section", { class: "card drop", dragover: (event) => event.preventDefault(), drop: (event) => this.onDrop(event) }, el("h2", {}, "Results in files"),
          el("p", {}, "Drop results of ", el("code", {}, "autellix bench replay --out FILE"), " here, or traces that a gateway recorded. The first file is the baseline. They stay in this browser."),
          el("p", {}, this.file, el("label", { for: "result-files", class: "button" }, "Choose files"), " ", this.clearButton))),
      this.problem, this.note, this.results);
  }

  open() {
    this.draw();
  }

  close() {
    this.shownParts.forEach((part) => part.close());
    this.shownParts = [];
  }

  async replay() {
    this.replayButton.disabled = true;
    setText(this.problem, "");
    setText(this.note, "Simulating…");
    try {
      const replay = await this.source.replay(MINUTES);
      const error = Math.round((replay.simulated_over_measured - 1) * 100);
      const isUnsure = Math.abs(error) > MOST_ERROR_PERCENT;
      this.show(isUnsure ? [] : runsOfReplay(replay));
      const leftOut = replay.left_out ? ` ${oneOrMany(replay.left_out, "program")} without known tokens left out.` : "";
      const errorText = `Simulator error on the measured run: ${error > 0 ? "+" : ""}${error} %`;
      setText(this.note, isUnsure
        ? `${errorText}, above ${MOST_ERROR_PERCENT} %: no comparison. Programs that still run, or began before, may have shared the engines.${leftOut}`
        : `Estimates: the measured times plus the simulated differences of the policies. ${errorText}.${leftOut}`);
    } catch (error) {
      setText(this.note, "");
      if (error.status === 401) this.onFailure(error);
      else setText(this.problem, error.message);
    } finally {
      this.replayButton.disabled = false;
    }
  }

  onDrop(event) {
    event.preventDefault();
    this.readFiles([...event.dataTransfer.files]);
  }

  async readFiles(files) {
    setText(this.problem, "");
    const runs = this.runs.filter((run) => run.isFile);
    for (const file of files) {
      try {
        if (file.size > MOST_FILE_BYTES) throw new Error(`${file.name} is larger than 256 MiB.`);
        if (runs.length >= MOST_RUNS) throw new Error(`${file.name} was left out: at most ${MOST_RUNS} runs can be compared.`);
        runs.push({ ...readRun(file.name, await file.text()), isFile: true });
      } catch (error) {
        setText(this.problem, error.message);
      }
    }
    this.file.value = "";
    this.show(runs);
  }

  show(runs) {
    this.runs = runs;
    setText(this.note, "");
    this.clearButton.hidden = !runs.length;
    this.draw();
  }

  draw() {
    this.close();
    const [base, ...others] = this.runs;
    if (!base) {
      this.results.replaceChildren();
      return;
    }
    const changes = others.map((run) => changesBetween(base, run));
    const sections = others.map((run, place) => this.changesOf(base, run, changes[place], place + 1));
    this.results.replaceChildren(
      ...others.map((run, place) => verdictLine(base, run, changes[place])),
      this.metricChoice(),
      el("div", { class: "two" },
        this.chart(`${METRICS.find(([each]) => each === this.metric)[1]} by percentile`, this.runs.map((run, place) => [run.label, place, valuesOf(run, this.metric)]), seconds, " s"),
        others.length ? this.chart(`Change against ${base.label} by percentile; below 1× is faster`, others.map((run, place) => [run.label, place + 1, changes[place].map((change) => change.ratio)]), factor, "×") : null),
      statisticsTable(this.runs, this.metric), ...sections,
    );
    this.shownParts.filter((part) => part.drawLater).forEach((part) => part.drawLater());
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

  // A chart of sorted values by percentile, on a logarithmic axis.
  chart(title, rows, show, unit) {
    const chart = new Chart({
      label: title, lines: rows.map(([label, place]) => ({ name: label, color: `run-${place}` })), show, unit: [1, unit], height: 260, x: percentAxis(), isLogarithmic: true,
    });
    chart.drawLater = () => chart.draw(PERCENTS, rows.map(([, , values]) => PERCENTS.map((percent) => quantile(values, percent / 100) || null)));
    this.shownParts.push(chart);
    return el("section", { class: "card" }, el("h2", {}, title), chart.node);
  }

  changesOf(base, run, changes, place) {
    const number = (key, title, value, text) => ({ key, title, value, text, isNumber: true });
    const table = new LongTable({
      label: `Programs under ${run.label} against ${base.label}`, sortKey: "ratio", rowId: (row) => row.program, isShort: true, empty: "The runs have no program in common.",
      columns: [
        { key: "program", title: "Program", value: (row) => row.program, text: (row) => shortId(row.program), hover: (row) => row.program },
        { key: "name", title: "Name", value: (row) => row.name ?? "", text: (row) => row.name || UNKNOWN },
        number("base", base.label, (row) => row.base_s, (row) => seconds(row.base_s)),
        number("other", run.label, (row) => row.other_s, (row) => seconds(row.other_s)),
        { ...number("ratio", "Ratio", (row) => row.ratio, (row) => factor(row.ratio)), style: (row) => `n ${{ gain: "good", loss: "bad", same: "" }[verdictOf(row.ratio)]}` },
      ],
    });
    this.shownParts.push(table);
    table.show(changes);
    return el("section", { "data-run": place }, el("h2", {}, "Each program: ", apart(run.label), " against ", apart(base.label)), table.node);
  }
}

function verdictLine(base, run, changes) {
  const verdicts = { gain: 0, loss: 0, same: 0 };
  for (const change of changes) verdicts[verdictOf(change.ratio)] += 1;
  const times = [base, run].map((each) => mean(valuesOf(each, "latency_s")));
  const words = changes.length
    ? `: mean latency ${factor(times[1] / times[0])}; ${count(verdicts.gain)} faster, ${count(verdicts.loss)} slower, ${count(verdicts.same)} within 5 %.`
    : ": the runs have no program in common.";
  return el("p", { class: "headline" }, el("strong", {}, apart(run.label)), " against ", apart(base.label), words);
}

function statisticsTable(runs, metric) {
  const [, title] = METRICS.find(([each]) => each === metric);
  const heads = [title, "Programs", "Mean", "p50", "p95", "p99"];
  const styleOf = (column) => (["Programs", "p50", "p99"].includes(heads[column]) ? "n minor" : "n");
  const numbersOf = (run) => {
    const values = valuesOf(run, metric);
    return values.length ? [mean(values), quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99)] : null;
  };
  const base = numbersOf(runs[0]);
  const rows = runs.map((run, place) => {
    const numbers = numbersOf(run);
    const cell = (value, column) => el("td", { class: styleOf(column + 2) }, place && base ? `${seconds(value)} (${factor(value / base[column])})` : seconds(value));
    return numbers && el("tr", {}, el("th", { scope: "row", class: "plain" }, apart(run.label)), el("td", { class: styleOf(1) }, count(valuesOf(run, metric).length)), numbers.map(cell));
  });
  return el("div", { class: "scroll short", tabindex: 0, role: "region", "aria-label": "Statistics of the runs" }, el("table", { "aria-label": "Statistics of the runs; in brackets the ratio to the first" },
    el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place ? `plain ${styleOf(place)}` : "plain" }, head)))), el("tbody", {}, rows)));
}
