//! Connects the observer (statistics), the insight (history and detection), the pulse (samples of
//! servers) and the slow log. Once a second, passes the measurements to the insight.

use std::{
    fs::{self, OpenOptions},
    io,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use seawall_config as config;
use seawall_locks::Mutex;
use tokio::{runtime::Handle, task::JoinHandle, time::sleep};

use super::{
    StartError, captures,
    failovers::{Failover, PrimaryWatch},
    gauges::GaugeReader,
};
use crate::{
    captures::Captures,
    client::Shared,
    observe::{self, Exporter, HistoryLosses, Memory, Observer, SlowLog, SlowLogSettings, Totals},
    pulse::{self, Pulse},
    service_account::ServiceAccount,
    topology::{ServerType, Topology},
};
use seawall_insight::{Annotation, AnnotationKind, Clock, Insight, Second, StormChange};
use seawall_shape::NameKey;

/// Delay between the end of a second and the collection of its measurements. After this delay, the
/// threads have normally counted all operations that ended in that second. Operations that they
/// count later are part of the next second.
const AFTER_THE_SECOND: Duration = Duration::from_millis(10);

/// Creates the observer of operations, and opens its slow log if the configuration has one.
pub(super) fn observer(settings: &config::Settings) -> Result<Observer, StartError> {
    let slow_log = slow_log(settings)?;
    Ok(Observer::new(observe_settings(settings), slow_log)?)
}

/// Creates an observer without a slow log, for a caller that exports no statistics.
pub(super) fn unexported_observer(settings: &config::Settings) -> Result<Observer, StartError> {
    Ok(Observer::new(observe_settings(settings), None)?)
}

/// Checks that the slow log's file can be opened, without creating it. If the file does not exist,
/// checks only that its folder can be listed.
pub(super) fn check_slow_log(settings: &config::Settings) -> Result<(), StartError> {
    let log = settings.slow_log.as_ref();
    let Some(path) = log.and_then(|log| log.file.as_deref()) else {
        return Ok(());
    };
    let failed = |error| StartError::SlowLog {
        file: path.to_owned(),
        error,
    };
    match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or_else(|| ".".as_ref());
            fs::read_dir(folder).map(drop).map_err(failed)
        }
        opened => opened.map(drop).map_err(failed),
    }
}

pub(super) fn slow_log(settings: &config::Settings) -> Result<Option<SlowLog>, StartError> {
    let Some(log) = &settings.slow_log else {
        return Ok(None);
    };
    let started = SlowLog::start(SlowLogSettings {
        threshold: log.threshold,
        shape_thresholds: log.shape_thresholds.clone(),
        sample_percent: log.sample_percent,
        file: log.file.clone(),
        max_lines_per_second: log.max_lines_per_second,
        redact: log.redact,
        max_command_bytes: log.max_command_bytes,
    });
    started.map(Some).map_err(|error| StartError::SlowLog {
        file: log.file.clone().unwrap_or_default(),
        error,
    })
}

/// Passes the measurements of each second from the observer and from the pulse (samples of servers)
/// to the [`Insight`] (history and detection).
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) totals: Arc<Totals>,
    pub(super) exporter: Arc<Exporter>,
    /// The pulse, which samples servers, or the reason why servers are not sampled.
    pub(super) pulse: Result<Arc<Pulse>, &'static str>,
    pub(super) insight: Arc<Insight>,
    /// Reads gauges; `None` before the start has finished. The lock is held while the measurements
    /// of one second are passed to the insight. So the insight gets all measurements in the order
    /// of time.
    gauges: Mutex<Option<GaugeReader>>,
    /// The captures, so that an event can begin a capture; not set before the start has finished.
    captures: OnceLock<Arc<Captures>>,
    /// Position in the sequence of annotations (recorded events). The captures have received all
    /// annotations up to this position.
    seen: Mutex<u64>,
    /// The task that begins a capture because of events. The task takes long if the directory of
    /// the captures is on a slow disk.
    beginning: Mutex<Option<JoinHandle<()>>>,
}

