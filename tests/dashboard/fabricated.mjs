// Replies of the API that real traffic of some seconds does not cause: storms, stalls, changes, and
// ten thousand shapes.

const NOW = Math.floor(Date.now() / 1000);
const named = (/** @type {string} */ name, /** @type {number} */ count) => ({ name, count });
const latency = (/** @type {number} */ p50) => ({
  p50,
  p90: p50 * 2,
  p99: p50 * 8,
  p999: p50 * 12,
  max: p50 * 20,
});
const phases = (/** @type {number} */ ms) => ({
  permit: 0,
  checkout: ms / 10,
  forward: ms / 100,
  server: ms,
  receive: ms / 20,
  send: ms / 50,
});

export const STORMS = {
  active: true,
  learning: false,
  storms: [
    {
      applications: [named("checkout-api", 3120), named("search", 810)],
      arrivals: 4210,
      client_authentications: 4100,
      departures: { gave_up: 3200, closed: 900 },
      drivers: [named("nodejs 6.8", 4000)],
      ended_at: null,
      gave_up_in: { logging_in: 3100 },
      networks: [named("10.1.2.0/24", 3900), named("10.1.3.0/24", 120)],
      peak_arrivals_per_second: 920,
      server_authentications: 12,
      server_authentications_absorbed: 4088,
      server_connections_absorbed: 4198,
      server_connections_created: 12,
      started_at: NOW - 90,
      users: [named("shop.app", 4100)],
      usual_short_lived_per_second: 0.4,
    },
  ],
};

const stallingShape = {
  collection: "orders",
  command: "find",
  db: "shop",
  id: "00000000000000aa",
  level: "fine",
  text: "{filter:{customer:?,status:?},sort:{created:-1}}",
};

export const STALLS = {
  episodes: [
    {
      moved: [
        { counter: "checkpoint_bytes", during: 48_000_000, otherwise: 120_000, score: 41.2 },
        { counter: "dirty_cache_bytes", during: 9_100_000, otherwise: 700_000, score: 12.4 },
      ],
      operations: 412,
      phase: "server",
      seconds: 3.2,
      server: "db1:27017",
      shapes: [{ ...stallingShape, operations: 380 }],
      started_at: NOW - 120,
      unanswered_pulses: 2,
      usual_p99_ms: 4.2,
      waited_ms: 812_000,
      worst_ms: 3190,
    },
  ],
  recurring: [
    {
      counter: "checkpoint_bytes",
      current: true,
      last_at: NOW - 120,
      length_seconds: 3.1,
      period_seconds: 60,
      phase: "server",
      server: "db1:27017",
      times: 14,
      unanswered: false,
    },
  ],
  pulse: { state: "on", answered: 800, unanswered: 2, mean_ms: 0.8 },
};

const rates = (/** @type {number} */ p50, /** @type {number} */ per_second) => ({
  bytes_per_operation: 840,
  count: per_second * 600,
  documents_per_operation: 3,
  p50_ms: p50,
  p99_ms: p50 * 6,
  per_second,
  total_time_ms_per_second: p50 * per_second,
});

export const CHANGES = {
  against: "1h",
  comparable: true,
  reason: null,
  baseline: { count: 60_000, from: NOW - 4200, to: NOW - 3600, seconds: 600 },
  now: { count: 61_000, from: NOW - 600, to: NOW, seconds: 600 },
  changes: [
    {
      kind: "slower",
      before: rates(1.1, 40),
      now: rates(5.3, 41),
      cost_ms_per_second: 172,
      effect: 0.97,
      ratio: 4.8,
      shape: stallingShape,
    },
    {
      kind: "new",
      before: rates(0, 0),
      now: rates(0.6, 12),
      cost_ms_per_second: 9,
      effect: 1,
      ratio: null,
      shape: {
        ...stallingShape,
        id: "00000000000000bb",
        command: "aggregate",
        text: "{pipeline:[{$match:{sku:?}}]}",
      },
    },
  ],
};

/** @param {number} count */
export function manyShapes(count) {
  const shapes = Array.from({ length: count }, (_, i) => ({
    collection: `c${i % 100}`,
    command: ["find", "update", "insert", "aggregate"][i % 4],
    count: count - i,
    db: "shop",
    documents: i,
    errors: i % 7,
    id: i.toString(16).padStart(16, "0"),
    latency_ms: latency(1 + (i % 50)),
    level: "fine",
    load_ms: (count - i) * 2.5,
    more: { count: 0, total_time_ms: 0 },
    phases_ms: phases(1),
    reply_bytes: 1000 * i,
    request_bytes: 100,
    shape: `{filter:{field${i}:?}}`,
    total_time_ms: (count - i) * 2.5,
  }));
  const other = { ...shapes[0], count: 0, load_ms: 0 };
  return { shapes, other, since_seconds: 3600 };
}
