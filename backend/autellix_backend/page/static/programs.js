// The table of programs: living ones by the event feed, and those that have ended.

import { el, setText } from "./dom.js";
import { clockTime, count, factor, oneOrMany, programName, seconds, share, UNKNOWN, wholeSeconds } from "./format.js";
import { ageOf, isFound, LivePrograms } from "./live_table.js";
import { LongTable } from "./table.js";

const MOST_PROGRAMS = 10000;
const DRAW_MS = 500;
const LIST_MS = 2000;
const RETRY_MS = 2000;
// Listings may take at most this share of the time.
const LISTING_SHARE = 0.05;

const programLink = (row) => `#/program/${encodeURIComponent(row.program_id)}`;

const NAMED = [
  { key: "program_id", title: "Program", value: (row) => row.program_id, text: (row) => row.program_id, link: programLink },
  { key: "name", title: "Name", value: programName, text: programName },
];

const TOKENS = {
  key: "tokens", title: "Tokens in/out", isNumber: true, isMinor: true, hint: "Prompt and output tokens of finished calls",
  value: (row) => row.prompt_tokens + row.output_tokens, text: (row) => `${count(row.prompt_tokens)}/${count(row.output_tokens)}`,
};

const LIVE_COLUMNS = [
  ...NAMED,
  { key: "state", title: "State", value: (row) => row.state, text: (row) => row.state, style: (row) => `state-${row.state}` },
  number("level", "Level", (row) => row.level, count, "Best queue level of its calls; 1 runs first", true),
  number("service_s", "Service", (row) => row.service_s, seconds, "Model time attained, as the policy counts it"),
  number("wait_s", "Wait", (row) => row.wait_s, seconds, "Waiting of its finished calls"),
  number("ratio", "Ratio", (row) => row.ratio, factor, "Waiting over service", true),
  number("active_calls", "Open", (row) => row.active_calls, count, "Calls that wait or run"),
  number("finished_calls", "Done", (row) => row.finished_calls, count, "Calls that were answered"),
  number("threads", "Threads", (row) => row.threads, count, "Branches that made calls", true),
  number("kv_share", "KV", (row) => row.kv_share, share, "Share of its engines' KV blocks that its calls hold", true),
  TOKENS,
  number("age", "Age", (row) => ageOf(row, Date.now()), wholeSeconds, "Since its first call", true),
  { key: "engines", title: "Engine", isMinor: true, value: (row) => row.engines.join(", "), text: (row) => row.engines.join(", ") || UNKNOWN },
];

const ENDED_COLUMNS = [
  ...NAMED,
  number("duration_s", "Duration", (row) => row.duration_s, seconds, "From its first arrival to its last answer"),
  number("wait_s", "Wait", (row) => row.wait_s, seconds, "Waiting of all its calls"),
  number("inactive_s", "KV wait", (row) => row.inactive_s, seconds, "Waiting for KV memory while the program was inactive", true),
  number("service_s", "Service", (row) => row.service_s, seconds, "Model time of all its calls", true),
  number("calls", "Calls", (row) => row.finished_calls, count, "Calls that it made"),
  number("threads", "Threads", (row) => row.threads, count, "Branches that made calls", true),
  number("preemptions", "Preempted", (row) => row.preemptions, count, "Times that a call lost its slot", true),
  number("failed_calls", "Failed", (row) => row.failed_calls, count, "Calls that were not answered", true),
  TOKENS,
  number("ended_at_s", "Ended", (row) => row.ended_at_s, clockTime, "When it left the process table", true),
];

function number(key, title, value, show, hint, isMinor = false) {
  return { key, title, value, text: (row) => show(value(row)), isNumber: true, hint, isMinor };
}

// Shows the programs until it is closed.
export class ProgramsView {
  constructor(source, onStatus, onFailure) {
    this.source = source;
    this.onStatus = onStatus;
    this.onFailure = onFailure;
    this.live = new LivePrograms();
    this.ended = [];
    this.endedHasMore = false;
    this.words = [];
    this.isPaused = false;
    this.isClosed = false;
    this.pendingEvents = [];
    this.isStale = { live: true, ended: true };
    this.feed = null;
    this.timers = new Set();
    this.shown = "live";
    const redraw = () => this.draw();
    this.tables = {
      live: new LongTable({
        label: "Programs that run", columns: LIVE_COLUMNS, sortKey: "state", isDescending: true, onSort: redraw,
        rowId: (row) => row.program_id, empty: "No programs. Each call that reaches the gateway belongs to one.",
      }),
      ended: new LongTable({
        label: "Programs that have ended", columns: ENDED_COLUMNS, sortKey: "ended_at_s", isDescending: true, onSort: redraw,
        rowId: (row) => row.program_id, empty: "No program has ended yet.",
      }),
    };
    this.node = this.build();
  }