impl Feed {
    /// Opens the [`Insight`] (history and detection), and creates the pulse (samples of servers) if
    /// it is on. The tasks of the pulse run on `runtime`.
    pub(super) fn open(
        settings: &config::Settings,
        service_account: Option<&Arc<ServiceAccount>>,
        totals: Arc<Totals>,
        exporter: Arc<Exporter>,
        runtime: Handle,
    ) -> Result<Arc<Self>, StartError> {
        let pulse = pulse(settings, service_account, runtime);
        let history = &settings.history;
        let settings = seawall_insight::InsightSettings {
            is_on: history.enabled,
            directory: history.directory.as_deref(),
            max_bytes: history.memory_bytes,
            max_shapes: history.max_series_shapes.get(),
        };
        let insight = Insight::open(settings, Clock::default())?;
        // Annotations of earlier runs begin no capture.
        let mut seen = 0;
        drop(insight.annotations_since(&mut seen));
        Ok(Arc::new(Self {
            totals,
            exporter,
            pulse,
            insight: Arc::new(insight),
            gauges: Mutex::default(),
            captures: OnceLock::new(),
            seen: Mutex::new(seen),
            beginning: Mutex::default(),
        }))
    }

    /// Completes the setup with the parts of the running Seawall. From now on, each second contains
    /// the gauges of `shared`, and detected events can begin traffic captures (`shared.captures`).
    pub(super) fn read_gauges_of(&self, shared: Arc<Shared>) {
        // `set` cannot fail, because this function is called once.
        drop(self.captures.set(Arc::clone(&shared.captures)));
        *self.gauges.lock() = Some(GaugeReader::new(shared));
    }

    /// Passes all measurements since the previous call to the [`Insight`]. If there are new events,
    /// starts a task on another thread that begins a capture because of these events. While such a
    /// task still runs, further events are kept for a later call. They then begin a capture, unless
    /// a capture already runs.
    fn push(&self, now: SystemTime) {
        self.add_second(now);
        let Some(captures) = self.captures.get() else {
            return;
        };
        let mut beginning = self.beginning.lock();
        if beginning.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let added = self.insight.annotations_since(&mut self.seen.lock());
        if !added.is_empty() {
            let captures = Arc::clone(captures);
            // Do not wait for this task, because a slow disk must not delay the next second.
            *beginning = Some(tokio::task::spawn_blocking(move || {
                added
                    .iter()
                    .for_each(|added| captures::see(&captures, added));
            }));
        }
    }

    /// Passes all measurements since the previous call of this function to the [`Insight`].
    fn add_second(&self, now: SystemTime) {
        let mut gauges = self.gauges.lock();
        let (series, whole) = match self.insight.is_on() {
            true => self.totals.take_second(),
            false => Default::default(),
        };
        let pulse = self.pulse.as_ref();
        let samples = pulse.map(|pulse| pulse.take_samples());
        let traffic = self.totals.take_traffic();
        let reader = gauges.as_mut().filter(|_| self.insight.is_on());
        let gauges = reader.map(|reader| reader.read(&traffic, now));
        let second = Second {
            series,
            whole,
            gauges: gauges.unwrap_or_default(),
            traffic,
            samples: samples.unwrap_or_default(),
        };
        match self.insight.add(second, now) {
            Some(StormChange::Began) => self.exporter.record_storm_begin(),
            Some(StormChange::Ended) => self.exporter.record_storm_end(),
            None => {}
        }
        if self.insight.counts_recurring_stalls_in(now) {
            let recurring = self.insight.count_recurring_stalls();
            self.exporter.set_recurring_stalls(recurring);
        }
    }

