// The HTML report, opened from the disk, compared with the JSON report.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { launch, open, screenshot, seriousFindings, variable } from "./browser.mjs";

/** The paths of files that `seawall report` has written. */
const REPORT_HTML = variable("SEAWALL_REPORT_HTML");
const REPORT_JSON = variable("SEAWALL_REPORT_JSON");
const COMPARISON_HTML = variable("SEAWALL_COMPARISON_HTML");

/** @type {import("playwright-core").Browser} */
let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser.close();
});

const report = JSON.parse(readFileSync(REPORT_JSON, "utf8"));
const sum = (/** @type {any[]} */ of) => of.reduce((all, one) => all + one.count, 0);
const operations = sum(report.shapes) + report.other.count;
const integer = (/** @type {number} */ value) => value.toLocaleString("en-US");

/**
 * Opens a file. Fails if the console has an error, or if the page loads anything but itself.
 * @param {string} path
 * @param {(page: import("playwright-core").Page) => Promise<void>} look
 * @param {import("playwright-core").BrowserContextOptions} [options]
 */
async function view(path, look, options) {
  const { page, errors, close } = await open(browser, { offline: true, ...options });
  const address = pathToFileURL(path).href;
  /** @type {string[]} */
  const loaded = [];
  page.on("request", (request) => loaded.push(request.url()));
  await page.addInitScript(() => {
    window.alert = () => {
      throw new Error("a script of a client ran");
    };
  });
  await page.goto(address);
  await page.locator("main").waitFor();
  await look(page);
  const foreign = loaded.filter((of) => of !== address && !of.startsWith("blob:"));
  assert.deepEqual(foreign, []);
  assert.deepEqual(errors, []);
  await close();
}

test("the report shows the sums of its JSON without a server", async () => {
  assert.equal(sum(report.timeline.steps), operations);
  await view(REPORT_HTML, async (page) => {
    await page.locator(`[data-operations="${operations}"]`).waitFor();
    await page.locator(`.heatmap[data-total="${operations}"]`).waitFor();
    const rows = page.getByRole("table", { name: "Shapes" }).locator("tbody tr");
    assert.equal(await rows.count(), report.shapes.length);
    const first = await rows.first().innerText();
    assert.ok(first.includes(report.shapes[0].shape), first);
    assert.equal(await page.locator("main details").count(), report.shapes.length);
    for (const server of report.servers) {
      const row = page.getByRole("table", { name: "Servers" }).getByRole("row", {
        name: server.address,
      });
      assert.ok((await row.innerText()).includes(integer(server.count)));
    }
    // The baseline is a moment, which has a date in the heading.
    assert.match(report.changes.against, /^\d+$/);
    const changes = page.getByRole("heading", { name: /^Changes against \d+ \w+ 2023, [\d:]{8}$/ });
    await changes.waitFor();
    const drawn = page.getByRole("img", { name: /^Operations per second: operations between/ });
    await drawn.waitFor();
    // The whole heat map is selected, so all operations are in the area.
    const canvas = page.getByRole("application");
    await canvas.scrollIntoViewIfNeeded();
    const box = /** @type {{x: number, y: number, width: number, height: number}} */ (
      await canvas.boundingBox()
    );
    await page.mouse.move(box.x + 2, box.y + box.height - 2);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width + 20, box.y - 20, { steps: 4 });
    await page.mouse.up();
    await page.locator(`#area [data-count="${operations}"]`).waitFor();
    // A link in the table opens the details of its shape.
    await page.getByRole("table", { name: "Shapes" }).locator("tbody a").last().click();
    await page.locator("main details").last().locator(".distribution").waitFor();
  });
});

test("names that clients choose are shown as text in a report", async () => {
  await view(REPORT_HTML, async (page) => {
    assert.equal(await page.locator("img, iframe, main script, header script").count(), 0);
    // Three scripts: the data, the modules, and the script that starts the modules.
    assert.equal(await page.locator("script").count(), 3);
    await page.getByText("<img src=x onerror=alert(2)>").first().waitFor();
    await page.getByText("</script><script>alert(3)</script>").first().waitFor();
  });
});

test("a comparison of two reports has a row for each report", async () => {
  await view(COMPARISON_HTML, async (page) => {
    await page.getByRole("heading", { name: "Seawall comparison" }).waitFor();
    await page.getByText("No significant change.").waitFor();
    const rows = page.getByRole("table", { name: "All operations" }).locator("tbody tr");
    assert.equal(await rows.count(), 2);
  });
});

test("a report has no serious finding of axe-core in light and dark, on a desktop and a phone, and can be printed", async () => {
  const devices = /** @type {const} */ ([
    ["light", 1440, 900],
    ["dark", 1440, 900],
    ["light", 390, 844],
    ["dark", 390, 844],
  ]);
  for (const [colorScheme, width, height] of devices) {
    const device = `${colorScheme}-${width < 500 ? "phone" : "desktop"}`;
    const look = async (/** @type {import("playwright-core").Page} */ page) => {
      await page.locator(".heatmap[data-total]").waitFor();
      assert.deepEqual(await seriousFindings(page), [], device);
      const overflow = await page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
      );
      assert.ok(overflow <= 0, `${device} is ${overflow} pixels too wide`);
      await screenshot(page, `report-${device}`, true);
      if (device === "dark-desktop") {
        await page.evaluate(() => window.dispatchEvent(new Event("beforeprint")));
        await page.emulateMedia({ media: "print" });
        await page.setViewportSize({ width: 760, height: 1080 });
        const colour = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
        assert.equal(colour, "rgb(251, 250, 248)");
        await screenshot(page, "report-printed", true);
      }
    };
    await view(REPORT_HTML, look, { colorScheme, viewport: { width, height } });
  }
});
