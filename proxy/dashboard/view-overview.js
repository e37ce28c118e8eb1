/** The overview: the current problems, and charts of the most important figures. */

import { get, getIfKnown, serverTime } from "./api.js";
import { TimeChart, livePoints, points } from "./chart.js";
import { bar } from "./distribution.js";
import { fill, h, note, section, table } from "./dom.js";
import {
  certificateName,
  counted,
  duration,
  integer,
  moment,
  namespace,
  noneIn,
  number,
  percent,
  span,
  words,
} from "./format.js";
import { address, opened, period, range, stepFor, stepText } from "./state.js";
import { startOf } from "./view-events.js";
import { baselineName } from "./view-shape.js";

/** @typedef {import("./types.js").Page} Page */
/** @typedef {import("./types.js").Tick} Tick */
/** @typedef {import("./types.js").GaugeSteps} GaugeSteps */
/** @typedef {import("./types.js").Timeline} Timeline */
/** @typedef {import("./chart.js").Series} Series */

/** Maximum number of steps in each chart. */
const MAX_STEPS = 720;

/** @typedef {(step: import("./types.js").Step) => number | null} StepValue */

/**
 * @typedef {object} Panel
 * @property {string} title
 * @property {string} view the view that a click opens
 * @property {(value: number) => string} format
 * @property {(tick: Tick) => string} now the text of the live value
 * @property {[string, StepValue][]} [steps] lines from the timeline
 * @property {[string, string][]} [gauges] lines from the gauges
 * @property {(tick: Tick) => number} [live] the value that is drawn while there are no gauges
 */

/** @type {Panel[]} */
const PANELS = [
  {
    title: "Operations per second",
    view: "shapes",
    format: number,
    now: ({ second }) => (second ? number(second.count) : "–"),
    steps: [["operations", (step) => step.count / step.seconds]],
  },
  {
    title: "Errors per second",
    view: "shapes",
    format: number,
    now: ({ second }) => (second ? number(second.errors) : "–"),
    steps: [["errors", (step) => step.errors / step.seconds]],
  },
  {
    title: "Latency, p50 and p99",
    view: "heatmap",
    format: duration,
    now: ({ second }) =>
      second?.count ? `${duration(second.p50_ms)} / ${duration(second.p99_ms)}` : "–",
    steps: [
      ["p50", (step) => (step.count ? step.p50_ms : null)],
      ["p99", (step) => (step.count ? step.p99_ms : null)],
    ],
  },
  {
    title: "Clients",
    view: "clients",
    format: number,
    now: (tick) => integer(tick.clients),
    gauges: [["clients", "client_connections"]],
    live: (tick) => tick.clients,
  },
  {
    title: "Server connections",
    view: "servers",
    format: number,
    now: ({ server_connections: of }) =>
      `${integer(of.in_use)} of ${integer(of.in_use + of.available + of.pending)} in use`,
    gauges: [
      ["in use", "server_connections_in_use"],
      ["available", "server_connections_available"],
      ["pending", "server_connections_pending"],
    ],
    live: (tick) => tick.server_connections.in_use,
  },
  {
    title: "Logins per second, here and at servers",
    view: "storms",
    format: number,
    now: () => "",
    gauges: [
      ["here", "logins_here"],
      ["at servers", "logins_at_servers"],
    ],
  },
  {
    title: "Waiting operations",
    view: "servers",
    format: number,
    now: (tick) => integer(tick.wait_queue),
    gauges: [["for a connection or a slot", "wait_queue_length"]],
    live: (tick) => tick.wait_queue,
  },
  {
    title: "Concurrency limit",
    view: "servers",
    format: number,
    now: ({ in_progress, concurrency_limit }) => {
      if (concurrency_limit === null) return `${integer(in_progress)}, no limit`;
      // A limit is at least 1, so only the sum over no pool is 0.
      if (concurrency_limit === 0) return "no pool";
      return `${integer(in_progress)} of ${integer(concurrency_limit)}`;
    },
    gauges: [
      ["limit", "concurrency_limit"],
      ["in progress", "concurrency_in_progress"],
    ],
    live: (tick) => tick.in_progress,
  },
];

