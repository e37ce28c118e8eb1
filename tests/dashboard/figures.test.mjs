// Figures that are missing or outdated, and requests that are refused.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { pauseAfter } from "../../proxy/dashboard/api.js";
import { livePoints, nearest, points } from "../../proxy/dashboard/chart.js";
import { stepFor, stepText } from "../../proxy/dashboard/state.js";
import { changeText } from "../../proxy/dashboard/view-shape.js";
import { COLUMNS, secondsSinceStart } from "../../proxy/dashboard/view-shapes.js";
import { api, launch, open, variable } from "./browser.mjs";
import { manyShapes } from "./fabricated.mjs";

/** The address of a Seawall whose operations have ended. */
const ADMIN = variable("SEAWALL_ADMIN");

/** @type {import("playwright-core").Browser} */
let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser.close();
});

test("the line of a live chart has a gap where updates are missing", () => {
  const ticks = [10, 11, 14, 60, 61].map((at) => ({ at, clients: 3 }));
  assert.deepEqual(
    livePoints(ticks, (tick) => tick.clients),
    [
      [9, null],
      [10, 3],
      [11, 3],
      [14, 3],
      [15, null],
      [59, null],
      [60, 3],
      [61, 3],
      [62, null],
    ],
  );
});

test("a chart shows no value for a time without data", () => {
  const steps = [100, 110, 900].map((at) => ({ at, seconds: 10 }));
  const drawn = points(steps, 10, (step) => step.at);
  const named = [0, 101, 118, 300, 899, 905, 2_000].map((at) => nearest(drawn, at) ?? null);
  assert.deepEqual(named, [null, 100, 110, null, null, 900, null]);
});

test("the page requests figures again after at most a minute", () => {
  assert.equal(pauseAfter(20, true, 10), 10_000);
  assert.equal(pauseAfter(500, true, 10), 25_000);
  // An instance that does not reply delays each merged reply by three seconds.
  assert.equal(pauseAfter(3_000, true, 10), 60_000);
  assert.equal(pauseAfter(30_000, false, 10), 30_000);
  // The machine slept while a reply was awaited.
  assert.equal(pauseAfter(3_600_000, false, 10), 60_000);
  assert.equal(pauseAfter(20, true, 60), 60_000);
});

test("the figures of several instances since their starts have no rates", () => {
  const [shape] = manyShapes(1).shapes;
  const shown = (/** @type {any} */ status) => {
    const totals = { seconds: secondsSinceStart(status), load: 1 };
    const keys = ["load", "count", "bytes", "documents"];
    const columns = COLUMNS.filter(({ key }) => keys.includes(key));
    return columns.map((column) => column.show(shape, totals));
  };
  assert.deepEqual(shown({ uptime_seconds: 10 }), ["0.25 ms/s", "0.10", "10 B", "0"]);
  // A merged status has only the longest time since a start.
  const instances = [{ address: "this instance" }, { address: "http://127.0.0.1:1" }];
  assert.deepEqual(shown({ uptime_seconds: 10, instances }), ["2.50 ms", "–", "–", "–"]);
});

test("a reply that cannot be drawn is reported, and the request is repeated", async () => {
  const { page, errors, close } = await open(browser);
  let isUnknown = true;
  await page.route("**/api/v1/pools**", (route) =>
    isUnknown ? route.fulfill({ json: {} }) : route.continue(),
  );
  await page.goto(`${ADMIN}/?view=servers`);
  const pools = page.getByRole("region", { name: "Pools", exact: true });
  await pools.getByText(/^TypeError/).waitFor();
  assert.notDeepEqual(errors, []);
  isUnknown = false;
  await pools.getByRole("article").first().waitFor();
  await close();
});

test("a live chart begins again if the clock of the server was set back", async () => {
  const { page, close } = await open(browser);
  const tick = await api(ADMIN, "tick");
  const events = [1_000, 1_001, 500, 501].map(
    (at) => `event: tick\ndata: ${JSON.stringify({ ...tick, at })}\n\n`,
  );
  let isFirst = true;
  await page.route("**/api/v1/live**", (route) => {
    // Later requests get no reply, so the page shows no further updates.
    if (!isFirst) return undefined;
    isFirst = false;
    return route.fulfill({ contentType: "text/event-stream", body: events.join("") });
  });
  // Without a history of gauges, the chart of the clients has only the live updates.
  await page.route("**/api/v1/gauges?**", (route) => route.fulfill({ status: 404 }));
  await page.goto(`${ADMIN}/`);
  const line = page.getByRole("region", { name: "Clients", exact: true }).locator(".line.one");
  await line.waitFor({ state: "attached" });
  // The page has processed all events when it has noticed the end of the stream.
  await page.getByText("reconnecting", { exact: true }).waitFor();
  assert.match((await line.getAttribute("d")) ?? "", /^M0 [\d.]+h0L1000 [\d.]+$/);
  await close();
});

