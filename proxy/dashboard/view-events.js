/** Storms, stalls and changes. */

import { get, serverTime } from "./api.js";
import { fill, h, instanceCell, instanceHead, note, section, table, terms } from "./dom.js";
import {
  bytes,
  counted,
  duration,
  integer,
  moment,
  namespace,
  noneIn,
  number,
  span,
  words,
} from "./format.js";
import { address, opened, period, range } from "./state.js";
import { baselineOptions } from "./view-shape.js";

/** @typedef {import("./types.js").Page} Page */
/** @typedef {import("./types.js").Named} Named */
/** @typedef {import("./types.js").SeriesName} SeriesName */

/**
 * Returns the address of a shape, or `null` if the shape is not shown.
 * @typedef {(id: string) => string | null} Href
 */

/**
 * The addresses of shapes.
 * @param {Page} page
 * @param {string} [against] the baseline with which the shapes are compared
 * @returns {Href}
 */
export function shapeAddress(page, against = "") {
  return (id) => address(opened(page.state, { view: "shape", id, against }));
}

/**
 * The name of a shape, as a link to the view of the shape.
 * @param {Href} href
 * @param {SeriesName} of
 */
export function shapeLink(href, of) {
  if (!of.id) return of.text || "all shapes together";
  const names = [h("b", {}, `${of.command} ${namespace(of)}`), h("code", {}, of.text)];
  const to = href(of.id);
  return to === null ? h("span", {}, ...names) : h("a", { href: to }, ...names);
}

/**
 * When Seawall started, in seconds since the epoch. `null` for the merged status of several
 * instances, which has only the longest time since a start.
 * @param {import("./types.js").Status} status
 */
export function startOf({ uptime_seconds, instances }) {
  return instances ? null : serverTime() - uptime_seconds;
}

/** @param {Named[]} names */
function ranking(names) {
  if (names.length === 0) return "–";
  return h(
    "ol",
    { class: "ranking" },
    ...names.map((of) =>
      h("li", {}, h("span", {}, of.name), h("span", { class: "n" }, integer(of.count))),
    ),
  );
}

/** @param {Page} page */
export function stormsView(page) {
  const body = h("div", {});
  fill(
    page.main,
    h(
      "p",
      { class: "lead" },
      "A storm is a sudden rise in the number of clients that connect and leave again.",
    ),
    body,
  );
  page.poll(
    (signal) =>
      Promise.all([
        /** @type {Promise<import("./types.js").Storms>} */ (get("storms", signal)),
        /** @type {Promise<import("./types.js").Status>} */ (get("status", signal)),
      ]),
    ([{ storms, learning }, status]) => {
      fill(
        body,
        learning &&
          note(
            "Seawall has not run long enough to know the usual traffic, so it detects no storm yet.",
          ),
        storms.length === 0 &&
          note(noneIn("No storm was detected", startOf(status), { from: 0, until: Infinity })),
        ...storms.map(storm),
      );
    },
    { seconds: 5, into: body },
  );
}

/** @param {import("./types.js").Storm} of */
export function storm(of) {
  const end = of.ended_at
    ? `${moment(of.started_at)}, for ${span(of.ended_at - of.started_at)}`
    : `since ${moment(of.started_at)}`;
  const pairs = (/** @type {Record<string, number>} */ counts) => {
    const known = Object.entries(counts).filter(([, count]) => count > 0);
    return ranking(
      known
        .map(([name, count]) => ({ name: words(name), count }))
        .sort((one, other) => other.count - one.count),
    );
  };
  return h(
    "article",
    { class: of.ended_at ? "event" : "event active" },
    h("h2", {}, of.ended_at ? "Storm" : "Storm, not over yet", h("time", {}, end)),
    of.instance && h("p", { class: "hint" }, `At ${of.instance}`),
    terms(
      [
        ["Clients connected", integer(of.arrivals)],
        ["Peak per second", integer(of.peak_arrivals_per_second)],
        ["Usual short-lived per second", number(of.usual_short_lived_per_second)],
        ["Logins here", integer(of.client_authentications)],
        ["Logins at servers", integer(of.server_authentications)],
        ["Logins absorbed", integer(of.server_authentications_absorbed)],
        ["Connections absorbed", integer(of.server_connections_absorbed)],
      ],
      "figures",
    ),
    h(
      "div",
      { class: "columns five" },
      section("Applications", ranking(of.applications)),
      section("Networks", ranking(of.networks)),
      section("Users", ranking(of.users)),
      section("Drivers", ranking(of.drivers)),
      section("How they left", pairs(of.departures)),
      section("Gave up while", pairs(of.gave_up_in)),
    ),
  );
}

