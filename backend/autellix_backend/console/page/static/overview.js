// The overview: what programs wait for now, and the load of the last minutes or hours.

import { freeTokens, kvBar, slotBar } from "./bars.js";
import { Chart } from "./charts.js";
import { el, setText } from "./dom.js";
import { clockTime, count, isKnown, oneOrMany, rate, seconds, share, UNKNOWN } from "./format.js";
import { noAnswer, poll } from "./polling.js";
import { STATES, stateBar } from "./states.js";

const PERIOD_MS = 2000;
const RANGES = [[15, "15 minutes"], [60, "1 hour"], [360, "6 hours"]];
const isWhole = (value) => (isKnown(value) ? count(value) : UNKNOWN);

const PERCENT = [100, " %"];

const CHARTS = [
  {
    title: "Programs by state", isStacked: true, isWide: true, show: rate, figure: null,
    lines: STATES.map(({ key, color, text }) => ({ key, name: text, color })),
  },
  {
    title: "KV memory", isOptional: true, isStacked: true, show: share, unit: PERCENT, most: 1, figure: null,
    lines: [{ key: "kv_held", name: "held by calls", color: "used" }, { key: "kv_kept", name: "kept for active programs", color: "kept" }, { key: "kv_reserve", name: "reserve", color: "client" }],
  },
  {
    title: "Program latency", show: seconds, unit: [1, " s"], figure: (totals) => `p50 ${seconds(totals.latency_p50_s)}, p95 ${seconds(totals.latency_p95_s)}`,
    lines: [{ key: "latency_p50_s", name: "p50", color: "run-0" }, { key: "latency_p95_s", name: "p95", color: "run-1" }],
  },
  {
    title: "Programs ended per minute", show: rate, figure: (totals) => `${rate(totals.programs_per_minute)} (${count(totals.programs)} in all)`,
    lines: [{ key: "programs_per_minute", name: "programs per minute", color: "run-0" }],
  },
  {
    title: "Tokens per second", show: rate, figure: (totals) => `${rate(totals.output_tokens_per_s)} out, ${rate(totals.prompt_tokens_per_s)} in`,
    lines: [{ key: "output_tokens_per_s", name: "output", color: "run-0" }, { key: "prompt_tokens_per_s", name: "prompt", color: "run-2" }],
  },
  {
    title: "Prompt tokens found in the cache", show: share, unit: PERCENT, most: 1, figure: (totals) => share(totals.cached_share),
    lines: [{ key: "cached_share", name: "found in the cache", color: "run-2" }],
  },
  {
    title: "Preemptions per minute", show: rate, figure: (totals) => `${isWhole(totals.preemptions)} in all`,
    lines: [{ key: "preemptions_per_minute", name: "preemptions", color: "run-4" }],
  },
  {
    title: "Failed calls per minute", show: rate, figure: (totals) => `${isWhole(totals.failed_calls)} of ${oneOrMany(totals.calls, "call")}`,
    lines: [{ key: "failed_calls_per_minute", name: "failed calls", color: "run-1" }],
  },
];

export class OverviewView {
  constructor(source, onStatus, onFailure) {
    Object.assign(this, { source, onStatus, onFailure });
    this.isClosed = false;
    this.minutes = RANGES[0][0];
    this.headline = el("p", { class: "headline" });
    this.bars = el("div", { class: "bars" });
    this.problem = el("p", { class: "bad", role: "status" });
    this.charts = CHARTS.map((options) => new Chart({ ...options, label: options.title, group: "overview", isQuiet: true }));
    this.figures = CHARTS.map(() => el("span", { class: "figure" }));
    this.ranges = RANGES.map(([minutes, text]) => el("button", { type: "button", "aria-pressed": String(minutes === this.minutes), click: () => this.choose(minutes) }, text));
    this.cards = CHARTS.map(({ title, isWide }, number) => el("section", { class: isWide ? "card wide" : "card", "aria-label": title },
      el("div", { class: "card-head" }, el("h2", {}, title), this.figures[number]), this.charts[number].node));
    this.content = el("div", { hidden: true },
      el("section", { class: "card", "aria-label": "Now" }, this.headline, this.bars),
      el("div", { class: "tools-row" }, el("span", { class: "group", role: "group", "aria-label": "Time range" }, this.ranges)),
      el("div", { class: "tiles" }, this.cards));
    this.node = el("div", {}, el("h1", {}, "Overview"), this.problem, this.content);
  }

