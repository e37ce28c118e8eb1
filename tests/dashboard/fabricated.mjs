// Replies of the API that some seconds of real traffic cannot cause: ten thousand shapes, and the
// storms of several instances.

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

/**
 * Storms of several instances: a storm that has ended, and two earlier storms that have not ended.
 * @param {number} now in seconds since the epoch
 */
export function currentStorms(now) {
  /** @param {number} started_at @param {number | null} ended_at @param {number} arrivals */
  const storm = (started_at, ended_at, arrivals) => ({
    applications: [],
    arrivals,
    client_authentications: 0,
    departures: {},
    drivers: [],
    ended_at,
    gave_up_in: {},
    networks: [],
    peak_arrivals_per_second: 100,
    server_authentications: 0,
    server_authentications_absorbed: 0,
    server_connections_absorbed: 0,
    server_connections_created: 0,
    started_at,
    users: [],
    usual_short_lived_per_second: 1,
  });
  const storms = [
    storm(now - 60, now - 30, 7),
    storm(now - 90, null, 1_000),
    storm(now - 95, null, 234),
  ];
  return { active: true, learning: false, storms };
}
