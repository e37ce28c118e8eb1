// Opens each view in a real browser, and compares the view with the replies of the API.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { api, launch, open, screenshot, seriousFindings, variable } from "./browser.mjs";
import { currentStorms, manyShapes } from "./fabricated.mjs";

/** The address of the Seawall whose operations have ended, so that its numbers do not change. */
const ADMIN = variable("SEAWALL_ADMIN");
/** The address of a Seawall with tokens and without a history. */
const GUARDED = variable("SEAWALL_GUARDED");
/** The address of a Seawall that shows its own figures and those of `ADMIN`. */
const MERGED = variable("SEAWALL_MERGED");
const ACT_TOKEN = variable("SEAWALL_ACT_TOKEN");
const READ_TOKEN = variable("SEAWALL_READ_TOKEN");

/** @type {import("playwright-core").Browser} */
let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser.close();
});

const integer = (/** @type {number} */ value) => value.toLocaleString("en-US");

/**
 * Opens a view and calls `look` with the page. Fails if the console then has an error.
 * @param {string} path
 * @param {(page: import("playwright-core").Page) => Promise<void>} look
 * @param {import("playwright-core").BrowserContextOptions} [options]
 */
async function view(path, look, options) {
  const { page, errors, close } = await open(browser, options);
  await page.goto(ADMIN + path);
  await look(page);
  assert.deepEqual(errors, []);
  await close();
}

test("the overview shows live figures and the heaviest shapes", async () => {
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=8");
  await view("/", async (page) => {
    await page.getByText("live", { exact: true }).waitFor();
    const panel = page.getByRole("region", { name: "Operations per second" });
    await panel.locator(".line.one").waitFor({ state: "attached" });
    const drawn = await panel.locator("svg[role=img]").getAttribute("aria-label");
    assert.match(drawn ?? "", /operations between/);
    const section = page.getByRole("region", { name: "Heaviest shapes", exact: true });
    await section.first().getByRole("row").nth(1).waitFor();
    const first = await section.first().getByRole("row").nth(1).innerText();
    assert.ok(first.includes(shapes[0].shape.slice(0, 20)), first);
    const logins = page.getByRole("region", { name: /Logins/ });
    await logins.locator(".line").first().waitFor({ state: "attached" });
  });
});

test("a chart shows the figures at their times if the clock of the browser is wrong", async () => {
  for (const error of [-7_200_000, 7_200_000]) {
    const { page, errors, close } = await open(browser);
    await page.addInitScript((by) => {
      const now = Date.now.bind(Date);
      Date.now = () => now() + by;
    }, error);
    await page.goto(`${ADMIN}/`);
    const panel = page.getByRole("region", { name: "Operations per second" });
    await panel.locator(".line.one").waitFor({ state: "attached" });
    const path = (await panel.locator(".line.one").getAttribute("d")) ?? "";
    const places = [...path.matchAll(/[ML](-?[\d.]+) /g)].map(([, x]) => Number(x));
    assert.ok(places.length > 0, path);
    // The chart is 1000 units wide. The last step, which has not ended, may be half outside.
    assert.ok(Math.min(...places) >= -20 && Math.max(...places) <= 1_020, path);
    assert.deepEqual(errors, []);
    await close();
  }
});

test("the sums of the heat map equal the counts of the timeline", async () => {
  const { steps } = await api(ADMIN, "timeline?since=1h&step=1m");
  const expected = steps.reduce(
    (/** @type {number} */ sum, /** @type {any} */ step) => sum + step.count,
    0,
  );
  await view("/?view=heatmap", async (page) => {
    await page.locator(`.heatmap[data-total="${expected}"]`).waitFor();
    const canvas = page.getByRole("application");
    assert.equal(
      await canvas.getAttribute("aria-label"),
      `Latency heat map of ${integer(expected)} operations`,
    );
    // The whole heat map is selected, so all operations are in the area.
    const box = /** @type {{x: number, y: number, width: number, height: number}} */ (
      await canvas.boundingBox()
    );
    await page.mouse.move(box.x + 2, box.y + box.height - 2);
    await page.mouse.down();
    // The mouse leaves the heat map, so the area ends at the edges.
    await page.mouse.move(box.x + box.width + 20, box.y - 20, { steps: 4 });
    await page.mouse.up();
    await page.locator(`#area [data-count="${expected}"]`).waitFor();
    const listed = await page.locator("#area tbody .n").allInnerTexts();
    const counts = listed
      .filter((_, i) => i % 2 === 0)
      .map((text) => Number(text.replaceAll(",", "")));
    assert.equal(
      counts.reduce((sum, count) => sum + count, 0),
      expected,
    );
    assert.match(page.url(), /area=/);
    // The address contains the whole view.
    await page.reload();
    await page.locator(`#area [data-count="${expected}"]`).waitFor();
    await page.getByLabel("Scale").selectOption("linear");
    await page.locator(`.heatmap[data-total="${expected}"]`).waitFor();
    assert.match(page.url(), /scale=linear/);
  });
});

