/** A report, or the comparison of two reports, as one page that needs no server. */

import { points, TimeChart } from "./chart.js";
import { fill, h, note, section, table, terms } from "./dom.js";
import {
  baselineText,
  bytes,
  counted,
  dateAndTime,
  duration,
  integer,
  namespace,
  noneIn,
  number,
  percent,
  span,
} from "./format.js";
import { Heatmap } from "./heatmap.js";
import { changesShown, episode, recurringTable, storm } from "./view-events.js";
import { anatomy, overlaid, sideBySide } from "./view-shape.js";
import { COLUMNS } from "./view-shapes.js";
import { pool } from "./view-state.js";

/** @typedef {import("./types.js").ReportPage} ReportPage */
/** @typedef {import("./types.js").ComparisonPage} ComparisonPage */
/** @typedef {import("./types.js").Shape} Shape */
/** @typedef {import("./types.js").Timeline} Timeline */
/** @typedef {import("./heatmap.js").Area} Area */

/** Maximum number of shapes in the table, as in the text of a report. */
const SHOWN_SHAPES = 50;

/** Number of shapes whose details are open. */
const OPEN_SHAPES = 5;

/**
 * A period with its dates, because a report may be read on another day.
 * @param {number} from
 * @param {number} until
 */
function periodText(from, until) {
  return `${dateAndTime(from)} to ${dateAndTime(until)} (${span(until - from)})`;
}

/**
 * @param {string} title
 * @param {import("./dom.js").Child[]} lines
 * @param {string[]} warnings
 */
function head(title, lines, warnings) {
  return h(
    "header",
    {},
    h("h1", {}, title),
    ...lines.map((line) => h("p", { class: "lead" }, line)),
    ...warnings.map((warning) => h("p", { class: "finding", role: "alert" }, warning)),
  );
}

function foot() {
  const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;
  return h(
    "footer",
    { class: "hint" },
    `Times are those of the time zone ${zone}. Percentiles are within 4.4 % of the measured value; counts and sums are exact.`,
  );
}

/** @param {ReportPage} page */
function showReport(page) {
  const { report, from, until } = page;
  const { status } = report;
  const none = (/** @type {string} */ text) => noneIn(text, page.started_at, page, dateAndTime);
  const isIncomplete = until - from - page.known_seconds > 2 * report.timeline.step_seconds + 2;
  const known = isIncomplete ? `, data for ${span(page.known_seconds)}` : "";
  const heaviest = report.shapes.slice(0, SHOWN_SHAPES);
  const ids = new Set(heaviest.map((of) => of.id));
  const href = (/** @type {string} */ id) => (ids.has(id) ? `#shape-${id}` : null);
  document.body.append(
    head(
      "Seawall report",
      [
        periodText(from, until) + known,
        `seawall ${status.version}, ${status.mode}, ${status.deployment}, up ${span(status.uptime_seconds)}`,
        ...page.instances,
      ],
      page.warnings,
    ),
    h(
      "main",
      {},
      figures(page),
      charts(page),
      section("Heat map", ...heatmap(page)),
      section("Shapes", ...shapes(page, heaviest)),
      section(
        "Storms",
        ...orNote(report.storms.storms.map(storm), none("No storm in this period")),
      ),
      section("Stalls", ...stalls(report.stalls, href, none("No stall in this period"))),
      section(
        `Changes against ${baselineText(report.changes.against)}`,
        ...changesShown(report.changes, href),
      ),
      section("Servers", servers(report.servers)),
      section("Pools", ...orNote(report.pools.map(pool), "There is no pool.")),
    ),
    foot(),
  );
}

/**
 * @param {Element[]} elements
 * @param {string} text
 */
function orNote(elements, text) {
  return elements.length > 0 ? elements : [note(text)];
}

/** @param {ReportPage} page */
function figures(page) {
  const { report, operations, errors, latency_ms, bytes: volume } = page;
  const { status } = report;
  const { available, in_use, pending } = status.server_connections;
  return terms(
    [
      ["Operations", h("span", { "data-operations": operations }, integer(operations))],
      ["Count/s", number(page.operations_per_second)],
      ["Errors", `${integer(errors)} (${percent(errors / (operations || 1))})`],
      ["p50", duration(latency_ms.p50)],
      ["p99", duration(latency_ms.p99)],
      ["Longest", duration(latency_ms.max)],
      ["Bytes", bytes(volume)],
      ["Clients", integer(status.clients)],
      ["Server connections", `${integer(available + in_use + pending)}, ${integer(in_use)} in use`],
      ["Wait for a connection", integer(status.wait_queue)],
    ],
    "figures",
  );
}

