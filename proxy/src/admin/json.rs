//! JSON forms of snapshots.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};

use crate::{
    connection::ServerAddress,
    insight::Storm,
    observe::{ClientRow, Namespace, NamespaceSums, ServerSums, ShapeRow, code_name},
    pool::Snapshot,
    stats::{Departure, Distribution, Figures, Names, OUTCOMES, Outcome, PhaseTimes},
    topology::TopologyDescription,
};

/// Sorts in descending order. `None` for an unknown key.
pub(super) fn sort_shapes(rows: &mut [ShapeRow], key: &str) -> Option<()> {
    match key {
        "total_time" => rows.sort_by_cached_key(|row| Reverse(row.sums.load())),
        "count" => rows.sort_by_key(|row| Reverse(row.sums.figures.count)),
        "errors" => rows.sort_by_key(|row| Reverse(row.sums.figures.errors)),
        "documents" => rows.sort_by_key(|row| Reverse(row.sums.figures.documents)),
        "p99" => rows.sort_by_cached_key(|row| Reverse(row.sums.figures.durations.quantile(0.99))),
        "bytes" => rows.sort_by_key(|row| {
            Reverse(row.sums.figures.request_bytes + row.sums.figures.reply_bytes)
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

pub(super) fn pool(address: &ServerAddress, pool: &Snapshot) -> Value {
    let users = pool.users.iter().map(|user| {
        json!({
            "name": user.name, "source": user.source, "pending": user.pending,
            "available": user.available, "in_use": user.in_use, "wait_queue": user.wait_queue,
        })
    });
    json!({
        "server": address.to_string(),
        "state": pool.state,
        "pending": pool.pending,
        "available": pool.available,
        "in_use": pool.in_use,
        "wait_queue": pool.wait_queue,
        "users": users.collect::<Vec<_>>(),
    })
}

pub(super) fn topology(description: &TopologyDescription) -> Value {
    let servers = description.servers.iter().map(|server| {
        let tags: Map<String, Value> = server
            .tags
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        json!({
            "address": server.address.to_string(),
            "type": server.server_type.as_str(),
            "tags": tags,
            "round_trip_ms": server.probe.round_trip.map(millis),
            "max_wire_version": server.probe.max_wire_version,
            "suspect": server.is_suspect,
        })
    });
    json!({
        "type": description.topology_type.as_str(),
        "set_name": description.set_name,
        "servers": servers.collect::<Vec<_>>(),
    })
}

pub(super) fn client(row: &ClientRow) -> Value {
    json!({
        "id": row.id,
        "peer": row.peer,
        "connected_at": since_epoch(row.connected_at),
        "user": row.user,
        "application": row.application,
    })
}

/// Maximum number of names of each kind in a storm.
const SHOWN_NAMES: usize = 10;

pub(super) fn storm(storm: &Storm) -> Value {
    let traffic = &storm.traffic;
    let names = |names: &Names| {
        let ranked = names.ranked().into_iter().take(SHOWN_NAMES);
        ranked
            .map(|(name, count)| json!({ "name": name, "count": count }))
            .collect::<Vec<_>>()
    };
    let departures: Map<String, Value> = Departure::ALL
        .iter()
        .zip(traffic.departures)
        .map(|(how, count)| (how.as_str().to_owned(), json!(count)))
        .collect();
    json!({
        "started_at": since_epoch(storm.started_at),
        "ended_at": storm.ended_at.map(since_epoch),
        "arrivals": traffic.arrivals,
        "peak_arrivals_per_second": storm.peak_arrivals,
        "usual_short_lived_per_second": storm.usual,
        "departures": departures,
        "gave_up_in": traffic.gave_up_in,
        "networks": names(&traffic.networks),
        "applications": names(&traffic.applications),
        "drivers": names(&traffic.drivers),
        "users": names(&traffic.users),
        "client_authentications": traffic.client_authentications,
        "server_connections_created": traffic.server_connections,
        "server_authentications": traffic.server_authentications,
        "server_connections_absorbed": storm.connections_absorbed(),
        "server_authentications_absorbed": storm.authentications_absorbed(),
    })
}
