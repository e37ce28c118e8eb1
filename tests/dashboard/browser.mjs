// Starts Chromium, opens views, and collects the errors of the console.

import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const require = createRequire(import.meta.url);
const axeSource = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

/** The address of the Seawall whose operations have ended, so that its numbers do not change. */
export const ADMIN = variable("SEAWALL_ADMIN");
/** The address of a Seawall with tokens and without a history. */
export const GUARDED = variable("SEAWALL_GUARDED");
/** The address of a Seawall that shows its own figures and those of `ADMIN`. */
export const MERGED = variable("SEAWALL_MERGED");
export const ACT_TOKEN = variable("SEAWALL_ACT_TOKEN");
export const READ_TOKEN = variable("SEAWALL_READ_TOKEN");
/** Files that `seawall report` has written about the first Seawall. */
export const REPORT_HTML = variable("SEAWALL_REPORT_HTML");
export const REPORT_JSON = variable("SEAWALL_REPORT_JSON");
export const COMPARISON_HTML = variable("SEAWALL_COMPARISON_HTML");
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

/** @param {string} name */
function variable(name) {
  const value = process.env[name];
  if (!value)
    throw new Error(`${name} is not set: run \`cargo test --test dashboard -- --ignored\``);
  return value;
}

/** Playwright starts Chromium with a fresh profile and removes it afterwards. */
export async function launch() {
  mkdirSync(OUTPUT, { recursive: true });
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  return chromium.launch({ executablePath, headless: true, args: FLAGS });
}

/**
 * A page whose errors are collected in `errors`.
 * @param {import("playwright-core").Browser} browser
 * @param {import("playwright-core").BrowserContextOptions} [options]
 */
export async function open(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(15_000);
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
 * @param {string} path
 * @param {RequestInit} [options]
 */
export async function api(path, options) {
  const response = await fetch(`${ADMIN}/api/v1/${path}`, options);
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
 * The serious findings of axe-core. It is evaluated by the debugger, because the page's security
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
