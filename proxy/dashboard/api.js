/** Requests to the API, and repeated requests whose cost is bounded. */

/** @typedef {import("./types.js").InstanceState} InstanceState */

/**
 * Time limit for a reply. Without a limit, a request whose connection was lost without notice would
 * never end, and would never be repeated.
 */
const REPLY_LIMIT_MS = 30_000;

/** A request that did not succeed. */
export class Problem extends Error {
  /**
   * @param {number} status the HTTP status; 0 if there was no reply
   * @param {string} text
   */
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/**
 * The text that the page shows for an error.
 * @param {unknown} error
 */
export function messageOf(error) {
  return error instanceof Problem ? error.message : String(error);
}

/**
 * Differences below this limit are not differences between clocks: the header with the time has
 * whole seconds, and a reply takes some time to arrive.
 */
const CLOCK_TOLERANCE_S = 2;

/** How many seconds the clock of the server is ahead of the clock of the browser. */
let ahead = 0;

/** @param {Response} response */
function compareClocks(response) {
  const sent = Date.parse(response.headers.get("date") ?? "");
  const difference = (sent + 500 - Date.now()) / 1000;
  // Without the header, the difference is not a number, and the comparison is false.
  if (Math.abs(difference - ahead) > CLOCK_TOLERANCE_S) ahead = difference;
}

/**
 * The time of the server in seconds since the epoch. All times in replies are times of the server,
 * and the clock of the browser may differ.
 */
export function serverTime() {
  return Date.now() / 1000 + ahead;
}

/**
 * @param {string} path
 * @param {RequestInit} [options]
 */
async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "Seawall does not reply.");
  }
  compareClocks(response);
  return response;
}

/**
 * If `isOn`, requests ask the server to merge the replies of all instances. `report` is called with
 * the instances that a merged reply lists.
 * @type {{isOn: boolean, report: (topic: string, instances: InstanceState[]) => void}}
 */
const merging = { isOn: false, report: () => {} };

/**
 * Chooses if later requests ask for the figures of all instances or only of this instance. `report`
 * is called with the path and the instances of each merged reply.
 * @param {boolean} isOn
 * @param {(topic: string, instances: InstanceState[]) => void} report
 */
export function mergeInstances(isOn, report) {
  merging.isOn = isOn;
  merging.report = report;
}

/**
 * The error for a reply whose status is an error.
 * @param {Response} response
 */
export async function problem(response) {
  const text = (await response.text().catch(() => "")).trim();
  return new Problem(response.status, text || `Seawall replied with status ${response.status}.`);
}

/**
 * @template T
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<T>}
 */
export async function get(path, signal) {
  const { isOn, report } = merging;
  const all = isOn && path !== "session" ? `${path.includes("?") ? "&" : "?"}instances=all` : "";
  const limit = AbortSignal.timeout(REPLY_LIMIT_MS);
  const either = signal ? AbortSignal.any([signal, limit]) : limit;
  const response = await send(`/api/v1/${path}${all}`, { signal: either });
  if (!response.ok) throw await problem(response);
  /** @type {any} */
  let reply;
  try {
    reply = await response.json();
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "The reply of Seawall ended early.");
  }
  if (all) report(path.split("?")[0], reply.instances ?? []);
  return reply;
}

/**
 * Like `get`. `null` if this Seawall does not have the endpoint or the data.
 * @template T
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<T | null>}
 */
export async function getIfKnown(path, signal) {
  try {
    return await get(path, signal);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

/**
 * An action has no time limit, because a reload may wait for servers.
 * @param {"POST" | "DELETE"} method
 * @param {string} path
 * @param {unknown} [body]
 */
export async function act(method, path, body) {
  const headers = body === undefined ? undefined : { "content-type": "application/json" };
  return send(`/api/v1/${path}`, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

/**
 * Longest pause between two runs of a task. After a longer pause, old figures would still look
 * current. A task can also seem to take hours, if the machine slept during the task.
 */
const MAX_PAUSE_MS = 60_000;

/**
 * The pause after a task. It is at least 50 times as long as the task, up to a minute. So the
 * requests of one page use at most 2 % of a connection's time if a task takes about a second, even
 * if there are many shapes. Without a reply, the pause is at least as long as the task.
 * @param {number} took the duration of the task in milliseconds
 * @param {boolean} hasReply
 * @param {number} interval the shortest pause in seconds, at most a minute
 */
export function pauseAfter(took, hasReply, interval) {
  return Math.max(interval * 1000, Math.min(took * (hasReply ? 50 : 1), MAX_PAUSE_MS));
}

/** The shortest pause in seconds before a single run without a reply is repeated. */
const RETRY_S = 5;

/**
 * Repeats a task while the page is visible.
 * @param {(signal: AbortSignal) => Promise<boolean>} task returns false if there was no reply
 * @param {number} interval seconds between two runs; 0 for a single run, which is repeated only
 * until there is a reply
 * @returns {() => void} ends the repetition
 */
export function repeat(task, interval) {
  const ended = new AbortController();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const run = async () => {
    if (document.hidden) {
      document.addEventListener("visibilitychange", run, { once: true, signal: ended.signal });
      return;
    }
    const began = performance.now();
    const hasReply = await task(ended.signal);
    const took = performance.now() - began;
    if ((interval > 0 || !hasReply) && !ended.signal.aborted) {
      timer = setTimeout(run, pauseAfter(took, hasReply, interval || RETRY_S));
    }
  };
  run();
  return () => {
    ended.abort();
    clearTimeout(timer);
  };
}
