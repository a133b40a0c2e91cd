// The engines: their slots, KV memory, steps and queues, refreshed once a second.

import { kvBar, slotBar } from "./bars.js";
import { apart, el, factList, setText } from "./dom.js";
import { count, isKnown, oneOrMany, seconds, share } from "./format.js";
import { noAnswer, poll } from "./polling.js";

const PERIOD_MS = 1000;

export class EnginesView {
  constructor(source, onStatus, onFailure) {
    Object.assign(this, { source, onStatus, onFailure });
    this.isClosed = false;
    this.cards = el("div", { class: "cards" });
    this.note = el("p", { class: "soft" });
    this.node = el("div", {}, el("h1", {}, "Engines"), this.note, this.cards);
  }

  open() {
    return poll(this, PERIOD_MS);
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
      setText(this.note, engines.length ? "" : "The gateway has no engines. Add one with “autellix engines add URL”.");
      this.cards.replaceChildren(...engines.map(cardOf));
      return true;
    } catch (error) {
      if (this.isClosed) return false;
      if (error.status === 401) this.onFailure(error);
      else if (error.status === 403) setText(this.note, "Engines are for operators: this key is a tenant's. Its programs are under Programs.");
      else this.onStatus(noAnswer(error), true);
      return error.status !== 401 && error.status !== 403;
    }
  }
}

function cardOf(engine) {
  const isUp = engine.state === "up" && engine.failure === null;
  return el("section", { class: "card engine", "data-engine": engine.name },
    el("h2", {}, apart(engine.name), el("span", { class: isUp ? "tag" : "tag bad" }, engine.state)),
    el("p", { class: "soft" }, engine.failure ?? engine.scheduling),
    slotBar(engine) ?? el("p", {}, silenceOf(engine)), kvBar(engine.kv), factsOf(engine));
}

// Why there are no slots and no KV memory to show.
function silenceOf(engine) {
  if (!engine.sends_reports) return `${oneOrMany(engine.open_calls, "open call")}. This engine does not report its slots and KV memory.`;
  return engine.open_calls ? `${oneOrMany(engine.open_calls, "open call")}.` : "Idle. Slots and KV memory appear with the first call.";
}

function factsOf(engine) {
  return factList([
    ["Saturation", isKnown(engine.saturation) ? `${share(engine.saturation)} of its memory or slots is needed` : null],
    ["Models", (engine.models ?? []).join(", ") || null],
    ["Step", isKnown(engine.mean_step_s) ? seconds(engine.mean_step_s) : null],
    ["Open calls", count(engine.open_calls)],
    ["Queued at the gateway", count(engine.queued_calls)],
    ["Active programs", isKnown(engine.active_programs) ? count(engine.active_programs) : null],
    ["Waiting for memory", isKnown(engine.inactive_programs) ? oneOrMany(engine.inactive_programs, "program") : null],
    ["Wait for memory", isKnown(engine.memory_wait_s) ? seconds(engine.memory_wait_s) : null],
    ["Calls by level", (engine.level_calls ?? []).length > 1 ? engine.level_calls.map((calls, place) => `${place + 1}: ${count(calls)}`).join(", ") : null],
    ["Policy", engine.policy],
    ["Snapshot", isKnown(engine.snapshot_age_s) ? `${seconds(engine.snapshot_age_s)} old` : null],
    ["Restarts", engine.restarts || null],
  ]);
}
