/** The latency heat map, its controls, and the shapes in the brushed area. */

import { get, getIfKnown, serverTime } from "./api.js";
import { bar, PHASES } from "./distribution.js";
import { fill, h, note, table } from "./dom.js";
import { counted, duration, integer, moment, namespace, percent } from "./format.js";
import { Heatmap } from "./heatmap.js";
import { address, opened, period, range, stepFor, stepText } from "./state.js";

/** @typedef {import("./types.js").Page} Page */
/** @typedef {import("./heatmap.js").Area} Area */

/** Maximum number of columns. With more, a column would be narrower than a pixel. */
const MAX_COLUMNS = 900;

/** @param {Page} page */
export function heatmapView(page) {
  const { state } = page;
  const areaList = h("div", { id: "area", "aria-live": "polite" });
  /** Ends the request for the shapes in the previous area, whose reply may arrive late. */
  let endRequest = () => {};
  const listArea = (/** @type {Area | null} */ area) => {
    endRequest();
    endRequest = showArea(page, areaList, area);
  };
  const map = new Heatmap((area) => {
    page.keep({ area: area ? [area.from, area.until, area.low, area.high].join(",") : "" });
    map.showArea(area);
    listArea(area);
  });
  page.onLeave(() => map.end());
  const body = h("div", {}, map.element);
  const notes = h("div", { class: "annotations" });
  fill(page.main, controls(page), body, keys(), areaList, notes);
  page.poll(
    async (signal) => {
      const { from, until, length } = period(state);
      const step = state.step || stepText(stepFor(length, serverTime() - from, MAX_COLUMNS));
      const [reply, annotations] = await Promise.all([
        /** @type {Promise<import("./types.js").HeatmapReply | null>} */ (
          getIfKnown(`heatmap?${range(state)}&step=${step}${selection(state)}`, signal)
        ),
        /** @type {Promise<{annotations: import("./types.js").Annotation[]} | null>} */ (
          getIfKnown(`annotations?${range(state)}`, signal)
        ),
      ]);
      return { reply, annotations: annotations?.annotations ?? [], from, until };
    },
    ({ reply, annotations, from, until }) => {
      if (!reply) {
        fill(
          body,
          note("No heat map: the history has no data for this selection, or the history is off."),
        );
        return;
      }
      if (!body.contains(map.element)) fill(body, map.element);
      const [lo, hi] = [Number(state.lo) || 0, Number(state.hi) || 0];
      map.show(
        reply,
        { from, until, scale: state.scale, lo, hi, area: parseArea(page.state.area) },
        annotations,
      );
      fill(notes, ...annotationList(annotations));
    },
    { seconds: 5 },
  );
  listArea(parseArea(state.area));
}

/** @param {string} text */
function parseArea(text) {
  const [from, until, low, high] = text.split(",").map(Number);
  return [from, until, low, high].every(Number.isFinite) ? { from, until, low, high } : null;
}

/** @param {Page["state"]} state */
function selection(state) {
  const cut = state.of.indexOf(":");
  const of =
    cut > 0 ? `&${state.of.slice(0, cut)}=${encodeURIComponent(state.of.slice(cut + 1))}` : "";
  return of + (state.phase ? `&phase=${state.phase}` : "");
}

/** @param {Page} page */
function controls(page) {
  const { state } = page;
  const choice = (
    /** @type {string} */ label,
    /** @type {string} */ value,
    /** @type {[string, string][]} */ options,
    /** @type {(value: string) => void} */ chosen,
  ) =>
    h(
      "label",
      {},
      label,
      " ",
      h(
        "select",
        {
          onchange: (/** @type {Event} */ event) =>
            chosen(/** @type {HTMLSelectElement} */ (event.target).value),
        },
        ...options.map(([of, text]) => h("option", { value: of, selected: of === value }, text)),
      ),
    );
  const of = h(
    "select",
    {
      "aria-label": "Operations",
      onchange: () =>
        page.go({ of: of.value, area: "", phase: /^$|^server:/.test(of.value) ? state.phase : "" }),
    },
    h("option", { value: "" }, "all operations"),
    state.of && h("option", { value: state.of, selected: true }, state.of.replace(":", " ")),
  );
  loadSelections(page, of);
  const canHavePhase = state.of === "" || state.of.startsWith("server:");
  const phases = /** @type {[string, string][]} */ ([
    ["", "whole duration"],
    ...PHASES.map(([name]) => [name, name]),
  ]);
  const limit = (/** @type {"lo" | "hi"} */ key, /** @type {string} */ label) =>
    h(
      "label",
      {},
      `${label} `,
      h("input", {
        type: "number",
        min: "0",
        step: "any",
        inputmode: "decimal",
        value: state[key],
        placeholder: "auto",
        onchange: (/** @type {Event} */ event) =>
          page.go({ [key]: /** @type {HTMLInputElement} */ (event.target).value }),
      }),
      " ms",
    );
  return h(
    "form",
    {
      class: "controls",
      "aria-label": "Heat map",
      onsubmit: (/** @type {Event} */ event) => event.preventDefault(),
    },
    h("label", {}, "Show ", of),
    canHavePhase && choice("Phase", state.phase, phases, (phase) => page.go({ phase })),
    choice(
      "Scale",
      state.scale,
      [
        ["log", "logarithmic"],
        ["linear", "linear"],
      ],
      (scale) => page.go({ scale }),
    ),
    limit("lo", "From"),
    limit("hi", "to"),
    choice(
      "Step",
      state.step,
      [
        ["", "best"],
        ["1s", "1 s"],
        ["10s", "10 s"],
        ["1m", "1 min"],
        ["10m", "10 min"],
      ],
      (step) => page.go({ step, area: "" }),
    ),
  );
}

