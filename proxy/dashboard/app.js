/** The frame of the page: navigation, range, keys, login, live updates. */

import { act, get, mergeInstances, messageOf, Problem, repeat, serverTime } from "./api.js";
import { fill, h, keepFocus, note } from "./dom.js";
import { span } from "./format.js";
import { listen, showAll, start } from "./live.js";
import { address, DEFAULTS, opened, parse, period, RANGES } from "./state.js";
import { changesView, stallsView, stormsView } from "./view-events.js";
import { heatmapView } from "./view-heatmap.js";
import { overview } from "./view-overview.js";
import { shapesView } from "./view-shapes.js";
import { shapeView } from "./view-shape.js";
import { clientsView, configurationView, serversView } from "./view-state.js";

/** @typedef {import("./types.js").Page} Page */
/** @typedef {import("./state.js").State} State */
/** @typedef {import("./types.js").InstanceState} InstanceState */

/** The views in the order of the navigation, with the keys that open them. */
const VIEWS = /** @type {[string, string, string, (page: Page) => void][]} */ ([
  ["overview", "Overview", "o", overview],
  ["heatmap", "Heat map", "h", heatmapView],
  ["shapes", "Shapes", "s", shapesView],
  ["storms", "Storms", "t", stormsView],
  ["stalls", "Stalls", "l", stallsView],
  ["changes", "Changes", "c", changesView],
  ["clients", "Clients", "i", clientsView],
  ["servers", "Servers", "p", serversView],
  ["config", "Configuration", "g", configurationView],
]);

/** The view of one shape, which the view of all shapes opens. @type {typeof VIEWS[number]} */
const SHAPE = ["shape", "Shape", "", shapeView];

/** Views whose figures do not depend on a range. */
const WITHOUT_RANGE = ["storms", "changes", "clients", "servers", "config"];

/** True if the figures of the current view do not depend on a range. */
function hasNoRange() {
  return WITHOUT_RANGE.includes(state.view);
}

/** True if the chosen period is fixed and has ended, so that its figures do not change. */
function hasEnded() {
  const { until, isFixed } = period(state);
  return isFixed && until <= serverTime();
}

let state = parse(location.search);
/** @type {import("./types.js").Session | null} */
let session = null;
/** Functions that end the requests and charts of the current view. @type {(() => void)[]} */
let ends = [];

const main = h("main", { id: "main", tabindex: "-1" });
const title = h("h1", {});
const live = h("span", { class: "live", role: "status" }, "connecting");
const picker = h("div", { class: "range" });
const scope = h("div", { class: "range" });
/** The instances missing in the latest reply of each kind. @type {Map<string, InstanceState[]>} */
const missing = new Map();
/** The problems of requests whose view has no element for messages, by the function that sends the
 * request. @type {Map<unknown, string>} */
const problems = new Map();
/** Says that the user could not log out. @type {string | null} */
let failedLogOut = null;
/** @type {import("./types.js").Tick | null} */
let latest = null;
const nav = h("nav", { "aria-label": "Views" });
const banner = h("div", { id: "banner" });

/** @param {Partial<State>} changes */
function go(changes) {
  const next = opened(state, changes);
  if (address(next) !== address(state)) history.pushState(null, "", address(next));
  enter(next);
}

/**
 * Shows a state. If it belongs to another view, the content of this view gets the focus.
 * @param {State} next
 */
