//! The counters of a `serverStatus` reply. Gauges are used unchanged; totals become rates between
//! two replies.
//!
//! This module does no I/O and reads no clock: its input is documents and the time between them. A
//! counter that the server does not report has no value. After a server restart, rates need two new
//! replies, because totals start at zero again.

use std::{sync::LazyLock, time::Duration};

use bson::{Bson, Document};

use seawall_stats::Counters;

/// The names of all counters.
static NAMES: LazyLock<Box<[&str]>> =
    LazyLock::new(|| COUNTERS.iter().map(|counter| counter.name).collect());

/// The counters of one `serverStatus` reply.
#[derive(Clone, Debug)]
pub(super) struct CounterReading {
    process: Process,
    /// The value of each counter in the order of `COUNTERS`, as the server reported it.
    raw: Box<[Option<f64>]>,
}

impl CounterReading {
    /// Reads all counters from a `serverStatus` reply.
    pub(super) fn of(server_status: &Document) -> Self {
        let raw = COUNTERS.iter().map(|counter| counter.read(server_status));
        Self {
            process: Process::of(server_status),
            raw: raw.collect(),
        }
    }

    /// The values of the counters. Rates need `before`: the counters of an earlier reply of the
    /// same server process, and the time since that reply.
    pub(super) fn values(&self, before: Option<(&Self, Duration)>) -> Counters {
        let before =
            before.filter(|(before, elapsed)| !elapsed.is_zero() && self.follows(before, *elapsed));
        let figures = COUNTERS.iter().enumerate().map(|(index, counter)| {
            let now = self.raw.get(index).copied().flatten();
            let value = match counter.kind {
                CounterKind::Gauge | CounterKind::Flag | CounterKind::PercentOf(_) => now,
                CounterKind::Total => before.and_then(|(before, elapsed)| {
                    let earlier = before.raw.get(index).copied().flatten()?;
                    Some((now? - earlier) / elapsed.as_secs_f64())
                }),
            };
            value.unwrap_or(f64::NAN)
        });
        Counters::new(&NAMES, figures.collect())
    }

    /// True if rates can be computed from `before` and this reply. Both replies must come from the
    /// same server process: the process id is the same, and neither the uptime nor a total has
    /// fallen. Also, the uptime must not have risen by far more than `elapsed`.
    fn follows(&self, before: &Self, elapsed: Duration) -> bool {
        let counters = COUNTERS.iter().zip(self.raw.iter().zip(&before.raw));
        let mut totals = counters.filter(|(counter, _)| matches!(counter.kind, CounterKind::Total));
        self.process.follows(&before.process)
            && !self.process.outran(&before.process, elapsed)
            && !totals.any(|(_, (now, before))| now < before && now.is_some())
    }
}

/// Maximum time by which the rise of the uptime may exceed the measured time between two replies.
/// The measured time is too short if the first reply is late, because its measurement begins when
/// this reply arrives. With the default interval, at most ten seconds are missing: a command
/// without a reply is abandoned after ten seconds.
const MAX_LATENESS: Duration = Duration::from_secs(15);

/// Identifies the server process that sent a reply.
#[derive(Clone, Copy, Debug)]
struct Process {
    id: Option<f64>,
    uptime_ms: Option<f64>,
}

impl Process {
    fn of(server_status: &Document) -> Self {
        Self {
            id: number_at(server_status, &["pid"]),
            uptime_ms: number_at(server_status, &["uptimeMillis"]),
        }
    }

    fn follows(&self, before: &Self) -> bool {
        self.id == before.id && self.uptime_ms >= before.uptime_ms
    }

    /// True if the server ran for far longer since `before` than `elapsed`, the time that Seawall
    /// measured: Seawall's machine slept, or the server's clock was set forward.
    fn outran(&self, before: &Self, elapsed: Duration) -> bool {
        let uptimes = self.uptime_ms.zip(before.uptime_ms);
        let ran_ms = uptimes.map_or(0.0, |(now, before)| now - before);
        ran_ms > (elapsed + MAX_LATENESS).as_secs_f64() * 1e3
    }
}

/// A counter: the path of its value in `serverStatus`, and the conversion of the value.
struct Counter {
    name: &'static str,
    kind: CounterKind,
    /// The paths of the value in different server versions. The first path that the reply contains
    /// is used.
    paths: &'static [Path],
}

type Path = &'static [&'static str];

enum CounterKind {
    /// The server's value, unchanged.
    Gauge,
    /// 1 if the server's value is not 0, else 0.
    Flag,
    /// The server's value as a percentage of the value at this path.
    PercentOf(Path),
    /// The server's value never falls while the server process runs; the counter is the increase of
    /// this value per second.
    Total,
}

