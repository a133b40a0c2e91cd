// Numbers for people. An unknown value is a dash.

export const UNKNOWN = "–";

export function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value < 0.00005) return "0 s";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 9.995) return `${value.toFixed(2)} s`;
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

// A program's name; an implicit one is that of a process that opened no program.
export function programName({ name, flags }) {
  if (!(flags ?? []).includes("implicit")) return name ?? UNKNOWN;
  return name ? `implicit: ${name}` : "implicit";
}

export function threadName({ thread_id: id, thread_name: name }) {
  return name ? `${name} (${id})` : id;
}

export function shortened(text, letters) {
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}

// Times of recorded programs count from the start of the recording.
const LEAST_EPOCH_SECONDS = 1e9;

export function clockTime(epochSeconds) {
  if (!isKnown(epochSeconds)) return UNKNOWN;
  if (epochSeconds < LEAST_EPOCH_SECONDS) return seconds(epochSeconds);
  return new Date(epochSeconds * 1000).toLocaleTimeString("en-GB");
}

// Round places on an axis from zero, about as many as asked for.
export function ticks(end, wanted) {
  if (!(end > 0)) return [0];
  const rough = end / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((unit) => unit * power).find((unit) => unit >= rough);
  const places = [];
  for (let number = 0; number * step <= end * 1.0001; number += 1) places.push(number * step);
  return places;
}
