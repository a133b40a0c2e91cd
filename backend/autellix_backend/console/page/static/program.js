// One program: where its time went, its calls over time, its dependencies, and why it waits.

import { stackedBar } from "./bars.js";
import { Dag } from "./dag.js";
import { apart, el, factList, legendOf, setText } from "./dom.js";
import { clockTime, count, oneOrMany, programName, seconds, share, shortId, threadName, toolsText, UNKNOWN } from "./format.js";
import { callEnd, Gantt, PART_NAMES, STRIPED } from "./gantt.js";
import { noAnswer, poll } from "./polling.js";
import { isNarrow, shortState, stateText } from "./states.js";
import { LongTable } from "./table.js";

const PERIOD_MS = 1000;
const SPENT_PARTS = [
  ["inactive_s", "k-inactive", "waiting for KV memory"],
  ["queue_s", "k-waiting", "waiting for a slot"],
  ["engine_s", "k-decode", "in engines"],
  ["tools_s", "k-tools", "in tools"],
  ["client_s", "k-client", "at its client"],
];

const waitOf = (call) => sumOf(call, ["waiting", "inactive", "preempted"]);
const tokensOf = (call) => `${count(call.prompt_tokens)}/${count(call.output_tokens)}`;
const parentsOf = (call) => (call.parents === null ? "unknown" : call.parents.map(shortId).join(", ") || "none");
const stateOf = (call) => call.outcome ?? (isNarrow() ? shortState(call.state) : call.state_text);
const hasSpans = (kind) => (calls) => calls.some((call) => call.spans.some((span) => span.kind === kind));

function sumOf(call, kinds) {
  return call.spans.filter((span) => kinds.includes(span.kind)).reduce((sum, span) => sum + span.finish_s - span.start_s, 0);
}

export class ProgramView {
  constructor(source, programId, onStatus, onFailure) {
    Object.assign(this, { source, programId, onStatus, onFailure });
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
    const number = (key, title, value, text, { hint = "", isMinor = false, isLeast = !isMinor, isShown = null } = {}) => ({ key, title, value, text, hint, isMinor, isLeast, isShown, isNumber: true });
    const length = (call) => callEnd(call, this.now) - call.start_s;
    const tools = (call) => toolsText(call.tools);
    return [
      { key: "call_id", title: "Call", value: (call) => call.call_id, text: (call) => shortId(call.call_id), hover: (call) => call.call_id },
      { key: "thread_id", title: "Thread", value: threadName, text: threadName, isShown: (calls) => new Set(calls.map((call) => call.thread_id)).size > 1 },
      { key: "state", title: "State", value: stateOf, text: stateOf },
      { key: "tools", title: "Tools before", isMinor: true, value: tools, text: tools, hover: tools, hint: "Tools that ran at the client before the call", isShown: (calls) => calls.some((call) => call.tools.length) },
      number("start_s", "Start", (call) => call.start_s, (call) => seconds(call.start_s), { hint: "From the program's first arrival", isMinor: true }),
      number("length", "Took", length, (call) => seconds(length(call)), { hint: "From its arrival to its answer, or to now", isLeast: false }),
      number("wait", "Waited", waitOf, (call) => seconds(waitOf(call)), { hint: "For KV memory or a slot", isLeast: false }),
      number("prefill", "Prefill", (call) => sumOf(call, ["prefill"]), (call) => seconds(sumOf(call, ["prefill"])), { isShown: hasSpans("prefill") }),
      number("decode", "Decode", (call) => sumOf(call, ["decode"]), (call) => seconds(sumOf(call, ["decode"])), { isShown: hasSpans("decode") }),
      number("preemptions", "Preempted", (call) => call.preemptions, (call) => count(call.preemptions), { hint: "How often it lost its slot", isShown: (calls) => calls.some((call) => call.preemptions) }),
      number("level", "Level", (call) => call.level, (call) => count(call.level), { hint: "Queue level; 1 runs first", isShown: (calls) => calls.some((call) => call.level > 1) }),
      { ...number("tokens", "Tokens in/out", (call) => (call.prompt_tokens ?? 0) + (call.output_tokens ?? 0), tokensOf, { hint: "Marked where the prefix cache had less of the prompt than the call before left" }), hover: (call) => call.prefix_text, style: (call) => (call.prefix_text ? "n least bad" : "n least") },
      { key: "parents", title: "Parents", isLeast: true, value: parentsOf, text: parentsOf, hover: (call) => (call.parents ?? []).join(", "), isShown: (calls) => calls.some((call) => call.parents?.length) },
      { key: "engine", title: "Engine", isLeast: true, value: (call) => call.engine, text: (call) => call.engine || UNKNOWN, isShown: (calls) => new Set(calls.map((call) => call.engine)).size > 1 },
    ];
  }