/**
 * Adds the servers, namespaces, commands and shapes that can be selected.
 * @param {Page} page
 * @param {HTMLSelectElement} select
 */
function loadSelections(page, select) {
  page.poll(
    async (signal) =>
      Promise.all([
        /** @type {Promise<import("./types.js").Topology>} */ (get("topology", signal)),
        /** @type {Promise<import("./types.js").Shapes>} */ (get("shapes?limit=100", signal)),
      ]),
    ([topology, { shapes }]) => {
      const unique = (/** @type {string[]} */ names) => [...new Set(names)].sort();
      const group = (/** @type {string} */ label, /** @type {[string, string][]} */ options) =>
        h(
          "optgroup",
          { label },
          ...options
            .filter(([value]) => value !== page.state.of)
            .map(([value, text]) => h("option", { value }, text)),
        );
      const named = (/** @type {string} */ kind, /** @type {string[]} */ names) =>
        names.map((name) => /** @type {[string, string]} */ ([`${kind}:${name}`, name]));
      select.append(
        group(
          "Server",
          // With all instances, each instance lists the servers.
          named("server", unique(topology.servers.map((server) => server.address))),
        ),
        group(
          "Namespace",
          named("namespace", unique(shapes.filter((of) => of.collection).map(namespace))),
        ),
        group("Command", named("command", unique(shapes.map((of) => of.command)))),
        group(
          "Shape",
          shapes
            .slice(0, 50)
            .map((of) => [
              `shape:${of.id}`,
              `${of.command} ${namespace(of)} ${of.shape}`.slice(0, 90),
            ]),
        ),
      );
    },
    { seconds: 0 },
  );
}

function keys() {
  return h(
    "p",
    { class: "hint", id: "heatmap-keys" },
    "Drag over an area to list its shapes. Keys: arrows move, Shift and arrows select, Enter lists, Escape clears.",
  );
}

/**
 * Lists the shapes in an area. Returns a function that ends the request.
 * @param {Page} page
 * @param {HTMLElement} list
 * @param {Area | null} area
 * @returns {() => void}
 */
function showArea(page, list, area) {
  if (!area) {
    fill(list);
    return () => {};
  }
  const bounds = `from=${area.from}&until=${area.until}&gt_seconds=${area.low}&le_seconds=${area.high}`;
  const { state } = page;
  const of = selection({ ...state, phase: "" });
  const title = `${moment(area.from)} to ${moment(area.until)}, ${duration(area.low * 1e3)} to ${duration(area.high * 1e3)}`;
  const zoom = { from: String(area.from), until: String(area.until), area: "" };
  return page.poll(
    (signal) => getIfKnown(`heatmap/shapes?${bounds}${of}&limit=20`, signal),
    (result) => {
      const reply = /** @type {import("./types.js").AreaReply | null} */ (result);
      fill(
        list,
        h("h2", {}, "Shapes in the area"),
        h(
          "p",
          { class: "hint" },
          `${title}. `,
          h("a", { href: address(opened(state, zoom)) }, "Zoom in"),
          " · ",
          h("a", { href: address(opened(state, { area: "" })) }, "Clear"),
        ),
        state.phase && note("Shapes are listed by their whole duration, not by a phase."),
        reply?.all_servers &&
          note("The history has no shapes by server: these are the operations on all servers."),
        reply ? areaTable(page, reply) : note("The history has no shapes for this area."),
      );
    },
    { seconds: 0, into: list },
  );
}

/**
 * @param {Page} page
 * @param {import("./types.js").AreaReply} reply
 */
function areaTable(page, reply) {
  const rows = reply.shapes.map((of) => [
    h(
      "a",
      { href: address(opened(page.state, { view: "shape", id: of.id })) },
      h("b", {}, `${of.command} ${namespace(of)}`),
      h("code", {}, of.shape),
    ),
    integer(of.count),
    percent(of.share),
    bar(of.share),
  ]);
  if (reply.other > 0)
    rows.push([
      "other shapes",
      integer(reply.other),
      percent(reply.other / reply.count),
      bar(reply.other / reply.count),
    ]);
  return h(
    "div",
    { "data-count": reply.count },
    h("p", {}, `${counted(reply.count, "operation")} in the area.`),
    table("Shapes in the area", ["Shape", "#Operations", "#Share", ""], rows),
  );
}

/** @param {import("./types.js").Annotation[]} annotations */
function annotationList(annotations) {
  if (annotations.length === 0) return [];
  const rows = annotations
    .slice(-50)
    .reverse()
    .map((of) => [moment(of.at), of.kind, of.text]);
  return [h("h2", {}, "Annotations"), table("Annotations", ["Time", "Kind", "Text"], rows)];
}
