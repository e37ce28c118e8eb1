/** Draws the distribution of durations, with an earlier distribution behind it if there is one. */

import { axisLabel, fill, h, svg } from "./dom.js";
import { duration, percent } from "./format.js";
import { logarithmic } from "./scale.js";

/** @typedef {import("./types.js").Bucket} Bucket */

/**
 * Draws the share of operations in each bucket. The horizontal axis is logarithmic. The chart shows
 * shares and not counts, so that periods with different loads can be compared.
 * @param {Bucket[]} buckets
 * @param {{before?: Bucket[], marks?: [string, number][]}} [options] `marks` are durations in ms
 */
export function distribution(buckets, options = {}) {
  const { before = [], marks = [] } = options;
  const all = [...buckets, ...before];
  if (all.length === 0) return h("p", { class: "note" }, "No operations in this period.");
  const low = Math.max(
    Math.min(...all.map((one) => one.gt_seconds || one.le_seconds / 2)) * 1e3,
    1e-3,
  );
  const high = Math.max(...all.map((one) => one.le_seconds)) * 1e3;
  const scale = logarithmic(low / 1.1, high * 1.1);
  const tallest = Math.max(
    ...[buckets, before].flatMap((of) => shares(of).map(([, share]) => share)),
  );
  const draw = (/** @type {Bucket[]} */ of, /** @type {string} */ tone) => {
    const path = shares(of).map(([bucket, share]) => {
      const [left, right] = [bucket.gt_seconds * 1e3 || low, bucket.le_seconds * 1e3].map(
        (ms) => scale.at(ms) * 1000,
      );
      const top = 100 - (share / tallest) * 96;
      return `M${left.toFixed(1)} 100V${top.toFixed(2)}H${right.toFixed(1)}V100Z`;
    });
    return svg("path", { class: `bars ${tone}`, d: path.join("") });
  };
  const lines = marks.map(([name, ms], i) => {
    // At the right edge, a label is on the left of its line. A label that would cover the previous
    // label is drawn lower.
    const isAtEdge = scale.at(ms) > 0.85;
    const distance = i > 0 ? scale.at(ms) - scale.at(marks[i - 1][1]) : 1;
    const isClose = distance < (isAtEdge ? 0.16 : 0.08);
    const style = `quantile ${isClose ? "low" : ""} ${isAtEdge ? "left" : ""}`;
    return h("i", { class: style, "--at": `${scale.at(ms) * 100}%` }, h("span", {}, name));
  });
  const text = `Durations from ${duration(low)} to ${duration(high)}; ${marks.map(([name, ms]) => `${name} ${duration(ms)}`).join(", ")}`;
  const picture = svg(
    "svg",
    { viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": text },
    before.length > 0 && draw(before, "before"),
    draw(buckets, "one"),
  );
  const x = scale.ticks.map((ms) => axisLabel(scale.at(ms), duration(ms)));
  const y = h(
    "div",
    { class: "y", "aria-hidden": "true" },
    h("span", { "--at": "96%" }, percent(tallest)),
  );
  const readout = h("p", { class: "readout" });
  const canvas = h(
    "div",
    { class: "canvas", onpointermove: read, onpointerleave: () => fill(readout) },
    picture,
    ...lines,
  );
  /** @param {PointerEvent} event */
  function read(event) {
    const box = canvas.getBoundingClientRect();
    const ms = scale.value((event.clientX - box.left) / box.width);
    const at = (/** @type {Bucket[]} */ of) =>
      shares(of).find(([one]) => one.gt_seconds * 1e3 < ms && ms <= one.le_seconds * 1e3)?.[1] ?? 0;
    const earlier = before.length > 0 ? `, earlier ${percent(at(before))}` : "";
    fill(
      readout,
      h("span", {}, `${duration(ms)}: ${percent(at(buckets))} of operations${earlier}`),
    );
  }
  return h(
    "div",
    { class: "chart distribution" },
    readout,
    h("div", { class: "frame" }, y, canvas, h("div", { class: "x", "aria-hidden": "true" }, ...x)),
  );
}

/**
 * @param {Bucket[]} buckets
 * @returns {[Bucket, number][]}
 */
function shares(buckets) {
  const total = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  return buckets.map((bucket) => [bucket, bucket.count / total]);
}

/** The phases of an operation in their order, with their meaning. */
export const PHASES = /** @type {const} */ ([
  ["permit", "waiting for a permit"],
  ["checkout", "waiting for a connection or a slot, or a failed attempt"],
  ["forward", "sending the command to the server"],
  ["server", "the server works"],
  ["receive", "receiving the reply"],
  ["send", "sending the reply to the client"],
]);

/**
 * The time in each phase, as a table with bars. All bars have one colour, because each row has a
 * name.
 * @param {import("./types.js").Phases} phases
 * @param {number} count of operations
 */
export function phaseTable(phases, count) {
  const total = Object.values(phases).reduce((sum, ms) => sum + ms, 0) || 1;
  const rows = PHASES.map(([name, meaning]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name, h("small", {}, meaning)),
      h("td", { class: "n" }, count > 0 ? duration(phases[name] / count) : "–"),
      h("td", { class: "n" }, percent(phases[name] / total)),
      h("td", { class: "wide" }, bar(phases[name] / total)),
    ),
  );
  const heads = [
    ["Phase", ""],
    ["Mean", "n"],
    ["Share", "n"],
    ["", ""],
  ];
  return h(
    "table",
    { class: "plain phases" },
    h("caption", { class: "hidden" }, "Time by phase"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...heads.map(([head, name]) =>
          head ? h("th", { scope: "col", class: name }, head) : h("td", {}),
        ),
      ),
    ),
    h("tbody", {}, ...rows),
  );
}

/** @param {number} share */
export function bar(share) {
  return h("span", {
    class: "bar",
    "aria-hidden": "true",
    "--share": `${Math.min(share, 1) * 100}%`,
  });
}
