// The engines: their slots, KV memory, steps and queues, refreshed once a second.

import { apart, el, factList, legendOf, setText, svg } from "./dom.js";
import { count, isKnown, oneOrMany, seconds, share, UNKNOWN } from "./format.js";
import { noAnswer, pauseFor } from "./programs.js";

const PERIOD_MS = 1000;
const KEPT_MOMENTS = 120;
const BAR_WIDTH = 400;
const BAR_HEIGHT = 14;

export class EnginesView {
  constructor(source, onStatus, onFailure) {
    this.source = source;
    this.onStatus = onStatus;
    this.onFailure = onFailure;
    this.isClosed = false;
    this.moments = new Map();
    this.cards = el("div", { class: "cards" });
    this.note = el("p", { class: "soft" });
    this.node = el("div", {}, el("h1", {}, "Engines"), this.note, this.cards);
  }

  async open() {
    while (!this.isClosed) {
      if (!document.hidden && !(await this.refresh())) return;
      await pauseFor(PERIOD_MS);
    }
  }

  close() {
    this.isClosed = true;
  }

  // Returns whether to ask again.
  async refresh() {
    try {
      const { engines } = await this.source.engines();
      if (this.isClosed) return false;
      this.onStatus("Live", false);
      this.draw(engines);
      return true;
    } catch (error) {
      if (error.status === 401) {
        this.onFailure(error);
        return false;
      }
      if (error.status === 403) {
        setText(this.note, "Engines are for operators: this key is a tenant's. Its programs are under Programs.");
        return false;
      }
      this.onStatus(noAnswer(error), true);
      return true;
    }
  }

  draw(engines) {
    setText(this.note, engines.length ? "" : "The gateway has no engines.");
    for (const name of this.moments.keys()) {
      if (!engines.some((engine) => engine.name === name)) this.moments.delete(name);
    }
    this.cards.replaceChildren(...engines.map((engine) => this.cardOf(engine)));
  }

  cardOf(engine) {
    const moments = this.moments.get(engine.name) ?? [];
    this.moments.set(engine.name, moments);
    moments.push({ running: engine.running ?? 0, waiting: (engine.waiting ?? 0) + engine.queued_calls });
    if (moments.length > KEPT_MOMENTS) moments.shift();
    const isUp = engine.state === "up" && engine.failure === null;
    return el("section", { class: "card engine", "data-engine": engine.name },
      el("h2", {}, apart(engine.name), el("span", { class: isUp ? "tag" : "tag bad" }, engine.state)),
      el("p", { class: "soft" }, engine.failure ?? engine.scheduling),
      slotMeter(engine), kvMeter(engine), workingSetMeter(engine), factsOf(engine), sparkOf(moments));
  }
}

function slotMeter(engine) {
  if (!isKnown(engine.running)) {
    return el("p", { class: "soft" }, `${oneOrMany(engine.open_calls, "open call")}; its slots and KV memory are not reported.`);
  }
  const waiting = `, ${count(engine.waiting)} waiting`;
  return meter("Slots", `${count(engine.running)} of ${count(engine.slots)}${waiting}`, engine.slots, [["k-decode", engine.running]]);
}

function kvMeter(engine) {
  if (!isKnown(engine.kv_share)) return null;
  const tokens = isKnown(engine.kv_block_tokens) ? ` of ${count(engine.kv_total_blocks * engine.kv_block_tokens)} tokens` : "";
  return meter("KV memory in use", `${share(engine.kv_share)}${tokens}`, 1, [["k-used", engine.kv_share]]);
}

function workingSetMeter(engine) {
  const { working_set_tokens: active, working_set_capacity_tokens: capacity, inactive_tokens: inactive } = engine;
  if (!isKnown(active) || !(capacity > 0)) return null;
  const words = `${count(active)} of ${count(capacity)} tokens`;
  const more = isKnown(inactive) ? `, ${count(inactive)} tokens` : "";
  const bar = meter("Working sets", words, Math.max(capacity, active + (inactive ?? 0)), [["k-active", active], ["k-inactive", inactive ?? 0]], capacity);
  bar.append(legendOf([
    ["k-active", oneOrMany(engine.active_programs, "active program")],
    ["k-inactive", `${count(engine.inactive_programs)} inactive, waiting for memory${more}`],
  ]));
  return bar;
}

// A bar of parts; `mark` is a place on it.
function meter(title, words, whole, parts, mark = null) {
  const scale = BAR_WIDTH / Math.max(whole, 1e-9);
  let place = 0;
  const boxes = parts.map(([style, size]) => {
    const box = svg("rect", { class: style, x: place, y: 0, width: Math.max(0, Math.min(size * scale, BAR_WIDTH - place)), height: BAR_HEIGHT });
    place += size * scale;
    return box;
  });
  const marks = mark !== null && mark < whole ? [svg("line", { class: "path-line", x1: mark * scale, x2: mark * scale, y1: 0, y2: BAR_HEIGHT })] : [];
  return el("div", { class: "meter" },
    el("div", { class: "meter-head" }, el("span", {}, title), el("span", {}, words)),
    svg("svg", { viewBox: `0 0 ${BAR_WIDTH} ${BAR_HEIGHT}`, height: BAR_HEIGHT, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${words}` },
      svg("rect", { class: "trough", width: BAR_WIDTH, height: BAR_HEIGHT }), boxes, marks));
}

function factsOf(engine) {
  return factList([
    ["Step", isKnown(engine.mean_step_s) ? seconds(engine.mean_step_s) : null],
    ["Open calls", count(engine.open_calls)],
    ["Queued at the gateway", count(engine.queued_calls)],
    ["Wait for memory", isKnown(engine.memory_wait_s) ? seconds(engine.memory_wait_s) : null],
    ["Calls by level", (engine.level_calls ?? []).some(Boolean) ? engine.level_calls.map(levelText).filter(Boolean).join(", ") : null],
    ["Policy", engine.policy],
    ["Snapshot", isKnown(engine.snapshot_age_s) ? `${seconds(engine.snapshot_age_s)} old` : UNKNOWN],
    ["Restarts", engine.restarts || null],
  ]);
}

function levelText(calls, place) {
  return calls ? `${count(calls)} in ${place + 1}` : "";
}

// The last two minutes of calls that run and wait.
function sparkOf(moments) {
  const most = Math.max(1, ...moments.map((moment) => Math.max(moment.running, moment.waiting)));
  const line = (read) => moments.map((moment, place) => `${((place + KEPT_MOMENTS - moments.length) / (KEPT_MOMENTS - 1)) * BAR_WIDTH},${38 - (read(moment) / most) * 36}`).join(" ");
  return el("div", { class: "spark" },
    svg("svg", { viewBox: `0 0 ${BAR_WIDTH} 40`, height: 40, preserveAspectRatio: "none", role: "img", "aria-label": `Calls over the last two minutes, at most ${count(most)} at once` },
      svg("line", { class: "grid", x1: 0, x2: BAR_WIDTH, y1: 39, y2: 39 }),
      svg("polyline", { class: "curve run-0", points: line((moment) => moment.running) }),
      svg("polyline", { class: "curve run-4", points: line((moment) => moment.waiting) })),
    legendOf([["run-0", "running"], ["run-4", `waiting, over the last two minutes (top: ${count(most)})`]]));
}