function enter(next) {
  const isOther = next.view !== state.view;
  state = next;
  keepFocus(document.body, show);
  if (isOther) {
    window.scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
}

/** @type {Page} */
const page = {
  get state() {
    return state;
  },
  get session() {
    return session;
  },
  main,
  go,
  keep(changes) {
    state = { ...state, ...changes };
    history.replaceState(null, "", address(state));
  },
  live(shown) {
    ends.push(listen(shown));
  },
  onLeave(end) {
    ends.push(end);
  },
  poll(load, shown, { seconds = 0, into, failed, isPresent = hasNoRange() } = {}) {
    const end = repeat(
      async (signal) => {
        try {
          const result = await load(signal);
          if (signal.aborted) return true;
          if (problems.delete(load)) warn();
          keepFocus(main, () => shown(result));
          return true;
        } catch (error) {
          if (signal.aborted) return true;
          // The cause is a fault of the page, or another version of Seawall after an upgrade.
          if (!(error instanceof Problem)) reportError(error);
          if (error instanceof Problem && error.status === 401) showLogin();
          else if (failed) failed(/** @type {Error} */ (error));
          else if (into) fill(into, note(messageOf(error)));
          else {
            problems.set(load, messageOf(error));
            warn();
          }
          return !(error instanceof Problem && error.status === 0);
        }
      },
      hasEnded() && !isPresent ? 0 : seconds,
    );
    ends.push(end);
    return end;
  },
};

function leave() {
  const begun = ends;
  ends = [];
  begun.forEach((end) => end());
  problems.clear();
}

/** Applies the choice of instances. The choice is shown only if other instances are configured. */
function applyScope() {
  const peers = session?.peers ?? [];
  const isAll = state.instances === "all" && peers.length > 0;
  missing.clear();
  mergeInstances(isAll, noteMissing);
  showAll(isAll);
  warn();
  const select = h(
    "select",
    { "aria-label": "Instances", onchange: () => go({ instances: select.value }) },
    h("option", { value: "", selected: !isAll }, "This instance"),
    h("option", { value: "all", selected: isAll }, `All ${peers.length + 1} instances`),
  );
  fill(scope, peers.length > 0 && select);
}

/**
 * @param {string} topic
 * @param {InstanceState[]} instances
 */
function noteMissing(topic, instances) {
  missing.set(
    topic,
    instances.filter((of) => of.error),
  );
  warn();
}

/** The view that the address names. If the address names an unknown view, the overview. */
function openView() {
  const [overview] = VIEWS;
  return [...VIEWS, SHAPE].find(([name]) => name === state.view) ?? overview;
}

function show() {
  leave();
  applyScope();
  const [name, text, , view] = openView();
  document.title = `${text} – Seawall`;
  document.documentElement.classList.toggle("wall", state.wall === "1");
  title.textContent = text;
  fill(main);
  fill(
    nav,
    ...VIEWS.map(([of, label, key]) =>
      h(
        "a",
        {
          href: address(opened(state, { view: of })),
          "aria-current": of === name || (of === "shapes" && name === "shape") ? "page" : null,
          "aria-keyshortcuts": `g ${key}`,
        },
        label,
      ),
    ),
  );
  // On a phone, the navigation is wider than the screen, so it is scrolled to the current view.
  const current = /** @type {HTMLElement | null} */ (nav.querySelector("[aria-current]"));
  if (current) nav.scrollLeft = current.offsetLeft - nav.offsetLeft;
  fill(picker, ...(WITHOUT_RANGE.includes(name) ? [] : rangePicker()));
  view(page);
}

function rangePicker() {
  const { from, until, isFixed } = period(state);
  const buttons = RANGES.map((since) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(!isFixed && state.since === since),
        onclick: () => go({ since, from: "", until: "", step: "", area: "" }),
      },
      since,
    ),
  );
  const local = (/** @type {number} */ at) =>
    new Date((at - new Date(at * 1000).getTimezoneOffset() * 60) * 1000).toISOString().slice(0, 19);
  const input = (/** @type {string} */ label, /** @type {number} */ at) =>
    h("input", { type: "datetime-local", step: "1", "aria-label": label, value: local(at) });
  const [first, last] = [input("From", from), input("Until", until)];
  const apply = () => {
    const [start, end] = [first, last].map((of) => Math.floor(new Date(of.value).getTime() / 1000));
    if (end > start) go({ from: String(start), until: String(end), step: "", area: "" });
  };
  const fixed = h(
    "details",
    { class: "fixed" },
    h("summary", {}, isFixed ? "Fixed period" : "Period …"),
    h(
      "form",
      {
        onsubmit: (/** @type {Event} */ event) => {
          event.preventDefault();
          apply();
        },
      },
      first,
      h("span", {}, "to"),
      last,
      h("button", { type: "submit" }, "Show"),
    ),
  );
  return [h("div", { class: "buttons", role: "group", "aria-label": "Range" }, ...buttons), fixed];
}

function showLogin() {
  leave();
  fill(picker);
  fill(scope);
  fill(nav);
  title.textContent = "Log in";
  const input = h("input", {
    type: "password",
    autocomplete: "current-password",
    required: true,
    "aria-label": "Token",
    id: "token",
    autofocus: true,
  });
  const why = h("p", { role: "alert", class: "hint" });
  const form = h(
    "form",
    { class: "login" },
    h(
      "p",
      {},
      "This Seawall requires a token: the content of the file that is configured as ",
      h("code", {}, "admin.token_file"),
      " or ",
      h("code", {}, "admin.read_token_file"),
      ".",
    ),
    h("div", { class: "controls" }, input, h("button", { type: "submit" }, "Log in")),
    why,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const response = await act("POST", "session", { token: input.value.trim() });
      if (response.ok) location.reload();
      else
        why.textContent =
          response.status === 401
            ? "Seawall does not know this token."
            : (await response.text()).trim();
    } catch (error) {
      why.textContent = messageOf(error);
    }
  });
  fill(main, form);
  input.focus();
}

async function logOut() {
  try {
    await act("DELETE", "session");
    location.reload();
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    failedLogOut = `You are still logged in: ${error.message}`;
    warn();
  }
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("seawall-theme", root.dataset.theme);
  show();
}

