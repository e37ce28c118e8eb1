/**
 * The latency heat map: time from left to right, latency from bottom to top. The colour of a cell
 * shows its number of operations. The user selects ("brushes") an area with the pointer or keys.
 */

import { axisLabel, fill, h } from "./dom.js";
import { clock, counted, duration, integer, tick } from "./format.js";
import { linear, logarithmic, timeTicks } from "./scale.js";
import { mark } from "./chart.js";

/** @typedef {import("./types.js").HeatmapReply} Reply */
/**
 * Times and latencies, in seconds.
 * @typedef {{from: number, until: number, low: number, high: number}} Area
 */
/**
 * `lo` and `hi` are bounds in milliseconds. If a bound is 0, the reply determines it.
 * @typedef {{from: number, until: number, scale: string, lo: number, hi: number, area: Area | null
 * }} View
 */

/** Number of shades. Users could not distinguish more shades. */
const SHADES = 64;

const NOTHING = /** @type {Reply} */ ({ bounds_seconds: [], columns: [], step_seconds: 1 });

export class Heatmap {
  /** @param {(area: Area | null) => void} brushed */
  constructor(brushed) {
    this.brushed = brushed;
    this.reply = NOTHING;
    this.view = /** @type {View} */ ({ from: 0, until: 1, scale: "log", lo: 0, hi: 0, area: null });
    this.scale = logarithmic(0.1, 1000);
    /** @type {import("./types.js").Annotation[]} */
    this.annotations = [];
    /** @type {{at: number, ms: number} | null} the current cell of the keyboard */
    this.cell = null;
    /** @type {{at: number, ms: number} | null} the cell in which the selection by keyboard began */
    this.start = null;
    this.total = 0;
    this.picture = h("canvas", { "aria-hidden": "true" });
    this.box = h("i", { class: "brush", hidden: true });
    this.cross = h("i", { class: "cell", hidden: true });
    this.marks = h("div", { class: "marks" });
    this.canvas = h(
      "div",
      {
        class: "canvas",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "heat map",
        "aria-describedby": "heatmap-keys",
      },
      this.picture,
      this.marks,
      this.box,
      this.cross,
    );
    this.y = h("div", { class: "y", "aria-hidden": "true" });
    this.x = h("div", { class: "x", "aria-hidden": "true" });
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.legend = h("p", { class: "ramp" });
    this.element = h(
      "div",
      { class: "chart heatmap" },
      this.readout,
      h("div", { class: "frame" }, this.y, this.canvas, this.x),
      this.legend,
    );
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.canvas);
    this.listen();
  }

  end() {
    this.resized.disconnect();
  }

  /**
   * @param {Reply} reply
   * @param {View} view
   * @param {import("./types.js").Annotation[]} annotations
   */
  show(reply, view, annotations) {
    Object.assign(this, { reply, view, annotations });
    const low = view.lo || Math.min(...reply.bounds_seconds.map(([gt, le]) => gt || le / 2)) * 1e3;
    const high = view.hi || Math.max(...reply.bounds_seconds.map(([, le]) => le)) * 1e3;
    const isKnown = Number.isFinite(low) && high > 0;
    this.scale =
      view.scale === "linear"
        ? linear(view.lo || 0, isKnown ? high : 1, 6)
        : logarithmic(isKnown ? Math.max(low, 1e-3) : 0.1, isKnown ? high : 1000);
    this.total = reply.columns.reduce(
      (sum, column) => sum + column.counts.reduce((s, [, count]) => s + count, 0),
      0,
    );
    this.element.dataset.total = String(this.total);
    this.canvas.setAttribute(
      "aria-label",
      `Latency heat map of ${counted(this.total, "operation")}`,
    );
    const { from, until } = view;
    fill(
      this.marks,
      ...annotations
        .filter((of) => (of.end ?? of.at) >= from && of.at <= until)
        .map((of) => mark(of, from, until)),
    );
    fill(
      this.y,
      ...this.scale.ticks.map((ms) =>
        h("span", { "--at": `${this.scale.at(ms) * 100}%` }, duration(ms)),
      ),
    );
    const { ticks, interval } = timeTicks(from, until, 8);
    fill(this.x, ...ticks.map((at) => axisLabel((at - from) / (until - from), tick(at, interval))));
    this.draw();
    this.showArea(view.area);
    this.read(null);
  }

  /** Draws all cells at the resolution of the device, so that cells have sharp edges. */
  draw() {
    const { width, height } = this.canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const [w, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (w === 0 || tall === 0) return;
    Object.assign(this.picture, { width: w, height: tall });
    const context = this.picture.getContext("2d");
    if (!context) return;
    const shades = ramp(this.element);
    const { reply, view } = this;
    const highest = Math.max(
      1,
      ...reply.columns.map((column) => Math.max(0, ...column.counts.map(([, count]) => count))),
    );
    const x = (/** @type {number} */ at) =>
      Math.round(((at - view.from) / (view.until - view.from)) * w);
    const y = (/** @type {number} */ seconds) =>
      Math.round(tall - Math.min(Math.max(this.scale.at(seconds * 1e3), -0.1), 1.1) * tall);
    const edges = reply.bounds_seconds.map(([gt, le]) => [y(gt), y(le)]);
    for (const column of reply.columns) {
      const left = x(column.at);
      const wide = Math.max(x(column.at + reply.step_seconds) - left, 1);
      for (const [index, count] of column.counts) {
        const [bottom, top] = edges[index];
        context.fillStyle = shades[shade(count, highest)];
        context.fillRect(left, top, wide, Math.max(bottom - top, 1));
      }
    }
    const middle = shades[Math.floor(SHADES / 2)];
    fill(
      this.legend,
      h("span", {}, "1"),
      h("i", { "--low": shades[0], "--middle": middle, "--high": shades[SHADES - 1] }),
      h("span", {}, integer(highest)),
      ` operations in a cell of ${reply.step_seconds} s`,
    );
  }

  listen() {
    /** @type {{at: number, ms: number} | null} */
    let began = null;
    const place = (/** @type {PointerEvent} */ event) => {
      const box = this.canvas.getBoundingClientRect();
      return this.placeAt(
        (event.clientX - box.left) / box.width,
        1 - (event.clientY - box.top) / box.height,
      );
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      began = place(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const here = place(event);
      this.read(here);
      if (began) this.showArea(this.between(began, here));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (!began) return;
      const area = this.between(began, place(event));
      began = null;
      this.brushed(area);
    });
    this.canvas.addEventListener("pointercancel", () => {
      began = null;
    });
    this.canvas.addEventListener("pointerleave", () => this.read(null));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  placeAt(x, y) {
    const inside = (/** @type {number} */ value) => Math.min(Math.max(value, 0), 1);
    const at = this.view.from + inside(x) * (this.view.until - this.view.from);
    return { at, ms: this.scale.value(inside(y)) };
  }

  /**
   * The area between two points, extended to whole cells.
   * @param {{at: number, ms: number}} one
   * @param {{at: number, ms: number}} other
   * @returns {Area}
   */
  between(one, other) {
    const step = this.reply.step_seconds;
    const [from, until] = [Math.min(one.at, other.at), Math.max(one.at, other.at)];
    const [low, high] = [Math.min(one.ms, other.ms) / 1e3, Math.max(one.ms, other.ms) / 1e3];
    const touched = this.reply.bounds_seconds.filter(([gt, le]) => le > low && gt < high);
    // Between two buckets, the area would have no height, and the API refuses such an area.
    const lowest = touched[0]?.[0] ?? low;
    return {
      from: Math.floor(from / step) * step,
      until: Math.ceil((until + 1e-3) / step) * step,
      low: lowest,
      high: touched.at(-1)?.[1] ?? Math.max(high, lowest * 1.1),
    };
  }

  /** @param {Area | null} area */
  showArea(area) {
    this.box.hidden = area === null;
    if (!area) return;
    const { from, until } = this.view;
    const x = (/** @type {number} */ at) =>
      Math.min(Math.max((at - from) / (until - from), 0), 1) * 100;
    const y = (/** @type {number} */ seconds) =>
      Math.min(Math.max(this.scale.at(seconds * 1e3), 0), 1) * 100;
    const sides = {
      "--left": x(area.from),
      "--right": 100 - x(area.until),
      "--bottom": y(area.low),
      "--top": 100 - y(area.high),
    };
    Object.entries(sides).forEach(([name, value]) => this.box.style.setProperty(name, `${value}%`));
  }

  /**
   * The number of operations in the cell at a point, and the bounds of the cell's bucket.
   * @param {{at: number, ms: number}} place
   */
  cellAt({ at, ms }) {
    const column = this.reply.columns.find(
      (of) => of.at <= at && at < of.at + this.reply.step_seconds,
    );
    const index = this.reply.bounds_seconds.findIndex(
      ([gt, le]) => gt * 1e3 < ms && ms <= le * 1e3,
    );
    const count = column?.counts.find(([of]) => of === index)?.[1] ?? 0;
    return { count, bounds: this.reply.bounds_seconds[index] };
  }

  /** @param {{at: number, ms: number} | null} place */
  read(place) {
    if (!place) {
      fill(this.readout, `${counted(this.total, "operation")}`);
      return;
    }
    const { count, bounds } = this.cellAt(place);
    const latency = bounds
      ? `${duration(bounds[0] * 1e3)} to ${duration(bounds[1] * 1e3)}`
      : duration(place.ms);
    const near = this.annotations.filter(
      (of) => Math.abs(of.at - place.at) < (this.view.until - this.view.from) / 100,
    );
    fill(
      this.readout,
      h("time", {}, clock(place.at)),
      ` · ${latency} · ${counted(count, "operation")}`,
      ...near.slice(0, 2).map((of) => ` · ${of.kind}: ${of.text}`),
    );
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const step = Math.max(this.reply.step_seconds / (this.view.until - this.view.from), 0.005);
    const here = this.cell ?? this.placeAt(0.5, 0.5);
    if (event.key in moves) {
      event.preventDefault();
      const [right, up] = moves[event.key];
      const x = (here.at - this.view.from) / (this.view.until - this.view.from);
      this.cell = this.placeAt(x + right * step, this.scale.at(here.ms) + up * 0.02);
      const start = event.shiftKey ? (this.start ?? here) : this.cell;
      this.start = start;
      this.showArea(event.shiftKey ? this.between(start, this.cell) : null);
      this.cross.hidden = false;
      this.cross.style.setProperty(
        "--x",
        `${((this.cell.at - this.view.from) / (this.view.until - this.view.from)) * 100}%`,
      );
      this.cross.style.setProperty("--y", `${this.scale.at(this.cell.ms) * 100}%`);
      this.read(this.cell);
    } else if (event.key === "Enter" && this.cell) {
      event.preventDefault();
      this.brushed(this.between(this.start ?? this.cell, this.cell));
    } else if (event.key === "Escape") {
      this.cross.hidden = true;
      this.brushed(null);
    }
  }
}

/**
 * The shade of a count. The scale is logarithmic, because a single slow operation must be visible
 * beside thousands of operations.
 * @param {number} count
 * @param {number} highest
 */
function shade(count, highest) {
  const share = highest > 1 ? Math.log(count) / Math.log(highest) : 1;
  return Math.min(Math.floor(share * SHADES), SHADES - 1);
}

/**
 * The shades from few to many operations, mixed from the four colours of the style sheet.
 * @param {HTMLElement} element
 */
function ramp(element) {
  const stops = [0, 1, 2, 3].map((stop) => {
    const probe = h("i", { class: `stop-${stop}`, hidden: true });
    element.append(probe);
    const colour = getComputedStyle(probe)
      .color.match(/[\d.]+/g)
      ?.map(Number) ?? [0, 0, 0];
    probe.remove();
    return colour;
  });
  return Array.from({ length: SHADES }, (_, i) => {
    const position = (i / (SHADES - 1)) * (stops.length - 1);
    const below = Math.min(Math.floor(position), stops.length - 2);
    const mixed = stops[below].map((part, channel) =>
      Math.round(part + (stops[below + 1][channel] - part) * (position - below)),
    );
    return `rgb(${mixed[0]} ${mixed[1]} ${mixed[2]})`;
  });
}