const TONES = ["one", "two", "three"];

/** @param {Page} page */
export function overview(page) {
  const findings = h("div", { class: "findings", "aria-live": "polite" });
  const panels = PANELS.map((panel) => build(page, panel));
  const heaviest = h("div", {});
  const events = h("div", {});
  fill(
    page.main,
    findings,
    h("div", { class: "panels" }, ...panels.map((panel) => panel.element)),
    h("div", { class: "columns" }, section("Heaviest shapes", heaviest), section("Events", events)),
  );
  /** @type {Timeline | null} */
  let timeline = null;
  page.poll(
    async (signal) => {
      const { from, until, length } = period(page.state);
      const step = stepText(stepFor(length, serverTime() - from, MAX_STEPS));
      const parameters = `${range(page.state)}&step=${step}`;
      const [steps, gauges, marks] = await Promise.all([
        /** @type {Promise<Timeline | null>} */ (getIfKnown(`timeline?${parameters}`, signal)),
        /** @type {Promise<GaugeSteps | null>} */ (getIfKnown(`gauges?${parameters}`, signal)),
        /** @type {Promise<{annotations: import("./types.js").Annotation[]} | null>} */ (
          getIfKnown(`annotations?${range(page.state)}`, signal)
        ),
      ]);
      return { steps, gauges, marks: marks?.annotations ?? [], from, until };
    },
    ({ steps, gauges, marks, from, until }) => {
      timeline = steps;
      panels.forEach((panel) => panel.show(steps, gauges, marks, from, until));
    },
    { seconds: 10 },
  );
  page.live((tick, recent) =>
    panels.forEach((panel) => panel.tick(tick, recent, timeline !== null)),
  );
  loadHeaviest(page, heaviest);
  loadEvents(page, findings, events);
}

/**
 * @param {Page} page
 * @param {Panel} panel
 */
function build(page, panel) {
  const value = h("span", { class: "value" }, "–");
  const chart = new TimeChart({ title: panel.title, format: panel.format, isSmall: true });
  page.onLeave(() => chart.end());
  const why = h("p", { class: "hint" });
  const link = h("a", { href: address(opened(page.state, { view: panel.view })) }, panel.title);
  const element = h(
    "section",
    { class: "panel", "aria-label": panel.title },
    h("h2", {}, link),
    value,
    chart.element,
    why,
  );
  let hasHistory = false;
  return {
    element,
    /** @param {Tick} tick @param {Tick[]} recent @param {boolean} hasTimeline */
    tick(tick, recent, hasTimeline) {
      const text = panel.now(tick);
      if (text) value.textContent = text;
      const live = panel.live;
      if (hasHistory || !live || recent.length < 2) return;
      why.textContent = hasTimeline
        ? "Only since this page was opened: there is no history of this figure."
        : "";
      chart.show(
        [{ name: panel.title.toLowerCase(), points: livePoints(recent, live) }],
        recent[0].at,
        tick.at,
      );
    },
    /**
     * @param {Timeline | null} timeline @param {GaugeSteps | null} gauges
     * @param {import("./types.js").Annotation[]} marks @param {number} from @param {number} until
     */
    show(timeline, gauges, marks, from, until) {
      const series = lines(panel, timeline, gauges);
      const hadHistory = hasHistory;
      hasHistory = series.length > 0;
      why.textContent = hasHistory ? "" : "There is no history of this figure.";
      if (!hasHistory && !hadHistory) return;
      // Without a history, the earlier lines are removed, because they would look current.
      chart.show(series, from, until, marks);
      if (panel.title.startsWith("Logins")) {
        // The last point ends the line and has no value.
        const latest = series.map((one) => one.points.at(-2)?.[1] ?? null);
        const texts = latest.map((of) => (of === null ? "–" : panel.format(of)));
        value.textContent = texts.join(" / ") || "–";
      }
    },
  };
}