/** @param {ReportPage} page */
function charts({ report, from, until }) {
  const { steps, step_seconds } = report.timeline;
  if (steps.length === 0) return note("No step was recorded.");
  const chart = (
    /** @type {string} */ title,
    /** @type {(value: number) => string} */ format,
    /** @type {[string, string, (step: import("./types.js").Step) => number | null][]} */ lines,
  ) => {
    const drawn = new TimeChart({ title, format });
    const series = lines.map(([name, tone, value]) => ({
      name,
      tone,
      points: points(steps, step_seconds, value),
    }));
    drawn.show(series, from, until, report.annotations);
    return section(title, drawn.element);
  };
  // A step without data has no rate, and a step without operations has no latency.
  const rate = (/** @type {number} */ count, /** @type {number} */ seconds) =>
    seconds > 0 ? count / seconds : null;
  return h(
    "div",
    { class: "columns thirds" },
    chart("Operations per second", number, [
      ["operations", "one", (step) => rate(step.count, step.seconds)],
    ]),
    chart("Errors per second", number, [
      ["errors", "one", (step) => rate(step.errors, step.seconds)],
    ]),
    chart("Latency, p50 and p99", duration, [
      ["p50", "one", (step) => (step.count ? step.latency_ms.p50 : null)],
      ["p99", "two", (step) => (step.count ? step.latency_ms.p99 : null)],
    ]),
  );
}

/**
 * The heat map of all operations, from the distributions in the steps of the timeline.
 * @param {Timeline} timeline
 * @returns {import("./types.js").HeatmapReply}
 */
function heatmapOf({ steps, step_seconds }) {
  /** @type {Map<number, number>} */
  const bounds = new Map();
  for (const bucket of steps.flatMap((step) => step.distribution ?? []))
    bounds.set(bucket.le_seconds, bucket.gt_seconds);
  const sorted = [...bounds].sort(([one], [other]) => one - other);
  const indexes = new Map(sorted.map(([le], index) => [le, index]));
  return {
    step_seconds,
    bounds_seconds: sorted.map(([le, gt]) => [gt, le]),
    columns: steps.map((step) => ({
      at: step.at,
      seconds: step.seconds,
      counts: (step.distribution ?? []).map((of) => [indexes.get(of.le_seconds) ?? 0, of.count]),
    })),
  };
}

/** @param {ReportPage} page */
function heatmap({ report, from, until }) {
  const reply = heatmapOf(report.timeline);
  if (reply.bounds_seconds.length === 0) return [note("No operation in this period.")];
  const selected = h("p", { id: "area", class: "hint", "aria-live": "polite" });
  const map = new Heatmap((area) => {
    map.showArea(area);
    fill(selected, area && areaText(reply, area));
  });
  const view = { from, until, scale: "log", lo: 0, hi: 0, area: null };
  map.show(reply, view, report.annotations);
  whenPrinting(() => map.draw());
  const keys =
    "Drag over an area to count its operations. Keys: arrows move, Shift and arrows select, Enter counts, Escape clears.";
  return [map.element, h("p", { class: "hint", id: "heatmap-keys" }, keys), selected];
}

/**
 * @param {import("./types.js").HeatmapReply} reply
 * @param {Area} area
 */
function areaText(reply, { from, until, low, high }) {
  let [inside, all] = [0, 0];
  for (const column of reply.columns) {
    for (const [index, count] of column.counts) {
      const [gt, le] = reply.bounds_seconds[index];
      const isInside = column.at >= from && column.at < until && gt >= low && le <= high;
      inside += isInside ? count : 0;
      all += count;
    }
  }
  const share = percent(inside / (all || 1));
  return h(
    "span",
    { "data-count": inside },
    `${counted(inside, "operation")} (${share}) in ${span(until - from)}, from ${duration(low * 1e3)} to ${duration(high * 1e3)}.`,
  );
}

/**
 * Prints with the light theme, even if the screen is dark. The heat map must be drawn again,
 * because a canvas keeps its colours.
 * @param {() => void} draw
 */
function whenPrinting(draw) {
  const root = document.documentElement;
  window.addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    draw();
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.theme;
    draw();
  });
}

/**
 * @param {ReportPage} page
 * @param {Shape[]} heaviest
 */
function shapes(page, heaviest) {
  if (heaviest.length === 0) return [note("No operation in this period.")];
  const totals = { seconds: page.known_seconds || 1, load: page.load_ms || 1 };
  const columns = COLUMNS.filter((column) => column.key !== "trend");
  const heads = columns.map(({ key, title }) => (key === "name" ? title : `#${title}`));
  const rows = heaviest.map((shape) =>
    columns.map((column) =>
      column.key === "name"
        ? h("a", { href: `#shape-${shape.id}` }, column.show(shape, totals))
        : column.show(shape, totals),
    ),
  );
  const listed = heaviest.reduce((sum, shape) => sum + shape.count, 0);
  const hidden = page.shape_operations - listed;
  return [
    table("Shapes", heads, rows),
    hidden > 0 && note(`And ${counted(hidden, "operation")} of other shapes.`),
    ...heaviest.map((shape, index) => details(shape, index < OPEN_SHAPES)),
  ];
}

