// The states of programs and calls, as the API names them.

import { stackedBar } from "./bars.js";
import { count, oneOrMany } from "./format.js";

// The most urgent first.
export const STATES = [
  { key: "waiting_for_memory", text: "waiting for memory", short: "memory", color: "inactive" },
  { key: "waiting_for_slot", text: "waiting for a slot", short: "slot", color: "waiting" },
  { key: "in_engine", text: "in the engine", short: "engine", color: "decode" },
  { key: "at_another_gateway", text: "at another gateway", short: "elsewhere", color: "engine" },
  { key: "between_calls", text: "between calls", short: "between", color: "client" },
];
const BY_KEY = new Map(STATES.map((state, urgency) => [state.key, { ...state, urgency }]));

export function urgencyOf(key) {
  return BY_KEY.get(key)?.urgency ?? STATES.length;
}

export function stateText(key) {
  return BY_KEY.get(key)?.text ?? key;
}

const narrow = window.matchMedia("(max-width: 760px)");

export function isNarrow() {
  return narrow.matches;
}

export function shortState(key) {
  return BY_KEY.get(key)?.short ?? key;
}

// How many programs of a group are in each state.
export function statesText(rows, textOf = stateText) {
  const counts = new Map();
  for (const { state } of rows) counts.set(state, (counts.get(state) ?? 0) + 1);
  if (counts.size === 1) return `${count(rows.length)} ${textOf(rows[0].state)}`;
  return [...counts].sort(([first], [second]) => urgencyOf(first) - urgencyOf(second))
    .map(([key, number]) => `${count(number)} ${shortState(key)}`).join(", ");
}

export function stateBar(rows) {
  const programs = rows.reduce((sum, row) => sum + row.programs, 0);
  const numbers = new Map(rows.map((row) => [row.state, row.programs]));
  const parts = STATES.map(({ key, text, color }) => [`k-${color}`, numbers.get(key) ?? 0, `${count(numbers.get(key) ?? 0)} ${text}`]);
  return stackedBar({ title: "Programs", words: oneOrMany(programs, "program"), whole: programs, parts });
}