/**
 * @param {Panel} panel
 * @param {Timeline | null} timeline
 * @param {GaugeSteps | null} gauges
 * @returns {Series[]}
 */
function lines(panel, timeline, gauges) {
  if (panel.steps && timeline) {
    return panel.steps.map(([name, value], i) => ({
      name,
      tone: TONES[i],
      points: points(timeline.steps, timeline.step_seconds, value),
    }));
  }
  if (panel.gauges && gauges) {
    return panel.gauges.map(([name, gauge], i) => ({
      name,
      tone: TONES[i],
      points: points(gauges.steps, gauges.step_seconds, (step) => step.gauges[gauge]?.mean ?? null),
    }));
  }
  return [];
}

/**
 * @param {Page} page
 * @param {HTMLElement} into
 */
function loadHeaviest(page, into) {
  page.poll(
    async (signal) => {
      const past = /** @type {import("./types.js").Shapes | null} */ (
        await getIfKnown(`shapes?${range(page.state)}&limit=8`, signal)
      );
      return (
        past ?? /** @type {import("./types.js").Shapes} */ (await get("shapes?limit=8", signal))
      );
    },
    ({ shapes, other, since_seconds: seconds }) => {
      const load = shapes.reduce((sum, shape) => sum + shape.load_ms, other.load_ms) || 1;
      const rows = shapes.map((shape) => [
        h(
          "a",
          { href: address(opened(page.state, { view: "shape", id: shape.id })) },
          h("b", {}, `${shape.command} ${namespace(shape)}`),
          h("code", {}, shape.shape),
        ),
        h("span", { class: "share" }, percent(shape.load_ms / load), bar(shape.load_ms / load)),
        duration(shape.latency_ms.p50),
        duration(shape.latency_ms.p99),
        integer(shape.errors),
      ]);
      const hint = seconds === undefined ? "Since the start, because the history is off." : "";
      fill(
        into,
        hint && note(hint),
        rows.length > 0
          ? table("Heaviest shapes", ["Shape", "Load", "#p50", "#p99", "#Errors"], rows)
          : note("No operations yet."),
      );
    },
    { seconds: 10, into },
  );
}

/** A certificate that expires within this number of seconds is a finding. */
const CERTIFICATE_SOON = 14 * 86_400;

/** A revocation list that expires within this number of seconds is a finding. */
const LIST_SOON = 6 * 3_600;

/** The period of the recurring stalls in the findings, if the user has chosen a fixed period. */
const PRESENT = "since=1h";

/**
 * Lists the current problems and the events of the period.
 * @param {Page} page
 * @param {HTMLElement} findings
 * @param {HTMLElement} events
 */
