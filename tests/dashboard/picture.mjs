// Takes the picture of the docs from a running Seawall with traffic, such as `seawall demo`:
//   node tests/dashboard/picture.mjs http://127.0.0.1:9909/?since=5m docs/images/dashboard.png

import { endAll, openPage } from "./stage.mjs";

const [address, path] = process.argv.slice(2);
if (!path) throw new Error("usage: picture.mjs ADDRESS FILE");
try {
  const page = await openPage();
  await page.goto(address);
  await page.locator("[data-state=live]").waitFor();
  await page.locator("main :is(.line, canvas, tbody tr)").first().waitFor({ state: "attached" });
  await page.waitForLoadState("networkidle", { timeout: 3_000 }).catch(() => {});
  await page.screenshot({ path });
} finally {
  await endAll();
}
