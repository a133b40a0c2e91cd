// The table of programs: living ones, and those that have ended; grouped by name.

import { el, setText } from "./dom.js";
import { clockTime, count, factor, isKnown, oneOrMany, programName, programTitle, seconds, share, shortened, shortId, UNKNOWN, wholeSeconds } from "./format.js";
import { noAnswer, poll } from "./polling.js";
import { isNarrow, lettersOfNames, shortState, statesText, urgencyOf } from "./states.js";
import { LongTable } from "./table.js";

const MOST_PROGRAMS = 10000;
const LIST_MS = 1000;
// Groups of a longer list are closed at first.
const MOST_OPEN = 15;
const isSome = (field) => (rows) => rows.some((row) => row[field]);
const isVaried = (field) => (rows) => new Set(rows.flatMap((row) => row[field])).size > 1;

const PROGRAM = {
  key: "program", title: "Program", link: (row) => `#/program/${encodeURIComponent(row.program_id)}`, hover: (row) => (row.rows ? row.group : row.program_id),
  value: (row) => row.rows ? row.group : `${programName(row)} ${row.program_id}`,
  text: (row) => {
    const letters = lettersOfNames();
    if (row.rows) return `${shortened(row.group, letters)} (${count(row.rows.length)})`;
    return row.isMember ? shortId(row.program_id) : programTitle(row, letters);
  },
};
const TOKENS = {
  key: "tokens", title: "Tokens in/out", isNumber: true, isLeast: true, hint: "Prompt and output tokens of finished calls",
  value: (row) => row.prompt_tokens + row.output_tokens, text: (row) => `${count(row.prompt_tokens)}/${count(row.output_tokens)}`,
};
const THREADS = number("threads", "Threads", (row) => row.threads, count, { hint: "Branches that made calls", isLeast: true, isShown: (rows) => rows.some((row) => row.threads > 1) });
const ENGINE = {
  key: "engines", title: "Engine", isLeast: true, value: (row) => row.engines.join(", "), text: (row) => row.engines.join(", ") || UNKNOWN, isShown: isVaried("engines"),
};
const LIVE_COLUMNS = [
  PROGRAM,
  {
    key: "state", title: "State", value: (row) => urgencyOf(row.state), text: stateOf, hover: (row) => (row.rows ? statesText(row.rows, true) : row.state_text),
    style: (row) => `state-${row.state}`,
  },
  { key: "priority", title: "Priority", isLeast: true, value: priorityOf, text: priorityOf, hint: "How urgent it is to its tenant", isShown: (rows) => rows.some((row) => !["", "default"].includes(priorityOf(row))) },
  number("state_s", "Since", (row) => row.state_s, seconds, { hint: "How long it has been in this state; of a group, the longest", isMinor: true }),
  spent("wait_s", "Wait", (row) => row.wait_s, { hint: "Waiting of all its calls, that of open calls up to now" }),
  spent("service_s", "In engine", (row) => row.total_service_s, { hint: "Engine time of its finished calls", isLeast: true }),
  number("level", "Level", (row) => row.level, count, { hint: "Best queue level of its calls; 1 runs first", isLeast: true, isShown: (rows) => rows.some((row) => isKnown(row.level)) }),
  number("ratio", "Wait / run", (row) => row.ratio, factor, { hint: "Waiting over service, by which calls are promoted", isLeast: true, isShown: (rows) => rows.some((row) => isKnown(row.ratio)) }),
  number("active_calls", "Open", (row) => row.active_calls, count, { hint: "Calls that wait or run", isLeast: true }),
  number("finished_calls", "Done", (row) => row.finished_calls, count, { hint: "Calls that were answered", isLeast: true }),
  THREADS,
  number("kv_share", "KV", (row) => row.kv_share, share, { hint: "Share of its engines' KV blocks that its calls hold", isLeast: true, isShown: (rows) => rows.some((row) => isKnown(row.kv_share)) }),
  TOKENS,
  number("age", "Age", (row) => row.age_s, wholeSeconds, { hint: "Since its first call", isMinor: true }),
  ENGINE,
];