    /// Passes the servers of the deployment to the pulse, which samples them. If the primary has
    /// changed, adds an annotation for the failover.
    fn see(&self, topology: &Topology, primary: &mut PrimaryWatch) {
        let servers = &topology.snapshot().description.servers;
        let mut primaries = servers
            .iter()
            .filter(|of| of.server_type == ServerType::Primary);
        let current = primaries.next().map(|server| server.address.to_string());
        if let Some(failover) = primary.see(current, self.insight.now()) {
            annotate_failover(&self.insight, &failover);
        }
        if let Ok(pulse) = &self.pulse {
            // An arbiter has no users, so it would refuse each login.
            let sampled = servers.iter();
            let sampled = sampled.filter(|server| server.server_type != ServerType::Arbiter);
            let addresses: Vec<_> = sampled.map(|server| server.address.to_string()).collect();
            pulse.set_servers(&addresses);
        }
    }

    /// Passes the measurements of the last second to the [`Insight`], and closes the history.
    /// Events of this second begin no capture.
    pub(super) fn close(&self) {
        self.add_second(self.insight.now() + Duration::from_secs(1));
        self.insight.close();
    }
}

/// Creates the pulse, which samples the servers, or returns the reason why servers are not sampled.
fn pulse(
    settings: &config::Settings,
    service_account: Option<&Arc<ServiceAccount>>,
    runtime: Handle,
) -> Result<Arc<Pulse>, &'static str> {
    if !settings.history.enabled {
        Err("off: history.enabled is false")
    } else if !settings.pulse.enabled {
        Err("off: pulse.enabled is false")
    } else if let Some(account) = service_account {
        let settings = pulse_settings(&settings.pulse);
        Ok(Arc::new(Pulse::new(Arc::clone(account), settings, runtime)))
    } else {
        Err("off: no service account")
    }
}

/// Converts the configured settings of the pulse, which samples the servers.
pub(super) fn pulse_settings(settings: &config::Pulse) -> pulse::PulseSettings {
    pulse::PulseSettings {
        interval: settings.interval,
        timeout: settings.timeout,
    }
}

/// Passes the measurements of each second to the [`Insight`], [`AFTER_THE_SECOND`] after the end of
/// the second. Also tells the pulse which servers to sample, and starts comparisons and writes of
/// the history when they are due. Never returns.
pub(super) async fn push_seconds(feed: Arc<Feed>, topology: Arc<Topology>) {
    let insight = Arc::clone(&feed.insight);
    let mut primary = PrimaryWatch::default();
    loop {
        let now = insight.now();
        let into_second = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_secs(1)
            .saturating_sub(Duration::from_nanos(into_second.subsec_nanos().into()));
        sleep(left + AFTER_THE_SECOND).await;
        feed.see(&topology, &mut primary);
        let now = insight.now();
        let pushed = Arc::clone(&feed);
        // The push compresses and compares data for some milliseconds. It runs on another thread,
        // so that other tasks do not wait.
        drop(tokio::task::spawn_blocking(move || pushed.push(now)).await);
        if insight.compares_in(now) {
            let insight = Arc::clone(&insight);
            // The comparison is not awaited, because it takes longer than a push.
            drop(tokio::task::spawn_blocking(move || {
                insight.annotate_changes()
            }));
        }
        if insight.is_due(now) {
            let insight = Arc::clone(&insight);
            // The write is not awaited, because a slow disk must not delay the next second.
            drop(tokio::task::spawn_blocking(move || insight.write()));
        }
    }
}

fn annotate_failover(insight: &Insight, failover: &Failover) {
    let Failover { lost_at, from, to } = failover;
    let text = format!("primary {from} \u{2192} {to}");
    let kind = AnnotationKind::Failover;
    insight.annotate(Annotation::new(kind, *lost_at, Some(insight.now()), &text));
}

/// Adds an annotation for a reload that changed `keys`; adds none if `keys` is empty.
pub(super) fn annotate_reload<'a>(insight: &Insight, keys: impl Iterator<Item = &'a str>) {
    let keys: Vec<_> = keys.collect();
    if !keys.is_empty() {
        let kind = AnnotationKind::Reload;
        insight.annotate(Annotation::new(kind, insight.now(), None, &keys.join(", ")));
    }
}