test("an area of the heat map can be selected with the keyboard", async () => {
  await view("/?view=heatmap", async (page) => {
    await page.locator(".heatmap[data-total]").waitFor();
    await page.getByRole("application").focus();
    for (const key of ["ArrowLeft", "Shift+ArrowRight", "Shift+ArrowUp", "Enter"])
      await page.keyboard.press(key);
    await page.getByText("Shapes in the area").first().waitFor();
    await page.keyboard.press("Escape");
    await page.getByText("Shapes in the area").waitFor({ state: "detached" });
  });
});

test("an area between two buckets of the heat map has no operations, and is no error", async () => {
  const { page, errors, close } = await open(browser);
  await page.route("**/api/v1/heatmap?**", async (route) => {
    const response = await route.fetch();
    const reply = await response.json();
    reply.bounds_seconds = [
      [1e-6, 2e-6],
      [1_000, 2_000],
    ];
    for (const column of reply.columns) column.counts = [[0, 1]];
    // The page may have ended the request.
    await route.fulfill({ response, json: reply }).catch(() => {});
  });
  await page.goto(`${ADMIN}/?view=heatmap`);
  await page.locator(".heatmap[data-total]").waitFor();
  await page.getByRole("application").focus();
  for (const key of ["ArrowLeft", "Enter"]) await page.keyboard.press(key);
  await page.locator('#area [data-count="0"]').waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("a late reply about an area that is no longer selected is not shown", async () => {
  const { page, errors, close } = await open(browser);
  let release = () => {};
  const released = /** @type {Promise<void>} */ (new Promise((done) => (release = done)));
  await page.route("**/api/v1/heatmap/shapes?**", async (route) => {
    const response = await route.fetch();
    await released;
    // The page may have ended the request.
    await route.fulfill({ response }).catch(() => {});
  });
  await page.goto(`${ADMIN}/?view=heatmap`);
  await page.locator(".heatmap[data-total]").waitFor();
  await page.getByRole("application").focus();
  const requested = page.waitForRequest("**/api/v1/heatmap/shapes?**");
  for (const key of ["ArrowLeft", "Shift+ArrowRight", "Enter"]) await page.keyboard.press(key);
  await requested;
  await page.keyboard.press("Escape");
  release();
  // The heat map itself is requested again some seconds later.
  await page.waitForResponse("**/api/v1/heatmap?**");
  await page.waitForResponse("**/api/v1/heatmap?**");
  assert.equal(await page.getByText("Shapes in the area").count(), 0);
  assert.deepEqual(errors, []);
  await close();
});

test("the table of shapes has the rows of the API, sorted and filtered", async () => {
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=10000");
  const byCount = [...shapes].sort((one, other) => other.count - one.count);
  const found = shapes.filter((/** @type {any} */ of) => of.collection === "orders");
  await view("/?view=shapes", async (page) => {
    const table = page.getByRole("table", { name: "Shapes" });
    await table.locator("a").first().waitFor();
    assert.equal(await table.getAttribute("aria-rowcount"), String(shapes.length + 1));
    await page.getByRole("button", { name: "Count/s" }).click();
    const first = table.locator("[aria-rowindex='2']");
    assert.equal(await first.locator("a").getAttribute("data-id"), byCount[0].id);
    assert.equal(await first.locator(".col-errors").innerText(), integer(byCount[0].errors));
    await page.keyboard.press("Escape");
    await page.locator("body").press("/");
    await page.keyboard.type("shop.orders");
    await page.getByText(`${integer(found.length)} of ${integer(shapes.length)} shapes`).waitFor();
    assert.match(page.url(), /q=shop.orders/);
    await table.focus();
    await page.keyboard.press("Home");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Shape", exact: true }).waitFor();
    await page.goBack();
    await page.getByText(`${integer(found.length)} of ${integer(shapes.length)} shapes`).waitFor();
  });
});

test("all columns of the shapes fit on a laptop", async () => {
  const laptop = { viewport: { width: 1280, height: 800 } };
  const look = async (/** @type {import("playwright-core").Page} */ page) => {
    const table = page.getByRole("table", { name: "Shapes" });
    await table.locator("a").first().waitFor();
    const hidden = await table.evaluate((of) => of.scrollWidth - of.clientWidth);
    assert.ok(hidden <= 0, `${hidden} pixels of the table are hidden`);
  };
  await view("/?view=shapes", look, laptop);
});

test("keys of the configuration are not cut on a phone", async () => {
  const phone = { viewport: { width: 390, height: 844 } };
  const look = async (/** @type {import("playwright-core").Page} */ page) => {
    const keys = page.locator("td > code");
    await keys.filter({ hasText: "limits.introduction_conversations" }).waitFor();
    const cut = await keys.evaluateAll((all) =>
      all.filter((of) => of.scrollHeight > of.clientHeight).map((of) => of.textContent),
    );
    assert.deepEqual(cut, []);
  };
  await view("/?view=config", look, phone);
});

test("an address with an unknown view opens the overview", async () => {
  await view("/?view=pools", async (page) => {
    await page.getByRole("heading", { name: "Overview", exact: true }).waitFor();
    const current = page.getByRole("navigation").locator("[aria-current]");
    assert.equal(await current.innerText(), "Overview");
  });
});

test("the load of a shape is drawn without the step that has not ended", async () => {
  await view("/?view=shapes", async (page) => {
    await page.getByRole("table", { name: "Shapes" }).locator("a").first().waitFor();
    const drawn = await page.evaluate(async () => {
      const path = new URL("view-shapes.js", document.querySelector("script")?.src).href;
      const { wholeSteps } = await import(path);
      return wholeSteps({ from: 100, step_seconds: 10, shapes: { a: [1, 2, 3] } }, 125);
    });
    assert.deepEqual(drawn, { a: [1, 2] });
  });
});

test("the view of one shape has the figures of the API", async () => {
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=10000");
  const shape = shapes.find(
    (/** @type {any} */ of) => of.collection === "orders" && of.command === "find",
  );
  await view(`/?view=shape&id=${shape.id}`, async (page) => {
    await page.locator("pre.text").waitFor();
    assert.equal(await page.locator("pre.text").innerText(), shape.shape);
    const figure = (/** @type {string} */ name) =>
      page.locator("dl.figures div", { hasText: name }).first().locator("dd").innerText();
    assert.equal(await figure("Operations"), integer(shape.count));
    assert.equal(await figure("Errors"), integer(shape.errors));
    await page.locator(".distribution svg").first().waitFor();
    const share = await page
      .locator(".phases tr", { hasText: "the server works" })
      .locator("td")
      .nth(1)
      .innerText();
    const total = Object.values(shape.phases_ms).reduce(
      (/** @type {number} */ sum, ms) => sum + Number(ms),
      0,
    );
    assert.ok(Math.abs(parseFloat(share) - (100 * shape.phases_ms.server) / total) < 1, share);
  });
});

test("labels at the right edge of charts do not widen the page of a phone", async () => {
  const phone = { viewport: { width: 390, height: 844 } };
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=1");
  // The period ends at a round time, so a label of the time axis is at the edge.
  const until = Math.ceil(Date.now() / 60_000) * 60;
  const period = `from=${until - 300}&until=${until}`;
  for (const path of [`/?view=heatmap&${period}`, `/?view=shape&id=${shapes[0].id}&${period}`])
    await view(
      path,
      async (page) => {
        const label = page.locator(".x span.left").first();
        await label.waitFor({ state: "attached" });
        const wider = await page.evaluate(
          () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
        );
        assert.ok(wider <= 0, `${path} is ${wider} pixels too wide`);
      },
      phone,
    );
  const look = async (/** @type {import("playwright-core").Page} */ page) => {
    await page.getByRole("table", { name: "Shapes" }).locator("a").first().waitFor();
    const [wider, labels] = await page.evaluate(async () => {
      const path = new URL("distribution.js", document.querySelector("script")?.src).href;
      const { distribution } = await import(path);
      const buckets = [1, 2, 98].map((le) => ({
        gt_seconds: (le - 0.5) / 1e3,
        le_seconds: le / 1e3,
        count: 9,
      }));
      const marks = [
        ["p50", 90],
        ["p99", 98],
      ];
      document.querySelector("main")?.replaceChildren(distribution(buckets, { marks }));
      const root = document.documentElement;
      const boxes = [...document.querySelectorAll(".quantile span")].map((of) =>
        of.getBoundingClientRect(),
      );
      return [root.scrollWidth - root.clientWidth, boxes.map(({ top, right }) => [top, right])];
    });
    assert.ok(wider <= 0, `${wider} pixels too wide`);
    const [[top, right], [lower, edge]] = labels;
    assert.ok(right < 390 && edge < 390 && lower > top, JSON.stringify(labels));
  };
  await view("/?view=shapes", look, phone);
});

test("the message about a failed request for shapes disappears when the shapes arrive", async () => {
  const { page, close } = await open(browser);
  let isBroken = true;
  await page.route("**/api/v1/shapes?**", (route) =>
    isBroken ? route.fulfill({ status: 500, body: "broken" }) : route.continue(),
  );
  await page.goto(`${ADMIN}/?view=shapes`);
  const message = page.getByText("broken", { exact: true });
  await message.waitFor();
  isBroken = false;
  const first = page.getByRole("table", { name: "Shapes" }).locator("a").first();
  await first.waitFor();
  assert.equal(await message.count(), 0);
  await close();
});

test("the focus stays on its shape while the table of shapes is updated", async () => {
  await view("/?view=shapes", async (page) => {
    const link = page.getByRole("table", { name: "Shapes" }).locator("a").nth(3);
    await link.focus();
    const id = await link.getAttribute("data-id");
    await link.evaluate((of) => of.classList.add("earlier"));
    await page.locator("a.earlier").waitFor({ state: "detached" });
    const focused = () => document.activeElement?.getAttribute("data-id");
    assert.equal(await page.evaluate(focused), id);
    await page.keyboard.press("ArrowDown");
    const selected = page.locator(".row.selected a");
    assert.equal(await page.evaluate(focused), await selected.getAttribute("data-id"));
  });
});

test("a table of ten thousand shapes has only its visible rows in the page", async () => {
  const { page, errors, close } = await open(browser);
  await page.route("**/api/v1/shapes?**", (route) => route.fulfill({ json: manyShapes(10_000) }));
  await page.goto(`${ADMIN}/?view=shapes`);
  await page.getByText("10,000 shapes").waitFor();
  assert.ok((await page.locator(".rows .row").count()) < 60);
  await page.getByRole("table", { name: "Shapes" }).focus();
  await page.keyboard.press("End");
  await page.locator("[aria-rowindex='10001']").waitFor();
  assert.ok((await page.locator(".rows .row").count()) < 60);
  await page.getByRole("searchbox").fill("field9999:");
  await page.getByText("1 of 10,000 shapes").waitFor();
  await page.getByRole("searchbox").fill("");
  await screenshot(page, "shapes-10000");
  assert.deepEqual(errors, []);
  await close();
});

test("the views of clients, servers and the configuration have the values of the API", async () => {
  const [clients, pools, configuration, status] = await Promise.all([
    api(ADMIN, "clients"),
    api(ADMIN, "pools"),
    api(ADMIN, "config"),
    api(ADMIN, "status"),
  ]);
  await view("/?view=clients", async (page) => {
    await page.getByText(new RegExp(`^${clients.count} clients?`)).waitFor();
    await page.getByRole("link", { name: "Servers" }).click();
    await page.getByText(pools.pools[0].server).first().waitFor();
    await page.getByRole("link", { name: "Configuration" }).click();
    await page.getByText(status.version, { exact: true }).waitFor();
    const rows = page.getByRole("region", { name: "Configuration" }).locator("tbody tr");
    await rows.first().waitFor();
    assert.equal(await rows.count(), configuration.values.length);
    for (const [i, of] of configuration.values.slice(0, 20).entries()) {
      const cells = await rows.nth(i).locator("td, th").allTextContents();
      const value = of.in_effect === null ? of.value : `${of.value} (in effect: ${of.in_effect})`;
      assert.deepEqual(cells, [of.key, value, of.origin, of.pending ?? ""]);
    }
  });
});

test("the configuration shows that a key is absent after a restart", async () => {
  const { page, errors, close } = await open(browser);
  const value = { key: "history.directory", value: '"/history"', origin: "file", pending: "" };
  const json = { hash: "0", values: [{ ...value, in_effect: null }] };
  await page.route("**/api/v1/config**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?view=config`);
  const row = page.getByRole("region", { name: "Configuration" }).locator("tbody tr").first();
  await row.waitFor();
  const cells = await row.locator("td, th").allTextContents();
  assert.deepEqual(cells, [value.key, value.value, value.origin, "(absent)"]);
  assert.deepEqual(errors, []);
  await close();
});

test("connections that getMore commands hold are counted for their shape", async () => {
  const { page, errors, close } = await open(browser);
  const { shapes, other } = manyShapes(2);
  shapes[1].count = 2;
  shapes[1].more = { count: 8, total_time_ms: 600_000 };
  const json = { shapes, other, since_seconds: 300 };
  await page.route("**/api/v1/shapes?**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?view=servers`);
  const table = page.getByRole("table", { name: "Shapes that hold connections" });
  const row = table.locator("tbody tr").first();
  await row.waitFor();
  const [name, ...figures] = await row.locator("td, th").allTextContents();
  assert.match(name ?? "", /field1:/);
  assert.deepEqual(figures, ["2.00", "60.0 s", "0.03"]);
  assert.deepEqual(errors, []);
  await close();
});

test("the overview reports a Seawall that is not ready and knows no server", async () => {
  const { page, errors, close } = await open(browser);
  const status = { ...(await api(ADMIN, "status")), not_ready: "no server is available" };
  const topology = { servers: [], set_name: null, type: "Unknown" };
  await page.route("**/api/v1/status**", (route) => route.fulfill({ json: status }));
  await page.route("**/api/v1/topology**", (route) => route.fulfill({ json: topology }));
  await page.goto(`${ADMIN}/`);
  const findings = page.locator(".finding");
  await findings.getByText("Seawall knows no server of the deployment.").waitFor();
  assert.equal(await findings.first().innerText(), "Not ready: no server is available.");
  assert.deepEqual(errors, []);
  await close();
});

test("the overview reports the current storm of another instance, not an ended one", async () => {
  const { page, errors, close } = await open(browser);
  const json = currentStorms(Date.now() / 1000);
  await page.route("**/api/v1/storms**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/`);
  await page.getByText(/A reconnect storm since .+: 1,234 clients connected\./).waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("the overview of a past period reports a storm that begins later", async () => {
  const { page, errors, close } = await open(browser);
  const now = Math.floor(Date.now() / 1000);
  let json = { active: false, learning: false, storms: [] };
  await page.route("**/api/v1/storms**", (route) => route.fulfill({ json }));
  await page.goto(`${ADMIN}/?from=${now - 7200}&until=${now - 3600}`);
  const events = page.getByText("Storms and stalls of this period are not known: Seawall started");
  await events.waitFor();
  const finding = page.getByText("A reconnect storm since");
  assert.equal(await finding.count(), 0);
  json = currentStorms(now);
  await finding.waitFor();
  // The storm is not an event of the period.
  await events.waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("the page reports stopped updates on an open connection, and requests updates again", async () => {
  const { page, close } = await open(browser);
  let isSilent = true;
  await page.route("**/api/v1/live**", (route) => (isSilent ? undefined : route.continue()));
  await page.goto(`${ADMIN}/`);
  await page.getByText("updates stopped", { exact: true }).waitFor();
  isSilent = false;
  await page.getByText("live", { exact: true }).waitFor();
  await close();
});

test("the page repeats a request whose reply does not arrive within the time limit", async () => {
  const { page, close } = await open(browser);
  // The limits are shorter than on a real page, so that this test is fast. The first request, which
  // is not repeated, keeps its limit.
  await page.addInitScript(() => {
    const timeout = AbortSignal.timeout.bind(AbortSignal);
    let calls = 0;
    AbortSignal.timeout = (ms) => timeout((calls += 1) === 1 ? ms : 1_000);
  });
  let isSilent = true;
  await page.route("**/api/v1/clients?**", (route) => (isSilent ? undefined : route.continue()));
  await page.goto(`${ADMIN}/?view=clients`);
  await page.getByText("Seawall does not reply.").waitFor();
  isSilent = false;
  await page.getByText(/^\d+ clients?/).waitFor();
  await close();
});

test("the views of storms and stalls say that their data begin at the start of Seawall", async () => {
  const { page, errors, close } = await open(browser);
  const storms = { active: false, learning: false, storms: [] };
  const stalls = { episodes: [], recurring: [], pulse: { state: "on" } };
  await page.route("**/api/v1/storms**", (route) => route.fulfill({ json: storms }));
  await page.route("**/api/v1/stalls**", (route) => route.fulfill({ json: stalls }));
  await page.goto(`${ADMIN}/?view=storms`);
  await page.getByText(/^No storm was detected since Seawall started at .+\.$/).waitFor();
  await page.goto(`${ADMIN}/?view=stalls&since=7d`);
  await page.getByText(/^No stall in this period since Seawall started at .+\.$/).waitFor();
  const now = Math.floor(Date.now() / 1000);
  await page.goto(`${ADMIN}/?view=stalls&from=${now - 2}&until=${now - 1}`);
  await page.getByText("No stall in this period.", { exact: true }).waitFor();
  await page.goto(`${ADMIN}/?view=stalls&from=${now - 7200}&until=${now - 3600}`);
  await page
    .getByText(/^Storms and stalls of this period are not known: Seawall started at .+\.$/)
    .waitFor();
  assert.deepEqual(errors, []);
  await close();
});

test("a reload must be confirmed by typing a word", async () => {
  await view("/?view=config", async (page) => {
    await page.getByRole("button", { name: "Reload the configuration" }).click();
    const dialog = page.getByRole("dialog");
    const button = dialog.getByRole("button", { name: "Reload" });
    assert.ok(await button.isDisabled());
    await dialog.getByRole("textbox").fill("reloa");
    assert.ok(await button.isDisabled());
    await dialog.getByRole("textbox").fill("reload");
    assert.ok(await button.isEnabled());
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
  });
});

test("the page reports a reload, a login and a logout that get no reply", async () => {
  const { page, close } = await open(browser);
  await page.route("**/api/v1/reload?**", (route) => route.abort());
  await page.goto(`${ADMIN}/?view=config`);
  await page.getByRole("button", { name: "Reload the configuration" }).click();
  await page.getByRole("dialog").getByText("Seawall does not reply.").waitFor();
  let lost = "POST";
  await page.route("**/api/v1/session", (route) =>
    route.request().method() === lost ? route.abort() : route.continue(),
  );
  await page.goto(`${GUARDED}/?view=config`);
  await page.getByLabel("Token").fill(READ_TOKEN);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").getByText("Seawall does not reply.").waitFor();
  lost = "DELETE";
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByText("You are still logged in: Seawall does not reply.").waitFor();
  await close();
});

test("the page reports a refused request, and repeats a request whose reply ends early", async () => {
  const { page, close } = await open(browser);
  /** @type {{ status: number, body: string } | undefined} */
  let reply = { status: 400, body: "step is wrong" };
  await page.route("**/api/v1/heatmap?**", (route) =>
    reply ? route.fulfill(reply) : route.continue(),
  );
  await page.goto(`${ADMIN}/?view=heatmap`);
  await page.getByText("Figures are missing: step is wrong").waitFor();
  reply = { status: 200, body: "{" };
  await page.getByText("Figures are missing: The reply of Seawall ended early.").waitFor();
  reply = undefined;
  await page.getByText("Figures are missing").waitFor({ state: "detached" });
  await close();
});

test("the page shows names that clients choose as text, not as HTML", async () => {
  const { page, errors, close } = await open(browser);
  await page.addInitScript(() => {
    window.alert = () => {
      throw new Error("a script of a client ran");
    };
  });
  for (const name of ["overview", "heatmap", "shapes", "clients", "servers"]) {
    await page.goto(`${ADMIN}/?view=${name}`);
    await page.locator("main :is(table, canvas, .sheet)").first().waitFor();
    assert.equal(await page.locator("img, main script, main iframe").count(), 0, name);
  }
  await page.goto(`${ADMIN}/?view=clients`);
  await page.getByText("<img src=x onerror=alert(1)>").first().waitFor();
  await page.goto(`${ADMIN}/?view=shapes&q=onerror`);
  const link = page.locator(".rows a").first();
  assert.match(await link.innerText(), /<img src=x onerror=alert\(2\)>/);
  await link.click();
  await page.getByRole("heading", { name: /onerror/ }).waitFor();
  assert.equal(await page.locator("img").count(), 0);
  assert.deepEqual(errors, []);
  await close();
});

test("the focus of the keyboard survives updates, and a link moves it to the content", async () => {
  const focused = () => {
    const of = document.activeElement;
    return { id: of?.id, href: of?.getAttribute("href"), text: of?.textContent };
  };
  await view("/", async (page) => {
    const table = page.getByRole("region", { name: "Heaviest shapes", exact: true }).first();
    const link = table.getByRole("link").nth(1);
    await link.focus();
    const href = await link.getAttribute("href");
    await link.evaluate((of) => of.classList.add("earlier"));
    await page.locator("a.earlier").waitFor({ state: "detached" });
    assert.equal((await page.evaluate(focused)).href, href);
    await page.getByRole("button", { name: "15m" }).focus();
    await page.keyboard.press("Enter");
    await page.locator("button[aria-pressed=true]", { hasText: "15m" }).waitFor();
    assert.equal((await page.evaluate(focused)).text, "15m");
    await page.getByRole("navigation").getByRole("link", { name: "Servers" }).focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Servers", exact: true }).waitFor();
    assert.equal((await page.evaluate(focused)).id, "main");
  });
});

test("keys open views, and the theme is kept after a reload", async () => {
  await view("/", async (page) => {
    await page.locator("main .panel").first().waitFor();
    await page.keyboard.press("g");
    await page.keyboard.press("s");
    await page.getByRole("heading", { name: "Shapes" }).waitFor();
    await page.keyboard.press("g");
    await page.keyboard.press("o");
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await page.keyboard.press("w");
    assert.match(page.url(), /wall=1/);
    assert.equal(await page.locator("nav").isVisible(), false);
    await page.keyboard.press("w");
    await page.keyboard.press("d");
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
    assert.equal(await theme(), "dark");
    await page.reload();
    await page.locator("main .panel").first().waitFor();
    assert.equal(await theme(), "dark");
    await page.keyboard.press("?");
    await page.getByRole("dialog").waitFor();
  });
});

test("a session has the rights of its token, and the views work without a history", async () => {
  for (const [token, canAct] of /** @type {[string, boolean][]} */ ([
    [READ_TOKEN, false],
    [ACT_TOKEN, true],
  ])) {
    const { page, close } = await open(browser);
    await page.goto(`${GUARDED}/?view=config`);
    await page.getByLabel("Token").fill("wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("does not know this token").waitFor();
    await page.getByLabel("Token").fill(token);
    if (canAct) await screenshot(page, "login");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("The history is off").waitFor();
    const cookies = await page.context().cookies();
    assert.deepEqual(
      cookies.map(({ name, httpOnly, sameSite }) => [name, httpOnly, sameSite]),
      [[`seawall_session_${new URL(GUARDED).port}`, true, "Strict"]],
    );
    const drain = page.getByRole("button", { name: "Drain …" });
    assert.equal(await drain.isEnabled(), canAct);
    await page.getByRole("link", { name: "Shapes" }).click();
    await page
      .getByText("The history is off: the figures cover the time since the start.")
      .waitFor();
    await page.getByRole("link", { name: "Overview" }).click();
    await page.getByText("There is no history of this figure.").first().waitFor();
    const limit = page.getByRole("region", { name: "Concurrency limit" });
    await limit.getByText(/^\d+, no limit$/).waitFor();
    await screenshot(page, "history-off", true);
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("Token").waitFor();
    await close();
  }
});

test("no view has a serious finding of axe-core, in light and dark, on a desktop and a phone", async () => {
  const { shapes } = await api(ADMIN, "shapes?since=1h&limit=1");
  const paths = {
    overview: "/?since=15m",
    heatmap: "/?view=heatmap&since=15m",
    shapes: "/?view=shapes",
    shape: `/?view=shape&since=15m&id=${shapes[0].id}`,
    stalls: "/?view=stalls",
    changes: "/?view=changes",
    clients: "/?view=clients",
    servers: "/?view=servers",
    config: "/?view=config",
    wall: "/?wall=1&since=15m",
  };
  const devices = /** @type {const} */ ([
    ["light", 1440, 900],
    ["dark", 1440, 900],
    ["light", 390, 844],
    ["dark", 390, 844],
  ]);
  const looks = devices.map(async ([colorScheme, width, height]) => {
    const { page, errors, close } = await open(browser, {
      colorScheme,
      viewport: { width, height },
    });
    const device = `${colorScheme}-${width < 500 ? "phone" : "desktop"}`;
    for (const [name, path] of Object.entries(paths)) {
      await page.goto(ADMIN + path);
      await page
        .locator("main :is(table, canvas, .sheet, .note, .line)")
        .first()
        .waitFor({ state: "attached" });
      await page.locator("[data-state=live]").waitFor({ state: "attached" });
      assert.deepEqual(await seriousFindings(page), [], `${name} ${device}`);
      const overflow = await page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
      );
      assert.ok(overflow <= 0, `${name} ${device} is ${overflow} pixels too wide`);
      const link = page.locator("nav [aria-current=page]");
      if (name !== "wall")
        assert.ok(
          await link.evaluate((of) => {
            const [inner, outer] = [of, of.parentElement].map((one) =>
              one?.getBoundingClientRect(),
            );
            return inner && outer && inner.left >= outer.left - 1 && inner.right <= outer.right + 1;
          }),
          `${name} ${device} is not visible in the navigation`,
        );
      await screenshot(page, `${name}-${device}`, name !== "shapes");
    }
    assert.deepEqual(errors, []);
    await close();
  });
  await Promise.all(looks);
});

test("the page shows the figures of all instances together, and names an instance that does not reply", async () => {
  const steps = async (/** @type {string} */ address) => {
    const response = await fetch(`${address}/api/v1/timeline?since=1h&step=1m`);
    const { steps } = await response.json();
    return steps.reduce((/** @type {number} */ sum, /** @type {any} */ of) => sum + of.count, 0);
  };
  const [own, peer] = [await steps(MERGED), await steps(ADMIN)];
  const { page, errors, close } = await open(browser);
  await page.goto(`${MERGED}/?view=heatmap`);
  await page.locator(`.heatmap[data-total="${own}"]`).waitFor();
  await page.getByLabel("Instances").selectOption("all");
  await page.locator(`.heatmap[data-total="${own + peer}"]`).waitFor();
  assert.match(page.url(), /instances=all/);
  await page.getByText(/Figures of http:\/\/127.0.0.1:1 are missing/).waitFor();
  // The choice is kept in other views.
  for (const [view, table] of [
    ["Clients", "Clients"],
    ["Servers", "Servers"],
    ["Configuration", "Configuration"],
  ]) {
    await page.getByRole("link", { name: view, exact: true }).click();
    const region = page.getByRole("region", { name: table, exact: true }).first();
    await page.getByRole("columnheader", { name: "Instance" }).first().waitFor();
    assert.match(page.url(), /instances=all/);
    const text = await region.innerText();
    assert.ok(text.includes(ADMIN) && text.includes("this instance"), `${view}: ${text}`);
    assert.deepEqual(await seriousFindings(page), []);
  }
  await page.getByText("Actions apply only to this instance").waitFor();
  await page.getByText("Running for at most", { exact: true }).waitFor();
  await page.getByRole("link", { name: "Overview", exact: true }).click();
  await page.getByText("live", { exact: true }).waitFor();
  await screenshot(page, "all-instances");
  await page.getByLabel("Instances").selectOption("");
  await page.getByText(/Figures of/).waitFor({ state: "detached" });
  assert.deepEqual(errors, []);
  await close();
  // Without other instances there is no choice.
  await view("/?instances=all", async (alone) => {
    await alone.getByText("live", { exact: true }).waitFor();
    assert.equal(await alone.getByLabel("Instances").count(), 0);
  });
});