  build() {
    this.search = el("input", {
      type: "search", class: "search", placeholder: "Search ids, names, states, engines", "aria-label": "Search programs",
      input: () => this.draw(),
    });
    this.pause = el("button", { type: "button", "aria-pressed": "false", click: () => this.togglePause() }, "Pause");
    this.choices = ["live", "ended"].map((kind) =>
      el("button", { type: "button", click: () => this.choose(kind) }, kind === "live" ? "Running" : "Ended"));
    this.note = el("span", { class: "soft", "aria-live": "off", id: "programs-count" });
    this.place = el("div", {});
    const kinds = el("span", { class: "group", role: "group", "aria-label": "Which programs" }, this.choices);
    return el("div", {}, el("h1", {}, "Programs"),
      el("div", { class: "tools-row" }, kinds, this.search, this.pause, this.note), this.place);
  }

  open() {
    this.choose(this.shown);
    this.follow();
    this.repeatListing();
    this.every(DRAW_MS, () => this.takeEvents());
    this.visibility = () => this.onVisibility();
    document.addEventListener("visibilitychange", this.visibility);
  }

  close() {
    this.isClosed = true;
    this.feed?.abort();
    this.timers.forEach((timer) => clearInterval(timer));
    document.removeEventListener("visibilitychange", this.visibility);
    Object.values(this.tables).forEach((table) => table.close());
  }

  every(periodMs, action) {
    this.timers.add(setInterval(action, periodMs));
  }

  choose(kind) {
    this.shown = kind;
    this.choices.forEach((button, place) => button.setAttribute("aria-pressed", String((place === 0) === (kind === "live"))));
    this.pause.hidden = kind !== "live";
    this.place.replaceChildren(this.tables[kind].node);
    if (kind === "ended") this.listEnded();
    this.draw();
  }

  togglePause() {
    this.isPaused = !this.isPaused;
    this.pause.setAttribute("aria-pressed", String(this.isPaused));
    if (!this.isPaused) this.takeEvents();
  }

  // Browsers allow six connections to a host, and each open tab takes one for its feed.
  onVisibility() {
    if (document.hidden) this.feed?.abort();
    else if (!this.isClosed && this.feed?.signal.aborted) this.follow();
  }

  async follow() {
    while (!this.isClosed && !document.hidden) {
      this.feed = new AbortController();
      try {
        await this.source.follow((events) => this.take(events), () => this.onFeedOpen(), this.feed.signal);
      } catch (error) {
        if (this.feed.signal.aborted || this.isClosed) return;
        if (error.status === 401) return void this.onFailure(error);
        this.onStatus(error.status ? `No events (${error.message}); listed every 2 s` : noAnswer(error), true);
      }
      await pauseFor(RETRY_MS);
    }
  }

  onFeedOpen() {
    this.onStatus("Live", false);
    this.isStale.live = true;
  }

  take(events) {
    this.pendingEvents.push(...events);
  }

  takeEvents() {
    if (this.isPaused) return;
    const events = this.pendingEvents;
    this.pendingEvents = [];
    const now = Date.now();
    for (const event of events) {
      if (event.kind === "dropped") this.isStale.live = true;
      if (event.kind === "program_ended") this.isStale.ended = true;
      this.live.apply(event, now);
    }
    if (this.isStale.ended && this.shown === "ended") this.listEnded();
    if (this.shown === "live") this.draw();
  }

  // Levels, KV shares and waiting come from engines' snapshots, which cause no events: only listings have them.
  async repeatListing() {
    while (!this.isClosed) {
      const begunMs = performance.now();
      if (!document.hidden && !this.isPaused) await this.list();
      const tookMs = performance.now() - begunMs;
      await pauseFor(Math.max(LIST_MS, tookMs / LISTING_SHARE));
    }
  }

  async list() {
    const askedMs = Date.now();
    try {
      const { programs, hasMore } = await this.source.programs(MOST_PROGRAMS);
      if (this.isClosed || this.isPaused) return;
      // Events that arrived meanwhile are in this listing or the next one.
      this.pendingEvents = this.pendingEvents.filter((event) => event.kind !== "begun" && event.kind !== "settled");
      this.live.list(programs, hasMore, askedMs);
      this.isStale.live = false;
      this.takeEvents();
    } catch (error) {
      if (error.status === 401) this.onFailure(error);
      else this.onStatus(noAnswer(error), true);
    }
  }

  async listEnded() {
    this.isStale.ended = false;
    try {
      const { programs, hasMore } = await this.source.ended(MOST_PROGRAMS);
      this.ended = programs;
      this.endedHasMore = hasMore;
      if (!this.isClosed && this.shown === "ended") this.draw();
    } catch (error) {
      if (error.status === 401) this.onFailure(error);
      else this.onStatus(noAnswer(error), true);
    }
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isLive = this.shown === "live";
    const all = isLive ? [...this.live.rows.values()] : this.ended;
    const found = all.filter((row) => isFound(row, words));
    this.tables[this.shown].show(found);
    const more = (isLive ? this.live.hasMore : this.endedHasMore) ? ", the first of more" : "";
    const of = words.length ? `${count(found.length)} of ` : "";
    setText(this.note, `${of}${oneOrMany(all.length, "program")}${more}`);
  }
}

// A browser's text about a failed connection is of no help.
export function noAnswer(error) {
  return error.status ? `The gateway cannot answer: ${error.message}` : "The gateway does not answer; the values shown are out of date";
}

export function pauseFor(milliseconds) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
  });
}