const ENDED_COLUMNS = [
  PROGRAM,
  number("ended_at_s", "Ended", (row) => row.ended_at_s, clockTime, { hint: "When it left the process table", isMinor: true }),
  number("duration_s", "Duration", (row) => row.duration_s, seconds, { hint: "From its first arrival to its last answer" }),
  spent("wait_s", "Wait", (row) => row.wait_s, { hint: "Waiting of all its calls" }),
  number("inactive_s", "For memory", (row) => row.inactive_s, seconds, { hint: "The part of the wait that was for KV memory", isMinor: true }),
  spent("service_s", "In engine", (row) => row.service_s, { hint: "Engine time of all its calls", isMinor: true }),
  number("finished_calls", "Calls", (row) => row.finished_calls, count, { hint: "Calls that it made", isMinor: true }),
  THREADS,
  number("preemptions", "Preempted", (row) => row.preemptions, count, { hint: "Times that a call lost its slot", isLeast: true, isShown: isSome("preemptions") }),
  number("failed_calls", "Failed", (row) => row.failed_calls, count, { hint: "Calls that were not answered", isMinor: true, isShown: isSome("failed_calls") }),
  TOKENS,
  ENGINE,
];
const SUMS = ["active_calls", "finished_calls", "kv_share", "prompt_tokens", "output_tokens", "preemptions", "failed_calls"];
const MEDIANS = ["wait_s", "total_service_s", "level", "ratio", "threads", "age_s", "duration_s", "inactive_s", "service_s"];

function number(key, title, value, show, { hint, isMinor = false, isLeast = false, isShown }) {
  return { key, title, value, text: (row) => show(value(row)), isNumber: true, hint, isMinor, isLeast, isShown };
}

// Seconds, with "about" where no engine reported them.
function spent(key, title, value, options) {
  return { ...number(key, title, value, seconds, options), text: (row) => `${row.estimated && isKnown(value(row)) ? "about " : ""}${seconds(value(row))}` };
}

function stateOf(row) {
  const longest = row.isLongest ? (isNarrow() ? `, ${wholeSeconds(row.longest_s)}` : `; longest ${seconds(row.longest_s)}`) : "";
  if (row.rows) return statesText(row.rows) + longest;
  return (isNarrow() ? shortState(row.state) : row.state_text) + longest;
}

// Marks the program that has been in a waiting state for the longest time.
function markLongest(programs) {
  const isWaiting = (row) => row.state.startsWith("waiting");
  const waits = programs.filter(isWaiting).map((row) => row.state_s);
  const longest = Math.max(...waits);
  for (const row of programs) Object.assign(row, { isLongest: waits.length > 1 && isWaiting(row) && row.state_s === longest, longest_s: longest });
}

// That of a group, if all its members have the same.
function priorityOf(row) {
  const found = new Set((row.rows ?? [row]).map((member) => member.priority ?? "default"));
  return found.size === 1 ? [...found][0] : "";
}

// Programs of one name as one row, with counts, sums and medians; a name of one program is that program.
function groupsOf(rows, isOpen) {
  const byName = new Map();
  for (const row of rows) {
    const name = programName(row) || "unnamed";
    if (!byName.has(name)) byName.set(name, []);
    byName.get(name).push(row);
  }
  return [...byName].map(([name, members]) => (members.length === 1 ? members[0] : groupOf(name, members, isOpen(name))));
}

function groupOf(name, members, isOpen) {
  const group = { group: name, program_id: `group ${name}`, isOpen, rows: isOpen ? members.map((row) => ({ ...row, isMember: true })) : members };
  for (const field of SUMS) group[field] = valuesOf(members, field).reduce((sum, value) => sum + value, 0);
  for (const field of MEDIANS) group[field] = medianOf(valuesOf(members, field));
  group.ended_at_s = Math.max(...valuesOf(members, "ended_at_s"), 0);
  group.engines = [...new Set(members.flatMap((row) => row.engines))].sort();
  group.estimated = members.some((row) => row.estimated);
  group.isLongest = members.some((row) => row.isLongest);
  group.longest_s = members[0].longest_s;
  group.state = members.reduce((most, row) => (urgencyOf(row.state) < urgencyOf(most) ? row.state : most), members[0].state);
  group.state_s = Math.max(...valuesOf(members.filter((row) => row.state === group.state), "state_s"));
  return group;
}

function valuesOf(rows, field) {
  return rows.map((row) => row[field]).filter(isKnown);
}

