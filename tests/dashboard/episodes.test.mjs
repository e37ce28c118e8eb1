// A real storm, real stalls and a real change, each compared with the reply of the API.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { duration, integer, moment, number, span, words } from "../../proxy/dashboard/format.js";
import { api, launch, open, screenshot, seriousFindings, variable } from "./browser.mjs";
import {
  connect,
  endAll,
  eventually,
  every,
  pause,
  startMongod,
  startSeawall,
  startStorm,
} from "./stage.mjs";

const BINARY = variable("SEAWALL_BINARY");

/** Time from one stop of the server to the next, and the length of a stop, in seconds. */
const STOP_EVERY_SECONDS = 12;
const STOP_SECONDS = 4;

/** On a busy machine, other stalls hide the period of the stops for some time. */
const MAX_STOPS = 15;

/**
 * The usual time of an operation. Only operations that take more than five times as long are part
 * of a stall, so the delays of a busy machine are not reported as stalls. Compared with this time,
 * the delays are short, so the detector learns that the usual times vary little.
 */
const USUAL_MS = 500;

/** Seconds with operations from which the stall detector learns the usual times. */
const LEARNING_SECONDS = 21;

/** The length of each of two compared periods, in seconds. */
const COMPARED_SECONDS = 15;

/** @typedef {import("playwright-core").Locator} Locator */

/** @type {import("playwright-core").Browser} */
let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser.close();
  await endAll();
});

/**
 * The terms and values of an element's first list of figures.
 * @param {Locator} of
 */
async function figures(of) {
  const rows = await of.locator("dl.figures").first().locator("div").all();
  const pairs = rows.map(async (row) => [
    await row.locator("dt").textContent(),
    await row.locator("dd").textContent(),
  ]);
  return Object.fromEntries(await Promise.all(pairs));
}

/**
 * The cells of a table's rows.
 * @param {Locator} of
 * @param {string} name
 */
async function rows(of, name) {
  const found = of.getByRole("region", { name, exact: true }).locator("tbody tr");
  return found.evaluateAll((all) =>
    all.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent)),
  );
}

/**
 * The names and counts of a ranking.
 * @param {Locator} of
 * @param {string} name
 */
async function ranking(of, name) {
  const items = of.getByRole("region", { name, exact: true }).locator("li");
  return items.evaluateAll((all) =>
    all.map((item) => [...item.querySelectorAll("span")].map((part) => part.textContent)),
  );
}

/** @param {any} of the name of a shape in a reply */
const shapeText = (of) => `${of.command} ${of.db}.${of.collection}${of.text}`;

/**
 * Opens an address and calls `look` with the page. Fails if the console then has an error.
 * @param {string} address
 * @param {(page: import("playwright-core").Page) => Promise<void>} look
 */
async function view(address, look) {
  const { page, errors, close } = await open(browser);
  await page.goto(address);
  await look(page);
  assert.deepEqual(errors, []);
  await close();
}

/**
 * The number of past seconds with operations.
 * @param {string} admin
 */
async function busySeconds(admin) {
  const { steps } = await api(admin, "timeline?since=10m&step=1s");
  return steps.filter((/** @type {any} */ of) => of.count > 0).length;
}

/**
 * Waits until the history has this many seconds with operations.
 * @param {string} admin
 * @param {number} seconds
 */
const wait = (admin, seconds) =>
  eventually(async () => assert.ok((await busySeconds(admin)) >= seconds), seconds + 30);

