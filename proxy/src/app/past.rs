//! Wires history, pulse and slow log, and runs their loops.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use seawall_config as config;
use tokio::{runtime::Handle, time::sleep};

use super::StartError;
use crate::{
    client::Shared,
    observe::{self, Memory, Observer, SlowLog, SlowLogSettings},
    pulse::{self, Pulse},
    shape::NameKey,
    sight::{self, Sight},
    topology::{DeploymentOptions, Topology},
};

/// Delay after the start of a second: operations that ended in the second before are counted by
/// then.
const AFTER_THE_SECOND: Duration = Duration::from_millis(10);

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
    started.map(Some).map_err(StartError::SlowLog)
}

pub(super) fn sight(
    settings: &config::Settings,
    deployment: &DeploymentOptions,
    observer: Arc<Observer>,
    runtime: Handle,
) -> Result<Arc<Sight>, StartError> {
    let history = &settings.history;
    let pulse = pulse_is_off(settings, deployment.has_credentials())
        .is_none()
        .then(|| {
            let settings = pulse::Settings {
                interval: settings.pulse.interval,
                timeout: settings.pulse.timeout,
            };
            Pulse::new(deployment.client_options(), settings, runtime)
        });
    let settings = sight::Settings {
        is_on: history.enabled,
        directory: history.directory.as_deref(),
        max_bytes: history.memory_bytes,
        max_shapes: history.max_series_shapes.get(),
    };
    let sight = Sight::open(observer, settings, pulse, sight::Clock::default())?;
    Ok(Arc::new(sight))
}

/// The reason why servers are not sampled; `None` if they are.
pub(super) fn pulse_is_off(
    settings: &config::Settings,
    has_credentials: bool,
) -> Option<&'static str> {
    if !settings.history.enabled {
        Some("off: history.enabled")
    } else if !settings.pulse.enabled {
        Some("off: pulse.enabled")
    } else if !has_credentials {
        Some("off: no service account")
    } else {
        None
    }
}

/// Adds each second to the history, soon after its end.
pub(super) async fn tick_history(sight: Arc<Sight>, topology: Arc<Topology>) {
    loop {
        let now = sight.now();
        let into_second = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_secs(1)
            .saturating_sub(Duration::from_nanos(into_second.subsec_nanos().into()));
        sleep(left + AFTER_THE_SECOND).await;
        let servers = &topology.snapshot().description.servers;
        let addresses: Vec<_> = servers.iter().map(|s| s.address.to_string()).collect();
        sight.set_servers(&addresses);
        let now = sight.now();
        let ticked = Arc::clone(&sight);
        // Packing and comparing take milliseconds, for which other tasks must not wait.
        drop(tokio::task::spawn_blocking(move || ticked.tick(now)).await);
        if sight.is_due(now) {
            let sight = Arc::clone(&sight);
            // Not awaited: a slow disk must not delay the next second.
            drop(tokio::task::spawn_blocking(move || sight.write()));
        }
    }
}

/// Updates the metrics of Seawall's own memory, CPU and dropped steps.
pub(super) fn update_process_metrics(shared: &Shared, sight: &Sight) {
    let size = sight.size();
    let memory = [
        Memory {
            owner: "history",
            bytes: size.bytes,
        },
        Memory {
            owner: "messages",
            bytes: shared.budget.used_bytes() + shared.reply_budget.used_bytes(),
        },
    ];
    shared
        .observer
        .update_process_metrics(&memory, size.dropped_early);
}

/// What to count, and how many rows to keep.
pub(super) fn observe_settings(settings: &config::Settings) -> observe::Settings {
    observe::Settings {
        counts_shapes: settings.shapes.enabled,
        max_shapes: settings.shapes.max_shapes.get(),
        name_key: (settings.shapes.name_key.as_ref())
            .map(|key| NameKey::new(key.expose().as_bytes())),
        max_namespaces: settings.shapes.max_namespaces.get(),
        keeps_seconds: settings.history.enabled,
    }
}