impl Counter {
    fn read(&self, document: &Document) -> Option<f64> {
        let mut found = self
            .paths
            .iter()
            .filter_map(|path| number_at(document, path));
        let number = found.next()?;
        match self.kind {
            CounterKind::Gauge | CounterKind::Total => Some(number),
            CounterKind::Flag => Some(if number == 0.0 { 0.0 } else { 1.0 }),
            CounterKind::PercentOf(whole) => {
                let whole = number_at(document, whole).filter(|whole| *whole > 0.0)?;
                Some(100.0 * number / whole)
            }
        }
    }
}

/// The number at the end of the path (1 for `true`, 0 for `false`); `None` if the path does not
/// exist or its value is not a finite number.
fn number_at(document: &Document, path: &[&str]) -> Option<f64> {
    let (last, sections) = path.split_last()?;
    let mut inner = document;
    for section in sections {
        inner = inner.get_document(section).ok()?;
    }
    match inner.get(last)? {
        Bson::Int32(number) => Some(f64::from(*number)),
        Bson::Int64(number) => Some(float(*number)),
        Bson::Double(number) => Some(*number).filter(|number| number.is_finite()),
        Bson::Boolean(is_true) => Some(f64::from(u8::from(*is_true))),
        _ => None,
    }
}

#[expect(
    clippy::as_conversions,
    reason = "totals beyond 2^53 may lose their last digits"
)]
fn float(number: i64) -> f64 {
    number as f64
}

const fn gauge(name: &'static str, paths: &'static [Path]) -> Counter {
    Counter {
        name,
        kind: CounterKind::Gauge,
        paths,
    }
}

const fn total(name: &'static str, paths: &'static [Path]) -> Counter {
    Counter {
        name,
        kind: CounterKind::Total,
        paths,
    }
}

const fn percent(name: &'static str, paths: &'static [Path], whole: Path) -> Counter {
    Counter {
        name,
        kind: CounterKind::PercentOf(whole),
        paths,
    }
}

const CACHE_MAXIMUM: Path = &["wiredTiger", "cache", "maximum bytes configured"];

