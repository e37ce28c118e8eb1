// Causes the three cases of docs/dashboard-cases.md on a real mongod, and takes the pictures of
// each step. A case takes two to five minutes:
//   node tests/dashboard/cases.mjs target/release/seawall docs/images [slower|spike|timeouts]
//
// In `slower`, an index is dropped under load. In `spike`, the server is locked for three seconds
// every 20 seconds, after a checkpoint. In `timeouts`, a few long reports hold all connections of a
// small pool while the server sleeps.

import { join } from "node:path";
import { Binary } from "mongodb";
import {
  api,
  connect,
  endAll,
  every,
  openPage,
  pause,
  startMongod,
  startSeawall,
} from "./stage.mjs";

/** @typedef {import("playwright-core").Page} Page */
/** @typedef {import("playwright-core").Locator} Locator */

const [binary, folder, only] = process.argv.slice(2);
if (!folder) throw new Error("usage: cases.mjs SEAWALL FOLDER [CASE]");

/** The time that `slower` runs before and after the index is dropped, in seconds. */
const PERIOD_SECONDS = 110;

/** The time from one lock of `spike` to the next, and the maximum number of locks. */
const SPIKE_SECONDS = 20;
const MAX_SPIKES = 12;

const any = (/** @type {number} */ count) => Math.floor(Math.random() * count);

/**
 * Takes a picture in which some elements have a frame. Each frame is a separate element, because
 * the page may replace a marked element at any time.
 * @param {Page} page
 * @param {string} name
 * @param {Locator[]} marked
 */
async function picture(page, name, marked = []) {
  await page.waitForLoadState("networkidle", { timeout: 3_000 }).catch(() => {});
  await marked.at(-1)?.first().scrollIntoViewIfNeeded();
  for (const one of marked) {
    const box = await one.first().boundingBox();
    await page.evaluate((at) => {
      if (!at) return;
      const frame = document.createElement("div");
      frame.className = "frame-of-picture";
      frame.style.cssText = `position:fixed;left:${at.x - 5}px;top:${at.y - 5}px;width:${at.width + 10}px;height:${at.height + 10}px;border:3px solid #d6336c;border-radius:4px;pointer-events:none`;
      document.body.append(frame);
    }, box);
  }
  await page.screenshot({ path: join(folder, `${name}.png`) });
  await page.evaluate(() =>
    document.querySelectorAll(".frame-of-picture").forEach((frame) => frame.remove()),
  );
}

/**
 * The part of the page with a title.
 * @param {Page} page
 * @param {string} name
 */
const region = (page, name) => page.getByRole("region", { name, exact: true });

/** @param {import("mongodb").MongoClient} client */
async function fillOrders(client, count = 9_000) {
  const orders = client.db("shop").collection("orders");
  for (let first = 0; first < count; first += 1_000) {
    const documents = Array.from({ length: 1_000 }, (_, i) => ({
      order: first + i,
      customer: (first + i) % 1_500,
      status: i % 3 ? "paid" : "open",
      lines: [{ article: i % 70, amount: 1 + (i % 4) }],
    }));
    await orders.insertMany(documents);
  }
  await orders.createIndex({ order: 1 });
  await orders.createIndex({ customer: 1 });
  return orders;
}

/** The usual operations of a shop. */
async function shop(/** @type {string} */ uri) {
  const client = await connect(uri, { appName: "shop" });
  const orders = client.db("shop").collection("orders");
  every(60, () => orders.find({ customer: any(1_500) }).toArray());
  every(40, () => orders.findOne({ order: any(9_000) }));
  every(10, () => orders.updateOne({ order: any(9_000) }, { $set: { status: "paid" } }));
  const reports = await connect(uri, { appName: "reports" });
  const sums = [{ $match: { status: "open" } }, { $group: { _id: "$customer", n: { $sum: 1 } } }];
  const all = reports.db("shop").collection("orders");
  every(0.2, () => all.aggregate(sums).toArray());
}

/** The case "slower": a query that took 1 ms takes 5 ms. */
async function slower() {
  const { uri } = await startMongod();
  const direct = await connect(uri);
  const orders = await fillOrders(direct);
  const seawall = await startSeawall(binary, uri);
  await shop(seawall.uri);
  await pause(PERIOD_SECONDS);
  await orders.dropIndex("customer_1");
  await pause(PERIOD_SECONDS);
  const page = await openPage();
  await page.goto(`${seawall.admin}/?since=5m`);
  const finding = page.locator(".finding a", { hasText: "customer" });
  await finding.waitFor();
  await picture(page, "case-slower-1", [finding]);
  await finding.click();
  await page.locator("[data-verdict=slower]").waitFor();
  await page.getByTitle("Show in the heat map").click();
  await page.locator(".heatmap[data-total]").waitFor();
  await picture(page, "case-slower-2");
  await page.goBack();
  await page.locator("[data-verdict=slower]").waitFor();
  const figures = page.getByRole("table", { name: "Two periods" });
  await picture(page, "case-slower-3", [page.locator("[data-verdict=slower]"), figures]);
}

