// Numbers for people. An unknown value is a dash.

export const UNKNOWN = "–";
const ID_LETTERS = 12;

export function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Rounded as `autellix why` does, so that a number reads the same everywhere.
export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value <= 0) return "0 s";
  if (value < 0.0005) return "< 1 ms";
  if (value < 0.0995) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 0.995) return `${value.toFixed(2)} s`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  if (value < 6000) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

export function wholeSeconds(value) {
  return isKnown(value) && value < 100 ? `${Math.round(Math.max(0, value))} s` : seconds(value);
}

export function count(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en") : UNKNOWN;
}

export function share(value) {
  return isKnown(value) ? `${Math.round(value * 100)} %` : UNKNOWN;
}

export function factor(value) {
  return isKnown(value) ? `${value.toFixed(value < 10 ? 2 : 1)}×` : UNKNOWN;
}

export function oneOrMany(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// A rate: whole numbers where they are large.
export function rate(value) {
  if (!isKnown(value)) return UNKNOWN;
  return value < 10 && !Number.isInteger(value) ? value.toFixed(1) : count(value);
}

// A program's name; an implicit one is that of a process that opened no program.
export function programName({ name, flags }) {
  if (!(flags ?? []).includes("implicit")) return name ?? "";
  return name ? `implicit: ${name}` : "implicit";
}

// What tells a program from others: its name, and the end of its id.
export function programTitle(row, letters) {
  const name = programName(row);
  return name ? `${shortened(name, letters)} ${shortId(row.program_id)}` : shortId(row.program_id);
}

export function threadName({ thread_id: id, thread_name: name }) {
  return name ? `${name} (${shortId(id)})` : shortId(id);
}

// Ids that clients make differ at their ends.
export function shortId(id) {
  return id.length > ID_LETTERS ? `…${id.slice(1 - ID_LETTERS)}` : id;
}

export function shortened(text, letters) {
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}

export function toolsText(tools) {
  return tools.map(([name, spent]) => `${name} ${seconds(spent)}`).join(", ");
}

// Times of recorded programs count from the start of the recording.
const LEAST_EPOCH_SECONDS = 1e9;

export function clockTime(epochSeconds) {
  if (!isKnown(epochSeconds)) return UNKNOWN;
  if (epochSeconds < LEAST_EPOCH_SECONDS) return seconds(epochSeconds);
  return new Date(epochSeconds * 1000).toLocaleTimeString("en-GB");
}

// Round places on an axis of seconds from zero, about as many as asked for, with equal decimals.
export function ticks(end, wanted) {
  if (!(end > 0)) return [[0, "0 s"]];
  const rough = end / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((unit) => unit * power).find((unit) => unit >= rough);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const places = [];
  for (let number = 0; number * step <= end * 1.0001; number += 1) {
    const place = number * step;
    places.push([place, place < 6000 ? `${place.toFixed(decimals)} s` : seconds(place)]);
  }
  return places;
}
