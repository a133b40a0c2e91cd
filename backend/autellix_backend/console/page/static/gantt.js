// The calls of a program over time: a lane for each thread, a bar for each call, its parts in colours.

import { el, setText, svg } from "./dom.js";
import { count, oneOrMany, seconds, shortened, threadName, ticks, toolsText } from "./format.js";
import { stateText } from "./states.js";

export const MOST_BARS = 2000;
const LABEL_WIDTH = 130;
const ROW_HEIGHT = 18;
const BAR_PIXELS = 12;
const AXIS_PIXELS = 22;
const MOST_ZOOM = 64;
const LABEL_LETTERS = 17;
// An answer that took less to send is not drawn.
const LEAST_ANSWER_S = 1e-4;

export const PART_NAMES = {
  inactive: "waiting for KV memory",
  waiting: "waiting for a slot",
  prefill: "prefill",
  decode: "decode",
  preempted: "preempted",
  engine: "in the engine (no details)",
  answer: "answer on its way",
  tools: "tools at the client",
};
export const STRIPED = new Set(["inactive", "preempted"]);

export function callEnd(call, now) {
  return call.finish_s ?? now;
}

export function toolSeconds(call) {
  return call.tools.reduce((sum, [, spent]) => sum + spent, 0);
}

// Places calls in lanes so that none covers another: threads in the order of their first calls, and within a
// thread the calls that overlap below each other.
export function laneOf(calls, now) {
  const threads = new Map();
  const toolStarts = new Map();
  for (const call of calls) {
    const rows = threads.get(call.thread_id) ?? { ends: [], calls: [], name: null };
    threads.set(call.thread_id, rows);
    const start = call.start_s - toolSeconds(call);
    let row = rows.ends.findIndex((end) => end <= call.start_s + 1e-6 && end <= Math.max(start, 0) + 1e-3);
    if (row < 0) row = rows.ends.findIndex((end) => end <= call.start_s + 1e-6);
    if (row < 0) row = rows.ends.push(0) - 1;
    // The client has an answer, and begins a tool, a little before the gateway has settled the call.
    toolStarts.set(call, Math.max(0, start, rows.ends[row]));
    rows.ends[row] = callEnd(call, now);
    rows.calls.push([call, row]);
    rows.name ??= call.thread_name;
  }
  const places = new Map();
  const lanes = [];
  let top = 0;
  for (const [thread, { ends, calls: placed, name }] of threads) {
    for (const [call, row] of placed) places.set(call, top + row);
    lanes.push({ thread, name, top, rows: ends.length });
    top += ends.length;
  }
  return { places, lanes, toolStarts, rows: top };
}

// Those on the critical path, then the longest ones.
export function mostTelling(calls, path, now) {
  if (calls.length <= MOST_BARS) return calls;
  const rank = (call) => (path.has(call.call_id) ? Infinity : callEnd(call, now) - call.start_s);
  const kept = new Set([...calls].sort((first, second) => rank(second) - rank(first)).slice(0, MOST_BARS));
  return calls.filter((call) => kept.has(call));
}

export class Gantt {
  constructor(onPick) {
    this.onPick = onPick;
    this.zoom = 1;
    this.timeline = null;
    this.picked = null;
    this.detail = el("p", { class: "detail soft", "aria-live": "off" }, "Point at a call for its details; click it to find it in the table.");
    this.labels = el("div", { class: "gantt-labels" });
    this.plot = el("div", { class: "gantt-plot", pointerover: (event) => this.onPoint(event), click: (event) => this.onClick(event) });
    this.chart = el("div", { class: "chart gantt", tabindex: 0, role: "region", "aria-label": "Calls over time; arrow keys scroll" }, this.labels, this.plot);
    this.wider = el("button", { type: "button", "aria-label": "Zoom in", click: () => this.setZoom(this.zoom * 2) }, "+");
    this.narrower = el("button", { type: "button", "aria-label": "Zoom out", click: () => this.setZoom(this.zoom / 2) }, "−");
    this.whole = el("button", { type: "button", click: () => this.setZoom(1) }, "Fit");
    this.note = el("span", { class: "soft" });
    this.node = el("div", {},
      el("div", { class: "tools-row" }, el("span", { class: "group", role: "group", "aria-label": "Zoom" }, this.narrower, this.wider, this.whole), this.note),
      this.chart, this.detail);
    this.sizes = new ResizeObserver(() => this.redraw());
    this.sizes.observe(this.chart);
  }