/// Updates the metrics of Seawall itself: its memory, its CPU time, the lines that the log and the
/// slow log have dropped, and the data that the history has dropped early or could not write.
pub(super) fn update_process_metrics(shared: &Shared, feed: &Feed) {
    let size = feed.insight.size();
    let losses = HistoryLosses {
        dropped_early: size.dropped_early,
        failed_writes: size.failed_writes,
    };
    let memory = [
        Memory {
            owner: "history",
            bytes: size.bytes,
        },
        Memory {
            owner: "messages",
            bytes: shared.memory.requests.used_bytes() + shared.memory.replies.used_bytes(),
        },
    ];
    feed.exporter.update_process_metrics(&memory, losses);
}

/// Converts the settings of the observer.
fn observe_settings(settings: &config::Settings) -> observe::ObserverSettings {
    observe::ObserverSettings {
        counts_shapes: settings.shapes.enabled,
        max_shapes: settings.shapes.max_shapes.get(),
        name_key: (settings.shapes.name_key.as_ref())
            .map(|key| NameKey::new(key.expose().as_bytes())),
        max_namespaces: settings.shapes.max_namespaces.get(),
        keeps_seconds: settings.history.enabled,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        path::Path,
        process,
        sync::{
            atomic::{AtomicU64, Ordering},
            mpsc,
        },
    };

    use bson::doc;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::captures::{CaptureSettings, EventKind};
    use seawall_command::CommandBytes;
    use seawall_stats::{Outcome, Phase};

    /// The time of the first second, in seconds since the epoch.
    const START: u64 = 1_795_200_000;

    /// A feed whose clock shows `now`, in seconds since the epoch.
    fn feed(observer: &Observer, now: &Arc<AtomicU64>) -> Feed {
        let read = Arc::clone(now);
        let now = move || UNIX_EPOCH + Duration::from_secs(read.load(Ordering::Relaxed));
        let settings = seawall_insight::InsightSettings {
            is_on: true,
            directory: None,
            max_bytes: 8 << 20,
            max_shapes: 10,
        };
        Feed {
            totals: Arc::clone(&observer.totals),
            exporter: Arc::clone(&observer.exporter),
            pulse: Err("off"),
            insight: Arc::new(Insight::open(settings, Clock::new(now)).unwrap()),
            gauges: Mutex::default(),
            captures: OnceLock::new(),
            seen: Mutex::default(),
            beginning: Mutex::default(),
        }
    }

    fn observer() -> Observer {
        let settings = observe::ObserverSettings {
            counts_shapes: true,
            max_shapes: 10,
            name_key: None,
            max_namespaces: 10,
            keeps_seconds: true,
        };
        Observer::new(settings, None).unwrap()
    }

    /// Settings with which reconnect storms begin captures in `directory`.
    fn captures_of_storms(directory: &Path) -> CaptureSettings {
        CaptureSettings {
            on: vec![EventKind::Storm],
            ..CaptureSettings::for_tests(directory.to_owned())
        }
    }

    fn annotate_storm(insight: &Insight) {
        let kind = AnnotationKind::Storm;
        insight.annotate(Annotation::new(kind, insight.now(), None, "storm"));
    }

    /// Waits until a capture runs.
    async fn wait_for_capture(captures: &Captures) {
        let begun = async {
            while !captures.figures().is_running {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(10), begun).await.unwrap();
    }

    #[tokio::test]
    async fn the_history_is_recorded_and_closed_while_the_start_of_a_capture_hangs() {
        let observer = observer();
        let now = Arc::new(AtomicU64::new(START));
        let feed = Arc::new(feed(&observer, &now));
        let directory = env::temp_dir().join(format!("seawall-hung-{}", process::id()));
        let settings = captures_of_storms(&directory);
        let (captures, gate) = Captures::with_hanging_starts(settings);
        captures.prepare();
        feed.captures.set(Arc::clone(&captures)).unwrap();
        let pushed = Arc::clone(&feed);
        let pushes = tokio::task::spawn_blocking(move || {
            for at in 0..3 {
                now.store(START + at, Ordering::Relaxed);
                annotate_storm(&pushed.insight);
                pushed.push(pushed.insight.now());
            }
            pushed.close();
        });
        let ended = timeout(Duration::from_secs(10), pushes).await;
        let is_hung = !captures.figures().is_running;
        drop(gate);
        ended.expect("the history closes in time").unwrap();
        assert!(is_hung);
        wait_for_capture(&captures).await;
        assert_eq!(captures.list().unwrap().len(), 1);
        captures.close();
        fs::remove_dir_all(directory).unwrap();
    }

    /// Each event gets a task that begins its capture. At most one of these tasks runs at a time.
    /// So a new event waits while the task of an earlier event runs.
    #[tokio::test]
    async fn a_storm_begins_its_capture_after_the_task_of_an_earlier_event_has_ended() {
        let observer = observer();
        let now = Arc::new(AtomicU64::new(START));
        let feed = feed(&observer, &now);
        let directory = env::temp_dir().join(format!("seawall-second-event-{}", process::id()));
        let settings = captures_of_storms(&directory);
        let captures = Arc::new(Captures::new(Some(settings), Box::new(Vec::new)));
        captures.prepare();
        feed.captures.set(Arc::clone(&captures)).unwrap();
        // This task of an earlier event waits until `gate` is dropped, and begins no capture.
        let (gate, wait) = mpsc::channel::<()>();
        let earlier = tokio::task::spawn_blocking(move || {
            wait.recv().ok();
        });
        *feed.beginning.lock() = Some(earlier);
        annotate_storm(&feed.insight);
        feed.push(feed.insight.now());
        assert!(!captures.figures().is_running);
        drop(gate);
        let earlier = feed.beginning.lock().take().unwrap();
        earlier.await.unwrap();
        now.store(START + 1, Ordering::Relaxed);
        feed.push(feed.insight.now());
        wait_for_capture(&captures).await;
        captures.close();
        fs::remove_dir_all(directory).unwrap();
    }

    /// Records 20 operations on one server, each with the duration `time`.
    fn operations(observer: &Observer, time: Duration) {
        let server = observer.recorder.server("127.0.0.1:1").index();
        let command = doc! { "find": "c", "$db": "d" }.to_vec().unwrap();
        let input = CommandBytes::of_body(&command);
        for _ in 0..20 {
            let now = Instant::now();
            let mut observation = observer.recorder.begin(&input, 10, now);
            observation.enter(Phase::Server, now);
            observation.set_server(server);
            observation.finish(Outcome::Ok, now + time);
        }
    }

    /// In a stall, the operations of a server take much longer than usual.
    #[test]
    fn stalls_count_as_recurring_from_the_third_stall_until_three_minutes_after_the_last() {
        let observer = observer();
        let now = Arc::new(AtomicU64::new(START));
        let feed = feed(&observer, &now);
        let mut changes = Vec::new();
        for at in 0..600 {
            // The server stalls once a minute, six times.
            let stalls = (60..420).contains(&at) && at % 60 == 0;
            operations(
                &observer,
                Duration::from_millis(if stalls { 2_000 } else { 2 }),
            );
            now.store(START + at + 1, Ordering::Relaxed);
            feed.push(feed.insight.now());
            let text = feed.exporter.render();
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix("seawall_recurring_stalls "));
            let value = value.map(str::to_owned);
            if changes.last().map(|(_, last)| last) != Some(&value) {
                changes.push((at, value));
            }
        }
        let values: Vec<_> = changes.iter().map(|(_, value)| value.as_deref()).collect();
        assert_eq!(
            values,
            [None, Some("0"), Some("1"), Some("0")],
            "{changes:?}"
        );
        let (rise, fall) = (changes[2].0, changes[3].0);
        assert!((180..=200).contains(&rise), "{changes:?}");
        // The gauge falls three minutes after the last stall, which is in second 360.
        assert!((530..=560).contains(&fall), "{changes:?}");
    }
}