describe("episodes", { concurrency: true }, () => {
  test("the page shows stalls of a stopped server with their times, interval and shapes", async () => {
    const mongod = await startMongod();
    const { uri, admin } = await startSeawall(BINARY, mongod.uri);
    const client = await connect(uri, { appName: "shop" });
    const things = client.db("shop").collection("things");
    await things.insertOne({ thing: 1 });
    const $where = `sleep(${USUAL_MS}) || true`;
    every(10, () => things.findOne({ thing: 1, $where }));
    await wait(admin, LEARNING_SECONDS);

    const recurring = async () => {
      const { recurring } = await api(admin, "stalls?since=1h");
      return recurring.find(
        (/** @type {any} */ of) =>
          of.current && Math.abs(of.period_seconds - STOP_EVERY_SECONDS) < 1,
      );
    };
    const first = Date.now();
    for (let stops = 0; stops < MAX_STOPS && !(await recurring()); stops += 1) {
      // The server stops at fixed times, which do not depend on the duration of API requests.
      const until = (/** @type {number} */ seconds) =>
        pause(seconds + stops * STOP_EVERY_SECONDS - (Date.now() - first) / 1000);
      await until(0);
      process.kill(Number(mongod.pid), "SIGSTOP");
      await until(STOP_SECONDS);
      process.kill(Number(mongod.pid), "SIGCONT");
      // Seawall reports an episode some seconds after its end.
      await until(STOP_EVERY_SECONDS - 0.5);
    }
    const found = await recurring();
    const { episodes } = await api(admin, "stalls?since=1h");
    const times = episodes.map((/** @type {any} */ of) => [of.server, of.started_at, of.seconds]);
    assert.ok(found, `the stops were not found: ${JSON.stringify(times)}`);
    assert.ok(found.times >= 3 && found.server === new URL(mongod.uri).host, found);
    const exported = async () => {
      const metrics = await (await fetch(`${admin}/metrics`)).text();
      assert.match(metrics, /^seawall_recurring_stalls 1$/m);
    };
    const gauge = eventually(exported, 12);

    await view(`${admin}/?view=stalls&since=1h`, async (page) => {
      const main = page.locator("main");
      await main.getByRole("table", { name: "Recurring stalls" }).waitFor();
      // The page and this test request the figures at different times.
      await eventually(async () => {
        const stalls = await api(admin, "stalls?since=1h");
        assert.deepEqual(
          await rows(main, "Recurring stalls"),
          stalls.recurring.map((/** @type {any} */ of) => [
            of.server ?? "all servers",
            span(of.period_seconds),
            span(of.length_seconds),
            integer(of.times),
            of.phase,
            of.unanswered ? "the server does not reply to the pulse" : words(of.counter ?? "–"),
            `${of.current ? "yes" : "no"}, last ${moment(of.last_at)}`,
          ]),
        );
        const articles = await main.getByRole("article").all();
        assert.equal(articles.length, stalls.episodes.length);
        for (const [i, of] of stalls.episodes.entries()) {
          const heading = await articles[i]?.getByRole("heading").first().textContent();
          const time = `${moment(of.started_at)}, for ${span(of.seconds)}`;
          assert.equal(heading, `${of.server ?? "All servers"}${time}`);
          const { "Heat map": _, ...shown } = await figures(/** @type {Locator} */ (articles[i]));
          assert.deepEqual(shown, {
            "Operations that waited": integer(of.operations),
            Worst: duration(of.worst_ms),
            "Usual p99": duration(of.usual_p99_ms),
            "Waited in total": duration(of.waited_ms),
            "Longest phase": of.phase,
            "Pulses without reply": integer(of.unanswered_pulses),
          });
          assert.deepEqual(
            await rows(/** @type {Locator} */ (articles[i]), "Shapes that waited"),
            of.shapes.map((/** @type {any} */ one) => [shapeText(one), integer(one.operations)]),
          );
          const moved = await articles[i]?.getByRole("region", { name: /^What moved/ }).innerText();
          if (of.moved.length === 0 && of.unanswered_pulses > 0)
            assert.match(moved ?? "", /did not reply to the pulse/);
        }
        const ofServer = stalls.episodes.filter((/** @type {any} */ of) => of.server);
        const stops = ofServer.filter(
          (/** @type {any} */ of) => of.worst_ms > (STOP_SECONDS - 0.5) * 1000,
        );
        assert.ok(stops.length >= 3);
        for (const of of stops) {
          assert.equal(of.shapes[0].text, "{filter:{$where:?,thing:?},limit:1}");
          assert.ok(of.seconds >= 1 && of.seconds < STOP_EVERY_SECONDS, String(of.seconds));
        }
      });
      assert.deepEqual(await seriousFindings(page), []);
      await screenshot(page, "stalls", true);
      await page.getByRole("link", { name: "Overview" }).click();
      await page.locator(".finding", { hasText: "Every" }).waitFor();
      await eventually(async () => {
        const of = await recurring();
        const text = `Every ${span(of.period_seconds)}, operations on ${of.server} stall for ${span(of.length_seconds)}`;
        const shown = await page.locator(".finding", { hasText: "Every" }).allInnerTexts();
        assert.ok(shown[0]?.includes(text), `${text}: ${shown}`);
      });
      await page.getByRole("table", { name: "Events" }).getByText("stall").first().waitFor();
      await screenshot(page, "overview-stalls", true);
      // A recurring stall is a present problem, even if the last stall was before the period.
      await page.goto(`${admin}/?since=1s`);
      await page.locator(".finding", { hasText: "Every" }).waitFor();
    });
    await gauge;
  });

  test("the page shows a dropped index as a slower shape, and reconnecting clients as a storm", async () => {
    const mongod = await startMongod();
    const { uri, admin } = await startSeawall(BINARY, mongod.uri);
    const direct = await connect(mongod.uri);
    const orders = direct.db("shop").collection("orders");
    const documents = Array.from({ length: 10_000 }, (_, order) => ({
      order,
      customer: order % 1_000,
      status: order % 3 ? "paid" : "open",
    }));
    await orders.insertMany(documents);
    await orders.createIndexes([{ key: { customer: 1 } }, { key: { order: 1 } }]);
    const client = await connect(uri, { appName: "shop" });
    const shop = client.db("shop").collection("orders");
    const ends = [
      every(15, (n) => shop.find({ customer: n % 1_000 }).toArray()),
      every(15, (n) => shop.findOne({ order: n % 10_000 })),
      every(10, (n) => shop.updateOne({ order: n % 10_000 }, { $set: { status: "paid" } })),
      every(10, (n) => shop.countDocuments({ order: { $lt: n % 50 } })),
      every(10, (n) => shop.distinct("status", { order: { $lt: n % 50 } })),
    ];
    await wait(admin, COMPARED_SECONDS + 1);
    await orders.dropIndex("customer_1");
    const dropped = Math.floor(Date.now() / 1000);
    await wait(admin, 2 * COMPARED_SECONDS + 2);
    await changed(admin, dropped);
    ends.forEach((end) => end());
    await storm(uri, admin);
  });
});

