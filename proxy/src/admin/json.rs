//! Converts snapshots to replies of the API.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    observe::{
        ClientRow, Namespace, NamespaceSums, ServerSums, ShapeRow, ShapeSums, SlowOperation,
        code_name,
    },
    pool::{ConcurrencySnapshot, PoolSnapshot},
    topology::TopologyDescription,
};
use seawall_api::{Sort, millis};
use seawall_insight::Storm;
use seawall_stats::{Departure, Figures, Label, Names, OUTCOMES, Outcome, float};
use seawall_transport::connection::ServerAddress;

/// The distributions that a reply contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// No distributions, only quantiles.
    Quantiles,
    /// The distribution of each shape's durations.
    Shapes,
    /// All distributions, so that the replies of several instances can be merged.
    AllDistributions,
}

/// Sorts rows in descending order.
pub(super) fn sort<T>(rows: &mut [T], sort: Sort, figures: fn(&T) -> &Figures) {
    match sort {
        Sort::TotalTime => rows.sort_by_cached_key(|row| Reverse(figures(row).load())),
        Sort::Count => rows.sort_by_key(|row| Reverse(figures(row).count)),
        Sort::Errors => rows.sort_by_key(|row| Reverse(figures(row).errors)),
        Sort::Documents => rows.sort_by_key(|row| Reverse(figures(row).documents)),
        Sort::P99 => rows.sort_by_cached_key(|row| Reverse(figures(row).durations.quantile(0.99))),
        Sort::Bytes => rows.sort_by_key(|row| {
            let figures = figures(row);
            Reverse(figures.request_bytes + figures.reply_bytes)
        }),
    }
}