function loadEvents(page, findings, events) {
  const link = (/** @type {string} */ view, /** @type {string} */ text) =>
    h("a", { href: address(opened(page.state, { view })) }, text);
  const { isFixed } = period(page.state);
  const stallsOf = (/** @type {string} */ query, /** @type {AbortSignal} */ signal) =>
    /** @type {Promise<import("./types.js").Stalls | null>} */ (
      getIfKnown(`stalls?${query}`, signal)
    );
  page.poll(
    async (signal) =>
      Promise.all([
        /** @type {Promise<import("./types.js").Status>} */ (get("status", signal)),
        /** @type {Promise<import("./types.js").Storms>} */ (get("storms", signal)),
        stallsOf(range(page.state), signal),
        isFixed ? stallsOf(PRESENT, signal) : null,
        /** @type {Promise<import("./types.js").Topology>} */ (get("topology", signal)),
        latestChanges(signal),
      ]),
    ([status, storms, stalls, presentStalls, topology, changes]) => {
      const found = problems(status, storms, presentStalls ?? stalls, topology, link);
      const worse = changes?.comparable
        ? changes.changes.filter((of) => ["new", "slower"].includes(of.kind))
        : [];
      if (changes) found.push(...changeFindings(page, changes, worse));
      fill(
        findings,
        ...(found.length > 0
          ? found.map((text) => h("p", { class: "finding" }, text))
          : [h("p", { class: "finding fine" }, nothingUnusual(storms, presentStalls ?? stalls))]),
      );
      const { from, until } = period(page.state);
      const recent = storms.storms.filter(
        (of) => (of.ended_at ?? until) >= from && of.started_at <= until,
      );
      // The changes of the present are not events of a fixed period.
      const latest = isFixed ? [] : worse;
      /** @type {[number, import("./dom.js").Child[]][]} */
      const rows = [
        ...recent.map(
          (of) =>
            /** @type {[number, import("./dom.js").Child[]]} */ ([
              of.started_at,
              [
                moment(of.started_at),
                link("storms", "storm"),
                `${integer(of.arrivals)} clients, ${integer(of.server_authentications_absorbed)} logins absorbed`,
              ],
            ]),
        ),
        ...(stalls?.episodes ?? []).map(
          (of) =>
            /** @type {[number, import("./dom.js").Child[]]} */ ([
              of.started_at,
              [
                moment(of.started_at),
                link("stalls", "stall"),
                `${span(of.seconds)} on ${of.server ?? "all servers"}, worst ${duration(of.worst_ms)}`,
              ],
            ]),
        ),
        ...latest
          .slice(0, 10)
          .map(
            (of) =>
              /** @type {[number, import("./dom.js").Child[]]} */ ([
                changes?.now?.from ?? 0,
                [
                  "now",
                  link("changes", words(of.kind)),
                  of.shape.id ? `${of.shape.command} ${namespace(of.shape)}` : "all shapes",
                ],
              ]),
          ),
      ];
      rows.sort((one, other) => other[0] - one[0]);
      const none = noEvents(storms, stalls, isFixed ? null : changes);
      fill(
        events,
        rows.length > 0
          ? table(
              "Events",
              ["Time", "Kind", "Text"],
              rows.slice(0, 12).map(([, cells]) => cells),
            )
          : note(noneIn(none, startOf(status), { from, until })),
      );
    },
    { seconds: 10, into: findings, isPresent: true },
  );
}

/**
 * Names only what Seawall has checked. While it learns the usual traffic, it detects no storm, and
 * without a history it detects no stall.
 * @param {import("./types.js").Storms} storms
 * @param {import("./types.js").Stalls | null} stalls
 */
function nothingUnusual(storms, stalls) {
  const checked = [
    !storms.learning && "no storm",
    stalls && "no recurring stall",
    "all servers are available",
  ];
  return `Nothing unusual: ${checked.filter(Boolean).join(", ")}.`;
}

/**
 * Says that there are no events of the kinds that Seawall has checked, without the full stop.
 * @param {import("./types.js").Storms} storms
 * @param {import("./types.js").Stalls | null} stalls
 * @param {import("./types.js").Changes | null} changes
 */
function noEvents(storms, stalls, changes) {
  /** @type {string[]} */
  const checked = [];
  if (!storms.learning) checked.push("storm");
  if (stalls) checked.push("stall");
  if (changes?.comparable) checked.push("change");
  const kinds = new Intl.ListFormat("en-GB", { type: "disjunction" }).format(checked);
  return `No ${kinds || "event is known"} in this period`;
}

/**
 * The baselines of the findings, each with the length of the compared periods. The first baseline
 * with data is used.
 */
const BASELINES = /** @type {[string, string][]} */ ([
  ["1h", "5m"],
  ["10m", "5m"],
  ["2m", "2m"],
]);

/**
 * The changes against the first baseline with data. `null` if no baseline has data.
 * @param {AbortSignal} signal
 * @returns {Promise<import("./types.js").Changes | null>}
 */
async function latestChanges(signal) {
  for (const [against, window] of BASELINES) {
    const path = `changes?against=${against}&window=${window}`;
    const changes = /** @type {import("./types.js").Changes | null} */ (
      await getIfKnown(path, signal)
    );
    if (!changes || changes.comparable) return changes;
  }
  return null;
}