/// All counters. If a counter has two paths, the second is for MongoDB 8.0.
#[rustfmt::skip]
const COUNTERS: &[Counter] = &[
    total("checkpoint_bytes_per_second", &[&["wiredTiger", "block-manager", "bytes written for checkpoint"]]),
    total("checkpoint_ms_per_second", &[
        &["wiredTiger", "transaction", "transaction checkpoint total time (msecs)"],
        &["wiredTiger", "checkpoint", "total time (msecs)"],
    ]),
    Counter {
        name: "checkpoint_running",
        kind: CounterKind::Flag,
        paths: &[
            &["wiredTiger", "transaction", "transaction checkpoint currently running"],
            &["wiredTiger", "checkpoint", "progress state"],
        ],
    },
    gauge("cache_dirty_bytes", &[&["wiredTiger", "cache", "tracked dirty bytes in the cache"]]),
    percent("cache_dirty_percent", &[&["wiredTiger", "cache", "tracked dirty bytes in the cache"]], CACHE_MAXIMUM),
    percent("cache_used_percent", &[&["wiredTiger", "cache", "bytes currently in the cache"]], CACHE_MAXIMUM),
    total("cache_read_bytes_per_second", &[&["wiredTiger", "cache", "bytes read into cache"]]),
    total("cache_written_bytes_per_second", &[&["wiredTiger", "cache", "bytes written from cache"]]),
    total("eviction_application_pages_per_second", &[&["wiredTiger", "cache", "pages evicted by application threads"]]),
    total("eviction_modified_pages_per_second", &[&["wiredTiger", "cache", "modified pages evicted"]]),
    total("eviction_unmodified_pages_per_second", &[&["wiredTiger", "cache", "unmodified pages evicted"]]),
    total("eviction_worker_pages_per_second", &[&["wiredTiger", "cache", "eviction worker thread evicting pages"]]),
    total("eviction_application_us_per_second", &[&["wiredTiger", "thread-yield", "application thread time evicting (usecs)"]]),
    total("cache_wait_us_per_second", &[&["wiredTiger", "thread-yield", "application thread time waiting for cache (usecs)"]]),
    total("journal_bytes_per_second", &[&["wiredTiger", "log", "log bytes written"]]),
    total("journal_syncs_per_second", &[&["wiredTiger", "log", "log sync operations"]]),
    total("journal_sync_us_per_second", &[&["wiredTiger", "log", "log sync time duration (usecs)"]]),
    gauge("read_tickets_out", &[
        &["wiredTiger", "concurrentTransactions", "read", "out"],
        &["queues", "execution", "read", "out"],
    ]),
    gauge("read_tickets_available", &[
        &["wiredTiger", "concurrentTransactions", "read", "available"],
        &["queues", "execution", "read", "available"],
    ]),
    gauge("write_tickets_out", &[
        &["wiredTiger", "concurrentTransactions", "write", "out"],
        &["queues", "execution", "write", "out"],
    ]),
    gauge("write_tickets_available", &[
        &["wiredTiger", "concurrentTransactions", "write", "available"],
        &["queues", "execution", "write", "available"],
    ]),
    gauge("lock_queue_readers", &[&["globalLock", "currentQueue", "readers"]]),
    gauge("lock_queue_writers", &[&["globalLock", "currentQueue", "writers"]]),
    gauge("lock_queue_total", &[&["globalLock", "currentQueue", "total"]]),
    gauge("active_readers", &[&["globalLock", "activeClients", "readers"]]),
    gauge("active_writers", &[&["globalLock", "activeClients", "writers"]]),
    gauge("connections", &[&["connections", "current"]]),
    total("connections_created_per_second", &[&["connections", "totalCreated"]]),
    total("inserts_per_second", &[&["opcounters", "insert"]]),
    total("queries_per_second", &[&["opcounters", "query"]]),
    total("updates_per_second", &[&["opcounters", "update"]]),
    total("deletes_per_second", &[&["opcounters", "delete"]]),
    total("getmores_per_second", &[&["opcounters", "getmore"]]),
    total("commands_per_second", &[&["opcounters", "command"]]),
    total("documents_inserted_per_second", &[&["metrics", "document", "inserted"]]),
    total("documents_returned_per_second", &[&["metrics", "document", "returned"]]),
    total("documents_updated_per_second", &[&["metrics", "document", "updated"]]),
    total("documents_deleted_per_second", &[&["metrics", "document", "deleted"]]),
    total("network_in_bytes_per_second", &[&["network", "bytesIn"]]),
    total("network_out_bytes_per_second", &[&["network", "bytesOut"]]),
    total("network_requests_per_second", &[&["network", "numRequests"]]),
    total("page_faults_per_second", &[&["extra_info", "page_faults"]]),
    total("cpu_user_us_per_second", &[&["extra_info", "user_time_us"]]),
    total("cpu_system_us_per_second", &[&["extra_info", "system_time_us"]]),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bson::doc;

    use super::*;

    fn named(counters: &Counters) -> BTreeMap<&'static str, f64> {
        counters.iter().collect()
    }

    const CHECKPOINT_BYTES: &str = "checkpoint_bytes_per_second";

    #[test]
    fn every_counter_is_found_in_the_server_status_of_a_real_server() {
        let status = server_status();
        let reading = CounterReading::of(&status);
        let values = named(&reading.values(Some((&reading, Duration::from_secs(1)))));
        let names: Vec<&str> = values.keys().copied().collect();
        let mut expected: Vec<&str> = COUNTERS.iter().map(|counter| counter.name).collect();
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert_eq!(values["connections"], 12.0);
        assert_eq!(values[CHECKPOINT_BYTES], 0.0);
    }

    #[test]
    fn the_first_server_status_gives_gauges_but_no_rates() {
        let values = named(&CounterReading::of(&server_status()).values(None));
        let gauges = COUNTERS
            .iter()
            .filter(|counter| !matches!(counter.kind, CounterKind::Total));
        assert_eq!(values.len(), gauges.count());
        assert!(values.contains_key("write_tickets_out"));
        assert!(!values.contains_key(CHECKPOINT_BYTES));
    }

    #[test]
    fn total_counters_become_rates_while_gauges_stay_unchanged() {
        let before = CounterReading::of(&doc! {
            "uptimeMillis": 1_000_i64,
            "wiredTiger": { "block-manager": { "bytes written for checkpoint": 1_000_i64 } },
            "opcounters": { "insert": 10 },
            "connections": { "current": 7, "totalCreated": 5.0 },
        });
        let now = CounterReading::of(&doc! {
            "uptimeMillis": 3_000_i64,
            "wiredTiger": { "block-manager": { "bytes written for checkpoint": 5_000_i64 } },
            "opcounters": { "insert": 11 },
            "connections": { "current": 3, "totalCreated": 5.0 },
        });
        let values = named(&now.values(Some((&before, Duration::from_secs(2)))));
        let expected = BTreeMap::from([
            (CHECKPOINT_BYTES, 2_000.0),
            ("inserts_per_second", 0.5),
            ("connections", 3.0),
            ("connections_created_per_second", 0.0),
        ]);
        assert_eq!(values, expected);
        assert_eq!(
            named(&now.values(Some((&before, Duration::ZERO)))),
            gauges_of(&now)
        );
    }

    #[test]
    fn the_first_reply_after_a_server_restart_gives_no_rates() {
        let status = |pid: i64, uptime_ms: i64, inserts: i64, queries: i64| {
            CounterReading::of(&doc! {
                "pid": pid, "uptimeMillis": uptime_ms,
                "opcounters": { "insert": inserts, "query": queries },
                "connections": { "current": 1 },
            })
        };
        let before = status(1, 5_000, 100, 100);
        let second = Duration::from_secs(1);
        let rates = |now: &CounterReading| named(&now.values(Some((&before, second)))).len() - 1;
        assert_eq!(rates(&status(1, 6_000, 100, 101)), 2);
        for (what, now) in [
            ("uptime fell", status(1, 4_999, 200, 200)),
            ("a total fell", status(1, 6_000, 200, 99)),
            ("another process", status(2, 6_000, 200, 200)),
        ] {
            assert_eq!(rates(&now), 0, "{what}");
        }
    }

    /// The measured time does not include the time for which the machine slept.
    #[test]
    fn the_first_reply_after_the_machine_slept_gives_no_rates() {
        let status = |uptime_ms: i64| {
            CounterReading::of(
                &doc! { "uptimeMillis": uptime_ms, "opcounters": { "insert": uptime_ms } },
            )
        };
        let before = status(5_000);
        for (uptime_ms, rates) in [(6_000, 1), (16_000, 1), (3_605_000, 0)] {
            let values = status(uptime_ms).values(Some((&before, Duration::from_secs(1))));
            assert_eq!(named(&values).len(), rates, "{uptime_ms}");
        }
    }

    #[test]
    fn a_total_counter_missing_from_the_first_reply_has_no_rate() {
        let before = CounterReading::of(&doc! { "opcounters": { "insert": 1 } });
        let now = CounterReading::of(&doc! { "opcounters": { "insert": 2, "query": 2 } });
        let rates = |now: &CounterReading, before: &CounterReading| {
            named(&now.values(Some((before, Duration::from_secs(1)))))
        };
        assert_eq!(
            rates(&now, &before),
            BTreeMap::from([("inserts_per_second", 1.0)])
        );
        assert_eq!(
            rates(&before, &before),
            BTreeMap::from([("inserts_per_second", 0.0)])
        );
        // `insert` is missing in the newer reply. A missing counter does not count as a restart of
        // the server, so `query` still has a rate.
        let gone = CounterReading::of(&doc! { "opcounters": { "query": 3 } });
        assert_eq!(
            rates(&gone, &now),
            BTreeMap::from([("queries_per_second", 1.0)])
        );
    }

    #[test]
    fn non_numeric_values_are_treated_as_absent() {
        let odd = CounterReading::of(&doc! {
            "connections": { "current": "many" },
            "globalLock": 7,
            "wiredTiger": { "cache": { "tracked dirty bytes in the cache": f64::NAN, "maximum bytes configured": 0 } },
        });
        assert_eq!(named(&odd.values(None)), BTreeMap::new());
    }

    #[test]
    fn counters_in_the_server_status_of_mongodb_8_are_found() {
        let values = CounterReading::of(&doc! {
            "wiredTiger": {
                "cache": { "tracked dirty bytes in the cache": 50_i64, "maximum bytes configured": 200_i64 },
                "checkpoint": { "progress state": 4_i64 },
            },
            "queues": { "execution": { "write": { "out": 3, "available": 125 } } },
        });
        let expected = BTreeMap::from([
            ("cache_dirty_bytes", 50.0),
            ("cache_dirty_percent", 25.0),
            ("checkpoint_running", 1.0),
            ("write_tickets_out", 3.0),
            ("write_tickets_available", 125.0),
        ]);
        assert_eq!(named(&values.values(None)), expected);
    }

    #[test]
    fn counter_names_are_unique() {
        let mut names: Vec<&str> = COUNTERS.iter().map(|counter| counter.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNTERS.len());
    }

    fn gauges_of(reading: &CounterReading) -> BTreeMap<&'static str, f64> {
        named(&reading.values(None))
    }

    /// A `serverStatus` reply of mongod 6.0.5, recorded while clients inserted documents. Sections
    /// that Seawall does not use are removed.
    fn server_status() -> Document {
        serde_json::from_str(include_str!("server_status_6_0_5.json")).unwrap()
    }
}
