/** One shape: the durations of its operations over time, their phases and their applications. */

import { get, getIfKnown } from "./api.js";
import { TimeChart, points } from "./chart.js";
import { bar, distribution, phaseTable } from "./distribution.js";
import { fill, h, instanceCell, instanceHead, note, section, table, terms } from "./dom.js";
import {
  baselineText,
  bytes,
  clock,
  duration,
  integer,
  moment,
  namespace,
  number,
  percent,
  words,
} from "./format.js";
import { address, opened, period, range } from "./state.js";

/** @typedef {import("./types.js").Page} Page */
/** @typedef {import("./types.js").Shape} Shape */
/** @typedef {import("./types.js").Changes} Changes */
/** @typedef {import("./types.js").SlowOperation} SlowOperation */

/** The baselines, with their names. */
const BASELINES = /** @type {[string, string][]} */ ([
  ["2m", "2 minutes ago"],
  ["10m", "10 minutes ago"],
  ["1h", "an hour ago"],
  ["6h", "6 hours ago"],
  ["yesterday", "yesterday"],
  ["last_week", "last week"],
]);

/**
 * The options of the choice of a baseline. The address of the page may contain a baseline that is
 * not in the list, such as `35s` or a moment.
 * @param {string} chosen
 */
export function baselineOptions(chosen) {
  const isListed = !chosen || BASELINES.some(([value]) => value === chosen);
  const all = isListed ? BASELINES : [[chosen, baselineText(chosen)], ...BASELINES];
  return all.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
}

/**
 * The name of a baseline in a sentence.
 * @param {string} against
 */
export function baselineName(against) {
  return BASELINES.find(([value]) => value === against)?.[1] ?? baselineText(against);
}

/** @param {Page} page */
export function shapeView(page) {
  const { state } = page;
  const head = h("div", { class: "shape" });
  const rate = new TimeChart({ title: "Operations per second", format: number });
  const latency = new TimeChart({ title: "Latency", format: duration });
  page.onLeave(() => [rate, latency].forEach((chart) => chart.end()));
  const timeline = h(
    "div",
    { class: "columns" },
    section("Operations per second", rate.element),
    section("Latency", latency.element),
  );
  const details = h("div", {});
  const comparison = h("div", {});
  const slow = h("div", {});
  fill(
    page.main,
    head,
    timeline,
    details,
    section("Compare", compareControls(page), comparison),
    section("Slow operations", slow),
  );
  page.poll(
    async (signal) => {
      const [past, marks] = await Promise.all([
        /** @type {Promise<Shape | null>} */ (
          getIfKnown(`shapes/${encodeURIComponent(state.id)}?${range(state)}`, signal)
        ),
        /** @type {Promise<{annotations: import("./types.js").Annotation[]} | null>} */ (
          getIfKnown(`annotations?${range(state)}`, signal)
        ),
      ]);
      const shape =
        past ??
        /** @type {Shape | null} */ (
          await getIfKnown(`shapes/${encodeURIComponent(state.id)}`, signal)
        );
      return { shape, marks: marks?.annotations ?? [] };
    },
    ({ shape, marks }) => {
      if (!shape) {
        fill(head, note("No operation of this shape is known in this period."));
        fill(details);
        timeline.hidden = true;
        return;
      }
      fill(head, ...heading(page, shape));
      showTimeline(timeline, rate, latency, shape, marks, period(state));
      fill(details, ...parts(shape));
    },
    { seconds: 10, into: head },
  );
  if (state.against) compare(page, comparison);
  loadSlow(page, slow);
}

/**
 * @param {Page} page
 * @param {Shape} shape
 */
function heading(page, shape) {
  const seconds = shape.since_seconds;
  const count = shape.count || 1;
  const row = shape.since_start ?? shape;
  return [
    h("h2", { class: "mono" }, `${shape.command} ${namespace(shape)}`),
    h("pre", { class: "text", tabindex: "0" }, shape.shape),
    seconds === undefined &&
      note(
        "The history is off, or has no data of this period: the figures cover the time since the start.",
      ),
    terms(
      [
        ["Operations", integer(shape.count)],
        ["Per second", seconds ? number(shape.count / seconds) : "–"],
        ["Load", seconds ? `${number(shape.load_ms / seconds)} ms/s` : duration(shape.load_ms)],
        ["p50", duration(shape.latency_ms.p50)],
        ["p90", duration(shape.latency_ms.p90)],
        ["p99", duration(shape.latency_ms.p99)],
        ["Longest", duration(shape.latency_ms.max)],
        ["Errors", integer(shape.errors)],
        ["Documents per operation", number(shape.documents / count)],
        ["Bytes per operation", bytes((shape.request_bytes + shape.reply_bytes) / count)],
        [
          "Statements since the start",
          row.statements === undefined ? "–" : integer(row.statements),
        ],
        ["First seen", shape.first_seen ? moment(shape.first_seen) : "–"],
        ["Id", shape.id],
        [
          "Heat map",
          h(
            "a",
            {
              href: address(opened(page.state, { view: "heatmap", of: `shape:${shape.id}` })),
              title: "Show in the heat map",
            },
            "of this shape",
          ),
        ],
      ],
      "figures",
    ),
  ];
}