/**
 * Compares the views of a change with the API.
 * @param {string} admin
 * @param {number} dropped the moment of the change in seconds since the epoch
 */
async function changed(admin, dropped) {
  await view(`${admin}/?view=changes&against=${dropped}`, async (page) => {
    const main = page.locator("main");
    await main.getByRole("table", { name: "Changes" }).waitFor();
    // The page and this test request the figures at different times.
    const change = await eventually(async () => {
      const reply = page.waitForResponse(/api\/v1\/changes/);
      await page.reload();
      const { changes, comparable } = await (await reply).json();
      assert.ok(comparable);
      await main.getByRole("table", { name: "Changes" }).waitFor();
      const shown = await rows(main, "Changes");
      assert.deepEqual(
        shown.map(([kind, shape, p50, p99, rate, , cost]) => [kind, shape, p50, p99, rate, cost]),
        changes.map((/** @type {any} */ of) => [
          words(of.kind),
          of.shape ? shapeText(of.shape) : "all shapes together",
          `${duration(of.before.p50_ms)} → ${duration(of.now.p50_ms)}`,
          `${duration(of.before.p99_ms)} → ${duration(of.now.p99_ms)}`,
          `${number(of.before.per_second)} → ${number(of.now.per_second)}`,
          `${of.cost_ms_per_second >= 0 ? "+" : "−"}${number(Math.abs(of.cost_ms_per_second))} ms/s`,
        ]),
      );
      const slower = changes.filter((/** @type {any} */ of) => of.kind === "slower");
      return slower.find((/** @type {any} */ of) => of.shape?.text === "{filter:{customer:?}}");
    });
    assert.ok(change, "the slower shape was not found");
    assert.ok(change.now.p50_ms > 1.5 * change.before.p50_ms);
    assert.deepEqual(await seriousFindings(page), []);
    await screenshot(page, "changes", true);
    // The baseline is a moment, which the choice shows as date and time.
    const baseline = main.getByRole("combobox").locator("option:checked");
    assert.match((await baseline.textContent()) ?? "", /^\d+ \w+ \d{4}, [\d:]{8}$/);
    await main.getByRole("link", { name: "{filter:{customer:?}}" }).click();
    await page.locator("[data-verdict=slower]").waitFor();
    const verdict = await page.locator("[data-verdict]").innerText();
    assert.match(verdict, /slower \(factor [\d.]+\)/);
    await page.locator(".bars.before").waitFor({ state: "attached" });
    await screenshot(page, "shape-compared", true);
  });
}

