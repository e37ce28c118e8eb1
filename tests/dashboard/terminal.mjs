// Takes the picture of `seawall top` in the docs: runs it in tmux (Debian's package `tmux`), reads
// the screen with its colours, and draws it in Chromium.
//   node tests/dashboard/terminal.mjs target/release/seawall http://127.0.0.1:9909 \
//     docs/images/top.png

import { execFileSync } from "node:child_process";
import { endAll, openPage, pause } from "./stage.mjs";

const [binary, address, path] = process.argv.slice(2);
if (!path) throw new Error("usage: terminal.mjs SEAWALL ADDRESS FILE");

const COLUMNS = 124;
const ROWS = 20;

/** The 16 named colours, on a dark background. */
const NAMED = [
  ["#1e2227", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"],
  ["#7f848e", "#ef7d86", "#a9d48a", "#f6d18c", "#72c0ff", "#d789ee", "#67c7d3", "#ffffff"],
].flat();

/** @param {number} index a number from 0 to 255 of the terminal's 256 colours */
function indexed(index) {
  if (index < 16) return NAMED[index];
  if (index >= 232) return `rgb(${Array(3).fill(8 + (index - 232) * 10)})`;
  const level = (/** @type {number} */ of) => (of % 6 === 0 ? 0 : 55 + (of % 6) * 40);
  const cube = index - 16;
  return `rgb(${[Math.floor(cube / 36), Math.floor(cube / 6), cube].map(level)})`;
}

/**
 * @typedef {object} Style
 * @property {string} [color]
 * @property {string} [background]
 * @property {boolean} [bold]
 * @property {boolean} [dim]
 * @property {boolean} [underline]
 * @property {boolean} [reverse]
 */

/**
 * Applies the parameters of one "select graphic rendition" sequence (ECMA-48).
 * @param {Style} style
 * @param {number[]} codes
 * @returns {Style}
 */
function applied(style, codes) {
  const next = { ...style };
  const flags = /** @type {Record<number, Style>} */ ({
    1: { bold: true },
    2: { dim: true },
    4: { underline: true },
    7: { reverse: true },
    22: { bold: false, dim: false },
    24: { underline: false },
    27: { reverse: false },
    39: { color: undefined },
    49: { background: undefined },
  });
  for (let i = 0; i < codes.length; i += 1) {
    const code = codes[i];
    const part = code < 40 || (code >= 90 && code < 100) ? "color" : "background";
    if (code === 0) return applied({}, codes.slice(i + 1));
    if (flags[code]) Object.assign(next, flags[code]);
    else if (code % 10 === 8 && codes[i + 1] === 5) {
      next[part] = indexed(codes[i + 2]);
      i += 2;
    } else if (code % 10 === 8 && codes[i + 1] === 2) {
      next[part] = `rgb(${codes.slice(i + 2, i + 5)})`;
      i += 4;
    } else next[part] = NAMED[(code % 10) + (code >= 90 ? 8 : 0)];
  }
  return next;
}

/**
 * The parts of a screen with their styles.
 * @param {string} screen
 * @returns {[string, Style][]}
 */
function styled(screen) {
  /** @type {Style} */
  let style = {};
  return screen.split("\u001b[").map((part, i) => {
    const [sequence, codes] = /^([\d;]*)m/.exec(part) ?? ["", ""];
    if (i > 0) style = applied(style, codes.split(";").map(Number));
    return [i > 0 ? part.slice(sequence.length) : part, style];
  });
}

/** Runs `seawall top` in a terminal for some seconds, and returns its screen. */
async function screenOfTop() {
  const tmux = (/** @type {string[]} */ ...parameters) =>
    execFileSync("tmux", ["-L", `seawall-${process.pid}`, "-f", "/dev/null", ...parameters], {
      encoding: "utf8",
    });
  const size = ["-x", String(COLUMNS), "-y", String(ROWS)];
  tmux("new-session", "-d", ...size, binary, "top", "--admin", address);
  try {
    await pause(8);
    return tmux("capture-pane", "-e", "-p");
  } finally {
    tmux("kill-server");
  }
}

try {
  const parts = styled((await screenOfTop()).trimEnd());
  const page = await openPage({ viewport: { width: 1280, height: 720 } });
  await page.evaluate((shown) => {
    const screen = document.createElement("pre");
    screen.style.cssText =
      "margin:0;padding:12px;display:inline-block;background:#1e2227;color:#d7dae0;font:14px/1.25 monospace";
    for (const [text, style] of shown) {
      const span = document.createElement("span");
      span.textContent = text;
      const color = style.color ?? "#d7dae0";
      const background = style.background ?? "#1e2227";
      span.style.color = style.reverse ? background : color;
      span.style.background = style.reverse ? color : style.background ? background : "";
      if (style.bold) span.style.fontWeight = "bold";
      if (style.dim) span.style.opacity = "0.7";
      if (style.underline) span.style.textDecoration = "underline";
      screen.append(span);
    }
    document.body.style.margin = "0";
    document.body.append(screen);
  }, parts);
  await page.locator("pre").screenshot({ path });
} finally {
  await endAll();
}