/** @param {Page} page */
export function stallsView(page) {
  const body = h("div", {});
  fill(
    page.main,
    h(
      "p",
      { class: "lead" },
      "A stall is a time of some seconds in which operations take far longer than usual for their server.",
    ),
    body,
  );
  page.poll(
    (signal) =>
      Promise.all([
        /** @type {Promise<import("./types.js").Stalls>} */ (
          get(`stalls?${range(page.state)}`, signal)
        ),
        /** @type {Promise<import("./types.js").Status>} */ (get("status", signal)),
      ]),
    ([{ episodes, recurring, pulse }, status]) => {
      const none = noneIn("No stall in this period", startOf(status), period(page.state));
      fill(
        body,
        h(
          "p",
          { class: "hint" },
          `Samples of the servers: ${pulse.state || "unknown"}. ${pulse.note ?? ""}`,
        ),
        recurring.length > 0 && section("Recurring", recurringTable(recurring)),
        section(
          "Episodes",
          episodes.length === 0 && note(none),
          ...episodes.map((of) => episode(of, pulse, shapeAddress(page), around(page, of))),
        ),
      );
    },
    { seconds: 10, into: body, isPresent: true },
  );
}

/** @param {import("./types.js").Recurring[]} recurring */
export function recurringTable(recurring) {
  const rows = recurring.map((of) => [
    of.server ?? "all servers",
    span(of.period_seconds),
    span(of.length_seconds),
    integer(of.times),
    of.phase,
    of.unanswered ? "the server does not reply to the pulse" : of.counter ? words(of.counter) : "–",
    of.current ? `yes, last ${moment(of.last_at)}` : `no, last ${moment(of.last_at)}`,
    ...instanceCell(of),
  ]);
  return table(
    "Recurring stalls",
    [
      "Server",
      "#Every",
      "#Length",
      "#Times",
      "Phase",
      "Cause on the server",
      "Still recurs",
      ...instanceHead(recurring),
    ],
    rows,
  );
}

/**
 * A link to the heat map of the server at the time of an episode.
 * @param {Page} page
 * @param {import("./types.js").Episode} of
 */
function around(page, of) {
  const view = {
    view: "heatmap",
    from: String(Math.floor(of.started_at - 60)),
    until: String(Math.ceil(of.started_at + of.seconds + 60)),
    of: of.server ? `server:${of.server}` : "",
  };
  return h("a", { href: address(opened(page.state, view)) }, "around this time");
}

/**
 * The reason why no counter is listed for a stall.
 * @param {import("./types.js").Episode} of
 * @param {import("./types.js").Pulse} pulse
 */
function withoutCounters(of, pulse) {
  if (of.unanswered_pulses > 0) return "The server did not reply to the pulse.";
  if (pulse.state !== "on")
    return `No counter is known. Samples of the servers: ${pulse.state || "unknown"}.`;
  if (of.server === null) return "Counters are compared only for stalls of a single server.";
  const refusal = pulse.refusals?.[of.server];
  if (refusal) return `No counter is known. The server refuses the samples: ${refusal}.`;
  return "No counter changed more than usual.";
}

/**
 * @param {import("./types.js").Episode} of
 * @param {import("./types.js").Pulse} pulse
 * @param {Href} href
 * @param {Element} [heatmap] a link to the heat map
 */
