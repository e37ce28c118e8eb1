/** Charts of series over time. All charts of a page share one cursor. */

import { axisLabel, fill, h, svg } from "./dom.js";
import { clock, moment, tick } from "./format.js";
import { linear, timeTicks } from "./scale.js";

/** @typedef {[number, number | null]} Point a time, and the value; `null` is a gap */
/** @typedef {{name: string, points: Point[], tone?: string}} Series */
/** @typedef {import("./types.js").Annotation} Annotation */

/** The time below the pointer, for all charts of the page. */
const cursor = new EventTarget();

/** @param {number | null} at */
function point(at) {
  cursor.dispatchEvent(new CustomEvent("move", { detail: at }));
}

/**
 * @typedef {object} Options
 * @property {string} title
 * @property {(value: number) => string} format
 * @property {boolean} [isSmall] without labels of the axes
 */

/** A chart that can be filled repeatedly. */
export class TimeChart {
  /** @param {Options} options */
  constructor(options) {
    this.options = options;
    /** @type {Series[]} */
    this.series = [];
    this.from = 0;
    this.until = 1;
    this.picture = svg("svg", {
      viewBox: "0 0 1000 100",
      preserveAspectRatio: "none",
      role: "img",
    });
    this.line = h("i", { class: "cursor", hidden: true });
    this.marks = h("div", { class: "marks" });
    this.canvas = h("div", { class: "canvas" }, this.picture, this.marks, this.line);
    this.y = h("div", { class: "y", "aria-hidden": "true" });
    this.x = h("div", { class: "x", "aria-hidden": "true" });
    this.readout = h("p", { class: "readout" });
    this.element = h(
      "div",
      { class: options.isSmall ? "chart small" : "chart" },
      this.readout,
      h("div", { class: "frame" }, this.y, this.canvas, this.x),
    );
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      point(this.from + ((event.clientX - box.left) / box.width) * (this.until - this.from));
    });
    this.canvas.addEventListener("pointerleave", () => point(null));
    this.move = (/** @type {Event} */ event) =>
      this.read(/** @type {CustomEvent} */ (event).detail);
    cursor.addEventListener("move", this.move);
  }

  end() {
    cursor.removeEventListener("move", this.move);
  }

  /**
   * @param {Series[]} series
   * @param {number} from
   * @param {number} until
   * @param {Annotation[]} [annotations]
   */
  show(series, from, until, annotations = []) {
    Object.assign(this, { series, from, until });
    const values = series.flatMap((one) => one.points.map(([, value]) => value ?? 0));
    const highest = Math.max(...values, 0);
    const scale = linear(0, highest * 1.08 || 1, this.options.isSmall ? 2 : 4);
    const x = (/** @type {number} */ at) => ((at - from) / (until - from)) * 1000;
    const y = (/** @type {number} */ value) => 100 - scale.at(value) * 100;
    const grid = scale.ticks.map((value) =>
      svg("path", { class: "grid", d: `M0 ${y(value)}H1000` }),
    );
    const lines = series.flatMap((one) => drawn(one, x, y, series.length === 1));
    fill(this.picture, ...grid, ...lines);
    this.picture.setAttribute("aria-label", this.summary());
    fill(
      this.marks,
      ...annotations
        .filter((of) => (of.end ?? of.at) >= from && of.at <= until)
        .map((of) => mark(of, from, until)),
    );
    const labels = scale.ticks.map((value) =>
      h("span", { "--at": `${scale.at(value) * 100}%` }, this.options.format(value)),
    );
    fill(this.y, ...labels);
    const { ticks, interval } = timeTicks(from, until, this.options.isSmall ? 3 : 7);
    fill(this.x, ...ticks.map((at) => axisLabel((at - from) / (until - from), tick(at, interval))));
    this.read(null);
  }

  summary() {
    const parts = this.series.map((one) => {
      const known = one.points.map(([, value]) => value).filter((value) => value !== null);
      if (known.length === 0) return `${one.name}: no data`;
      const [low, high] = [Math.min(...known), Math.max(...known)].map(this.options.format);
      return `${one.name} between ${low} and ${high}`;
    });
    return `${this.options.title}: ${parts.join(", ") || "no data"}`;
  }

  /** @param {number | null} at */
  read(at) {
    const isInside = at !== null && at >= this.from && at <= this.until;
    this.line.hidden = !isInside;
    if (isInside) {
      this.line.style.setProperty(
        "--at",
        `${((at - this.from) / (this.until - this.from)) * 100}%`,
      );
    }
    const parts = this.series.map((one) => {
      const value = isInside ? nearest(one.points, at) : undefined;
      const text = value === undefined || value === null ? "" : ` ${this.options.format(value)}`;
      return h("span", { class: `key ${one.tone ?? "one"}` }, one.name + text);
    });
    fill(this.readout, ...parts, isInside && h("time", {}, clock(at)));
  }
}