/** Number of changed shapes that the findings name. */
const NAMED_CHANGES = 3;

/**
 * Lists the shapes that are new or slower. Each line links to a comparison of the shape.
 * @param {Page} page
 * @param {import("./types.js").Changes} changes
 * @param {import("./types.js").Change[]} worse
 */
function changeFindings(page, { against }, worse) {
  const named = worse.slice(0, NAMED_CHANGES).map(({ kind, shape, before, now }) => {
    // A change of all shapes together has no id.
    const name = shape.id ? `${shape.command} ${namespace(shape)} ${shape.text}` : "All shapes";
    const was = kind === "new" ? "" : `: ${duration(before.p50_ms)} → ${duration(now.p50_ms)}`;
    const verb = kind === "new" ? "New since" : "Slower than";
    const target = shape.id
      ? { view: "shape", id: shape.id, against }
      : { view: "changes", against };
    return h(
      "a",
      { href: address(opened(page.state, target)) },
      `${verb} ${baselineName(against)}${was}. `,
      h("code", {}, name),
    );
  });
  const more = worse.length - named.length;
  if (more > 0)
    named.push(
      h(
        "a",
        { href: address(opened(page.state, { view: "changes", against })) },
        `${counted(more, "further shape")} new or slower than ${baselineName(against)}.`,
      ),
    );
  return named;
}

/**
 * @param {import("./types.js").Status} status
 * @param {import("./types.js").Storms} storms
 * @param {import("./types.js").Stalls | null} stalls
 * @param {import("./types.js").Topology} topology
 * @param {(view: string, text: string) => HTMLElement} link
 */
function problems(status, storms, stalls, topology, link) {
  /** @type {(HTMLElement | string)[]} */
  const found = [];
  if (status.not_ready) found.push(link("servers", `Not ready: ${status.not_ready}.`));
  if (topology.servers.length === 0)
    found.push(link("servers", "Seawall knows no server of the deployment."));
  // If the figures are those of all instances, each of them may have a current storm.
  const current = storms.storms.filter((of) => of.ended_at === null);
  if (current.length > 0) {
    const began = Math.min(...current.map((of) => of.started_at));
    const arrivals = current.reduce((sum, of) => sum + of.arrivals, 0);
    found.push(
      link(
        "storms",
        `A reconnect storm since ${moment(began)}: ${integer(arrivals)} clients connected.`,
      ),
    );
  }
  for (const of of stalls?.recurring.filter((one) => one.current) ?? []) {
    const cause = of.counter ? `; ${words(of.counter)} moves` : "";
    found.push(
      link(
        "stalls",
        `Every ${span(of.period_seconds)}, operations on ${of.server ?? "all servers"} stall for ${span(of.length_seconds)}${cause}.`,
      ),
    );
  }
  const missing = topology.servers.filter((of) => of.suspect || of.type === "Unknown");
  if (missing.length > 0)
    found.push(
      link(
        "servers",
        `Not available: ${missing.map((of) => (of.instance ? `${of.address} (seen by ${of.instance})` : of.address)).join(", ")}.`,
      ),
    );
  if (status.wait_queue > 0)
    found.push(
      link("servers", `${integer(status.wait_queue)} operations wait for a connection or a slot.`),
    );
  for (const certificate of status.certificates) {
    const left = certificate.not_after - serverTime();
    if (left < (certificate.kind === "revocation_list" ? LIST_SOON : CERTIFICATE_SOON))
      found.push(
        left > 0
          ? `The ${certificateName(certificate)} expires in ${span(left)}.`
          : `The ${certificateName(certificate)} has expired.`,
      );
  }
  if (status.draining)
    found.push(
      status.instances
        ? "At least one instance is draining: it ends when its clients have left."
        : "Seawall is draining: it ends when its clients have left.",
    );
  if (status.injects_faults) found.push("Faults are injected for an experiment.");
  return found;
}