  close() {
    this.sizes.disconnect();
  }

  show(timeline) {
    this.timeline = timeline;
    this.drawnWidth = null;
    this.redraw();
  }

  setZoom(zoom) {
    const middle = (this.chart.scrollLeft + this.chart.clientWidth / 2) / this.chart.scrollWidth;
    this.zoom = Math.min(MOST_ZOOM, Math.max(1, zoom));
    this.drawnWidth = null;
    this.redraw();
    this.chart.scrollLeft = middle * this.chart.scrollWidth - this.chart.clientWidth / 2;
  }

  pick(callId) {
    this.picked = callId;
    this.plot.querySelectorAll(".picked").forEach((box) => box.classList.remove("picked"));
    this.plot.querySelectorAll("[data-call]").forEach((box) => {
      if (box.getAttribute("data-call") === callId) box.querySelector(".hit").classList.add("picked");
    });
  }

  redraw() {
    const width = Math.max(240, this.chart.clientWidth - LABEL_WIDTH - 16) * this.zoom;
    if (!this.timeline || !this.chart.clientWidth || width === this.drawnWidth) return;
    this.drawnWidth = width;
    const { calls, duration_s: now } = this.timeline;
    const path = this.timeline.spent.critical_path;
    const drawn = mostTelling(calls, new Set(path), now);
    const lanes = laneOf(drawn, now);
    const height = AXIS_PIXELS + lanes.rows * ROW_HEIGHT + 4;
    const scale = (width - 12) / Math.max(now, 1e-6);
    this.labels.replaceChildren(labelsOf(lanes, height));
    this.plot.replaceChildren(this.pictureOf({ drawn, lanes, path, now, scale, width, height }));
    this.narrower.disabled = this.zoom <= 1;
    this.wider.disabled = this.zoom >= MOST_ZOOM;
    const cut = drawn.length < calls.length ? `; the ${count(drawn.length)} that are on the critical path or longest are drawn` : "";
    setText(this.note, `${oneOrMany(calls.length, "call")} in ${oneOrMany(lanes.lanes.length, "thread")}, ${seconds(now)}${cut}`);
    if (this.picked) this.pick(this.picked);
  }

  pictureOf({ drawn, lanes, path, now, scale, width, height }) {
    const byId = new Map(drawn.map((call) => [call.call_id, call]));
    const onPath = new Set(path);
    const x = (time) => 4 + time * scale;
    const y = (call) => AXIS_PIXELS + lanes.places.get(call) * ROW_HEIGHT + (ROW_HEIGHT - BAR_PIXELS) / 2;
    const backs = lanes.lanes.map((lane, place) => (place % 2 ? svg("rect", { class: "lane-alt", x: 0, y: AXIS_PIXELS + lane.top * ROW_HEIGHT, width, height: lane.rows * ROW_HEIGHT }) : null));
    const axis = ticks(now, Math.max(3, width / 110)).map(([time, text]) => [
      svg("line", { class: "grid", x1: x(time), x2: x(time), y1: AXIS_PIXELS - 4, y2: height }),
      svg("text", { x: x(time) + 3, y: 13 }, text),
    ]);
    const bars = drawn.map((call) => barOf(call, { x, top: y(call), now, toolStart: lanes.toolStarts.get(call), isOnPath: onPath.has(call.call_id) }));
    const links = path.slice(1).map((callId, place) => linkOf(byId.get(path[place]), byId.get(callId), x, y, now));
    return svg("svg", { width, height, role: "img", "aria-label": `${oneOrMany(drawn.length, "call")} over ${seconds(now)}; the table below has their times` },
      svg("defs", {}, stripes()), backs, axis, bars, links);
  }