/** The case "spike": a latency spike once a minute, here every 20 seconds. */
async function spike() {
  const { uri } = await startMongod();
  const direct = await connect(uri);
  await fillOrders(direct);
  const seawall = await startSeawall(binary, uri);
  await shop(seawall.uri);
  const app = await connect(seawall.uri, { appName: "shop" });
  const body = new Binary(crypto.getRandomValues(new Uint8Array(4_000)));
  const events = app.db("shop").collection("events");
  every(60, () => events.insertOne({ body, at: new Date() }));
  await pause(30);
  for (let number = 0; number < MAX_SPIKES; number += 1) {
    await direct.db("admin").command({ fsync: 1, lock: true });
    await pause(3);
    await direct.db("admin").command({ fsyncUnlock: 1 });
    await pause(SPIKE_SECONDS - 3);
    // On a busy machine, other stalls hide the period of these stalls for some time.
    const { recurring } = await api(seawall.admin, "stalls?since=5m");
    if (number > 3 && recurring.length > 0) break;
  }
  const page = await openPage();
  await page.goto(`${seawall.admin}/?since=5m`);
  const finding = page.locator(".finding a", { hasText: "Every" });
  await finding.waitFor();
  await picture(page, "case-spike-1", [finding]);
  await finding.click();
  const recurring = page.getByRole("table", { name: "Recurring stalls" });
  await recurring.waitFor();
  await picture(page, "case-spike-2", [recurring, page.getByRole("table", { name: "Counters" })]);
  await page.goto(`${seawall.admin}/?view=heatmap&since=5m&step=1s`);
  await page.locator(".heatmap[data-total]").waitFor();
  await picture(page, "case-spike-3");
}

/** The case "timeouts": operations time out, although no server is busy. */
async function timeouts() {
  const { uri } = await startMongod();
  const direct = await connect(uri);
  await fillOrders(direct);
  const seawall = await startSeawall(binary, uri, { SEAWALL_POOL__MAX_POOL_SIZE: "4" });
  const patience = { socketTimeoutMS: 600, maxPoolSize: 60, retryReads: false };
  const app = await connect(seawall.uri, { appName: "shop", ...patience });
  const orders = app.db("shop").collection("orders");
  every(40, () => orders.findOne({ customer: any(1_500) }));
  await pause(25);
  // The server sleeps in these operations, so the server needs no CPU time. The operations need 4.3
  // connections on average, but the pool has 4. So other operations wait longer and longer, until
  // they time out.
  const reports = await connect(seawall.uri, { appName: "reports" });
  const slow = () =>
    reports.db("shop").collection("orders").findOne({ order: 1, $where: "sleep(700) || true" });
  every(6.2, slow);
  await pause(45);
  const page = await openPage();
  await page.goto(`${seawall.admin}/?since=5m`);
  const waiting = page.locator(".finding a", { hasText: "wait for a connection or a slot" });
  await waiting.waitFor();
  await picture(page, "case-timeouts-1", [waiting, region(page, "Waiting operations")]);
  await waiting.click();
  const holders = page.getByRole("table", { name: "Shapes that hold connections" });
  await holders.waitFor();
  await picture(page, "case-timeouts-2", [page.getByRole("article"), holders]);
  await page.goto(`${seawall.admin}/?view=heatmap&since=5m&step=1s&phase=checkout&scale=linear`);
  await page.locator(".heatmap[data-total]").waitFor();
  await picture(page, "case-timeouts-3", [page.getByLabel("Phase"), page.getByLabel("Scale")]);
  const { shapes } = await api(seawall.admin, "shapes?since=5m&limit=10");
  const find = shapes.find((/** @type {any} */ of) => of.shape.includes("customer"));
  await page.goto(`${seawall.admin}/?view=shape&id=${find.id}&since=5m`);
  await region(page, "Phases").waitFor();
  await picture(page, "case-timeouts-4", [region(page, "Phases")]);
}

const cases = /** @type {Record<string, () => Promise<void>>} */ ({ slower, spike, timeouts });
try {
  for (const [name, run] of Object.entries(cases)) {
    if (only && only !== name) continue;
    console.log(`${name} …`);
    await run();
    await endAll();
  }
} finally {
  await endAll();
}