/**
 * Causes a storm, and compares its views with the API.
 * @param {string} uri
 * @param {string} admin
 */
async function storm(uri, admin) {
  const end = startStorm(BINARY, uri);
  const isActive = async () => assert.ok((await api(admin, "storms")).active);
  await eventually(isActive);
  await view(`${admin}/`, async (page) => {
    await page.getByText(/A reconnect storm since [\d:]+: [\d,]+ clients? connected/).waitFor();
    await page.getByRole("link", { name: "Storms" }).click();
    await page.getByRole("heading", { name: "Storm, not over yet" }).waitFor();
    await screenshot(page, "storm-active", true);
    await end();
    // The page shows the end of the storm without a reload.
    await page.getByRole("heading", { name: /^Storm\s*\d/ }).waitFor();
    const { active, storms } = await api(admin, "storms");
    assert.deepEqual([active, storms.length], [false, 1]);
    const [of] = storms;
    const article = page.getByRole("article");
    const heading = await article.getByRole("heading").first().textContent();
    const length = span(of.ended_at - of.started_at);
    assert.equal(heading, `Storm${moment(of.started_at)}, for ${length}`);
    assert.deepEqual(await figures(article), {
      "Clients connected": integer(of.arrivals),
      "Peak per second": integer(of.peak_arrivals_per_second),
      "Usual short-lived per second": number(of.usual_short_lived_per_second),
      "Logins here": integer(of.client_authentications),
      "Logins at servers": integer(of.server_authentications),
      "Logins absorbed": integer(of.server_authentications_absorbed),
      "Connections absorbed": integer(of.server_connections_absorbed),
    });
    for (const [name, names, first] of /** @type {[string, any[], RegExp][]} */ ([
      ["Applications", of.applications, /^seawall load$/],
      ["Networks", of.networks, /^127\.0\.0\.0\/24$/],
      ["Users", of.users, /^admin\.shop$/],
      ["Drivers", of.drivers, /^seawall-load /],
    ])) {
      const expected = names.map(({ name, count }) => [name, integer(count)]);
      assert.deepEqual(await ranking(article, name), expected, name);
      assert.match(names[0].name, first);
    }
    const departures = Object.entries(of.departures).filter(([, count]) => Number(count) > 0);
    const shown = await ranking(article, "How they left");
    assert.deepEqual(
      new Map(shown.map(([name, count]) => [name, count])),
      new Map(
        departures
          .sort(([, one], [, other]) => Number(other) - Number(one))
          .map(([name, count]) => [words(name), integer(Number(count))]),
      ),
    );
    assert.deepEqual(await seriousFindings(page), []);
    await screenshot(page, "storms", true);
    await page.getByRole("link", { name: "Overview" }).click();
    const events = page.getByRole("table", { name: "Events" });
    const event = `${integer(of.arrivals)} clients, ${integer(of.server_authentications_absorbed)} logins absorbed`;
    await events.getByText(event).waitFor();
  });
}