/**
 * @param {HTMLElement} element
 * @param {TimeChart} rate
 * @param {TimeChart} latency
 * @param {Shape} shape
 * @param {import("./types.js").Annotation[]} marks
 * @param {{from: number, until: number}} shown
 */
function showTimeline(element, rate, latency, shape, marks, { from, until }) {
  const steps = shape.timeline ?? [];
  element.hidden = steps.length === 0;
  if (steps.length === 0) return;
  const gaps = steps.slice(1).map((step, i) => step.at - steps[i].at);
  const length = gaps.length > 0 ? Math.min(...gaps) : steps[0].seconds;
  rate.show(
    [{ name: "operations", points: points(steps, length, (step) => step.count / step.seconds) }],
    from,
    until,
    marks,
  );
  latency.show(
    [
      {
        name: "p50",
        tone: "one",
        points: points(steps, length, (step) => (step.count ? step.p50_ms : null)),
      },
      {
        name: "p99",
        tone: "two",
        points: points(steps, length, (step) => (step.count ? step.p99_ms : null)),
      },
    ],
    from,
    until,
    marks,
  );
}

/**
 * The distribution of the durations of a shape, and the time in each phase.
 * @param {Shape} shape
 */
export function anatomy(shape) {
  const quantiles = /** @type {[string, number][]} */ ([
    ["p50", shape.latency_ms.p50],
    ["p99", shape.latency_ms.p99],
  ]);
  return h(
    "div",
    { class: "columns" },
    section("Distribution", distribution(shape.distribution ?? [], { marks: quantiles })),
    section("Phases", phaseTable(shape.phases_ms, shape.count)),
  );
}

/** @param {Shape} shape */
function parts(shape) {
  const row = shape.since_start ?? shape;
  const applications = shape.applications ?? [];
  const errors = shape.errors_by_code ?? [];
  const total = applications.reduce((sum, of) => sum + of.count, 0) || 1;
  const outcomes = Object.entries(row.outcomes ?? {}).map(([name, count]) => [
    words(name),
    integer(count),
  ]);
  const second = h(
    "div",
    { class: "columns thirds" },
    section(
      "Applications since the start",
      shape.applications === undefined
        ? note("This Seawall does not list the applications of a shape.")
        : applications.length === 0
          ? note("No application has named itself.")
          : table(
              "Applications",
              ["Application", "#Operations", "Share"],
              applications.map((of) => [
                of.name || "without a name",
                integer(of.count),
                h("span", { class: "share" }, percent(of.count / total), bar(of.count / total)),
              ]),
            ),
    ),
    section(
      "Errors and outcomes since the start",
      errors.length > 0 &&
        table(
          "Errors by code",
          ["Error", "#Operations"],
          errors.map((of) => [String(of.code), integer(of.count)]),
        ),
      outcomes.length > 0
        ? table("Outcomes", ["Outcome", "#Operations"], outcomes)
        : note("The shape no longer has its own row."),
    ),
    section(
      "Cursors since the start",
      row.cursors
        ? terms([
            ["Read to their end", integer(row.cursors.exhausted)],
            ["Open, p50", duration(row.cursors.open_ms.p50)],
            ["Open, p99", duration(row.cursors.open_ms.p99)],
            ["getMore", integer(row.more.count)],
            ["Time in getMore", duration(row.more.total_time_ms)],
          ])
        : note("No cursors are known."),
    ),
  );
  return [anatomy(shape), second];
}

