// The states of programs and calls, as the API names them.

import { stackedBar } from "./bars.js";
import { count, oneOrMany } from "./format.js";

// The most urgent first.
export const STATES = [
  { key: "waiting_for_memory", text: "waiting for memory", short: "memory", brief: "for memory", color: "inactive" },
  { key: "waiting_for_slot", text: "waiting for a slot", short: "slot", brief: "for a slot", color: "waiting" },
  { key: "in_engine", text: "in the engine", short: "engine", brief: "in engine", color: "decode" },
  { key: "at_another_gateway", text: "at another gateway", short: "elsewhere", brief: "elsewhere", color: "engine" },
  { key: "between_calls", text: "between calls", short: "between", brief: "between calls", color: "client" },
];
const BY_KEY = new Map(STATES.map((state, urgency) => [state.key, { ...state, urgency }]));

export function urgencyOf(key) {
  return BY_KEY.get(key)?.urgency ?? STATES.length;
}

export function stateText(key) {
  return BY_KEY.get(key)?.text ?? key;
}

// The widths at which page.css hides columns.
const narrow = window.matchMedia("(max-width: 760px)");
const medium = window.matchMedia("(max-width: 1100px)");
const tight = window.matchMedia("(max-width: 860px)");

export function isNarrow() {
  return narrow.matches;
}

// How many letters of a name fit into the table.
export function lettersOfNames() {
  if (isNarrow()) return 9;
  return medium.matches ? 20 : 40;
}

export function shortState(key) {
  return BY_KEY.get(key)?.short ?? key;
}

// How many programs of a group are in each state, in words that fit into the table, or in full.
export function statesText(rows, isFull = false) {
  const counts = new Map();
  for (const { state } of rows) counts.set(state, (counts.get(state) ?? 0) + 1);
  const isLong = isFull || (counts.size === 1 && !isNarrow());
  const textOf = (key) => (isLong ? stateText(key) : tight.matches ? shortState(key) : BY_KEY.get(key)?.brief ?? key);
  return [...counts].sort(([first], [second]) => urgencyOf(first) - urgencyOf(second))
    .map(([key, number]) => `${count(number)} ${textOf(key)}`).join(", ");
}

export function stateBar(rows) {
  const programs = rows.reduce((sum, row) => sum + row.programs, 0);
  const numbers = new Map(rows.map((row) => [row.state, row.programs]));
  // Where there is one gateway, nothing is at another.
  const shown = STATES.filter(({ key }) => key !== "at_another_gateway" || numbers.get(key));
  const parts = shown.map(({ key, text, color }) => [`k-${color}`, numbers.get(key) ?? 0, `${count(numbers.get(key) ?? 0)} ${text}`]);
  return stackedBar({ title: "Programs", words: oneOrMany(programs, "program"), whole: programs, parts });
}