export function episode(of, pulse, href, heatmap) {
  const moved = of.moved.map((one) => [
    words(one.counter),
    number(one.during),
    number(one.otherwise),
    `${number(one.score)} σ`,
  ]);
  /** @type {[string, import("./dom.js").Child][]} */
  const links = heatmap ? [["Heat map", heatmap]] : [];
  return h(
    "article",
    { class: "event" },
    h(
      "h2",
      {},
      `${of.server ?? "All servers"}`,
      h("time", {}, `${moment(of.started_at)}, for ${span(of.seconds)}`),
    ),
    of.instance && h("p", { class: "hint" }, `At ${of.instance}`),
    terms(
      [
        ["Operations that waited", integer(of.operations)],
        ["Worst", duration(of.worst_ms)],
        ["Usual p99", duration(of.usual_p99_ms)],
        ["Waited in total", duration(of.waited_ms)],
        ["Longest phase", of.phase],
        ["Pulses without reply", integer(of.unanswered_pulses)],
        ...links,
      ],
      "figures",
    ),
    h(
      "div",
      { class: "columns" },
      section(
        "What moved on the server",
        moved.length > 0
          ? table("Counters", ["Counter", "#During", "#Otherwise", "#Deviation"], moved)
          : note(withoutCounters(of, pulse)),
      ),
      section(
        "Shapes that waited",
        of.shapes.length > 0
          ? table(
              "Shapes that waited",
              ["Shape", "#Operations"],
              of.shapes.map((one) => [shapeLink(href, one), integer(one.operations)]),
            )
          : note("No shape is known."),
      ),
    ),
  );
}

/** @param {Page} page */
export function changesView(page) {
  const against = page.state.against || "1h";
  const body = h("div", {});
  const select = h(
    "select",
    { onchange: () => page.go({ against: select.value }) },
    ...baselineOptions(against),
  );
  fill(
    page.main,
    h(
      "form",
      { class: "controls", onsubmit: (/** @type {Event} */ event) => event.preventDefault() },
      h("label", {}, "The latest minutes, compared with ", select),
    ),
    body,
  );
  page.poll(
    (signal) =>
      /** @type {Promise<import("./types.js").Changes>} */ (
        get(`changes?against=${encodeURIComponent(against)}`, signal)
      ),
    (changes) => fill(body, ...changesShown(changes, shapeAddress(page, against))),
    { seconds: 30, into: body },
  );
}

/**
 * @param {import("./types.js").Changes} changes
 * @param {Href} href
 */
export function changesShown(changes, href) {
  if (!changes.comparable || !changes.now || !changes.baseline)
    return [note(`The periods cannot be compared: ${changes.reason ?? "there is no data"}.`)];
  const rows = changes.changes.map((of) => [
    h("span", { class: `kind ${of.kind}` }, words(of.kind)),
    shapeLink(href, of.shape),
    `${duration(of.before.p50_ms)} → ${duration(of.now.p50_ms)}`,
    `${duration(of.before.p99_ms)} → ${duration(of.now.p99_ms)}`,
    `${number(of.before.per_second)} → ${number(of.now.per_second)}`,
    `${bytes(of.before.bytes_per_operation)} → ${bytes(of.now.bytes_per_operation)}`,
    `${of.cost_ms_per_second >= 0 ? "+" : "−"}${number(Math.abs(of.cost_ms_per_second))} ms/s`,
  ]);
  return [
    h(
      "p",
      { class: "hint" },
      `${moment(changes.now.from)} to ${moment(changes.now.to)} (${counted(changes.now.count, "operation")}), compared with ${moment(changes.baseline.from)} to ${moment(changes.baseline.to)} (${counted(changes.baseline.count, "operation")}). The largest cost for the servers comes first.`,
    ),
    rows.length > 0
      ? table(
          "Changes",
          ["Change", "Shape", "#p50", "#p99", "#Count/s", "#Bytes/op", "#Cost"],
          rows,
        )
      : note("No significant change."),
  ];
}
