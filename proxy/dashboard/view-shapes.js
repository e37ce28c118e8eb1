/** The table of shapes. Only visible rows are part of the page, so 10,000 rows are fast. */

import { get, getIfKnown, serverTime } from "./api.js";
import { sparkline } from "./chart.js";
import { bar } from "./distribution.js";
import { fill, h, note } from "./dom.js";
import { bytes, counted, duration, integer, namespace, number, percent } from "./format.js";
import { address, opened, range } from "./state.js";

/** @typedef {import("./types.js").Page} Page */
/** @typedef {import("./types.js").Shape} Shape */
/**
 * The time and the server load that the figures cover. `seconds` is `null` if the time is not the
 * same for all instances: a sum of their figures then has no rate.
 * @typedef {{seconds: number | null, load: number}} Totals
 */

/** Maximum number of rows. The API does not return more shapes. */
const MAX_ROWS = 10_000;

/** Number of rows drawn above and below the visible rows, so that scrolling shows no gaps. */
const SPARE_ROWS = 6;

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {(shape: Shape) => number | string} value for sorting
 * @property {(shape: Shape, totals: Totals) => import("./dom.js").Child} show
 */

/**
 * @param {number} value
 * @param {Totals} totals
 * @param {(rate: number) => string} format
 */
function perSecond(value, { seconds }, format) {
  return seconds === null ? "–" : format(value / seconds);
}

/** @type {Column[]} */
export const COLUMNS = [
  {
    key: "name",
    title: "Shape",
    value: (s) => `${s.db}.${s.collection} ${s.command} ${s.shape}`,
    show: (s) => name(s),
  },
  {
    key: "load",
    title: "Load",
    value: (s) => s.load_ms,
    show: (s, t) =>
      t.seconds === null ? duration(s.load_ms) : `${number(s.load_ms / t.seconds)} ms/s`,
  },
  {
    key: "share",
    title: "Share",
    value: (s) => s.load_ms,
    show: (s, t) =>
      h("span", { class: "share" }, percent(s.load_ms / t.load), bar(s.load_ms / t.load)),
  },
  {
    key: "count",
    title: "Count/s",
    value: (s) => s.count,
    show: (s, t) => perSecond(s.count, t, number),
  },
  { key: "errors", title: "Errors", value: (s) => s.errors, show: (s) => integer(s.errors) },
  {
    key: "p50",
    title: "p50",
    value: (s) => s.latency_ms.p50,
    show: (s) => duration(s.latency_ms.p50),
  },
  {
    key: "p99",
    title: "p99",
    value: (s) => s.latency_ms.p99,
    show: (s) => duration(s.latency_ms.p99),
  },
  {
    key: "bytes",
    title: "Bytes/s",
    value: (s) => s.request_bytes + s.reply_bytes,
    show: (s, t) => perSecond(s.request_bytes + s.reply_bytes, t, bytes),
  },
  {
    key: "documents",
    title: "Docs/s",
    value: (s) => s.documents,
    show: (s, t) => perSecond(s.documents, t, number),
  },
  { key: "trend", title: "Load over time", value: (s) => s.load_ms, show: () => "" },
];

/** @param {Shape} shape */
function name(shape) {
  const level =
    shape.level === "fine"
      ? null
      : h(
          "small",
          {},
          shape.level === "coarse" ? "similar shapes" : "other shapes of the collection",
        );
  return h(
    "span",
    { class: "name" },
    h("b", {}, `${shape.command} ${namespace(shape)}`),
    level,
    h("code", {}, shape.shape),
  );
}