pub(super) fn since_epoch(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

/// Counts of operations by outcome, without outcomes whose count is 0.
fn outcomes(counts: &[u64; OUTCOMES]) -> BTreeMap<String, u64> {
    let outcomes = Outcome::ALL.iter().zip(counts);
    let ended = outcomes.filter(|(_, count)| **count > 0);
    ended
        .map(|(outcome, count)| (outcome.as_str().to_owned(), *count))
        .collect()
}

fn by_code(codes: &HashMap<i32, u64>) -> BTreeMap<String, u64> {
    let named = codes.iter();
    named
        .map(|(code, count)| (code_name(*code), *count))
        .collect()
}

/// A namespace, with its figures since the start of Seawall. The distribution of the durations is
/// added if `is_full` is true.
pub(super) fn namespace(
    (namespace, sums): &(Namespace, NamespaceSums),
    is_full: bool,
) -> seawall_api::Namespace {
    let durations = sums.all_durations();
    seawall_api::Namespace {
        awaited_time_ms: Some(millis(sums.awaited.sum())),
        collection: namespace.collection.to_string(),
        command: namespace.command.to_owned(),
        count: sums.outcomes.iter().sum(),
        db: namespace.db.to_string(),
        distribution: distribution_if(is_full, &durations.coarse()),
        documents: sums.documents,
        error_codes: Some(by_code(&sums.codes)),
        errors: None,
        latency_ms: (&durations).into(),
        outcomes: Some(outcomes(&sums.outcomes)),
        phases_ms: (&sums.phases).into(),
        reply_bytes: sums.reply_bytes,
        request_bytes: sums.request_bytes,
        retries: Some(sums.retries),
        streamed: Some(sums.streamed),
        total_time_ms: millis(durations.sum()),
        write_concern_error_codes: Some(by_code(&sums.write_concern_codes)),
        write_error_codes: Some(by_code(&sums.write_error_codes)),
        write_errors: Some(sums.write_errors),
    }
}

/// A namespace, with its figures in a period; `None` if the label does not name a namespace. The
/// distribution of the durations is added if `is_full` is true.
pub(super) fn past_namespace(
    label: &Label,
    figures: &Figures,
    is_full: bool,
) -> Option<seawall_api::Namespace> {
    let Label::Namespace {
        command,
        db,
        collection,
    } = label
    else {
        return None;
    };
    Some(seawall_api::Namespace {
        collection: collection.to_string(),
        command: command.to_string(),
        count: figures.count,
        db: db.to_string(),
        distribution: distribution_if(is_full, &figures.durations),
        documents: figures.documents,
        errors: Some(figures.errors),
        latency_ms: (&figures.durations).into(),
        phases_ms: (&figures.phases).into(),
        reply_bytes: figures.reply_bytes,
        request_bytes: figures.request_bytes,
        total_time_ms: millis(figures.durations.sum()),
        ..seawall_api::Namespace::default()
    })
}

/// The figures of a server, without `answer_ms` (the time until the server's reply begins). The
/// distribution of the durations is added if `is_full` is true.
pub(super) fn server(address: &str, figures: &Figures, is_full: bool) -> seawall_api::Server {
    seawall_api::Server {
        address: address.to_owned(),
        answer_ms: None,
        count: figures.count,
        distribution: distribution_if(is_full, &figures.durations),
        documents: figures.documents,
        errors: figures.errors,
        instance: None,
        latency_ms: (&figures.durations).into(),
        phases_ms: (&figures.phases).into(),
        reply_bytes: figures.reply_bytes,
        request_bytes: figures.request_bytes,
        total_time_ms: millis(figures.durations.sum()),
    }
}

/// A server, with its figures since the start of Seawall.
pub(super) fn server_row((address, sums): &(Arc<str>, ServerSums)) -> seawall_api::Server {
    seawall_api::Server {
        answer_ms: Some((&sums.durations).into()),
        ..server(address, &sums.figures, false)
    }
}

fn more(figures: &Figures) -> seawall_api::More {
    seawall_api::More {
        awaited_time_ms: None,
        count: figures.more_count,
        documents: None,
        total_time_ms: millis(figures.more_time),
    }
}

fn distribution_if(
    is_full: bool,
    durations: &seawall_stats::Distribution,
) -> Option<Vec<seawall_api::Bucket>> {
    is_full.then(|| seawall_api::buckets(durations))
}

/// The figures of several shapes together. The distribution of the durations is added if `is_full`
/// is true.
pub(super) fn other(figures: &Figures, is_full: bool) -> seawall_api::Other {
    seawall_api::Other {
        count: figures.count,
        distribution: distribution_if(is_full, &figures.durations),
        documents: figures.documents,
        errors: figures.errors,
        latency_ms: (&figures.durations).into(),
        load_ms: millis(figures.load()),
        more: more(figures),
        phases_ms: (&figures.phases).into(),
        reply_bytes: figures.reply_bytes,
        request_bytes: figures.request_bytes,
        total_time_ms: millis(figures.durations.sum()),
    }
}

/// A step of a timeline: the figures of `seconds` seconds from `at` on. The distribution of the
/// durations is added if `is_full` is true.
pub(super) fn step(
    at: u64,
    seconds: u64,
    figures: &Figures,
    is_full: bool,
) -> seawall_api::TimelineStep {
    let durations = &figures.durations;
    let latency_ms = seawall_api::Latency::from(durations);
    seawall_api::TimelineStep {
        at: float(at),
        count: figures.count,
        distribution: distribution_if(is_full, durations),
        documents: figures.documents,
        errors: figures.errors,
        latency_ms,
        load_ms: millis(figures.load()),
        max_ms: latency_ms.max,
        more: more(figures),
        p50_ms: latency_ms.p50,
        p99_ms: latency_ms.p99,
        phases_ms: (&figures.phases).into(),
        reply_bytes: figures.reply_bytes,
        request_bytes: figures.request_bytes,
        seconds: float(seconds),
        total_time_ms: millis(durations.sum()),
    }
}

/// The id, namespace and text of a row's shape, and when the shape was first and last seen. All
/// figures of the returned value are 0.
pub(super) fn shape_name(row: &ShapeRow) -> seawall_api::Shape {
    let shape = &row.shape;
    seawall_api::Shape {
        collection: shape.namespace.collection.to_string(),
        command: shape.namespace.command.to_owned(),
        db: shape.namespace.db.to_string(),
        first_seen: Some(seawall_api::Moment::Exact(since_epoch(row.first_seen))),
        id: shape.id.to_string(),
        last_seen: Some(seawall_api::Moment::Exact(since_epoch(row.last_seen))),
        level: shape.level.as_str().to_owned(),
        shape: shape.text.to_string(),
        ..seawall_api::Shape::default()
    }
}

/// The id, namespace and text of a shape in the history. All figures of the returned value are 0.
pub(super) fn past_shape_name(label: &Label) -> seawall_api::Shape {
    let Label::Shape {
        level,
        id,
        command,
        db,
        collection,
        text,
    } = label
    else {
        return seawall_api::Shape::default();
    };
    seawall_api::Shape {
        collection: collection.to_string(),
        command: command.to_string(),
        db: db.to_string(),
        id: id.to_string(),
        level: level.as_str().to_owned(),
        shape: text.to_string(),
        ..seawall_api::Shape::default()
    }
}

/// Adds figures to the result of [`shape_name`] or [`past_shape_name`]. The distribution of the
/// durations is added if `is_full` is true.
pub(super) fn shape(
    name: seawall_api::Shape,
    figures: &Figures,
    is_full: bool,
) -> seawall_api::Shape {
    let durations = &figures.durations;
    seawall_api::Shape {
        count: figures.count,
        distribution: distribution_if(is_full, durations),
        documents: figures.documents,
        errors: figures.errors,
        latency_ms: durations.into(),
        load_ms: millis(figures.load()),
        more: more(figures),
        phases_ms: (&figures.phases).into(),
        reply_bytes: figures.reply_bytes,
        request_bytes: figures.request_bytes,
        total_time_ms: millis(durations.sum()),
        ..name
    }
}

/// A shape, with its figures since the start of Seawall. Some of them, for example the outcomes,
/// are not stored in the history. `detail` selects the distributions.
pub(super) fn shape_row(
    name: seawall_api::Shape,
    sums: &ShapeSums,
    detail: Detail,
) -> seawall_api::Shape {
    seawall_api::Shape {
        cursors: Some(cursors(sums, detail)),
        more: more_of_row(sums),
        outcomes: Some(outcomes(&sums.outcomes)),
        statements: Some(sums.statements),
        streamed: Some(sums.streamed),
        ..shape(name, &sums.figures, detail != Detail::Quantiles)
    }
}

/// The figures of a shape since the start of Seawall. A reply about a period contains them in
/// addition to the figures of the period.
pub(super) fn since_start(sums: &ShapeSums, detail: Detail) -> seawall_api::SinceStart {
    let figures = &sums.figures;
    seawall_api::SinceStart {
        count: figures.count,
        cursors: cursors(sums, detail),
        distribution: distribution_if(detail == Detail::AllDistributions, &figures.durations),
        documents: figures.documents,
        errors: figures.errors,
        latency_ms: (&figures.durations).into(),
        load_ms: millis(figures.load()),
        more: more_of_row(sums),
        outcomes: outcomes(&sums.outcomes),
        phases_ms: (&figures.phases).into(),
        reply_bytes: figures.reply_bytes,
        request_bytes: figures.request_bytes,
        statements: sums.statements,
        streamed: sums.streamed,
        total_time_ms: millis(figures.durations.sum()),
    }
}

fn more_of_row(sums: &ShapeSums) -> seawall_api::More {
    seawall_api::More {
        awaited_time_ms: Some(millis(sums.awaited_time)),
        documents: Some(sums.more_documents),
        ..more(&sums.figures)
    }
}

fn cursors(sums: &ShapeSums, detail: Detail) -> seawall_api::Cursors {
    seawall_api::Cursors {
        distribution: distribution_if(detail == Detail::AllDistributions, &sums.cursors),
        exhausted: sums.cursors.count(),
        open_ms: (&sums.cursors).into(),
    }
}

pub(super) fn pool(address: &ServerAddress, pool: &PoolSnapshot) -> seawall_api::Pool {
    let users = pool.users.iter().map(|user| seawall_api::PoolUser {
        available: whole(user.available),
        in_use: whole(user.in_use),
        name: user.name.clone(),
        pending: whole(user.pending),
        source: user.source.clone(),
        wait_queue: whole(user.wait_queue),
    });
    seawall_api::Pool {
        available: whole(pool.available),
        concurrency: concurrency(&pool.concurrency),
        in_use: whole(pool.in_use),
        instance: None,
        pending: whole(pool.pending),
        server: address.to_string(),
        state: pool.state.to_owned(),
        users: users.collect(),
        wait_queue: whole(pool.wait_queue),
    }
}

fn concurrency(concurrency: &ConcurrencySnapshot) -> seawall_api::Concurrency {
    seawall_api::Concurrency {
        exempt: whole(concurrency.exempt),
        in_progress: whole(concurrency.in_progress),
        limit: concurrency.limit.map(u64::from),
        mode: concurrency.mode.to_owned(),
        reason: concurrency.reason.map(|reason| reason.to_string()),
        reserved: whole(concurrency.reserved),
        settled: concurrency.settled.map(u64::from),
        waiting: whole(concurrency.waiting),
    }
}

/// Converts a count to the integer type of the replies.
pub(super) fn whole(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

pub(super) fn topology(description: &TopologyDescription) -> seawall_api::Topology {
    let servers = description.servers.iter();
    let servers = servers.map(|server| seawall_api::TopologyServer {
        address: server.address.to_string(),
        instance: None,
        max_wire_version: server.probe.max_wire_version,
        round_trip_ms: server.probe.round_trip.map(millis),
        suspect: server.is_suspect(),
        tags: server.tags.iter().cloned().collect(),
        server_type: server.server_type.as_str().to_owned(),
    });
    seawall_api::Topology {
        servers: servers.collect(),
        set_name: description.set_name.clone(),
        topology_type: description.topology_type.as_str().to_owned(),
    }
}

pub(super) fn client(row: ClientRow) -> seawall_api::Client {
    seawall_api::Client {
        application: row.application.as_deref().map(str::to_owned),
        connected_at: since_epoch(row.connected_at),
        id: row.id,
        instance: None,
        peer: row.peer.to_string(),
        user: row.user.as_deref().map(str::to_owned),
    }
}

/// The number of a shape's operations for each application. The largest number is first, but the
/// number for all applications that are not counted separately (`other`) is always last.
pub(super) fn applications(sums: &ShapeSums) -> Vec<seawall_api::Named> {
    let ranked = sums.applications.ranked().into_iter();
    let named = ranked.map(|(name, count)| seawall_api::Named {
        count,
        name: name.unwrap_or("other").to_owned(),
    });
    named.collect()
}

/// The number of a shape's errors for each error code. The largest number is first.
pub(super) fn errors_by_code(sums: &ShapeSums) -> Vec<seawall_api::CodeCount> {
    let mut codes: Vec<_> = sums.codes.iter().collect();
    codes.sort_by_key(|(code, count)| (Reverse(**count), **code));
    let named = codes
        .into_iter()
        .map(|(code, count)| seawall_api::CodeCount {
            code: code_name(*code),
            count: *count,
        });
    named.collect()
}

/// Converts a slow operation to the type that replies of the API contain.
pub(super) fn slow(slow: &SlowOperation) -> seawall_api::SlowOperation {
    let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
    seawall_api::SlowOperation {
        application: text(&slow.application),
        at: since_epoch(slow.at),
        client: text(&slow.client),
        collection: slow.namespace.collection.to_string(),
        command: slow.namespace.command.to_owned(),
        db: slow.namespace.db.to_string(),
        duration_ms: millis(slow.phases.total()),
        error_code: slow.code,
        instance: None,
        outcome: slow.outcome.as_str().to_owned(),
        phases_ms: (&slow.phases).into(),
        reply_bytes: slow.reply_bytes,
        server: text(&slow.server),
        shape: slow.text.to_string(),
        shape_id: slow.shape.to_string(),
        user: text(&slow.user),
    }
}

/// Maximum number of applications that a reply lists for a storm. Also the maximum number of
/// drivers, of networks and of users. A storm is a sudden rise in the number of short-lived client
/// connections.
const SHOWN_NAMES: usize = 10;

pub(super) fn storm(storm: &Storm) -> seawall_api::Storm {
    let traffic = &storm.traffic;
    let departures = Departure::ALL.iter().zip(traffic.departures);
    let gave_up_in = traffic.gave_up_in.iter();
    seawall_api::Storm {
        applications: names(&traffic.applications),
        arrivals: traffic.arrivals,
        client_authentications: traffic.client_authentications,
        departures: departures
            .map(|(how, count)| (how.as_str().to_owned(), count))
            .collect(),
        drivers: names(&traffic.drivers),
        ended_at: storm.ended_at.map(since_epoch),
        gave_up_in: gave_up_in
            .map(|(stage, count)| ((*stage).to_owned(), *count))
            .collect(),
        instance: None,
        networks: names(&traffic.networks),
        peak_arrivals_per_second: float(storm.peak_arrivals),
        server_authentications: traffic.server_authentications,
        server_authentications_absorbed: storm.authentications_absorbed(),
        server_connections_absorbed: storm.connections_absorbed(),
        server_connections_created: traffic.server_connections,
        started_at: since_epoch(storm.started_at),
        users: names(&traffic.users),
        usual_short_lived_per_second: storm.usual,
    }
}

/// The most frequent names, at most [`SHOWN_NAMES`].
fn names(names: &Names) -> Vec<seawall_api::Named> {
    let ranked = names.ranked().into_iter().take(SHOWN_NAMES);
    let named = ranked.map(|(name, count)| seawall_api::Named {
        count,
        name: name.to_owned(),
    });
    named.collect()
}