function medianOf(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((first, second) => first - second);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Whether a program has all words of a search in its id, name, state, threads or engines.
function isFound(row, words) {
  const text = [row.program_id, programName(row), row.state_text ?? "", ...row.thread_names, ...row.engines].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

// Shows the programs until it is closed.
export class ProgramsView {
  constructor(source, onStatus, onFailure) {
    Object.assign(this, { source, onStatus, onFailure });
    this.listings = { live: { programs: [], hasMore: false }, ended: { programs: [], hasMore: false } };
    this.foldedNames = new Map();
    this.isPaused = this.isClosed = false;
    this.isGrouped = true;
    this.shown = "live";
    const rowId = (row) => row.program_id;
    const onGroup = (name) => this.toggleGroup(name);
    const address = el("code", {}, new URL("../v1", location.href).href);
    this.tables = {
      live: new LongTable({
        label: "Living programs", columns: LIVE_COLUMNS, sortKey: "age", isDescending: true, rowId, onGroup,
        empty: ["No program is open. Send a request to ", address, " and it appears here."],
      }),
      ended: new LongTable({
        label: "Programs that have ended", columns: ENDED_COLUMNS, sortKey: "ended_at_s", isDescending: true, rowId, onGroup,
        empty: "No program has ended yet. One ends when its client says so, or after it was idle for a while.",
      }),
    };
    this.node = this.build();
  }

  build() {
    this.search = el("input", {
      type: "search", class: "search", placeholder: "Search names, ids, states", "aria-label": "Search programs", input: () => this.draw(),
    });
    this.pause = el("button", { type: "button", "aria-pressed": "false", click: () => this.togglePause() }, "Pause");
    this.grouping = el("button", { type: "button", "aria-pressed": "true", title: "One row for all programs of a name, with sums and medians", click: () => this.toggleGrouping() }, "Group by name");
    this.choices = ["live", "ended"].map((kind) =>
      el("button", { type: "button", click: () => this.choose(kind) }, kind === "live" ? "Living" : "Ended"));
    this.note = el("span", { class: "soft", "aria-live": "off", id: "programs-count" });
    this.place = el("div", {});
    const kinds = el("span", { class: "group", role: "group", "aria-label": "Which programs" }, this.choices);
    return el("div", {}, el("h1", {}, "Programs"),
      el("div", { class: "tools-row" }, kinds, this.search, this.grouping, this.pause, this.note), this.place);
  }

  open() {
    this.choose(this.shown);
    return poll(this, LIST_MS);
  }

  close() {
    this.isClosed = true;
    Object.values(this.tables).forEach((table) => table.close());
  }

  choose(kind) {
    this.shown = kind;
    this.choices.forEach((button, place) => button.setAttribute("aria-pressed", String((place === 0) === (kind === "live"))));
    this.place.replaceChildren(this.tables[kind].node);
    this.refresh();
  }

  togglePause() {
    this.isPaused = !this.isPaused;
    this.pause.setAttribute("aria-pressed", String(this.isPaused));
    this.refresh();
  }

  toggleGrouping() {
    this.isGrouped = !this.isGrouped;
    this.grouping.setAttribute("aria-pressed", String(this.isGrouped));
    this.draw();
  }

  toggleGroup(name) {
    this.foldedNames.set(name, this.isOpen(name));
    this.draw();
  }

  isOpen(name) {
    const isFolded = this.foldedNames.get(name) ?? this.listings[this.shown].programs.length > MOST_OPEN;
    return !isFolded;
  }

  // Returns whether to ask again.
  async refresh() {
    if (this.isPaused) return true;
    const kind = this.shown;
    try {
      const listing = await (kind === "live" ? this.source.programs(MOST_PROGRAMS) : this.source.ended(MOST_PROGRAMS));
      if (this.isClosed) return false;
      this.onStatus("Live", false);
      this.listings[kind] = listing;
      if (!this.isPaused) this.draw();
      return true;
    } catch (error) {
      if (this.isClosed) return false;
      if (error.status === 401) this.onFailure(error);
      else this.onStatus(noAnswer(error), true);
      return error.status !== 401;
    }
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { programs, hasMore } = this.listings[this.shown];
    if (this.shown === "live") markLongest(programs);
    const found = words.length ? programs.filter((row) => isFound(row, words)) : programs;
    const rows = this.isGrouped && !words.length ? groupsOf(found, (name) => this.isOpen(name)) : found;
    this.tables[this.shown].show(rows);
    const of = words.length ? `${count(found.length)} of ` : "";
    setText(this.note, `${of}${oneOrMany(programs.length, "program")}${hasMore ? ", the first of more" : ""}${rows.some((row) => row.rows) ? "; groups show sums of counts, medians of times, and the longest time in a state" : ""}`);
  }
}
