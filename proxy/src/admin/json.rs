//! JSON forms of snapshots.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};

use crate::{
    api,
    observe::{ClientRow, Namespace, NamespaceSums, ServerSums, ShapeRow, code_name},
    pool::Snapshot,
    topology::TopologyDescription,
};
use seawall_insight::Storm;
use seawall_stats::{
    Departure, Distribution, Figures, Names, OUTCOMES, Outcome, PhaseTimes, float,
};
use seawall_transport::connection::ServerAddress;

/// Sorts rows by their figures in descending order. `None` for an unknown key.
pub(super) fn sort<T>(rows: &mut [T], key: &str, figures: fn(&T) -> &Figures) -> Option<()> {
    match key {
        "total_time" => rows.sort_by_cached_key(|row| Reverse(figures(row).load())),
        "count" => rows.sort_by_key(|row| Reverse(figures(row).count)),
        "errors" => rows.sort_by_key(|row| Reverse(figures(row).errors)),
        "documents" => rows.sort_by_key(|row| Reverse(figures(row).documents)),
        "p99" => rows.sort_by_cached_key(|row| Reverse(figures(row).durations.quantile(0.99))),
        "bytes" => rows.sort_by_key(|row| {
            let figures = figures(row);
            Reverse(figures.request_bytes + figures.reply_bytes)
        }),
        _ => return None,
    }
    Some(())
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

pub(super) fn since_epoch(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

pub(super) fn phases(phases: &PhaseTimes) -> Value {
    let named = phases.iter();
    let named = named.map(|(phase, time)| (phase.as_str().to_owned(), json!(millis(*time))));
    Value::Object(named.collect())
}

pub(super) fn latency<const PER_OCTAVE: usize>(durations: &Distribution<PER_OCTAVE>) -> Value {
    let quantile = |q| millis(durations.quantile(q));
    json!({
        "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99),
        "p999": quantile(0.999), "max": millis(durations.max()),
    })
}

/// Counts of operations by outcome, without outcomes whose count is 0.
fn outcomes(counts: &[u64; OUTCOMES]) -> Value {
    let outcomes = Outcome::ALL.iter().zip(counts);
    let ended = outcomes.filter(|(_, count)| **count > 0);
    ended
        .map(|(outcome, count)| (outcome.as_str(), json!(count)))
        .collect()
}

pub(super) fn namespace((namespace, sums): &(Namespace, NamespaceSums)) -> Value {
    let by_code = |codes: &HashMap<i32, u64>| -> Value {
        let named = codes.iter();
        named
            .map(|(code, count)| (code_name(*code), json!(count)))
            .collect()
    };
    json!({
        "command": namespace.command,
        "db": &*namespace.db,
        "collection": &*namespace.collection,
        "count": sums.outcomes.iter().sum::<u64>(),
        "outcomes": outcomes(&sums.outcomes),
        "error_codes": by_code(&sums.codes),
        "write_errors": sums.write_errors,
        "write_error_codes": by_code(&sums.write_error_codes),
        "write_concern_error_codes": by_code(&sums.write_concern_codes),
        "retries": sums.retries,
        "total_time_ms": millis(sums.durations.sum()),
        "awaited_time_ms": millis(sums.awaited_time),
        "latency_ms": latency(&sums.durations),
        "phases_ms": phases(&sums.phases),
        "request_bytes": sums.request_bytes,
        "reply_bytes": sums.reply_bytes,
        "documents": sums.documents,
        "streamed": sums.streamed,
    })
}

/// The figures of a series, with its `getMore` operations and its total server load.
pub(super) fn figures(figures: &Figures) -> Map<String, Value> {
    let mut fields = operations(figures);
    let more = json!({
        "count": figures.more_count, "total_time_ms": millis(figures.more_time),
    });
    fields.insert("more".to_owned(), more);
    fields.insert("load_ms".to_owned(), json!(millis(figures.load())));
    fields
}

/// The figures of a series that counts a `getMore` like any other operation: a server or a
/// namespace.
pub(super) fn operations(figures: &Figures) -> Map<String, Value> {
    object(json!({
        "count": figures.count,
        "errors": figures.errors,
        "total_time_ms": millis(figures.durations.sum()),
        "latency_ms": latency(&figures.durations),
        "phases_ms": phases(&figures.phases),
        "request_bytes": figures.request_bytes,
        "reply_bytes": figures.reply_bytes,
        "documents": figures.documents,
    }))
}

/// The members of an object; empty for any other value.
pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// One server. `answer_ms` is the time until its reply began; `latency_ms` covers whole operations.
pub(super) fn server((address, sums): &(Arc<str>, ServerSums)) -> Value {
    let mut server = operations(&sums.figures);
    server.insert("address".to_owned(), json!(&**address));
    server.insert("answer_ms".to_owned(), latency(&sums.durations));
    Value::Object(server)
}

pub(super) fn shape(row: &ShapeRow) -> Value {
    let mut shape = shape_name(row);
    shape.extend(shape_figures(row));
    Value::Object(shape)
}

/// The shape of a row: id, namespace, text, first and last time seen.
pub(super) fn shape_name(row: &ShapeRow) -> Map<String, Value> {
    let shape = &row.shape;
    object(json!({
        "id": shape.id.to_string(),
        "command": shape.namespace.command,
        "db": &*shape.namespace.db,
        "collection": &*shape.namespace.collection,
        "shape": &*shape.text,
        "level": shape.level.as_str(),
        "first_seen": since_epoch(row.first_seen),
        "last_seen": since_epoch(row.last_seen),
    }))
}

/// The figures of a row since the start. Some of them exist only in rows, not in the history.
pub(super) fn shape_figures(row: &ShapeRow) -> Map<String, Value> {
    let sums = &row.sums;
    let mut fields = figures(&sums.figures);
    if let Some(Value::Object(more)) = fields.get_mut("more") {
        let awaited_time_ms = json!(millis(sums.awaited_time));
        more.insert("awaited_time_ms".to_owned(), awaited_time_ms);
        more.insert("documents".to_owned(), json!(sums.more_documents));
    }
    fields.insert("streamed".to_owned(), json!(sums.streamed));
    fields.insert("statements".to_owned(), json!(sums.statements));
    fields.insert("outcomes".to_owned(), outcomes(&sums.outcomes));
    let cursors = json!({
        "exhausted": sums.cursors.count(),
        "open_ms": latency(&sums.cursors),
    });
    fields.insert("cursors".to_owned(), cursors);
    fields
}

pub(super) fn distribution(distribution: &Distribution) -> Value {
    let rows = distribution.buckets().map(|(bucket, count)| {
        let (lower, upper) = Distribution::<8>::bounds_seconds(bucket);
        json!({ "gt_seconds": lower, "le_seconds": upper, "count": count })
    });
    rows.collect()
}

pub(super) fn pool(address: &ServerAddress, pool: &Snapshot) -> api::Pool {
    let users = pool.users.iter().map(|user| api::PoolUser {
        available: whole(user.available),
        in_use: whole(user.in_use),
        name: user.name.clone(),
        pending: whole(user.pending),
        source: user.source.clone(),
        wait_queue: whole(user.wait_queue),
    });
    api::Pool {
        available: whole(pool.available),
        in_use: whole(pool.in_use),
        pending: whole(pool.pending),
        server: address.to_string(),
        state: pool.state.to_owned(),
        users: users.collect(),
        wait_queue: whole(pool.wait_queue),
    }
}

/// A number of things in memory.
pub(super) fn whole(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

pub(super) fn topology(description: &TopologyDescription) -> api::Topology {
    let servers = description.servers.iter();
    let servers = servers.map(|server| api::TopologyServer {
        address: server.address.to_string(),
        max_wire_version: server.probe.max_wire_version,
        round_trip_ms: server.probe.round_trip.map(millis),
        suspect: server.is_suspect,
        tags: server.tags.iter().cloned().collect(),
        server_type: server.server_type.as_str().to_owned(),
    });
    api::Topology {
        servers: servers.collect(),
        set_name: description.set_name.clone(),
        topology_type: description.topology_type.as_str().to_owned(),
    }
}

pub(super) fn client(row: ClientRow) -> api::Client {
    api::Client {
        application: row.application,
        connected_at: since_epoch(row.connected_at),
        id: row.id,
        peer: row.peer,
        user: row.user,
    }
}

/// Maximum number of names of each kind in a storm.
const SHOWN_NAMES: usize = 10;

pub(super) fn storm(storm: &Storm) -> api::Storm {
    let traffic = &storm.traffic;
    let departures = Departure::ALL.iter().zip(traffic.departures);
    let gave_up_in = traffic.gave_up_in.iter();
    api::Storm {
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

/// The most frequent names.
fn names(names: &Names) -> Vec<api::Named> {
    let ranked = names.ranked().into_iter().take(SHOWN_NAMES);
    let named = ranked.map(|(name, count)| api::Named {
        count,
        name: name.to_owned(),
    });
    named.collect()
}
