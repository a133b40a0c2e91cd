// One program: where its time went, its calls over time, its dependencies, and why it waits.

import { Dag } from "./dag.js";
import { apart, el, factList, legendOf, setText, svg } from "./dom.js";
import { clockTime, count, oneOrMany, programName, seconds, share, threadName, UNKNOWN } from "./format.js";
import { callEnd, Gantt, PART_NAMES, STRIPED } from "./gantt.js";
import { noAnswer, pauseFor } from "./programs.js";
import { LongTable } from "./table.js";

const LEAST_PERIOD_MS = 1000;
// Asking for a timeline and drawing it may take at most this share of the time.
const BUSY_SHARE = 0.2;
const SPENT_PARTS = [
  ["inactive_s", "k-inactive", "waiting for KV memory"],
  ["queue_s", "k-waiting", "waiting for a slot"],
  ["engine_s", "k-decode", "in engines"],
  ["tools_s", "k-tools", "in tools"],
  ["client_s", "k-client", "at its client"],
];

const waitOf = (call) => sumOf(call, ["waiting", "inactive", "preempted"]);
const tokensOf = (call) => `${count(call.prompt_tokens)}/${count(call.output_tokens)}`;
const parentsOf = (call) => (call.parents === null ? "unknown" : call.parents.join(", ") || "none");

function sumOf(call, kinds) {
  return call.spans.filter((span) => kinds.includes(span.kind)).reduce((sum, span) => sum + span.finish_s - span.start_s, 0);
}

export class ProgramView {
  constructor(source, programId, onStatus, onFailure) {
    this.source = source;
    this.programId = programId;
    this.onStatus = onStatus;
    this.onFailure = onFailure;
    this.isClosed = false;
    this.now = 0;
    this.gantt = new Gantt((callId) => this.pick(callId));
    this.dag = new Dag((callId) => this.pick(callId));
    this.table = new LongTable({
      label: "Calls", columns: this.columns(), sortKey: "start_s", rowId: (call) => call.call_id, empty: "No calls yet.", isShort: true,
    });
    this.node = this.build();
  }

  columns() {
    const number = (key, title, value, text, hint, isMinor = false) => ({ key, title, value, text, hint, isMinor, isNumber: true });
    const length = (call) => callEnd(call, this.now) - call.start_s;
    return [
      { key: "call_id", title: "Call", value: (call) => call.call_id, text: (call) => call.call_id },
      { key: "thread_id", title: "Thread", value: threadName, text: threadName },
      { key: "state", title: "State", value: (call) => call.outcome ?? call.state, text: (call) => call.outcome ?? call.state },
      number("start_s", "Start", (call) => call.start_s, (call) => seconds(call.start_s), "From the program's first arrival"),
      number("length", "Took", length, (call) => seconds(length(call)), "From its arrival to its answer, or to now"),
      number("wait", "Waited", waitOf, (call) => seconds(waitOf(call)), "For KV memory or a slot"),
      number("prefill", "Prefill", (call) => sumOf(call, ["prefill"]), (call) => seconds(sumOf(call, ["prefill"])), "", true),
      number("decode", "Decode", (call) => sumOf(call, ["decode"]), (call) => seconds(sumOf(call, ["decode"])), "", true),
      number("preemptions", "Preempted", (call) => call.preemptions, (call) => count(call.preemptions), "How often it lost its slot", true),
      number("level", "Level", (call) => call.level, (call) => count(call.level), "Queue level; 1 runs first", true),
      number("tokens", "Tokens in/out", (call) => (call.prompt_tokens ?? 0) + (call.output_tokens ?? 0), tokensOf, "", true),
      { key: "parents", title: "Parents", isMinor: true, value: parentsOf, text: parentsOf },
      { key: "engine", title: "Engine", isMinor: true, value: (call) => call.engine, text: (call) => call.engine || UNKNOWN },
    ];
  }

  build() {
    this.state = el("span", { class: "tag" });
    this.facts = el("div", {});
    this.why = el("div", { class: "why" });
    this.spent = el("div", { class: "meter" });
    this.problem = el("p", { class: "bad", role: "status" });
    const legend = Object.entries(PART_NAMES).map(([kind, text]) => [STRIPED.has(kind) ? `k-${kind} striped` : `k-${kind}`, text]);
    this.content = el("div", { hidden: true },
      el("div", { class: "card" }, this.facts, this.spent, this.why),
      el("h2", {}, "Calls over time"), legendOf([...legend, ["swatch-path", "critical path"]]),
      el("p", { class: "soft" }, "Only the sum of a call's waiting for KV memory is known; it is drawn before its other waiting."), this.gantt.node,
      el("h2", {}, "Dependencies"), this.dag.node,
      el("h2", {}, "Calls"), this.table.node);
    return el("div", {}, el("p", {}, el("a", { href: "#/programs" }, "← All programs")),
      el("div", { class: "title-row" }, el("h1", {}, apart(this.programId)), this.state), this.problem, this.content);
  }

