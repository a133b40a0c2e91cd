// The living programs: a listing, updated by events. Plain data in, plain data out.

import { programName } from "./format.js";

export class LivePrograms {
  constructor() {
    this.rows = new Map();
    this.hasMore = false;
  }

  // Replaces the state by a listing; `atMs` is when it was requested.
  list(programs, hasMore, atMs) {
    const listed = new Map();
    for (const program of programs) listed.set(program.program_id, { ...program, seenMs: atMs });
    this.rows = listed;
    this.hasMore = hasMore;
  }

  // Returns whether anything changed.
  apply(event, atMs) {
    if (event.kind === "program_ended") return this.rows.delete(event.program_id);
    if (event.kind === "begun") return this.begin(event, atMs);
    const row = this.rows.get(event.program_id);
    if (!row) return false;
    if (event.kind === "settled") settle(row, event);
    else if (event.kind === "preempted" || event.kind === "promoted") row.level = event.level ?? row.level;
    else return false;
    return true;
  }

  begin(event, atMs) {
    const row = this.rows.get(event.program_id) ?? newRow(event, atMs);
    this.rows.set(event.program_id, row);
    row.active_calls += 1;
    row.name = row.name ?? event.name;
    if (row.state === "idle") row.state = "running";
    return true;
  }
}

function newRow(event, atMs) {
  return {
    program_id: event.program_id, name: event.name, state: "running", engines: [], flags: [], threads: 1, active_calls: 0,
    finished_calls: 0, level: event.level, service_s: 0, wait_s: 0, ratio: null, kv_share: null,
    prompt_tokens: 0, cached_tokens: 0, output_tokens: 0, age_s: 0, idle_s: 0, seenMs: atMs,
  };
}

function settle(row, event) {
  row.active_calls = Math.max(0, row.active_calls - 1);
  row.finished_calls += 1;
  row.service_s += event.service_s ?? 0;
  row.wait_s += event.wait_s ?? 0;
  row.ratio = row.service_s > 0 ? row.wait_s / row.service_s : null;
  row.prompt_tokens += event.prompt_tokens ?? 0;
  row.output_tokens += event.output_tokens ?? 0;
  if (row.active_calls === 0) row.state = "idle";
}

export function ageOf(row, nowMs) {
  return row.age_s + (nowMs - row.seenMs) / 1000;
}

// Whether a program has all words of a search in its id, name, state or engines.
export function isFound(row, words) {
  if (!words.length) return true;
  const text = `${row.program_id}\n${programName(row)}\n${row.state}\n${(row.engines ?? []).join("\n")}`.toLowerCase();
  return words.every((word) => text.includes(word));
}