/**
 * @param {Series} series
 * @param {(at: number) => number} x
 * @param {(value: number) => number} y
 * @param {boolean} isFilled
 */
function drawn(series, x, y, isFilled) {
  const tone = series.tone ?? "one";
  let path = "";
  let area = "";
  /** @type {[number, number] | null} */
  let before = null;
  let start = 0;
  const close = () => {
    if (before) area += `L${before[0]} 100L${start} 100Z`;
    before = null;
  };
  for (const [at, value] of series.points) {
    if (value === null) {
      close();
      continue;
    }
    const [px, py] = [Number(x(at).toFixed(1)), Number(y(value).toFixed(2))];
    if (before === null) start = px;
    // A single point between gaps becomes a dot.
    path += before ? `L${px} ${py}` : `M${px} ${py}h0`;
    area += `${before ? "L" : "M"}${px} ${py}`;
    before = [px, py];
  }
  close();
  const line = svg("path", { class: `line ${tone}`, d: path });
  return isFilled ? [svg("path", { class: `area ${tone}`, d: area }), line] : [line];
}

/**
 * The value of the point that is closest to a time.
 * @param {Point[]} points
 * @param {number} at
 */
export function nearest(points, at) {
  let best = points[0];
  for (const one of points) {
    if (Math.abs(one[0] - at) <= Math.abs(best[0] - at)) best = one;
  }
  return best?.[1];
}

/**
 * @param {Annotation} of
 * @param {number} from
 * @param {number} until
 */
export function mark(of, from, until) {
  const place = (/** @type {number} */ at) =>
    `${Math.min(Math.max((at - from) / (until - from), 0), 1) * 100}%`;
  const title = `${of.kind} ${moment(of.at)}: ${of.text}`;
  return h("i", {
    class: `mark ${of.kind}`,
    title,
    "--at": place(of.at),
    "--end": place(of.end ?? of.at),
  });
}

/**
 * The values of steps as points, with gaps where steps are missing.
 * @template {{at: number, seconds: number}} T
 * @param {T[]} steps
 * @param {number} length of a step
 * @param {(step: T) => number | null} value
 * @returns {Point[]}
 */
export function points(steps, length, value) {
  const known = steps.map((step) => /** @type {Point} */ ([step.at + length / 2, value(step)]));
  return withGaps(known, length * 1.5, length);
}

/**
 * Longest time between two live updates without a gap between them, in seconds. There is one update
 * per second; with all instances, an update waits up to three seconds for an instance.
 */
const MAX_LIVE_INTERVAL = 5;

/**
 * The values of live updates as points, with gaps where updates are missing, for example because
 * the page was hidden.
 * @param {import("./types.js").Tick[]} ticks
 * @param {(tick: import("./types.js").Tick) => number} value
 * @returns {Point[]}
 */
export function livePoints(ticks, value) {
  const known = ticks.map((tick) => /** @type {Point} */ ([tick.at, value(tick)]));
  return withGaps(known, MAX_LIVE_INTERVAL, 1);
}

/**
 * Adds a gap between points that are more than `longest` apart, and a gap before and after all
 * points. The value at a time is that of the nearest point, so each end of a gap is marked.
 * @param {Point[]} known
 * @param {number} longest
 * @param {number} length the usual time between two points
 */
function withGaps(known, longest, length) {
  /** @type {Point[]} */
  const found = [];
  for (const [at, value] of known) {
    const before = found.at(-1);
    const isApart = !before || at - before[0] > longest;
    if (before && isApart) found.push([before[0] + length, null]);
    if (isApart) found.push([at - length, null]);
    found.push([at, value]);
  }
  const last = found.at(-1);
  if (last) found.push([last[0] + length, null]);
  return found;
}

/**
 * A small chart without axes.
 * @param {number[]} values
 */
export function sparkline(values) {
  const highest = Math.max(...values, 1e-9);
  const step = 100 / Math.max(values.length - 1, 1);
  const line = values.map(
    (value, i) =>
      `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(19 - (value / highest) * 18).toFixed(1)}`,
  );
  return svg(
    "svg",
    {
      class: "sparkline",
      viewBox: "0 0 100 20",
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    },
    svg("path", { class: "area one", d: `${line.join("")}L100 20L0 20Z` }),
    svg("path", { class: "line one", d: line.join("") }),
  );
}