  async open() {
    while (!this.isClosed) {
      const begunMs = performance.now();
      if (!document.hidden && !(await this.refresh())) return;
      const tookMs = performance.now() - begunMs;
      await pauseFor(Math.max(LEAST_PERIOD_MS, tookMs / BUSY_SHARE));
    }
  }

  close() {
    this.isClosed = true;
    this.gantt.close();
    this.table.close();
  }

  // Returns whether to ask again.
  async refresh() {
    try {
      const timeline = await this.source.timeline(this.programId);
      const why = await this.source.why(this.programId);
      if (this.isClosed) return false;
      this.draw(timeline, why);
      setText(this.problem, "");
      this.onStatus(timeline.state === "ended" ? "Ended" : "Live", false);
      return timeline.state !== "ended";
    } catch (error) {
      return this.fail(error);
    }
  }

  fail(error) {
    if (this.isClosed) return false;
    if (error.status === 401) this.onFailure(error);
    else if (error.status) setText(this.problem, error.status === 404 ? "There is no such program: it may have ended too long ago, or belong to another tenant." : error.message);
    else this.onStatus(noAnswer(error), true);
    return !error.status;
  }

  draw(timeline, why) {
    this.now = timeline.duration_s;
    this.content.hidden = false;
    setText(this.state, timeline.state);
    this.facts.replaceChildren(factsOfProgram(timeline));
    this.why.replaceChildren(...(why ? wordsOf(why) : []));
    this.spent.replaceChildren(...spentBar(timeline.spent, timeline.duration_s));
    this.gantt.show(timeline);
    this.dag.show(timeline);
    this.table.show(timeline.calls);
  }

  pick(callId) {
    this.gantt.pick(callId);
    this.table.choose(callId);
  }
}

function wordsOf({ text, calls, more }) {
  const rows = calls.map((call) => el("li", {}, el("strong", {}, apart(call.call_id)), ` (thread ${threadName(call)}) is ${call.state}. ${call.text}`));
  if (more > 0) rows.push(el("li", {}, `${oneOrMany(more, "more call")} ${more === 1 ? "is" : "are"} open.`));
  return [el("p", {}, text), rows.length ? el("ul", {}, rows) : null].filter(Boolean);
}

function factsOfProgram(timeline) {
  const sum = (read) => timeline.calls.reduce((total, call) => total + (read(call) ?? 0), 0);
  const prompt = sum((call) => call.prompt_tokens);
  const cached = sum((call) => call.cached_tokens);
  return factList([
    ["Name", programName(timeline)],
    ["Began", clockTime(timeline.began_at_s)],
    [timeline.state === "ended" ? "Took" : "So far", seconds(timeline.duration_s)],
    ["Calls", count(timeline.calls.length + timeline.left_out)],
    ["Threads", count(new Set(timeline.calls.map((call) => call.thread_id)).size)],
    ["Waited, all calls", seconds(sum(waitOf))],
    ["Preemptions", count(sum((call) => call.preemptions))],
    ["Prompt tokens", count(prompt)],
    ["of them cached", prompt ? share(cached / prompt) : UNKNOWN],
    ["Output tokens", count(sum((call) => call.output_tokens))],
    ["Not shown", timeline.left_out ? `${oneOrMany(timeline.left_out, "call")}, too many to keep` : null],
  ]);
}

const SPENT_WIDTH = 600;

function spentBar(spent, whole) {
  let place = 0;
  const boxes = SPENT_PARTS.map(([field, style]) => {
    const width = (spent[field] / Math.max(whole, 1e-9)) * SPENT_WIDTH;
    place += width;
    return svg("rect", { class: style, x: place - width, y: 0, width, height: 14 });
  });
  const words = SPENT_PARTS.filter(([field]) => spent[field] >= 0.0005).map(([field, style, text]) => [style, `${seconds(spent[field])} ${text}`]);
  return [
    el("div", { class: "meter-head" }, el("span", {}, "Where its time went, along its critical path"), el("span", {}, oneOrMany(spent.critical_path.length, "call"))),
    svg("svg", { viewBox: `0 0 ${SPENT_WIDTH} 14`, height: 14, preserveAspectRatio: "none", role: "img", "aria-label": words.map(([, text]) => text).join(", ") }, boxes),
    legendOf(words),
  ];
}
