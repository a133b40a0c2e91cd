// The race of a watched demo: a column for each policy, the same programs in the same rows.

import { apart, el, factList, legendOf, setText, svg } from "./dom.js";
import { count, factor, isKnown, oneOrMany, seconds, ticks, wholeSeconds, UNKNOWN } from "./format.js";

const PERIOD_MS = 400;
const WIDTH = 640;
const AXIS = 20;
const MOST_ROW = 11;
const PICTURE_HEIGHT = 430;

const statusLine = document.getElementById("status");
const title = el("h1", {}, "The race");
const news = el("p", { class: "soft race-news" });
const lanes = el("div", { class: "two" });
const past = el("div", {});
document.getElementById("main").append(title, news, lanes, past);

let heat = 0;
let calls = {};
let isOver = false;

function showStatus(text, isBad) {
  setText(statusLine, text);
  statusLine.classList.toggle("bad", isBad);
}

async function ask() {
  const known = Object.entries(calls).map(([policy, list]) => `&${encodeURIComponent(policy)}=${list.length}`);
  const response = await fetch(`race?heat=${heat}${known.join("")}`, { cache: "no-store", credentials: "omit" });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

function take(state) {
  if (state.heat !== heat) calls = {};
  heat = state.heat;
  for (const [policy, lane] of Object.entries(state.lanes)) calls[policy] = [...(calls[policy] ?? []), ...lane.calls];
  isOver = state.is_over;
}

// What a policy had done at a second of its turn: for each program its answered calls and its end, if it has one.
function laneAt(programs, answered, moment) {
  const rows = programs.map((program) => ({ ...program, answers: [], end: null }));
  for (const [place, finish] of answered) if (finish <= moment) rows[place].answers.push(finish);
  for (const row of rows) if (row.answers.length >= row.calls) row.end = Math.max(...row.answers);
  return rows;
}

function meanSoFar(rows, moment) {
  const spent = rows.filter((row) => row.end !== null || row.arrival_s < moment).map((row) => (row.end ?? moment) - row.arrival_s);
  return spent.length ? spent.reduce((sum, each) => sum + each, 0) / spent.length : null;
}

function lastOf(policy) {
  return (calls[policy] ?? []).reduce((most, [, finish]) => Math.max(most, finish), 0);
}

function draw(state) {
  const playing = state.policies.find((policy) => state.lanes[policy]?.is_playing);
  const moment = playing === undefined ? Infinity : state.lanes[playing].elapsed_s;
  const arrived = state.programs.reduce((most, program) => Math.max(most, program.arrival_s), 0);
  const ends = state.policies.map(lastOf);
  const horizon = Math.max(1, arrived * 1.3, ...ends, moment < Infinity ? moment : 0);
  setText(title, state.title ? `The race: ${state.title}` : "The race");
  setText(news, state.is_over ? "The demo has ended; its tables are in its terminal, its picture and figures in its results." : state.news);
  lanes.replaceChildren(...(state.heat ? state.policies.map((policy, place) => columnOf(state, policy, { moment, horizon, end: ends[place], playing })) : []));
  past.replaceChildren(...pastHeats(state));
}

function columnOf(state, policy, { moment, horizon, end, playing }) {
  const lane = state.lanes[policy];
  const now = lane === undefined ? 0 : Math.min(moment, lane.is_playing ? moment : Math.max(end, 0));
  const rows = laneAt(state.programs, calls[policy] ?? [], now);
  const finished = rows.filter((row) => row.end !== null).length;
  const words = `${count(finished)} of ${oneOrMany(rows.length, "program")}`;
  const turn = turnOf(lane, policy === playing, playing);
  return el("section", { class: "card", "data-policy": policy },
    el("h2", {}, apart(policy), el("span", { class: "tag" }, turn)),
    factList([["Programs finished", `${count(finished)} of ${count(rows.length)}`], ["Mean time so far", lane ? seconds(meanSoFar(rows, now)) : UNKNOWN], ["Second of its turn", lane ? wholeSeconds(now) : UNKNOWN]]),
    pictureOf(rows, now, horizon, `${policy}: ${words} finished`),
    legendOf([["k-decode", "finished"], ["k-client", "under way; a notch for each answer"]]),
    lane ? el("p", {}, el("a", { href: lane.page_url, target: "_blank", rel: "noreferrer" }, `The live page of ${policy}'s gateway`)) : null);
}

function turnOf(lane, isPlaying, playing) {
  if (isPlaying) return "plays";
  if (lane === undefined) return "waits for its turn";
  return playing === undefined ? "has played" : "has played; shown at the same second";
}

function pictureOf(rows, now, horizon, words) {
  const high = Math.min(MOST_ROW, PICTURE_HEIGHT / Math.max(1, rows.length));
  const height = AXIS + high * rows.length + 2;
  const x = (time) => (time / horizon) * WIDTH;
  const axis = ticks(horizon, 7).map((time) => [
    svg("line", { class: "grid", x1: x(time), x2: x(time), y1: AXIS - 4, y2: height }),
    svg("text", { x: x(time) + 2, y: 12 }, wholeSeconds(time)),
  ]);
  const seen = rows.map((row, place) => [row, AXIS + place * high]).filter(([row]) => row.arrival_s <= now);
  const bars = seen.map(([row, top]) => svg("rect", {
    class: row.end === null ? "race-open" : "race-done", x: x(row.arrival_s), y: top, height: Math.max(1, high - 1.5),
    width: Math.max(1, x(row.end ?? now) - x(row.arrival_s)),
  }, svg("title", {}, `${row.id} (${row.kind}): ${row.answers.length} of ${oneOrMany(row.calls, "call")}`)));
  const notches = seen.map(([row, top]) => row.answers.map((time) => `M${x(time).toFixed(1)} ${top.toFixed(1)}v${Math.max(1, high - 1.5).toFixed(1)}`).join("")).join("");
  return svg("svg", { class: "fluid", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": words },
    axis, bars, svg("path", { class: "race-calls", d: notches || "M0 0" }),
    now > 0 && now < horizon ? svg("line", { class: "race-now", x1: x(now), x2: x(now), y1: AXIS - 4, y2: height }) : null);
}

function pastHeats(state) {
  if (!state.heats.length) return [];
  const [base, last] = [state.policies[0], state.policies.at(-1)];
  const rows = state.heats.map(({ title: name, mean_s: means }) => el("tr", {},
    el("th", { scope: "row" }, name),
    state.policies.map((policy) => el("td", { class: "n" }, seconds(means[policy] ?? null))),
    el("td", { class: "n" }, isKnown(means[base]) && isKnown(means[last]) ? factor(means[last] / means[base]) : UNKNOWN)));
  return [el("h2", {}, "Mean program latency"), el("div", { class: "card chart" }, el("table", { class: "race-table" },
    el("caption", {}, "From a program's arrival to its last answer. One heat is no measurement: wait for the tables of the demo, which compare all rounds."),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Heat"), state.policies.map((policy) => el("th", { scope: "col", class: "n" }, policy)), el("th", { scope: "col", class: "n" }, `${last} over ${base}`))),
    el("tbody", {}, rows)))];
}

async function watch() {
  while (!isOver) {
    try {
      if (!document.hidden) {
        const state = await ask();
        take(state);
        draw(state);
        showStatus(isOver ? "Ended" : "Live", false);
      }
    } catch {
      showStatus("The demo does not answer: it may have ended", true);
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

watch();