function showKeys() {
  const rows = VIEWS.map(([, label, key]) =>
    h("li", {}, h("kbd", {}, "g"), " ", h("kbd", {}, key), ` ${label}`),
  );
  const dialog = h(
    "dialog",
    { "aria-label": "Keys", onclose: () => dialog.remove() },
    h("h2", {}, "Keys"),
    h(
      "ul",
      { class: "keys" },
      ...rows,
      h("li", {}, h("kbd", {}, "/"), " Filter"),
      h("li", {}, h("kbd", {}, "d"), " Light or dark"),
      h("li", {}, h("kbd", {}, "w"), " Wall display"),
      h("li", {}, h("kbd", {}, "?"), " This list"),
    ),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"),
  );
  document.body.append(dialog);
  dialog.showModal();
}

let isAfterG = false;

/** @param {KeyboardEvent} event */
function press(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    target.closest("input, select, textarea, dialog")
  )
    return;
  const view = VIEWS.find(([, , key]) => key === event.key);
  /** @type {Record<string, () => void>} */
  const actions = {
    "/": () => document.getElementById("filter")?.focus(),
    "?": showKeys,
    d: switchTheme,
    w: () => go({ wall: state.wall ? "" : "1" }),
  };
  if (isAfterG && view) {
    event.preventDefault();
    go({ view: view[0] });
  } else if (event.key in actions && !isAfterG) {
    event.preventDefault();
    actions[event.key]();
  }
  isAfterG = event.key === "g" && !isAfterG;
}

/** Follows links inside the page without loading the page again. @param {MouseEvent} event */
function follow(event) {
  const link = /** @type {Element} */ (event.target).closest("a");
  if (
    !link ||
    event.button !== 0 ||
    event.ctrlKey ||
    event.metaKey ||
    event.shiftKey ||
    event.defaultPrevented
  )
    return;
  if (
    link.origin !== location.origin ||
    link.pathname !== "/" ||
    link.getAttribute("href")?.startsWith("#")
  )
    return;
  event.preventDefault();
  history.pushState(null, "", link.search || "/");
  enter(parse(link.search));
}

/** Shows warnings about incomplete figures above all views. */
function warn() {
  const lacking = new Map([...missing.values()].flat().map((of) => [of.address, of.error]));
  const texts = [
    failedLogOut,
    ...[...lacking].map(([address, error]) => `Figures of ${address} are missing: ${error}`),
    ...[...new Set(problems.values())].map((problem) => `Figures are missing: ${problem}`),
    latest &&
      !latest.history &&
      "The history is off: there are only figures since the start. Set history.enabled = true to keep a history.",
    latest?.draining &&
      (latest.instances ? "At least one instance is draining." : "Seawall is draining."),
  ].filter((text) => typeof text === "string");
  if (banner.dataset.text === texts.join()) return;
  banner.dataset.text = texts.join();
  fill(banner, ...texts.map((text) => h("p", {}, text)));
}

async function begin() {
  const saved = localStorage.getItem("seawall-theme");
  if (saved) document.documentElement.dataset.theme = saved;
  const skip = h("a", { class: "skip", href: "#main" }, "Skip to the content");
  const tools = h(
    "div",
    { class: "tools" },
    h("button", { type: "button", onclick: switchTheme, "aria-keyshortcuts": "d" }, "Light/dark"),
    h(
      "button",
      {
        type: "button",
        onclick: () => go({ wall: state.wall ? "" : "1" }),
        "aria-keyshortcuts": "w",
      },
      "Wall",
    ),
    h("button", { type: "button", onclick: showKeys, "aria-label": "Keys" }, "?"),
  );
  document.body.append(
    skip,
    h(
      "div",
      { class: "side" },
      h("a", { class: "brand", href: address({ ...DEFAULTS }) }, "Seawall"),
      nav,
      tools,
    ),
    h("div", { class: "content" }, h("header", {}, title, live, scope, picker), banner, main),
  );
  document.addEventListener("keydown", press);
  document.addEventListener("click", follow);
  window.addEventListener("popstate", () => {
    state = parse(location.search);
    show();
  });
  try {
    session = await get("session");
  } catch (error) {
    if (error instanceof Problem && error.status === 401) showLogin();
    else fill(main, note(messageOf(error)));
    return;
  }
  if (session?.token_required)
    tools.append(h("button", { type: "button", onclick: logOut }, "Log out"));
  start((text) => {
    if (live.dataset.state === text) return;
    live.textContent = text;
    live.dataset.state = text;
  });
  listen((tick) => {
    // A merged update has the longest uptime of all instances.
    live.title = `Seawall has run for ${tick.instances ? "at most " : ""}${span(tick.uptime_seconds)}`;
    latest = tick;
    if (tick.instances) noteMissing("live", tick.instances);
    else warn();
  });
  show();
}

begin();
