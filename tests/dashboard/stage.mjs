// Starts a private mongod and a Seawall for the scripts that take pictures and measure. Both end
// with the script, and their files are removed.

import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { accessSync, constants, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { homedir, tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { MongoClient } from "mongodb";
import { chromium } from "playwright-core";

/** Functions that each end one program or connection. @type {(() => Promise<unknown> | void)[]} */
const ends = [];

/** Ends all programs and connections of the script, in the reverse order of their start. */
export async function endAll() {
  while (ends.length > 0) await ends.pop()?.();
}

/** @param {string} path */
function isProgram(path) {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** The mongod that the tests use: SEAWALL_MONGOD, a mongod on the PATH, or the downloaded one. */
function findMongod() {
  const cache = join(homedir(), ".cache/seawall");
  const folders = (process.env.PATH ?? "").split(delimiter);
  const cached = () => readdirSync(cache).map((version) => join(cache, version, "mongod"));
  const named = process.env.SEAWALL_MONGOD;
  const found = named ?? [...folders.map((of) => join(of, "mongod"))].find(isProgram);
  const path = found ?? cached().find(isProgram);
  if (!path) throw new Error("no mongod: run `seawall demo --once`, which downloads one");
  return path;
}

/** @returns {Promise<number>} */
function freePort() {
  return new Promise((found, failed) => {
    const server = createServer();
    server.on("error", failed);
    server.listen(0, "127.0.0.1", () => {
      const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
      server.close(() => found(port));
    });
  });
}

/**
 * Starts a program that ends with this script.
 * @param {string} program
 * @param {string[]} parameters
 * @param {Record<string, string>} variables
 */
function start(program, parameters, variables = {}) {
  // Seawall refuses SEAWALL_ variables that are not keys, such as the variables of the tests.
  const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith("SEAWALL_"));
  const child = spawn(program, parameters, {
    env: { ...Object.fromEntries(inherited), ...variables },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const ended = new Promise((done) => child.once("exit", done));
  ends.push(() => {
    child.kill("SIGKILL");
    return ended;
  });
  return child;
}

/** @param {number} seconds */
export const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

/**
 * Waits until something succeeds.
 * @template T
 * @param {() => Promise<T>} attempt
 * @returns {Promise<T>}
 */
export async function eventually(attempt, seconds = 30) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await pause(0.2);
    }
  }
}

/** The password of all users of the private mongod. */
const PASSWORD = randomBytes(12).toString("hex");

/**
 * Starts a mongod with access control. Returns the connection string of a user with all rights, and
 * the process id of the mongod. Applications log in as `shop`.
 */
export async function startMongod() {
  const directory = mkdtempSync(join(tmpdir(), "seawall-stage-"));
  ends.push(() => rmSync(directory, { recursive: true, force: true }));
  const port = String(await freePort());
  const limits = ["--wiredTigerCacheSizeGB", "0.25", "--quiet", "--auth"];
  const address = ["--bind_ip", "127.0.0.1", "--port", port, "--dbpath", directory];
  const child = start(findMongod(), [
    ...address,
    ...limits,
    "--logpath",
    join(directory, "mongod.log"),
  ]);
  const open = `mongodb://127.0.0.1:${port}/`;
  await eventually(async () => {
    const client = await MongoClient.connect(open, { serverSelectionTimeoutMS: 500 });
    await client.db("admin").command({ createUser: "root", pwd: PASSWORD, roles: ["root"] });
    await client.close();
  });
  const uri = `mongodb://root:${PASSWORD}@127.0.0.1:${port}/`;
  const client = await MongoClient.connect(uri);
  const roles = ["readWriteAnyDatabase"];
  await client.db("admin").command({ createUser: "shop", pwd: PASSWORD, roles });
  await client.close();
  return { uri, pid: child.pid };
}

/**
 * Starts a Seawall in front of a deployment.
 * @param {string} binary
 * @param {string} deployment
 * @param {Record<string, string>} [variables] further configuration
 */
export async function startSeawall(binary, deployment, variables = {}) {
  const child = start(binary, ["serve", "--allow-root", "--deployment", deployment], {
    SEAWALL_LISTEN__ADDRESS: "127.0.0.1:0",
    SEAWALL_ADMIN__ADDRESS: "127.0.0.1:0",
    SEAWALL_LOG__FORMAT: "json",
    ...variables,
  });
  const lines = createInterface({ input: /** @type {any} */ (child.stderr) });
  const { clients, admin } = await new Promise((served, failed) => {
    const log = /** @type {string[]} */ ([]);
    lines.on("line", (line) => {
      log.push(line);
      const { fields } = line.startsWith("{") ? JSON.parse(line) : { fields: {} };
      if (fields?.message === "serving") served(fields);
    });
    child.once("exit", () => failed(new Error(`Seawall ended:\n${log.join("\n")}`)));
  });
  return {
    uri: `mongodb://shop:${PASSWORD}@${clients}/`,
    admin: `http://${admin}`,
    pid: Number(child.pid),
  };
}

/**
 * Starts clients that connect, log in, run an operation and disconnect, again and again. Returns a
 * function that ends them.
 * @param {string} binary
 * @param {string} uri
 */
export function startStorm(binary, uri) {
  const limits = ["--clients", "20", "--duration-s", "60"];
  const child = start(binary, ["load", "storm", uri, "--quiet", ...limits]);
  const ended = new Promise((done) => child.once("exit", done));
  return () => {
    child.kill("SIGKILL");
    return ended;
  };
}

/**
 * A client of the official driver, which is closed when the script ends.
 * @param {string} uri
 * @param {import("mongodb").MongoClientOptions} [options]
 */
export async function connect(uri, options = {}) {
  const client = await MongoClient.connect(uri, options);
  ends.push(() => client.close(true));
  return client;
}

/**
 * Runs an operation at a fixed rate until the script ends. Returns a function that stops the
 * operations earlier. Errors of operations are ignored, because the cases cause errors on purpose.
 * @param {number} perSecond
 * @param {(number: number) => Promise<unknown>} operation
 */
export function every(perSecond, operation) {
  let number = 0;
  const began = Date.now();
  const timer = setInterval(() => {
    const due = Math.floor(((Date.now() - began) / 1000) * perSecond);
    for (; number < due; number += 1) operation(number).catch(() => {});
  }, 10);
  ends.push(() => clearInterval(timer));
  return () => clearInterval(timer);
}

/** The browser of all pages. @type {Promise<import("playwright-core").Browser> | undefined} */
let browser;

/** Starts Chromium, which ends with this script. */
async function launch() {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  const launched = await chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu"],
  });
  ends.push(() => {
    browser = undefined;
    return launched.close();
  });
  return launched;
}

/**
 * Opens a page in Chromium. Pages share neither connections nor cookies.
 * @param {import("playwright-core").BrowserContextOptions} [options]
 */
export async function openPage(options = {}) {
  browser ??= launch();
  const viewport = { width: 1280, height: 800 };
  const context = await (await browser).newContext({ viewport, colorScheme: "light", ...options });
  context.setDefaultTimeout(120_000);
  return context.newPage();
}

/**
 * The JSON reply of the API.
 * @param {string} admin
 * @param {string} path
 */
export async function api(admin, path) {
  const response = await fetch(`${admin}/api/v1/${path}`);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
  return response.json();
}
