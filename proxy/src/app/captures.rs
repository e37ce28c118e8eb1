//! Connects the captures with the configuration, the topology and the metrics.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use seawall_capture::record::{Redaction, Server};
use seawall_config as config;
use seawall_insight::{Annotation, AnnotationKind};

use crate::{
    captures::{CaptureSettings, Captures, EventKind, RedactionKey},
    client::Shared,
    observe::Exporter,
    topology::Topology,
};

const HOUR_SECONDS: u64 = 3_600;

/// Opens the captures. The header of each capture file contains the addresses and process ids of
/// the servers in `topology`.
pub(super) fn open(settings: &config::Settings, topology: &Arc<Topology>) -> Arc<Captures> {
    let topology = Arc::clone(topology);
    let servers = move || {
        let servers = &topology.snapshot().description.servers;
        let servers = servers.iter().map(|server| Server {
            address: server.address.to_string(),
            process_id: (server.probe.process_id)
                .map(|id| Bytes::copy_from_slice(&id.bytes()))
                .unwrap_or_default(),
        });
        servers.collect()
    };
    let (captures, servers) = (self::settings(settings), Box::new(servers));
    Arc::new(match settings.deployment.mode {
        config::Mode::Pooled => Captures::new(captures, servers),
        config::Mode::Relay => Captures::without_clients(captures, servers),
    })
}

/// Converts the settings of captures; `None` if captures are off.
pub(super) fn settings(settings: &config::Settings) -> Option<CaptureSettings> {
    let capture = &settings.capture;
    let retention = match capture.retention_hours {
        0 => None,
        hours => Some(Duration::from_secs(u64::from(hours) * HOUR_SECONDS)),
    };
    Some(CaptureSettings {
        directory: capture.directory.clone()?,
        max_bytes: capture.max_bytes,
        max_part_bytes: capture.max_part_bytes,
        max_bytes_per_second: match capture.max_bytes_per_second {
            0 => None,
            bytes => Some(bytes),
        },
        queue_bytes: capture.queue_bytes,
        retention,
        max_duration: capture.max_duration,
        on: capture.on.iter().map(|event| kind(*event)).collect(),
        lead: capture.lead,
        lead_bytes: capture.lead_bytes,
        redaction: match capture.redaction {
            config::CaptureRedaction::None => Redaction::None,
            config::CaptureRedaction::Equality => Redaction::Equality,
            config::CaptureRedaction::Ordered => Redaction::Ordered,
        },
        redaction_key: (capture.redaction_key.as_ref())
            .map(|file| RedactionKey::new(file.secret.expose().as_bytes())),
    })
}

fn kind(event: config::CaptureEvent) -> EventKind {
    match event {
        config::CaptureEvent::Storm => EventKind::Storm,
        config::CaptureEvent::Stall => EventKind::Stall,
        config::CaptureEvent::Change => EventKind::Change,
    }
}

/// Begins a capture if `capture.on` contains the kind of the event that the annotation reports.
pub(super) fn see(captures: &Captures, annotation: &Annotation) {
    let kind = match annotation.kind {
        AnnotationKind::Storm => EventKind::Storm,
        AnnotationKind::Stall => EventKind::Stall,
        AnnotationKind::Change => EventKind::Change,
        AnnotationKind::Reload | AnnotationKind::Failover | AnnotationKind::Deploy => return,
    };
    captures.begin_on(kind, &annotation.text);
}

/// Ends the running capture if its time is over. If events may begin captures (`capture.on`), makes
/// sure that the latest operations are kept, so that a capture contains the operations before its
/// event. Updates the metrics of captures. When due, starts a task that deletes expired captures
/// and measures the size of the others. Must be called once a second.
pub(super) fn maintain(shared: &Shared, exporter: &Exporter) {
    shared.captures.end_if_over();
    shared.captures.prepare();
    exporter.update_capture_metrics(&shared.captures.figures());
    if shared.captures.take_cleaning_turn() {
        let captures = Arc::clone(&shared.captures);
        // Delete on a thread where blocking is allowed, because the directory may be slow.
        drop(tokio::task::spawn_blocking(move || {
            captures.clean();
        }));
    }
}

/// Ends the running capture, if any. Waits at most some seconds until its files are complete.
pub(super) async fn close(shared: &Shared) {
    let captures = Arc::clone(&shared.captures);
    drop(tokio::task::spawn_blocking(move || captures.close()).await);
}
