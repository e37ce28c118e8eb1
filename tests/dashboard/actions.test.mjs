// A reload and a drain through the page. The drain lasts until the Rust test closes its client.

import assert from "node:assert/strict";
import { appendFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { api, launch, open, screenshot, variable } from "./browser.mjs";

const ADMIN = variable("SEAWALL_ACTED");
const TOKEN = variable("SEAWALL_ACT_TOKEN");
const CONFIGURATION = variable("SEAWALL_CONFIGURATION");

/** @type {import("playwright-core").Browser} */
let browser;
before(async () => {
  browser = await launch();
});
after(async () => {
  await browser.close();
});

/** @param {string} path */
const asked = (path) => api(ADMIN, path, { headers: { authorization: `Bearer ${TOKEN}` } });

/** @param {string} key */
async function inEffect(key) {
  const { values } = await asked("config");
  return values.find((/** @type {any} */ of) => of.key === key).value;
}

/**
 * Opens the dialog of an action, types its word, and returns the dialog after the action.
 * @param {import("playwright-core").Page} page
 * @param {string} button
 * @param {string} word
 */
async function confirm(page, button, word) {
  await page.getByRole("button", { name: button }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("textbox").fill(word);
  return dialog;
}

test("a reload and a drain must be confirmed by typing, and the page shows their results", async () => {
  const { page, errors, close } = await open(browser);
  await page.goto(`${ADMIN}/?view=config`);
  await page.getByLabel("Token").fill(TOKEN);
  await page.getByRole("button", { name: "Log in" }).click();
  const row = page
    .getByRole("region", { name: "Configuration" })
    .locator("tr", { hasText: "pool.max_pool_size" });
  await row.getByText("7", { exact: true }).waitFor();

  // In TOML, a key belongs to the table before it, so the appended text begins with its own table.
  appendFileSync(CONFIGURATION, "[limits]\nmax_in_flight_operations = 4321\n");
  const reload = await confirm(page, "Reload the configuration", "reload");
  await reload.getByText("limits.max_in_flight_operations").waitFor();
  await reload.getByText("4321").waitFor();
  assert.notEqual(String(await inEffect("limits.max_in_flight_operations")), "4321");
  await reload.getByRole("button", { name: "Reload" }).click();
  await reload.getByText("Applied: 1 change.").waitFor();
  await screenshot(page, "reloaded");
  assert.equal(String(await inEffect("limits.max_in_flight_operations")), "4321");
  await page.keyboard.press("Escape");
  await page
    .getByRole("region", { name: "Configuration" })
    .locator("tr", { hasText: "limits.max_in_flight_operations" })
    .getByText("4321", { exact: true })
    .waitFor();

  // A reload of a configuration with a problem changes nothing, and the page names the problem.
  appendFileSync(CONFIGURATION, "max_nonsense = 1\n");
  const refused = await confirm(page, "Reload the configuration", "reload");
  await refused.getByText("The new configuration has problems. Nothing would change.").waitFor();
  await refused.getByText("max_nonsense").first().waitFor();
  await page.keyboard.press("Escape");

  const drain = await confirm(page, "Drain …", "drain");
  assert.equal((await asked("status")).draining, false);
  await drain.getByRole("button", { name: "Drain" }).click();
  await drain.getByText("The drain has begun.").waitFor();
  assert.equal((await asked("status")).draining, true);
  await page.keyboard.press("Escape");
  await page.locator("#banner").getByText("Seawall is draining.").waitFor();
  await page.locator("button:disabled", { hasText: "Drain …" }).waitFor();
  await screenshot(page, "draining");
  await page.getByRole("link", { name: "Overview" }).click();
  await page.getByText("Seawall is draining: it ends when its clients have left.").waitFor();
  // The console lists replies with an error status: the first request has no session yet, and the
  // broken configuration is refused.
  const statuses = errors.map((of) => /status of (\d+)/.exec(of)?.[1]);
  assert.deepEqual(statuses, ["401", "422"], errors.join("\n"));
  await close();
});