/** The rows of the table. Only the visible rows are drawn. */
class Rows {
  /** @param {Page} page */
  constructor(page) {
    this.page = page;
    /** @type {Shape[]} */
    this.shapes = [];
    /** @type {Totals} */
    this.totals = { seconds: 1, load: 1 };
    /** @type {Record<string, number[]>} */
    this.trends = {};
    this.selected = 0;
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this.head = h("div", { class: "row head", role: "row" });
    this.element = h(
      "div",
      { class: "sheet", role: "table", "aria-label": "Shapes", tabindex: "0" },
      h("div", { role: "rowgroup" }, this.head),
      this.body,
    );
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.press(event));
    const resized = new ResizeObserver(() => this.draw());
    resized.observe(this.element);
    page.onLeave(() => resized.disconnect());
  }

  /** The height of a row is in the style sheet, because it depends on the width of the screen. */
  rowHeight() {
    return parseFloat(getComputedStyle(this.element).getPropertyValue("--row-height")) || 52;
  }

  draw() {
    const height = this.rowHeight();
    const first = Math.max(Math.floor(this.element.scrollTop / height) - SPARE_ROWS, 0);
    const visible = Math.ceil(this.element.clientHeight / height) + 2 * SPARE_ROWS;
    const shown = this.shapes.slice(first, first + visible);
    this.element.setAttribute("aria-rowcount", String(this.shapes.length + 1));
    this.body.style.setProperty("--height", `${this.shapes.length * height}px`);
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const id = this.body.contains(focused) ? focused?.dataset.id : undefined;
    fill(this.body, ...shown.map((shape, i) => this.row(shape, first + i, height)));
    // The focus stays on its shape while the table is updated.
    if (id === undefined) return;
    if (!this.focus(`[data-id="${CSS.escape(id)}"]`)) this.focus(".selected a");
  }

  /**
   * Moves the focus to a link. Returns false if the link is not in the page.
   * @param {string} selector
   */
  focus(selector) {
    const link = /** @type {HTMLElement | null} */ (this.body.querySelector(selector));
    link?.focus({ preventScroll: true });
    return link !== null;
  }

  /**
   * @param {Shape} shape
   * @param {number} index
   * @param {number} height
   */
  row(shape, index, height) {
    const href = address(opened(this.page.state, { view: "shape", id: shape.id }));
    const cells = COLUMNS.map((column) => {
      const trend = column.key === "trend" && this.trends[shape.id];
      const content =
        trend && trend.length > 1 ? sparkline(trend) : column.show(shape, this.totals);
      const isName = column.key === "name";
      return h(
        "div",
        {
          role: isName ? "rowheader" : "cell",
          class: `cell col-${column.key}`,
          "data-label": column.title,
        },
        isName ? h("a", { href, "data-id": shape.id }, content) : content,
      );
    });
    const isSelected = index === this.selected;
    return h(
      "div",
      {
        role: "row",
        class: isSelected ? "row selected" : "row",
        "aria-rowindex": index + 2,
        "--top": `${index * height}px`,
      },
      ...cells,
    );
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const page = Math.floor(this.element.clientHeight / this.rowHeight());
    /** @type {Record<string, number>} */
    const moves = {
      ArrowDown: 1,
      j: 1,
      ArrowUp: -1,
      k: -1,
      PageDown: page,
      PageUp: -page,
      Home: -MAX_ROWS,
      End: MAX_ROWS,
    };
    if (event.key in moves && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.selected = Math.min(
        Math.max(this.selected + moves[event.key], 0),
        this.shapes.length - 1,
      );
      const height = this.rowHeight();
      const top = this.selected * height;
      const bottom = top + height + this.head.offsetHeight;
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      if (bottom > this.element.scrollTop + this.element.clientHeight)
        this.element.scrollTop = bottom - this.element.clientHeight;
      const hasFocus = this.body.contains(document.activeElement);
      this.draw();
      if (hasFocus) this.focus(".selected a");
    } else if (
      event.key === "Enter" &&
      event.target === this.element &&
      this.shapes[this.selected]
    ) {
      this.page.go({ view: "shape", id: this.shapes[this.selected].id });
    }
  }
}

