// Measures the CPU time of Seawall's process with 0, 1 and 10 open pages, under a steady load and
// in alternating rounds. It takes about five minutes:
//   node tests/dashboard/cost.mjs target/release/seawall [ROUNDS]

import { readFileSync } from "node:fs";
import { connect, endAll, every, openPage, pause, startMongod, startSeawall } from "./stage.mjs";

const [binary, rounds = "5"] = process.argv.slice(2);
if (!binary) throw new Error("usage: cost.mjs SEAWALL [ROUNDS]");

/** The numbers of open pages. */
const PAGES = [0, 1, 10];

/** Length of one measurement. A page asks for most of its figures every ten seconds. */
const SECONDS = 20;

/** Operations per second, of 40 shapes. */
const RATE = 200;

/** Clock ticks per second in `/proc`, which is 100 on all architectures of Linux. */
const TICKS = 100;

/** @param {number} pid */
function cpuSeconds(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  // The name of the program, in brackets, may contain spaces.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

/** @param {number[]} values */
function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}

/** @param {string} uri */
async function load(uri) {
  const client = await connect(uri, { appName: "load" });
  const names = Array.from({ length: 40 }, (_, i) => String.fromCharCode(97 + (i % 20)));
  const collections = ["orders", "articles"].map((name) => client.db("shop").collection(name));
  await collections[0].insertMany(Array.from({ length: 1_000 }, (_, i) => ({ a: i })));
  every(RATE, (number) => {
    const field = names[number % names.length];
    return collections[number % 2].findOne({ _id: number % 1_000, [field]: number });
  });
}

/** @param {string} admin */
async function open(admin) {
  const page = await openPage();
  await page.goto(admin);
  await page.locator("[data-state=live]").waitFor({ state: "attached" });
  return page;
}

try {
  const { uri } = await startMongod();
  const seawall = await startSeawall(binary, uri);
  await load(seawall.uri);
  await pause(SECONDS);
  const shares = PAGES.map(() => /** @type {number[]} */ ([]));
  // The first round is not counted, because the browser starts and Seawall's buffers grow in it.
  for (let round = 0; round <= Number(rounds); round += 1) {
    for (const [i, count] of PAGES.entries()) {
      const pages = await Promise.all(Array.from({ length: count }, () => open(seawall.admin)));
      await pause(3);
      const before = cpuSeconds(seawall.pid);
      await pause(SECONDS);
      const used = cpuSeconds(seawall.pid) - before;
      await Promise.all(pages.map((page) => page.context().close()));
      if (round > 0) shares[i].push((100 * used) / SECONDS);
    }
  }
  console.log(`${RATE} operations/s, ${rounds} rounds of ${SECONDS} s each, alternating\n`);
  console.log("| open pages | CPU, % of a core: median (range) |");
  console.log("|---|---|");
  for (const [i, count] of PAGES.entries()) {
    const [low, high] = [Math.min(...shares[i]), Math.max(...shares[i])];
    const all = `${median(shares[i]).toFixed(1)} (${low.toFixed(1)} to ${high.toFixed(1)})`;
    console.log(`| ${count} | ${all} |`);
  }
} finally {
  await endAll();
}