/** @param {Page} page */
function compareControls(page) {
  const select = h(
    "select",
    { onchange: () => page.go({ against: select.value }) },
    h("option", { value: "" }, "nothing"),
    ...baselineOptions(page.state.against),
  );
  return h(
    "form",
    { class: "controls", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
    h("label", {}, "The latest minutes with ", select),
  );
}

/**
 * @param {Page} page
 * @param {HTMLElement} into
 */
function compare(page, into) {
  const { against, id } = page.state;
  page.poll(
    (signal) =>
      /** @type {Promise<Changes>} */ (
        get(`changes?against=${encodeURIComponent(against)}&distributions=true`, signal)
      ),
    (changes) => {
      if (!changes.comparable || !changes.now || !changes.baseline) {
        fill(
          into,
          note(`The periods cannot be compared: ${changes.reason ?? "there is no data"}.`),
        );
        return;
      }
      const now = changes.now.figures?.shapes.find((shape) => shape.id === id);
      const before = changes.baseline.figures?.shapes.find((shape) => shape.id === id);
      const verdicts = changes.changes.filter((change) => change.shape.id === id);
      const verdict =
        verdicts.length > 0
          ? verdicts.map(changeText).join("; ")
          : now || before
            ? "no significant change"
            : "neither period has figures of this shape";
      fill(
        into,
        h(
          "p",
          {
            class: verdicts.length > 0 ? "finding" : "finding fine",
            "data-verdict": verdicts.map((of) => of.kind).join(" ") || "none",
          },
          `The test says: ${verdict}.`,
        ),
        ...overlaid(now, before, changes),
        sideBySide(now, before, changes),
      );
    },
    { seconds: 30, into, isPresent: true },
  );
}

/**
 * A change in words. If the shape has operations in only one of the two periods, nothing was
 * compared, and the ratio and the effect in the reply mean nothing.
 * @param {import("./types.js").Change} change
 */
export function changeText({ kind, before, now, ratio, effect }) {
  if (!ratio || before.per_second === 0 || now.per_second === 0) return words(kind);
  const pairs = `in ${percent(effect)} of all pairs the later operation took longer`;
  return `${words(kind)} (factor ${number(ratio)}); ${pairs}`;
}

/**
 * The distributions of two periods, drawn over each other.
 * @param {Shape | undefined} now
 * @param {Shape | undefined} before
 * @param {Changes} changes
 */
export function overlaid(now, before, changes) {
  const [start, earlier] = [changes.now, changes.baseline];
  return [
    h(
      "p",
      { class: "readout" },
      start && h("span", { class: "key one" }, `now, ${clock(start.from)} to ${clock(start.to)}`),
      earlier &&
        h("span", { class: "key before" }, `then, ${moment(earlier.from)} to ${clock(earlier.to)}`),
    ),
    distribution(now?.distribution ?? [], { before: before?.distribution }),
  ];
}

/**
 * @param {Shape | undefined} now
 * @param {Shape | undefined} before
 * @param {Changes} changes
 */
export function sideBySide(now, before, changes) {
  const cells = (/** @type {Shape | undefined} */ of, /** @type {number} */ seconds) =>
    of
      ? [
          number(of.count / (seconds || 1)),
          duration(of.latency_ms.p50),
          duration(of.latency_ms.p99),
          integer(of.errors),
          `${number(of.load_ms / (seconds || 1))} ms/s`,
          bytes((of.request_bytes + of.reply_bytes) / (of.count || 1)),
          number(of.documents / (of.count || 1)),
        ]
      : ["–", "–", "–", "–", "–", "–", "–"];
  return table(
    "Two periods",
    ["Period", "#Count/s", "#p50", "#p99", "#Errors", "#Load", "#Bytes/op", "#Docs/op"],
    [
      ["now", ...cells(now, changes.now?.seconds ?? 1)],
      ["then", ...cells(before, changes.baseline?.seconds ?? 1)],
    ],
  );
}

/**
 * @param {Page} page
 * @param {HTMLElement} into
 */
function loadSlow(page, into) {
  page.poll(
    (signal) => getIfKnown(`slow?shape=${encodeURIComponent(page.state.id)}&limit=50`, signal),
    (result) => {
      const reply =
        /** @type {{operations: SlowOperation[], threshold_ms: number | null} | null} */ (result);
      if (!reply) {
        fill(into, note("This Seawall does not keep slow operations."));
        return;
      }
      const rows = reply.operations.map((of) => {
        const [phase, ms] = Object.entries(of.phases_ms).reduce(
          (most, one) => (one[1] > most[1] ? one : most),
          ["", 0],
        );
        return [
          moment(of.at),
          duration(of.duration_ms),
          `${phase} ${duration(ms)}`,
          of.server ?? "–",
          of.application ?? "–",
          of.user ?? "–",
          of.client ?? "–",
          of.error_code ? String(of.error_code) : words(of.outcome),
          bytes(of.reply_bytes),
          ...instanceCell(of),
        ];
      });
      fill(
        into,
        rows.length > 0
          ? table(
              "Slow operations",
              [
                "Time",
                "#Duration",
                "Longest phase",
                "Server",
                "Application",
                "User",
                "Client",
                "Outcome",
                "#Reply",
                ...instanceHead(reply.operations),
              ],
              rows,
            )
          : note("None of the last slow operations has this shape."),
      );
    },
    { seconds: 10, into, isPresent: true },
  );
}