  build() {
    this.state = el("span", { class: "tag" });
    this.facts = el("div", {});
    this.why = el("div", { class: "why" });
    this.spent = el("div", {});
    this.name = el("h1", {}, apart(this.programId));
    this.tail = el("span", { class: "soft id" });
    this.callsHead = el("h2", {}, "Calls");
    this.problem = el("p", { class: "bad", role: "status" });
    const legend = Object.entries(PART_NAMES).map(([kind, text]) => [STRIPED.has(kind) ? `k-${kind} striped` : `k-${kind}`, text]);
    this.content = el("div", { hidden: true },
      el("div", { class: "card" }, this.facts, this.spent, this.why),
      el("h2", {}, "Calls over time"), legendOf([...legend, ["swatch-path", "critical path"]]),
      el("p", { class: "soft" }, "Waits for KV memory are known as a total per call and drawn first."), this.gantt.node,
      el("h2", {}, "Dependencies"), this.dag.node,
      this.callsHead, this.table.node);
    return el("div", {}, el("p", {}, el("a", { href: "#/programs" }, "← All programs")),
      el("div", { class: "title-row" }, this.name, this.tail, this.state), this.problem, this.content);
  }

  open() {
    return poll(this, PERIOD_MS);
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
    const name = programName(timeline);
    this.name.replaceChildren(apart(name || timeline.program_id));
    setText(this.tail, name ? timeline.program_id : "");
    setText(this.state, timeline.state_text ?? stateText(timeline.state));
    setText(this.callsHead, `Calls (${count(timeline.calls.length)})`);
    this.facts.replaceChildren(factsOfProgram(timeline));
    this.why.replaceChildren(...(why ? wordsOf(why) : []));
    this.spent.replaceChildren(spentBar(timeline.spent, timeline.duration_s));
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
  const rows = calls.map((call) => el("li", {}, el("strong", { title: call.call_id }, apart(shortId(call.call_id))), `, thread ${threadName(call)}, ${call.state_text}: ${call.text}`));
  if (more > 0) rows.push(el("li", {}, `${oneOrMany(more, "more call")} ${more === 1 ? "is" : "are"} open.`));
  return [el("p", {}, text), rows.length ? el("ul", {}, rows) : null].filter(Boolean);
}

function factsOfProgram(timeline) {
  const sum = (read) => timeline.calls.reduce((total, call) => total + (read(call) ?? 0), 0);
  const prompt = sum((call) => call.prompt_tokens);
  const cached = sum((call) => call.cached_tokens);
  const lookedUp = sum((call) => (call.cached_tokens === null ? 0 : call.prompt_tokens));
  return factList([
    ["Began", clockTime(timeline.began_at_s)],
    [timeline.state === "ended" ? "Took" : "So far", seconds(timeline.duration_s)],
    ["Calls", count(timeline.calls.length + timeline.left_out)],
    ["Threads", count(new Set(timeline.calls.map((call) => call.thread_id)).size)],
    ["Waited, all calls", seconds(sum(waitOf))],
    ["Preemptions", count(sum((call) => call.preemptions))],
    ["Prompt tokens", count(prompt)],
    ["Cached", lookedUp ? share(cached / lookedUp) : UNKNOWN],
    ["Output tokens", count(sum((call) => call.output_tokens))],
    ["Not shown", timeline.left_out ? `${oneOrMany(timeline.left_out, "call")}, too many to keep` : null],
  ]);
}

function spentBar(spent, whole) {
  return stackedBar({
    title: "Where its time went, along its critical path", words: oneOrMany(spent.critical_path.length, "call"), whole,
    parts: SPENT_PARTS.map(([field, style, text]) => [style, spent[field], spent[field] >= 0.0005 ? `${seconds(spent[field])} ${text}` : ""]),
  });
}