/**
 * @param {Shape} shape
 * @param {boolean} open
 */
function details(shape, open) {
  return h(
    "details",
    { class: "event", open },
    h(
      "summary",
      {},
      h("b", {}, `${shape.command} ${namespace(shape)}`),
      h("code", {}, shape.shape),
    ),
    h("div", { id: `shape-${shape.id}` }, anatomy(shape)),
  );
}

/**
 * @param {import("./types.js").Stalls} stalls
 * @param {(id: string) => string | null} href
 * @param {string} none the sentence that says that there was no stall
 */
function stalls({ episodes, recurring, pulse }, href, none) {
  return [
    h(
      "p",
      { class: "hint" },
      `Samples of the servers: ${pulse.state || "unknown"}. ${pulse.note ?? ""}`,
    ),
    recurring.length > 0 && recurringTable(recurring),
    ...orNote(
      episodes.map((of) => episode(of, pulse, href)),
      none,
    ),
  ];
}

/** @param {import("./types.js").ServerRow[]} rows */
function servers(rows) {
  if (rows.length === 0) return note("No server replied.");
  return table(
    "Servers",
    ["Server", "#Operations", "#Errors", "#p50", "#p90", "#p99", "#Longest"],
    rows.map((of) => {
      const { p50, p90, p99, max } = of.latency_ms;
      return [
        of.address,
        integer(of.count),
        integer(of.errors),
        ...[p50, p90, p99, max].map(duration),
      ];
    }),
  );
}

/** @param {ComparisonPage} page */
function showComparison({ comparison, shapes: { baseline, now } }) {
  const compared = (/** @type {import("./types.js").ReportFile} */ of) => ({
    count: of.operations.count,
    from: of.made_at - of.since_seconds,
    to: of.made_at,
    seconds: of.since_seconds,
  });
  const changes = {
    against: "before",
    baseline: compared(comparison.baseline),
    now: compared(comparison.now),
    changes: comparison.changes,
    comparable: comparison.comparable,
    reason: comparison.reason,
  };
  const ids = new Set([...baseline, ...now].map((of) => of.id));
  const line = (/** @type {string} */ name, /** @type {import("./types.js").ReportFile} */ of) =>
    `${name}: ${periodText(of.made_at - of.since_seconds, of.made_at)}, ${of.file}`;
  document.body.append(
    head(
      "Seawall comparison",
      [line("Then", comparison.baseline), line("Now", comparison.now)],
      comparison.caveats,
    ),
    h(
      "main",
      {},
      section("All operations", overall(comparison.baseline, comparison.now)),
      section("Changes", ...changesShown(changes, (id) => (ids.has(id) ? `#shape-${id}` : null))),
      section(
        "Shapes",
        ...[...ids].map((id) => {
          const [then, current] = [baseline, now].map((of) => of.find((shape) => shape.id === id));
          const shape = /** @type {Shape} */ (current ?? then);
          return h(
            "article",
            { class: "event", id: `shape-${id}` },
            h("h3", {}, `${shape.command} ${namespace(shape)}`),
            h("pre", { class: "text", tabindex: "0" }, shape.shape),
            ...overlaid(current, then, changes),
            sideBySide(current, then, changes),
          );
        }),
        ids.size === 0 && note("No shape changed."),
      ),
    ),
    foot(),
  );
}

/**
 * @param {import("./types.js").ReportFile} then
 * @param {import("./types.js").ReportFile} now
 */
function overall(then, now) {
  const row = (/** @type {string} */ name, /** @type {import("./types.js").ReportFile} */ of) => {
    const all = of.operations;
    return [
      name,
      number(all.per_second),
      duration(all.p50_ms),
      duration(all.p99_ms),
      integer(of.errors),
      `${number(all.total_time_ms_per_second)} ms/s`,
      bytes(all.bytes_per_operation),
      number(all.documents_per_operation),
    ];
  };
  return table(
    "All operations",
    ["Period", "#Count/s", "#p50", "#p99", "#Errors", "#Load", "#Bytes/op", "#Docs/op"],
    [row("now", now), row("then", then)],
  );
}

const data = JSON.parse(document.getElementById("data")?.textContent ?? "null");
if (data.comparison) showComparison(data);
else showReport(data);
