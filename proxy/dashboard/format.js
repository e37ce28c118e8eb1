/** Formats numbers, durations and times for people. */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/**
 * A number with about three digits.
 * @param {number} value
 */
function short(value) {
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toFixed(digits);
}

/** @param {number} value */
export function integer(value) {
  return whole.format(value);
}

/**
 * A number with a suffix for thousands and millions.
 * @param {number} value
 */
export function number(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${short(value / 1e9)} G`;
  if (size >= 1e6) return `${short(value / 1e6)} M`;
  if (size >= 1e4) return `${short(value / 1e3)} k`;
  if (size >= 1e3) return whole.format(value);
  return size > 0 && size < 0.005 ? "< 0.01" : short(value);
}

/** @param {number} ms */
export function duration(ms) {
  if (ms === 0) return "0";
  if (ms < 0.9995) return `${short(ms * 1e3)} µs`;
  if (ms < 999.5) return `${short(ms)} ms`;
  if (ms < 120_000) return `${short(ms / 1e3)} s`;
  return span(ms / 1e3);
}

/**
 * A length of time.
 * @param {number} seconds
 */
export function span(seconds) {
  if (seconds < 120) return `${short(Math.round(seconds * 10) / 10)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${short(Math.round(seconds / 360) / 10)} h`;
  return `${short(Math.round(seconds / 8640) / 10)} days`;
}

/** @param {number} value */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${short(value)} ${units[unit]}`;
}

/** @param {number} share */
export function percent(share) {
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/**
 * The name of a certificate or a revocation list in a sentence.
 * @param {import("./types.js").Certificate} certificate
 */
export function certificateName({ file, kind, serial, subject }) {
  const item = kind === "revocation_list" ? "revocation list of" : "certificate";
  return `${item} ${subject}${serial ? ` (${serial})` : ""} in ${file}`;
}

const clockOptions = /** @type {const} */ ({
  hour: "2-digit",
  minute: "2-digit",
  hourCycle: "h23",
});
const minutes = new Intl.DateTimeFormat("en-GB", clockOptions);
const seconds = new Intl.DateTimeFormat("en-GB", { ...clockOptions, second: "2-digit" });
const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const moments = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/**
 * The time of day, with seconds if the resolution is finer than a minute.
 * @param {number} at seconds since the epoch
 * @param {number} [step] the resolution in seconds
 */
export function clock(at, step = 1) {
  return (step < 60 ? seconds : minutes).format(at * 1000);
}

/**
 * The time of day, with the date unless it is today.
 * @param {number} at
 */
export function moment(at) {
  const date = new Date(at * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock(at) : `${days.format(date)}, ${clock(at)}`;
}

/**
 * Date and time, for texts that may be read on another day.
 * @param {number} at
 */
export function dateAndTime(at) {
  return moments.format(at * 1000);
}

/**
 * The name of a baseline. A moment is shown as date and time, other baselines as in the request.
 * @param {string} against
 */
export function baselineText(against) {
  if (/^\d+$/.test(against)) return dateAndTime(Number(against));
  const isDate = /^\d{4}-/.test(against) && !Number.isNaN(Date.parse(against));
  return isDate ? dateAndTime(Date.parse(against) / 1000) : against.replaceAll("_", " ");
}

/**
 * A label on a time axis.
 * @param {number} at
 * @param {number} interval the time between two labels, in seconds
 */
export function tick(at, interval) {
  if (interval >= 86_400) return days.format(at * 1000);
  return clock(at, interval);
}

/**
 * A sentence that says that there was no storm or no stall in a period. Seawall forgets storms and
 * stalls when it restarts.
 * @param {string} text the sentence if Seawall ran during the whole period, without the full stop
 * @param {number | null} startedAt when Seawall started; `null` for several instances
 * @param {{from: number, until: number}} period
 * @param {(at: number) => string} [format]
 */
export function noneIn(text, startedAt, { from, until }, format = moment) {
  if (startedAt === null) return `${text} since the start of each instance.`;
  const started = `Seawall started at ${format(startedAt)}.`;
  if (until <= startedAt) return `Storms and stalls of this period are not known: ${started}`;
  return from < startedAt ? `${text} since ${started}` : `${text}.`;
}

/** @param {string} name a name of the API, such as `more_frequent` */
export function words(name) {
  return name.replaceAll("_", " ");
}

/** @param {{db: string, collection: string}} of */
export function namespace(of) {
  return of.collection ? `${of.db}.${of.collection}` : of.db;
}

/**
 * @param {number} count
 * @param {string} noun
 */
export function counted(count, noun) {
  return `${integer(count)} ${noun}${count === 1 ? "" : "s"}`;
}
