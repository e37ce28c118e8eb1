/** The live updates: one stream for the page, closed while the page is hidden. */

/** @typedef {import("./types.js").Tick} Tick */

/** Number of updates that are kept: ten minutes. */
const KEPT = 600;

/** Time until a stream that the server refused is opened again. */
const RETRY_MS = 5_000;

/**
 * Time without an update until the stream is opened again. There is one update per second; with all
 * instances, an update waits up to three seconds for an instance that does not reply.
 */
const MAX_SILENCE_MS = 10_000;

let address = "/api/v1/live";
/** @type {Tick[]} */
const recent = [];
/** @type {Set<(tick: Tick, recent: Tick[]) => void>} */
const listeners = new Set();
/** @type {Set<(state: string) => void>} */
const watchers = new Set();
/** @type {EventSource | null} */
let source = null;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let retry;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let silence;

/** @param {string} state */
function report(state) {
  watchers.forEach((watch) => watch(state));
}

/** Opens the stream again if no update arrives in time, even if its connection is open. */
function limitSilence() {
  clearTimeout(silence);
  silence = setTimeout(() => {
    report("updates stopped");
    open();
  }, MAX_SILENCE_MS);
}

function open() {
  clearTimeout(retry);
  clearTimeout(silence);
  source?.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource(address);
  limitSilence();
  source.addEventListener("tick", (event) => {
    limitSilence();
    /** @type {Tick} */
    const tick = JSON.parse(event.data);
    // If the clock of the server was set back, earlier updates have later times than this update.
    if ((recent.at(-1)?.at ?? 0) > tick.at) recent.length = 0;
    recent.push(tick);
    if (recent.length > KEPT) recent.shift();
    report("live");
    listeners.forEach((show) => show(tick, recent));
  });
  source.addEventListener("error", () => {
    report("reconnecting");
    limitSilence();
    if (source?.readyState === EventSource.CLOSED) {
      clearTimeout(silence);
      retry = setTimeout(open, RETRY_MS);
    }
  });
}

/** @param {(state: string) => void} watch */
export function start(watch) {
  watchers.add(watch);
  document.addEventListener("visibilitychange", open);
  open();
}

/**
 * Chooses if the updates cover all instances or only this instance.
 * @param {boolean} isAll
 */
export function showAll(isAll) {
  const wanted = isAll ? "/api/v1/live?instances=all" : "/api/v1/live";
  if (address === wanted) return;
  address = wanted;
  // The earlier updates belong to the previous choice.
  recent.length = 0;
  if (source || retry !== undefined) open();
}

/**
 * Calls `show` at once with the latest update, if there is one, and then with each new update.
 * @param {(tick: Tick, recent: Tick[]) => void} show
 * @returns {() => void}
 */
export function listen(show) {
  listeners.add(show);
  const latest = recent.at(-1);
  if (latest) show(latest, recent);
  return () => listeners.delete(show);
}