  open() {
    return poll(this, PERIOD_MS);
  }

  close() {
    this.isClosed = true;
    this.charts.forEach((chart) => chart.close());
  }

  choose(minutes) {
    this.minutes = minutes;
    this.ranges.forEach((button, place) => button.setAttribute("aria-pressed", String(RANGES[place][0] === minutes)));
    return this.refresh();
  }

  // Returns whether to ask again.
  async refresh() {
    const minutes = this.minutes;
    try {
      const overview = await this.source.overview(minutes);
      if (this.isClosed) return false;
      this.onStatus("Live", false);
      if (minutes === this.minutes) this.draw(overview);
      return true;
    } catch (error) {
      if (this.isClosed) return false;
      if (error.status === 401) this.onFailure(error);
      else if (error.status === 403) this.showTenant();
      else this.onStatus(noAnswer(error), true);
      return error.status !== 401 && error.status !== 403;
    }
  }

  // A tenant sees its own programs only; the load of all is the operator's.
  showTenant() {
    if (!location.hash) location.replace("#/programs");
    else this.problem.replaceChildren("The overview is for operators: this key is a tenant's. ", el("a", { href: "#/programs" }, "Your programs"));
  }

  draw({ now, waits, load }) {
    this.content.hidden = false;
    this.headline.replaceChildren(...headlineOf(now, waits));
    // Calls that wait are not counted beside programs that wait: engines tell of them a little later.
    const bars = [now.programs ? stateBar(now.states) : null, slotBar({ ...now, waiting: 0 }), kvBar(now.kv)];
    this.bars.replaceChildren(...bars.filter(Boolean));
    CHARTS.forEach(({ lines, figure, isOptional }, number) => {
      const rows = lines.map(({ key }) => load.values[key]);
      this.cards[number].hidden = Boolean(isOptional) && !rows.flat().some(isKnown);
      this.charts[number].draw(load.times, rows);
      if (figure) setText(this.figures[number], figure(load.totals));
    });
  }
}

// Whether programs wait, for what and since when; else what to do next.
function headlineOf({ states, programs, engines, engines_up: up, running, slots, kv }, waits) {
  const down = up < engines ? [el("span", { class: "bad" }, `${count(engines - up)} of ${oneOrMany(engines, "engine")} ${engines - up === 1 ? "is" : "are"} down. `), el("a", { href: "#/engines" }, "Engines"), " "] : [];
  if (!programs && !waits.was_used) return [...down, "No programs yet. Send a request to ", el("code", {}, new URL("../v1", location.href).href), " and it appears here."];
  const waiting = states.filter(({ state, programs: number }) => number && state.startsWith("waiting"));
  if (!waiting.length) return [...down, `${programs ? "No program waits." : "No program is open."} ${pastWaitsText(waits)}`];
  // With free slots it waits for its prefill.
  const slot = running < slots ? "the engine" : "a batch slot";
  const parts = waiting.map(({ state, programs: number, longest_wait_s: longest }) => {
    const since = isKnown(longest) ? `, ${number === 1 ? "for" : "the longest for"} ${seconds(longest)}` : "";
    const what = state === "waiting_for_memory" ? memoryText(kv) : slot;
    return `${oneOrMany(number, "program")} ${number === 1 ? "waits" : "wait"} for ${what}${since}. `;
  });
  return [...down, ...parts, el("a", { href: "#/programs" }, "Which?")];
}

// When programs waited last, and how many at most in the last hour.
function pastWaitsText({ began_at_s: began, last_at_s: last, most_programs: most }) {
  if (!isKnown(last)) return isKnown(began) ? `None has waited since ${clockTime(began)}.` : "";
  const peak = most ? `at most ${oneOrMany(most, "program")} waited at once in the last hour` : "none waited in the last hour";
  return `The last wait was at ${clockTime(last)}; ${peak}.`;
}

function memoryText(kv) {
  if (!kv?.waiting_tokens) return "KV memory";
  return `KV memory (${count(kv.waiting_tokens)} tokens needed, ${count(freeTokens(kv))} free)`;
}