/** @param {Page} page */
export function shapesView(page) {
  const rows = new Rows(page);
  const count = h("p", { class: "hint", role: "status" });
  const filter = h("input", {
    type: "search",
    id: "filter",
    placeholder: "Filter: collection, command or text",
    "aria-label": "Filter",
    value: page.state.q,
  });
  /** @type {import("./types.js").Shapes | null} */
  let reply = null;
  const show = () => {
    if (!reply) return;
    rows.shapes = arranged(reply.shapes, page.state);
    const all = reply.shapes.length;
    const shown = rows.shapes.length;
    count.textContent = `${shown === all ? counted(all, "shape") : `${integer(shown)} of ${counted(all, "shape")}`}${reply.since_seconds === undefined ? ", since the start" : ""}`;
    rows.draw();
  };
  filter.addEventListener("input", () => {
    page.keep({ q: filter.value });
    rows.selected = 0;
    rows.element.scrollTop = 0;
    show();
  });
  const sortBy = (/** @type {string} */ key) => {
    const isSame = page.state.sort === key;
    const usual = key === "name" ? "asc" : "desc";
    page.keep({
      sort: key,
      dir: isSame && page.state.dir === usual ? (usual === "asc" ? "desc" : "asc") : usual,
    });
    drawHead(rows.head, page.state, sortBy);
    show();
  };
  drawHead(rows.head, page.state, sortBy);
  const why = h("div", {});
  fill(page.main, h("div", { class: "controls" }, filter, count), why, rows.element);
  page.poll(
    async (signal) => {
      const past = /** @type {import("./types.js").Shapes | null} */ (
        await getIfKnown(`shapes?${range(page.state)}&limit=${MAX_ROWS}`, signal)
      );
      if (past) return past;
      const [all, status] = await Promise.all([
        /** @type {Promise<import("./types.js").Shapes>} */ (
          get(`shapes?limit=${MAX_ROWS}`, signal)
        ),
        /** @type {Promise<import("./types.js").Status>} */ (get("status", signal)),
      ]);
      rows.totals.seconds = secondsSinceStart(status);
      return all;
    },
    (result) => {
      reply = result;
      const isSinceStart = result.since_seconds === undefined;
      const covered =
        rows.totals.seconds === null
          ? "the figures of each instance cover the time since its start, so there are no rates"
          : "the figures cover the time since the start";
      // Also replaces the message about an earlier request that failed.
      fill(why, isSinceStart && note(`The history is off: ${covered}.`));
      const load =
        result.shapes.reduce((sum, shape) => sum + shape.load_ms, result.other.load_ms) || 1;
      rows.totals = { seconds: result.since_seconds || rows.totals.seconds, load };
      show();
    },
    { seconds: 10, into: why },
  );
  page.poll(
    (signal) => getIfKnown(`sparklines?${range(page.state)}`, signal),
    (result) => {
      const reply = /** @type {import("./types.js").Sparklines | null} */ (result);
      rows.trends = reply ? wholeSteps(reply) : {};
      rows.draw();
    },
    { seconds: 60 },
  );
}

/**
 * The number of seconds that figures since the start cover. `null` for the merged status of several
 * instances, which has only the longest time since a start.
 * @param {import("./types.js").Status} status
 */
export function secondsSinceStart({ uptime_seconds, instances }) {
  return instances ? null : uptime_seconds || 1;
}

/**
 * The loads without the step that has not ended yet. In a chart, the load of an incomplete step
 * would look like a decrease.
 * @param {import("./types.js").Sparklines} reply
 */
export function wholeSteps({ from, step_seconds: length, shapes }, now = serverTime()) {
  const ended = Math.floor((now - from) / length);
  const loads = Object.entries(shapes).map(([id, steps]) => [id, steps.slice(0, ended)]);
  return Object.fromEntries(loads);
}

/**
 * @param {HTMLElement} head
 * @param {Page["state"]} state
 * @param {(key: string) => void} sortBy
 */
function drawHead(head, state, sortBy) {
  const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset.key;
  fill(
    head,
    ...COLUMNS.map((column) => {
      const order =
        state.sort === column.key ? (state.dir === "asc" ? "ascending" : "descending") : "none";
      const title =
        column.key === "trend"
          ? column.title
          : h(
              "button",
              { type: "button", "data-key": column.key, onclick: () => sortBy(column.key) },
              column.title,
            );
      return h(
        "div",
        {
          role: "columnheader",
          class: `cell col-${column.key}`,
          "aria-sort": column.key === "trend" ? null : order,
        },
        title,
      );
    }),
  );
  if (focused)
    /** @type {HTMLElement | null} */ (
      head.querySelector(`[data-key="${CSS.escape(focused)}"]`)
    )?.focus();
}

/**
 * The shapes that match the filter, sorted. A shape matches if it contains all words of the filter.
 * @param {Shape[]} shapes
 * @param {Page["state"]} state
 */
export function arranged(shapes, state) {
  const wanted = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const column = COLUMNS.find((of) => of.key === state.sort) ?? COLUMNS[1];
  const text = (/** @type {Shape} */ of) =>
    `${of.db}.${of.collection} ${of.command} ${of.shape} ${of.id}`.toLowerCase();
  const passing =
    wanted.length === 0
      ? [...shapes]
      : shapes.filter((of) => wanted.every((word) => text(of).includes(word)));
  const sign = state.dir === "asc" ? 1 : -1;
  const keyed = passing.map((shape) => /** @type {const} */ ([column.value(shape), shape]));
  keyed.sort(([one], [other]) => (one < other ? -sign : one > other ? sign : 0));
  return keyed.map(([, shape]) => shape);
}