test("the overview says that there is no pool instead of showing a concurrency limit", async () => {
  const { page, close } = await open(browser);
  const tick = { ...(await api(ADMIN, "tick")), concurrency_limit: 0, in_progress: 0 };
  const body = `event: tick\ndata: ${JSON.stringify(tick)}\n\n`;
  await page.route("**/api/v1/live**", (route) =>
    route.fulfill({ contentType: "text/event-stream", body }),
  );
  await page.goto(`${ADMIN}/`);
  const panel = page.getByRole("region", { name: "Concurrency limit", exact: true });
  await panel.getByText("no pool", { exact: true }).waitFor();
  await close();
});

test("the details of a shape disappear when Seawall no longer knows the shape", async () => {
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=1");
  const { page, close } = await open(browser);
  let isKnown = true;
  await page.route("**/api/v1/shapes/**", (route) =>
    isKnown ? route.continue() : route.fulfill({ status: 404, body: "no such shape" }),
  );
  await page.goto(`${ADMIN}/?view=shape&id=${shapes[0].id}`);
  const phases = page.getByRole("table", { name: "Time by phase" });
  await phases.waitFor();
  isKnown = false;
  await page.getByText("No operation of this shape is known in this period.").waitFor();
  assert.equal(await phases.count(), 0);
  await close();
});

