//! Counts how often Seawall allocates memory in each step of an operation: when it reads the
//! message, inspects the command, records the statistics, and checks out a pooled connection. To
//! inspect a command and to compute its fingerprint, Seawall allocates nothing, even for a large
//! command.

#![allow(clippy::unwrap_used, reason = "this file contains only tests")]

use std::{sync::Arc, time::Duration};

use allocation_counter::{AllocationInfo, measure};
use bson::{Document, doc};
use seawall::{
    observe::{Observer, ObserverSettings, outcome_of},
    pool::{Concurrency, Demand, PoolLimits, ServerPool},
};
use seawall_auth::{Identity, NonceSource};
use seawall_command::{Command, CommandBytes, ReplyFacts, ReplyForm};
use seawall_shape::fingerprint;
use seawall_transport::{
    MemoryBudget, MessageReader, Sharer, Stream,
    connection::{Connection, Connector},
};
use seawall_wire::{MAX_MESSAGE_BYTES, OpMsg, encode_request};
use tokio::{net::UnixStream, runtime::Builder, time::Instant};

fn observer() -> Observer {
    let settings = ObserverSettings {
        counts_shapes: true,
        name_key: None,
        max_shapes: 100,
        max_namespaces: 100,
        keeps_seconds: false,
    };
    Observer::new(settings, None).unwrap()
}

fn inspected(command: &Document) -> AllocationInfo {
    let message = encode_request(1, &command.to_vec().unwrap());
    measure(|| {
        let parsed = OpMsg::parse(&message).unwrap();
        let command = Command::inspect(parsed.body).unwrap();
        let input = CommandBytes::of_body(command.body);
        std::hint::black_box(fingerprint(&input).shape);
    })
}

#[test]
fn one_allocation_is_counted_as_one() {
    assert_eq!(measure(|| drop(Box::new([7_u8; 64]))).count_total, 1);
}

#[test]
fn parsing_a_message_and_computing_the_fingerprint_of_its_command_allocate_nothing() {
    let many: Vec<i32> = (0..10_000).collect();
    let commands = [
        doc! {"find": "users", "filter": {"_id": 1234}, "limit": 1, "$db": "shop"},
        doc! {
            "find": "orders",
            "filter": {
                "status": "A", "qty": {"$gt": 3, "$lt": 30}, "country": "RU", "city": "Moscow",
                "tags": {"$in": ["a", "b", "c"]}, "price": {"$gte": 1.5}, "seen": {"$exists": true},
                "owner": bson::oid::ObjectId::from_bytes([1; 12]),
            },
            "sort": {"created": -1, "_id": 1}, "projection": {"status": 1, "qty": 1}, "$db": "shop",
        },
        doc! {"find": "c", "filter": {"_id": {"$in": many}}, "$db": "d"},
        doc! {"aggregate": "c", "pipeline": [{"$match": {"$or": [{"a": 1}, {"b": 2}]}},
        {"$group": {"_id": "$a", "n": {"$sum": {"$multiply": ["$b", 2]}}}}], "cursor": {}, "$db": "d"},
        doc! {"update": "c", "updates": [{"q": {"a": 1}, "u": {"$set": {"b.c": 1}}}], "$db": "d"},
    ];
    for command in commands {
        let counted = inspected(&command);
        assert_eq!(counted.count_total, 0, "{command}: {counted:?}");
    }
}

#[test]
fn a_small_message_is_read_with_one_allocation() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let budget = MemoryBudget::of_bytes(1 << 20);
    let body = doc! {"find": "users", "filter": {"_id": 1234}, "$db": "shop"};
    let message = encode_request(1, &body.to_vec().unwrap());
    let read = || {
        let mut stream = message.as_slice();
        let mut reader = MessageReader::default();
        let reading = reader.next(&mut stream, MAX_MESSAGE_BYTES, &budget);
        let read = runtime.block_on(reading).unwrap().unwrap();
        assert_eq!(read.bytes, message);
    };
    // The first read allocates the thread's scratch buffer.
    read();
    assert_eq!(measure(read).count_total, 1);
}

#[test]
fn recording_the_statistics_of_an_operation_allocates_nothing_if_its_shape_is_known() {
    let observer = observer();
    let command = doc! {"find": "users", "filter": {"_id": 1}, "$db": "shop"};
    let (command, reply) = (command.to_vec().unwrap(), doc! {"n": 1, "ok": 1});
    let reply = reply.to_vec().unwrap();
    let server = observer.recorder.server("a:1");
    let now = Instant::now();
    let record = || {
        let input = CommandBytes::of_body(&command);
        let facts = ReplyFacts::of(ReplyForm::Plain, &reply);
        let mut observation = observer.recorder.begin(&input, 100, now);
        observation.set_server(server.index());
        observation.record_reply(&facts, now);
        observation.finish(outcome_of(&facts), now);
    };
    record();
    assert_eq!(measure(record).count_total, 0);
    let rows = observer.totals.namespaces();
    assert_eq!(
        rows.iter()
            .map(|(_, sums)| sums.durations.count())
            .sum::<u64>(),
        2
    );
}

#[test]
fn checkout_of_an_available_connection_and_its_checkin_allocate_nothing() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let limits = PoolLimits {
        max_pool_size: 1,
        min_pool_size: 0,
        max_server_connections: 1,
        max_connecting: 1,
        concurrency: Concurrency::Auto,
        connections_per_second: None,
        max_exempt_operations: None,
        max_idle_time: None,
        max_life_time: None,
        wait_queue_timeout: Duration::from_secs(1),
        wait_queue_size: 1,
        renewal: None,
    };
    let nonces = Arc::new(NonceSource::new().unwrap());
    let connector = Connector::new(None, Vec::new(), Duration::from_secs(1), nonces);
    let pool = ServerPool::new(
        "127.0.0.1:1".parse().unwrap(),
        limits,
        connector,
        observer().recorder.server("a:1"),
        runtime.handle().clone(),
    );
    let identity = Arc::new(Identity::anonymous());
    let _in_runtime = runtime.enter();
    let (near, _far) = UnixStream::pair().unwrap();
    pool.ready();
    pool.adopt(
        &identity,
        Connection::new(Stream::Unix(near), Instant::now()),
    );
    let deadline = Instant::now() + Duration::from_secs(3600);
    let use_once = || {
        let taking = pool.check_out(&identity, Demand::slot(Sharer::Local, 1), deadline);
        let mut checkout = runtime.block_on(taking).unwrap();
        checkout.begin();
        checkout.finish();
    };
    use_once();
    assert_eq!(measure(use_once).count_total, 0);
}
