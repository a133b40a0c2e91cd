// Runs to compare: the results of `autellix bench`, and recorded traces. Plain data in, plain data out.

const RESULT_KIND = "autellix-replay";

// Returns the run in a file: label, outcomes of programs, remarks. Raises an Error in words for people.
export function readRun(name, text) {
  const label = name.replace(/\.(json|jsonl)$/, "");
  let document = null;
  try {
    document = JSON.parse(text);
  } catch {
    return { label, outcomes: readTrace(name, text) };
  }
  if (Array.isArray(document?.calls)) return { label, outcomes: [recordedOutcome(document, name)] };
  if (document?.kind !== RESULT_KIND || !Array.isArray(document.outcomes)) {
    throw new Error(`${name} is neither a result of “autellix bench replay --out” nor a trace.`);
  }
  return { label, outcomes: document.outcomes };
}

function readTrace(name, text) {
  const lines = text.split("\n").filter((line) => line.trim());
  if (!lines.length) throw new Error(`${name} is empty.`);
  return lines.map((line, place) => {
    let program = null;
    try {
      program = JSON.parse(line);
    } catch {
      throw new Error(`${name}, line ${place + 1}: not JSON.`);
    }
    return recordedOutcome(program, name);
  });
}

// A program of a trace as it was recorded.
function recordedOutcome(program, name) {
  const calls = Array.isArray(program?.calls) ? program.calls : [];
  const ends = calls.map((call) => (call.start_s ?? NaN) + (call.latency_s ?? NaN));
  if (!ends.length || ends.some((end) => !Number.isFinite(end))) {
    throw new Error(`${name} has no times of its calls: it was generated, not recorded.`);
  }
  const output = calls.reduce((sum, call) => sum + call.decode_tokens, 0);
  return {
    program: program.program_id, source: program.source, latency_s: Math.max(...ends), output_tokens: output,
    token_latency_s: null, wait_s: null, preemptions: null,
  };
}

// The runs in the gateway's answer: the measured one first.
export function runsOfReplay({ policy, programs, policies }) {
  const outcomesOf = (latencies) => programs.map((program, place) => ({ program: program.program_id, source: program.name, latency_s: latencies[place] }));
  const measured = { label: `${policy} (measured)`, outcomes: outcomesOf(programs.map((program) => program.measured_s)) };
  return [measured, ...policies.map((each) => ({ label: `${each.policy} (simulated)`, outcomes: outcomesOf(each.estimated_s) }))];
}

export const METRICS = [
  ["latency_s", "Program latency", "from a program's arrival to its last answer"],
  ["token_latency_s", "Program token latency", "response time along the critical path over all its output tokens"],
  ["wait_s", "Waiting", "of all calls of a program"],
];

export function valuesOf(run, metric) {
  return run.outcomes.map((outcome) => outcome[metric]).filter((value) => typeof value === "number" && Number.isFinite(value)).sort((first, second) => first - second);
}

// A quantile, interpolated linearly.
export function quantile(sorted, part) {
  if (!sorted.length) return null;
  const place = part * (sorted.length - 1);
  const low = Math.floor(place);
  const high = Math.min(sorted.length - 1, low + 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

export function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}

const SAME = 0.05;

// Returns the change of each program that both runs have, the largest gain first.
export function changesBetween(base, other) {
  const before = new Map(base.outcomes.map((outcome) => [outcome.program, outcome]));
  return other.outcomes
    .filter((outcome) => before.get(outcome.program)?.latency_s > 0 && outcome.latency_s >= 0)
    .map((outcome) => {
      const base_s = before.get(outcome.program).latency_s;
      return { program: outcome.program, name: outcome.source, base_s, other_s: outcome.latency_s, ratio: outcome.latency_s / base_s };
    })
    .sort((first, second) => first.ratio - second.ratio);
}

export function verdictOf(ratio) {
  if (ratio < 1 - SAME) return "gain";
  return ratio > 1 + SAME ? "loss" : "same";
}