test("a refused reload shows the reason of the refusal", async () => {
  const { page, close } = await open(browser);
  const body = "this token may only read\n";
  await page.route("**/api/v1/reload**", (route) => route.fulfill({ status: 403, body }));
  await page.goto(`${ADMIN}/?view=config`);
  await page.getByRole("button", { name: "Reload the configuration" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.locator(".note").getByText("this token may only read").waitFor();
  await dialog.getByRole("textbox").fill("reload");
  await dialog.getByRole("button", { name: "Reload", exact: true }).click();
  await dialog.getByRole("status").getByText("this token may only read").waitFor();
  await close();
});

test("the expiry date of a certificate includes the year", async () => {
  const { page, errors, close } = await open(browser);
  const not_after = Date.UTC(2099, 2, 3, 12) / 1000;
  const kind = "certificate";
  const certificates = [{ file: "tls.pem", kind, not_after, serial: "1", subject: "CN=a" }];
  const json = { ...(await api(ADMIN, "status")), certificates };
  await page.route("**/api/v1/status**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?view=config`);
  await page.getByText(/^until \d Mar 2099, /).waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("the overview reports the absence of storms and stalls only if Seawall has checked for them", async () => {
  const { page, close } = await open(browser);
  const storms = { active: false, learning: true, storms: [] };
  let stalls = /** @type {object | undefined} */ (undefined);
  await page.route("**/api/v1/storms**", (route) => route.fulfill({ json: storms }));
  await page.route("**/api/v1/stalls?**", (route) =>
    route.fulfill(stalls ? { json: stalls } : { status: 404 }),
  );
  await page.route("**/api/v1/changes?**", (route) => route.fulfill({ status: 404 }));
  await page.goto(`${ADMIN}/?since=5m`);
  await page.getByText("Nothing unusual: all servers are available.").waitFor();
  await page.getByText(/^No event is known in this period/).waitFor();
  Object.assign(storms, { learning: false });
  stalls = { episodes: [], recurring: [], pulse: { state: "on" } };
  const all = "Nothing unusual: no storm, no recurring stall, all servers are available.";
  await page.getByText(all).waitFor();
  await page.getByText(/^No storm or stall in this period/).waitFor();
  await close();
});

test("the view of a shape says that its applications are counted since the start", async () => {
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=1");
  const { page, errors, close } = await open(browser);
  await page.goto(`${ADMIN}/?view=shape&since=5m&id=${shapes[0].id}`);
  const section = page.getByRole("region", { name: "Applications since the start" });
  await section.getByRole("table", { name: "Applications" }).waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("the table of clients has as many rows as the page says", async () => {
  const { page, errors, close } = await open(browser);
  const client = { application: "shop", connected_at: 1, id: 1, peer: "10.0.0.1:1", user: null };
  const json = { clients: Array.from({ length: 1_000 }, () => client), count: 1_500 };
  await page.route("**/api/v1/clients?**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?view=clients`);
  await page.getByText("1,500 clients, the first 1,000 listed").waitFor();
  const groups = page.getByRole("region", { name: "By application", exact: true });
  await groups.getByText("Counts only the listed clients.").waitFor();
  const table = page.getByRole("table", { name: "Clients", exact: true });
  assert.equal(await table.locator("tbody tr").count(), 1_000);
  assert.deepEqual(errors, []);
  await close();
});

test("a comparison says if neither period has figures of the shape", async () => {
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=1");
  const { page, errors, close } = await open(browser);
  const figures = { shapes: [] };
  const span = { count: 100, figures, from: 1_000, seconds: 600, to: 1_600 };
  const json = { against: "1h", baseline: span, changes: [], comparable: true, now: span };
  await page.route("**/api/v1/changes?**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?view=shape&against=1h&id=${shapes[0].id}`);
  await page.getByText("The test says: neither period has figures of this shape.").waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("the text of a change names a ratio unless the shape is new or gone", () => {
  const change = (/** @type {string} */ kind, before = 10, now = 10) => ({
    kind,
    before: { per_second: before },
    now: { per_second: now },
    ratio: 2.5,
    effect: 0.5,
  });
  assert.equal(changeText(change("new", 0)), "new");
  assert.equal(changeText(change("gone", 10, 0)), "gone");
  assert.equal(
    changeText(change("more_frequent")),
    "more frequent (factor 2.50); in 50 % of all pairs the later operation took longer",
  );
});

test("the view of a stall without counters shows the reason", async () => {
  const { page, errors, close } = await open(browser);
  const stall = (/** @type {string | null} */ server) => ({
    moved: [],
    operations: 5,
    phase: "server",
    seconds: 3,
    server,
    shapes: [],
    started_at: Math.floor(Date.now() / 1000) - 100,
    unanswered_pulses: 0,
    usual_p99_ms: 1,
    waited_ms: 2_000,
    worst_ms: 900,
  });
  let pulse = /** @type {object} */ ({ state: "off: pulse.enabled is false" });
  const episodes = [stall("a:1"), stall("b:1"), stall(null)];
  await page.route("**/api/v1/stalls?**", (route) =>
    route.fulfill({ json: { episodes, recurring: [], pulse } }),
  );
  await page.goto(`${ADMIN}/?view=stalls`);
  const article = page.getByRole("article");
  await article.getByText("Samples of the servers: off: pulse.enabled is false.").first().waitFor();
  pulse = { state: "on", refusals: { "a:1": "Unauthorized (13)" } };
  await article.getByText("The server refuses the samples: Unauthorized (13).").waitFor();
  await article.getByText("No counter changed more than usual.").waitFor();
  await article.getByText("Counters are compared only for stalls of a single server.").waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("the configuration shows the value in effect if another value is configured", async () => {
  const { page, errors, close } = await open(browser);
  const key = "listen.max_client_connections";
  const value = { key, value: "18000", origin: "default", pending: null, in_effect: "900" };
  const json = { hash: "0", values: [value] };
  await page.route("**/api/v1/config**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?view=config`);
  await page.getByText("18000 (in effect: 900)", { exact: true }).waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("the overview reports a change of all shapes, and links to the changes", async () => {
  const { page, errors, close } = await open(browser);
  const rates = (/** @type {number} */ p50_ms) => ({
    bytes_per_operation: 1,
    count: 100,
    documents_per_operation: 1,
    p50_ms,
    p99_ms: 2 * p50_ms,
    per_second: 1,
    total_time_ms_per_second: p50_ms,
  });
  const change = {
    before: rates(5),
    cost_ms_per_second: 4,
    effect: 0.9,
    kind: "slower",
    now: rates(9),
    ratio: 1.8,
    shape: { text: "all operations" },
  };
  const span = { count: 100, from: 1_000, seconds: 300, to: 1_300 };
  const json = { against: "1h", baseline: span, changes: [change], comparable: true, now: span };
  await page.route("**/api/v1/changes?**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/`);
  const finding = page.getByRole("link", { name: "an hour ago: 5 ms → 9 ms. All shapes" });
  await finding.waitFor();
  assert.match((await finding.getAttribute("href")) ?? "", /view=changes/);
  await page.getByRole("cell", { name: "all shapes" }).waitFor();
  assert.equal(await page.getByText("undefined").count(), 0);
  assert.deepEqual(errors, []);
  await close();
});

test("the drain of another instance does not disable the actions of this instance", async () => {
  const { page, close } = await open(browser);
  const [status, tick] = await Promise.all([api(ADMIN, "status"), api(ADMIN, "tick")]);
  const peer = "http://127.0.0.1:1";
  const session = { peers: [peer], role: "act", token_required: false };
  const merged = { draining: true, instances: [{ address: "this instance" }, { address: peer }] };
  const body = `event: tick\ndata: ${JSON.stringify({ ...tick, ...merged })}\n\n`;
  await page.route("**/api/v1/session", (route) => route.fulfill({ json: session }));
  await page.route("**/api/v1/status**", (route) =>
    route.fulfill({ json: { ...status, ...merged } }),
  );
  await page.route("**/api/v1/live**", (route) =>
    route.fulfill({ contentType: "text/event-stream", body }),
  );
  await page.goto(`${ADMIN}/?view=config&instances=all`);
  const banner = page.locator("#banner");
  await banner.getByText("At least one instance is draining.", { exact: true }).waitFor();
  await page.getByText("Running for at most", { exact: true }).waitFor();
  for (const name of ["Reload the configuration …", "Drain …"]) {
    const button = page.getByRole("button", { name, exact: true });
    assert.equal(await button.isEnabled(), true, name);
  }
  await page.getByRole("link", { name: "Overview", exact: true }).click();
  await page.getByText("At least one instance is draining: it ends").waitFor();
  await close();
});

test("the charts of the overview lose their lines when there is no history any more", async () => {
  const { page, close } = await open(browser);
  let isOn = true;
  const reply = (/** @type {import("playwright-core").Route} */ route) =>
    isOn ? route.continue() : route.fulfill({ status: 404, body: "the history is off" });
  await page.route("**/api/v1/timeline?**", reply);
  await page.route("**/api/v1/gauges?**", reply);
  await page.goto(`${ADMIN}/`);
  const rate = page.getByRole("region", { name: "Operations per second", exact: true });
  const logins = page.getByRole("region", { name: /^Logins per second/ });
  await rate.locator(".line").first().waitFor({ state: "attached" });
  await logins.locator(".line").first().waitFor({ state: "attached" });
  isOn = false;
  for (const panel of [rate, logins]) {
    await panel.getByText("There is no history of this figure.").waitFor();
    assert.equal(await panel.locator(".line").count(), 0);
  }
  assert.equal(await logins.locator(".value").textContent(), "–");
  await close();
});

test("a single request without a reply is repeated until there is a reply", async () => {
  const { page, close } = await open(browser);
  let isDown = true;
  const reply = (/** @type {import("playwright-core").Route} */ route) =>
    isDown ? route.abort() : route.continue();
  // The view of the heat map requests the topology once, for the choice of a server. The figures of
  // a fixed period are requested once, too.
  await page.route("**/api/v1/topology**", reply);
  await page.route("**/api/v1/heatmap?**", reply);
  const now = Math.floor(Date.now() / 1000);
  await page.goto(`${ADMIN}/?view=heatmap&from=${now - 3600}&until=${now}`);
  const problem = page.getByText("Figures are missing: Seawall does not reply.");
  await problem.waitFor();
  isDown = false;
  await page.locator(".heatmap[data-total]").waitFor();
  await page.locator('optgroup[label="Server"] option').first().waitFor({ state: "attached" });
  await problem.waitFor({ state: "detached" });
  await close();
});

test("the step of a long period is so long that the API accepts the request", async () => {
  const day = 86_400;
  assert.equal(stepFor(7 * day, 7 * day, 720), 600);
  assert.equal(stepFor(100 * day, 100 * day, 720), day);
  const step = stepFor(10 * day, 10 * day, 720);
  assert.equal(step, 3_600);
  const now = Math.floor(Date.now() / 1000);
  const period = `from=${now - 10 * day}&until=${now}`;
  const { steps } = await api(ADMIN, `timeline?${period}&step=${stepText(step)}`);
  assert.notEqual(steps.length, 0);
});

test("the figures of a fixed period that has not ended are requested again", async () => {
  const { page, errors, close } = await open(browser);
  const now = Math.floor(Date.now() / 1000);
  const requested = page.waitForResponse("**/api/v1/heatmap?**");
  await page.goto(`${ADMIN}/?view=heatmap&from=${now - 600}&until=${now + 3600}`);
  await requested;
  await page.waitForResponse("**/api/v1/heatmap?**");
  assert.deepEqual(errors, []);
  await close();
});

test("the heat map offers a server once, even if several instances list it", async () => {
  const { page, errors, close } = await open(browser);
  const topology = await api(ADMIN, "topology");
  const [server] = topology.servers;
  const listed = ["this instance", "http://127.0.0.1:1"].map((instance) => ({
    ...server,
    instance,
  }));
  const json = { ...topology, servers: listed };
  await page.route("**/api/v1/topology**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?view=heatmap`);
  const options = page.locator('optgroup[label="Server"] option');
  await options.first().waitFor({ state: "attached" });
  assert.deepEqual(await options.allTextContents(), [server.address]);
  assert.deepEqual(errors, []);
  await close();
});