  callAt(event) {
    const box = event.target.closest?.("[data-call]");
    return box ? this.timeline.calls.find((call) => call.call_id === box.getAttribute("data-call")) : null;
  }

  onPoint(event) {
    const call = this.callAt(event);
    if (call) setText(this.detail, describeCall(call, this.timeline.duration_s));
  }

  onClick(event) {
    const call = this.callAt(event);
    if (call) this.onPick(call.call_id);
  }
}

function stripes() {
  return svg("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { class: "hatch", x1: 0, x2: 0, y1: 0, y2: 6 }));
}

function labelsOf(lanes, height) {
  const texts = lanes.lanes.map((lane) => {
    return svg("text", { x: 8, y: AXIS_PIXELS + lane.top * ROW_HEIGHT + 13 }, svg("title", {}, threadName({ thread_id: lane.thread, thread_name: lane.name })), shortened(lane.name ?? lane.thread, LABEL_LETTERS));
  });
  return svg("svg", { width: LABEL_WIDTH, height, "aria-hidden": "true" }, svg("text", { x: 8, y: 13 }, "Thread"), texts);
}

function barOf(call, { x, top, now, toolStart, isOnPath }) {
  const box = (kind, start, end) => {
    const size = { x: x(start), y: top, width: Math.max(0.6, x(end) - x(start)), height: BAR_PIXELS };
    const parts = [svg("rect", { class: `k-${kind}`, ...size })];
    if (STRIPED.has(kind)) parts.push(svg("rect", { fill: "url(#stripes)", ...size }));
    return parts;
  };
  const hasTools = call.tools.length > 0 && toolStart < call.start_s;
  const toolsBox = hasTools ? svg("rect", { class: "k-tools", x: x(toolStart), y: top + 3, width: Math.max(0.6, x(call.start_s) - x(toolStart)), height: BAR_PIXELS - 6 }) : null;
  const size = { x: x(call.start_s), y: top, width: Math.max(1, x(callEnd(call, now)) - x(call.start_s)), height: BAR_PIXELS };
  return svg("g", { "data-call": call.call_id }, toolsBox,
    partsOf(call, now).map((span) => box(span.kind, span.start_s, span.finish_s)),
    svg("rect", { class: isOnPath ? "hit path-box" : "hit", fill: "transparent", ...size }));
}

// What a call did, up to its answer, which arrives after its end in the engine.
function partsOf(call, now) {
  const start = call.spans.at(-1)?.finish_s ?? call.start_s;
  const finish = callEnd(call, now);
  return finish - start > LEAST_ANSWER_S ? [...call.spans, { kind: "answer", start_s: start, finish_s: finish }] : call.spans;
}

function linkOf(before, after, x, y, now) {
  if (!before || !after) return null;
  const from = [x(Math.min(callEnd(before, now), after.start_s)), y(before) + BAR_PIXELS / 2];
  const to = [x(after.start_s), y(after) + BAR_PIXELS / 2];
  return svg("path", { class: "path-line", d: `M${from[0]},${from[1]} L${to[0]},${from[1]} L${to[0]},${to[1]}`, "pointer-events": "none" });
}

function describeCall(call, now) {
  const sums = new Map();
  for (const { kind, start_s: start, finish_s: finish } of partsOf(call, now)) sums.set(kind, (sums.get(kind) ?? 0) + finish - start);
  const parts = [...sums].map(([kind, spent]) => `${seconds(spent)} ${PART_NAMES[kind]}`);
  return [
    `${call.call_id}: ${call.outcome ?? stateText(call.state)}, thread ${threadName(call)}`,
    `from ${seconds(call.start_s)}, ${seconds(callEnd(call, now) - call.start_s)}`,
    ...parts,
    call.tools.length ? `after ${toolsText(call.tools)}` : null,
    call.prefix_text,
  ].filter(Boolean).join(" · ");
}
