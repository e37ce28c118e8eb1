/** The state of the view. The address of the page contains the whole state. */

import { serverTime } from "./api.js";

/**
 * @typedef {object} State
 * @property {string} view
 * @property {string} id the shape of the view `shape`
 * @property {string} since the length of a period that ends now, such as `1h`
 * @property {string} from the start of a fixed period, in seconds since the epoch
 * @property {string} until the end of the fixed period
 * @property {string} step length of a step; empty for a step that fits the period
 * @property {string} of the selection of the heat map, such as `server:db1:27017`
 * @property {string} phase
 * @property {string} scale `log` or `linear`
 * @property {string} lo the lowest latency of the heat map in milliseconds
 * @property {string} hi the highest latency of the heat map in milliseconds
 * @property {string} area the brushed area: from, until, lowest and highest latency in seconds
 * @property {string} sort
 * @property {string} dir `asc` or `desc`
 * @property {string} q the filter
 * @property {string} against the baseline of comparisons
 * @property {string} instances `all` for the figures of all instances
 * @property {string} wall `1` for a display on a wall
 */

/** @type {Readonly<State>} */
export const DEFAULTS = Object.freeze({
  view: "overview",
  id: "",
  since: "1h",
  from: "",
  until: "",
  step: "",
  of: "",
  phase: "",
  scale: "log",
  lo: "",
  hi: "",
  area: "",
  sort: "load",
  dir: "desc",
  q: "",
  against: "",
  instances: "",
  wall: "",
});

/** Properties that stay the same when another view is opened. */
const KEPT = /** @type {const} */ (["since", "from", "until", "instances", "wall"]);

/** The periods that the range picker offers. */
export const RANGES = /** @type {const} */ (["5m", "15m", "1h", "6h", "24h", "7d"]);

/**
 * @param {string} search
 * @returns {State}
 */
export function parse(search) {
  const state = { ...DEFAULTS };
  const parameters = new URLSearchParams(search);
  for (const key of /** @type {(keyof State)[]} */ (Object.keys(DEFAULTS))) {
    state[key] = parameters.get(key) ?? state[key];
  }
  return state;
}

/** @param {State} state */
export function address(state) {
  const parameters = new URLSearchParams();
  for (const key of /** @type {(keyof State)[]} */ (Object.keys(DEFAULTS))) {
    if (state[key] !== DEFAULTS[key]) parameters.set(key, state[key]);
  }
  const text = parameters.toString();
  return text ? `/?${text}` : "/";
}

/**
 * The state after opening a view.
 * @param {State} state
 * @param {Partial<State>} changes
 * @returns {State}
 */
export function opened(state, changes) {
  if (!changes.view) return { ...state, ...changes };
  const kept = Object.fromEntries(KEPT.map((key) => [key, state[key]]));
  return { ...DEFAULTS, ...kept, ...changes };
}

const UNITS = { s: 1, m: 60, h: 3600, d: 86_400 };

/** @param {string} text a time such as `15m` */
export function seconds(text) {
  const [, count, unit] = /^(\d+)([smhd])$/.exec(text) ?? ["", "3600", "s"];
  return Number(count) * UNITS[/** @type {keyof UNITS} */ (unit)];
}

/**
 * The period of a view, in seconds since the epoch by the clock of the server.
 * @param {State} state
 */
export function period(state) {
  const now = serverTime();
  const [from, until] = [Number(state.from), Number(state.until)];
  if (from > 0 && until > from) return { from, until, length: until - from, isFixed: true };
  const length = seconds(state.since);
  return { from: now - length, until: now, length, isFixed: false };
}

/**
 * The period as parameters of a request.
 * @param {State} state
 */
export function range(state) {
  const { from, until, isFixed } = period(state);
  return isFixed
    ? `from=${Math.floor(from)}&until=${Math.ceil(until)}`
    : `since=${encodeURIComponent(state.since)}`;
}

/** Maximum number of steps in a reply. The API refuses requests for more steps. */
const MAX_STEPS = 1_200;

/** The length of the longest step of the history, and longer steps for long periods. */
const LONG_STEPS = [600, 3_600, 86_400];

/**
 * The shortest step for which the history covers the whole period in at most `most` steps. If there
 * is none, the shortest long step that the API accepts.
 * @param {number} length of the period in seconds
 * @param {number} age time since the start of the period, in seconds
 * @param {number} most
 */
export function stepFor(length, age, most) {
  const kept = [
    [1, 600],
    [10, 3600],
    [60, 86_400],
    [600, Infinity],
  ];
  const fits = kept.find(([step, oldest]) => length / step <= most && age <= oldest + 2 * step);
  return fits?.[0] ?? LONG_STEPS.find((step) => length / step <= MAX_STEPS) ?? 86_400;
}

/** @param {number} step */
export function stepText(step) {
  return step >= 60 ? `${step / 60}m` : `${step}s`;
}
