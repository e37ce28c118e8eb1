/** Scales from values to positions between 0 and 1, with their labels. */

/**
 * @typedef {object} Scale
 * @property {number} low
 * @property {number} high
 * @property {(value: number) => number} at the position of a value
 * @property {(position: number) => number} value the value at a position
 * @property {number[]} ticks
 */

/**
 * @param {number} low
 * @param {number} high
 * @param {number} [count] about how many labels fit
 * @returns {Scale}
 */
export function linear(low, high, count = 4) {
  const length = high - low || 1;
  const rough = length / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((s) => s >= rough) ?? rough;
  const ticks = [];
  for (
    let value = Math.ceil(low / step - 1e-9) * step;
    value <= high + step * 1e-9;
    value += step
  ) {
    ticks.push(value);
  }
  return {
    low,
    high,
    ticks,
    at: (value) => (value - low) / length,
    value: (position) => low + position * length,
  };
}

/**
 * @param {number} low greater than 0
 * @param {number} high
 * @returns {Scale}
 */
export function logarithmic(low, high) {
  const [from, to] = [Math.log(low), Math.log(Math.max(high, low * 1.01))];
  const ticks = [];
  const decades = (to - from) / Math.log(10);
  const factors = decades > 1.5 ? [1] : decades > 0.6 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
    }
  }
  return {
    low,
    high,
    ticks,
    at: (value) => (Math.log(Math.max(value, Number.MIN_VALUE)) - from) / (to - from),
    value: (position) => Math.exp(from + position * (to - from)),
  };
}

const INTERVALS = [
  1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
];

/**
 * Labels of a time axis: round times of the local clock.
 * @param {number} from
 * @param {number} until
 * @param {number} [count]
 */
export function timeTicks(from, until, count = 6) {
  const rough = (until - from) / count;
  const interval = INTERVALS.find((seconds) => seconds >= rough) ?? 604_800;
  const shift = new Date(from * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (
    let at = Math.ceil((from - shift) / interval) * interval + shift;
    at <= until;
    at += interval
  )
    ticks.push(at);
  return { ticks, interval };
}
