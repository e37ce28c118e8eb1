// Starts Chromium, opens views, and collects the errors of the console.

import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const require = createRequire(import.meta.url);
const axeSource = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const OUTPUT = variable("SEAWALL_SCREENSHOTS");

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/**
 * The value of an environment variable that the Rust test sets.
 * @param {string} name
 */
export function variable(name) {
  const value = process.env[name];
  if (!value)
    throw new Error(`${name} is not set: run \`cargo test --test dashboard -- --ignored\``);
  return value;
}

/** Starts Chromium. Playwright creates a new profile, and removes the profile at the end. */
export async function launch() {
  mkdirSync(OUTPUT, { recursive: true });
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, headless: true, args: FLAGS });
}

/**
 * Opens a page, and collects the errors of the page and of its console in `errors`.
 * @param {import("playwright-core").Browser} browser
 * @param {import("playwright-core").BrowserContextOptions} [options]
 */
export async function open(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(120_000);
  const page = await context.newPage();
  /** @type {string[]} */
  const errors = [];
  page.on("console", (message) => {
    if (message.type() === "error") errors.push(`${message.text()} ${message.location().url}`);
  });
  page.on("pageerror", (error) => errors.push(error.stack ?? String(error)));
  return { page, errors, close: () => context.close() };
}

/**
 * The JSON reply of the API.
 * @param {string} admin the address of a Seawall
 * @param {string} path
 * @param {RequestInit} [options]
 */
export async function api(admin, path, options) {
  const response = await fetch(`${admin}/api/v1/${path}`, options);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response.json();
}

/**
 * @param {import("playwright-core").Page} page
 * @param {string} name
 */
export async function screenshot(page, name, fullPage = false) {
  await page.screenshot({ path: `${OUTPUT}/${name}.png`, fullPage });
}

/**
 * The serious findings of axe-core. axe-core runs through the debugger, because the page's security
 * policy allows no foreign script.
 * @param {import("playwright-core").Page} page
 */
export async function seriousFindings(page) {
  await page.evaluate(axeSource);
  const result = await page.evaluate(() =>
    /** @type {any} */ (window).axe.run({ resultTypes: ["violations"] }),
  );
  const serious = result.violations.filter((/** @type {any} */ of) =>
    ["serious", "critical"].includes(of.impact),
  );
  return serious.map(
    (/** @type {any} */ of) =>
      `${of.id}: ${of.help}: ${of.nodes
        .slice(0, 3)
        .map(
          (/** @type {any} */ node) => `${node.html.slice(0, 200)} ${node.any[0]?.message ?? ""}`,
        )
        .join(" | ")}`,
  );
}
