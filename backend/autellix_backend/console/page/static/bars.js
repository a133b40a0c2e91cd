// Horizontal bars of coloured parts, each part in the legend below.

import { el, legendOf, svg } from "./dom.js";
import { count, isKnown, oneOrMany, share } from "./format.js";

const WIDTH = 600;
const HEIGHT = 14;

// Returns a bar of `[style, size, legend]` whose right end is `whole`.
export function stackedBar({ title, words = "", whole, parts }) {
  const scale = WIDTH / Math.max(whole, 1e-9);
  let place = 0;
  const boxes = parts.filter(([, size]) => size > 0).map(([style, size]) => {
    const width = Math.max(0, Math.min(size * scale, WIDTH - place));
    place += width;
    return svg("rect", { class: style, x: place - width, y: 0, width, height: HEIGHT });
  });
  const entries = parts.filter(([, , legend]) => legend).map(([style, , legend]) => [style, legend]);
  const label = [`${title}: ${words}`, ...entries.map(([, legend]) => legend)].filter(Boolean).join(", ");
  return el("div", { class: "meter" },
    el("div", { class: "meter-head" }, el("span", {}, title), el("span", {}, words)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, height: HEIGHT, preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("rect", { class: "trough", width: WIDTH, height: HEIGHT }), boxes),
    legendOf(entries));
}

// Batch slots of one or all engines; null where none reports them.
export function slotBar({ running, waiting, slots }) {
  if (!isKnown(slots) || !isKnown(running)) return null;
  const words = `${count(running)} of ${count(slots)}${waiting ? `, ${oneOrMany(waiting, "call")} waiting` : ""}`;
  const free = Math.max(0, slots - running);
  return stackedBar({ title: "Batch slots", words, whole: slots, parts: [["k-decode", running, `${count(running)} in use`], ["k-free", free, `${count(free)} free`]] });
}

export function freeTokens(kv) {
  return kv.total_tokens - kv.held_tokens - kv.kept_tokens - kv.reserve_tokens;
}

// KV memory of one or all engines; its right end is all of it.
export function kvBar(kv) {
  if (!kv) return null;
  const { total_tokens: total, held_tokens: held, kept_tokens: kept, reserve_tokens: reserve } = kv;
  const free = freeTokens(kv);
  const tokens = (name, value) => (value > 0 ? `${count(value)} ${name}` : "");
  return stackedBar({
    title: "KV memory", words: `${share((held + kept) / Math.max(total, 1))} of ${count(total)} tokens`, whole: total,
    parts: [
      ["k-used", held, tokens("held by calls", held)], ["k-kept", kept, tokens("kept for active programs", kept)],
      ["k-free", free, `${count(free)} free`], ["k-reserve", reserve, tokens("reserve", reserve)],
    ],
  });
}
