// The dependencies of calls, from left to right by depth, with a bold critical path.

import { el, legendOf, setText, svg } from "./dom.js";
import { count, oneOrMany, shortId, threadName } from "./format.js";

export const MOST_NODES = 400;
const RADIUS = 6;
const EDGE_PIXELS = 16;
// With few calls there is room for their ids.
const MOST_LABELS = 60;
// On a narrow screen columns move together before the picture scrolls.
const LABELLED = { column: 120, leastColumn: 84, row: 36, hasLabels: true };
const PLAIN = { column: 46, leastColumn: 46, row: 22, hasLabels: false };
const LEGEND = [["dot-done", "answered"], ["dot-open", "open"], ["dot-failed", "failed"], ["swatch-path", "critical path"]];

// Returns the depth of each call and the edges between calls; a call whose parents are unknown depends on
// the call before it in its thread.
export function layersOf(calls) {
  const byId = new Map();
  const lastOfThread = new Map();
  const edges = [];
  const depths = new Map();
  for (const call of calls) {
    const before = lastOfThread.get(call.thread_id);
    const named = (call.parents ?? []).map((id) => byId.get(id)).filter(Boolean);
    const parents = call.parents === null && before ? [before] : named;
    depths.set(call, Math.max(-1, ...parents.map((parent) => depths.get(parent))) + 1);
    for (const parent of parents) edges.push([parent, call]);
    byId.set(call.call_id, call);
    lastOfThread.set(call.thread_id, call);
  }
  return { depths, edges };
}

export class Dag {
  constructor(onPick) {
    this.chart = el("div", { class: "chart dag", tabindex: 0, role: "region", "aria-label": "Dependencies of calls; arrow keys scroll", click: (event) => {
      const node = event.target.closest?.("[data-call]");
      if (node) onPick(node.getAttribute("data-call"));
    } });
    this.note = el("p", { class: "soft" });
    this.legend = legendOf(LEGEND);
    this.node = el("div", {}, this.legend, this.chart, this.note);
  }

  show(timeline) {
    const calls = timeline.calls.slice(0, MOST_NODES);
    const { depths, edges } = layersOf(calls);
    this.chart.hidden = this.legend.hidden = !edges.length;
    const path = new Set(timeline.spent.critical_path);
    const places = placesOf(calls, depths);
    const columns = Math.max(0, ...depths.values()) + 1;
    const rows = Math.max(1, ...[...places.values()].map(([, row]) => row + 1));
    const step = calls.length <= MOST_LABELS ? LABELLED : PLAIN;
    const room = (this.chart.clientWidth || Infinity) - EDGE_PIXELS;
    const column = Math.max(step.leastColumn, Math.min(step.column, Math.floor(room / columns)));
    const width = columns * column + EDGE_PIXELS;
    const height = rows * step.row + EDGE_PIXELS;
    const at = (call) => [places.get(call)[0] * column + EDGE_PIXELS, places.get(call)[1] * step.row + EDGE_PIXELS];
    const isStrong = (from, to) => path.has(from.call_id) && path.has(to.call_id);
    const lines = edges.map(([from, to]) => svg("path", { class: isStrong(from, to) ? "path-line" : "edge", d: curveOf(at(from), at(to)) }));
    const nodes = calls.map((call) => {
      const [x, y] = at(call);
      const state = call.outcome === null ? "open" : call.outcome === "ok" ? "" : "failed";
      const label = step.hasLabels ? svg("text", { x: x - RADIUS, y: y + RADIUS + 12 }, shortId(call.call_id)) : null;
      return [label, svg("circle", { class: `node ${state} ${path.has(call.call_id) ? "on-path" : ""}`, cx: x, cy: y, r: RADIUS, "data-call": call.call_id },
        svg("title", {}, `${call.call_id}, thread ${threadName(call)}`))];
    });
    this.chart.replaceChildren(svg("svg", { width, height, role: "img", "aria-label": `${oneOrMany(calls.length, "call")} in ${oneOrMany(columns, "layer")}; the table below names the parents of each` }, lines, nodes));
    if (!edges.length) setText(this.note, "No call depends on another.");
    else setText(this.note, timeline.calls.length > calls.length ? `The first ${count(calls.length)} of ${count(timeline.calls.length)} calls are drawn.` : "");
  }
}

function placesOf(calls, depths) {
  const taken = new Map();
  const places = new Map();
  for (const call of calls) {
    const depth = depths.get(call);
    const row = taken.get(depth) ?? 0;
    taken.set(depth, row + 1);
    places.set(call, [depth, row]);
  }
  return places;
}

function curveOf([fromX, fromY], [toX, toY]) {
  const bend = Math.max(14, (toX - fromX) / 2);
  return `M${fromX},${fromY} C${fromX + bend},${fromY} ${toX - bend},${toY} ${toX},${toY}`;
}
