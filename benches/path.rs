//! Measures the CPU time of single steps on the data path, such as parsing a command or taking a
//! connection from the pool: `cargo bench --bench path`.
//!
//! To compare two machines, divide the time of each row by the time of `reference/sha256_64_bytes`
//! on the same machine.

use std::{hint::black_box, sync::Arc, time::Duration};

use bson::{Document, doc};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use seawall::{
    observe::Observer,
    pool::{Concurrency, Demand, PoolLimits, ServerPool},
};
use seawall_auth::{
    ClientConversation, ClientFirst, Identity, Mechanism, NonceSource, ServerConversation,
    derive_from_password,
};
use seawall_command::CommandBytes;
use seawall_command::{Command, ReplyScanner};
use seawall_transport::{
    MemoryBudget, MessageReader, RestOfMessage, Sharer, Stream,
    connection::{Connection, Connector},
};
use seawall_wire::{MAX_MESSAGE_BYTES, OpMsg, SectionWalk, encode_request};
use sha2::{Digest, Sha256};
use tokio::{net::UnixStream, runtime::Builder, time::Instant};

fn by_id() -> Document {
    doc! {"find": "users", "filter": {"_id": 1234}, "limit": 1, "singleBatch": true,
    "lsid": {"id": bson::Uuid::from_bytes([7; 16])}, "$db": "shop"}
}

fn eight_conditions() -> Document {
    doc! {
        "find": "orders",
        "filter": {
            "status": "A", "qty": {"$gt": 3, "$lt": 30}, "country": "RU", "city": "Moscow",
            "tags": {"$in": ["a", "b", "c"]}, "price": {"$gte": 1.5}, "seen": {"$exists": true},
            "owner": bson::oid::ObjectId::from_bytes([1; 12]),
        },
        "sort": {"created": -1, "_id": 1},
        "projection": {"status": 1, "qty": 1, "price": 1},
        "limit": 20, "lsid": {"id": bson::Uuid::from_bytes([7; 16])}, "$db": "shop",
    }
}

fn reference(c: &mut Criterion) {
    let bytes = [7u8; 64];
    c.bench_function("reference/sha256_64_bytes", |b| {
        b.iter(|| Sha256::digest(black_box(bytes)))
    });
}

fn inspection(c: &mut Criterion) {
    let many: Vec<i32> = (0..10_000).collect();
    let ids = doc! {"find": "c", "filter": {"_id": {"$in": many}}, "$db": "d"};
    for (name, command) in [
        ("find_by_id", by_id()),
        ("find_8_conditions", eight_conditions()),
        ("find_in_10000", ids),
    ] {
        let body = command.to_vec().expect("the command can be encoded");
        let message = encode_request(1, &body);
        c.bench_function(&format!("wire/parse/{name}"), |b| {
            b.iter(|| {
                OpMsg::parse(black_box(&message))
                    .expect("the bytes are valid")
                    .flags
            })
        });
        c.bench_function(&format!("command/inspect/{name}"), |b| {
            b.iter(|| {
                Command::inspect(black_box(&body))
                    .expect("the bytes are valid")
                    .class
            })
        });
        c.bench_function(&format!("shape/fingerprint/{name}"), |b| {
            b.iter(|| {
                let input = CommandBytes::of_body(black_box(&body));
                seawall_shape::fingerprint(&input).shape
            })
        });
        c.bench_function(&format!("path/inspect_and_fingerprint/{name}"), |b| {
            b.iter(|| {
                let parsed = OpMsg::parse(black_box(&message)).expect("the bytes are valid");
                let command = Command::inspect(parsed.body).expect("the bytes are valid");
                let input = CommandBytes::of_body(parsed.body);
                (command.class, seawall_shape::fingerprint(&input).shape)
            })
        });
    }
}

fn replies(c: &mut Criterion) {
    for (name, documents) in [("one_document", 1), ("100_documents", 100)] {
        let batch: Vec<Document> = (0..documents)
            .map(|n| doc! {"_id": n, "text": "x".repeat(100)})
            .collect();
        let reply = doc! {"cursor": {"firstBatch": batch, "id": 0i64, "ns": "d.c"}, "ok": 1.0};
        let bytes = reply.to_vec().expect("the reply can be encoded");
        c.bench_function(&format!("command/scan_reply/{name}"), |b| {
            b.iter(|| {
                let mut scanner = ReplyScanner::default();
                scanner.feed(black_box(&bytes));
                scanner.facts().cursor_id
            })
        });
    }
}

fn scram(c: &mut Criterion) {
    let nonces = NonceSource::new().expect("the system has random bytes");
    for mechanism in Mechanism::ALL {
        let derived = derive_from_password(mechanism, "user", "pencil", b"salt-of-the-user", 4096);
        let derived = derived.expect("keys can be derived");
        c.bench_function(&format!("auth/login/{mechanism}"), |b| {
            b.iter(|| {
                let (client, first) = ClientConversation::start(mechanism, "user", &nonces.nonce());
                let first = ClientFirst::parse(&first).expect("the bytes are valid");
                let (server, challenge) =
                    ServerConversation::start(first, &derived.keys, &nonces.nonce());
                let (_, proof) = client
                    .respond(&challenge, &derived.client_key, &derived.keys)
                    .expect("the keys fit the challenge");
                server
                    .verify(&proof)
                    .expect("the proof is right")
                    .server_final
            })
        });
    }
}

/// An insert of about `bytes` bytes, as drivers send it.
fn insert_of(bytes: usize) -> Vec<u8> {
    let document = doc! {"_id": 1, "pad": "x".repeat(900)}
        .to_vec()
        .expect("the document can be encoded");
    let documents = document.repeat(bytes / document.len());
    let body = doc! {"insert": "c", "$db": "d"}
        .to_vec()
        .expect("the command can be encoded");
    let mut message = encode_request(1, &body);
    message.push(1);
    let length = |n: usize| {
        i32::try_from(n)
            .expect("the length is under 2 GiB")
            .to_le_bytes()
    };
    message.extend(length(4 + 10 + documents.len()));
    message.extend(b"documents\0");
    message.extend(documents);
    let whole = length(message.len());
    message.splice(..4, whole);
    message
}

/// Reads a message as Seawall reads it from a client's connection. A message of up to 1 MiB is read
/// as a whole. For a larger message, the head (its beginning) is read first, and the remaining
/// bytes in pieces.
///
/// Returns the number of bytes that were read. If the message is read as a whole, the function
/// also parses its document sequences, and adds their number to the returned number.
async fn take(mut stream: &[u8], piece: &mut Vec<u8>, budget: &MemoryBudget) -> usize {
    let mut reader = MessageReader::default();
    let read = reader.next(&mut stream, MAX_MESSAGE_BYTES, budget).await;
    let message = read
        .expect("the message is valid")
        .expect("the stream has a message");
    let mut taken = message.bytes.len();
    if !message.is_head() {
        return taken
            + OpMsg::parse(&message.bytes)
                .expect("the bytes are valid")
                .sequences()
                .count();
    }
    let parsed = OpMsg::parse_head(&message.bytes).expect("the bytes are valid");
    let body_end = parsed.body_offset + parsed.body.len();
    let mut walk = SectionWalk::new(message.header.message_length - body_end, Some("documents"));
    let rest = message.bytes.get(body_end..).unwrap_or_default();
    walk.feed(rest).expect("the bytes are valid");
    let mut pieces = RestOfMessage::of(&message, &|| false);
    loop {
        let next = pieces.next_piece(&mut reader, &mut stream, piece).await;
        next.expect("the bytes are valid");
        if piece.is_empty() {
            return taken;
        }
        walk.feed(piece).expect("the bytes are valid");
        taken += piece.len();
    }
}

/// Measures how long it takes to read messages of increasing size. The time must be proportional to
/// the size.
fn large_requests(c: &mut Criterion) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    let budget = MemoryBudget::of_bytes(64 << 20);
    let mut group = c.benchmark_group("wire/take_request");
    for kilobytes in [16, 64, 256, 1_000, 4_000, 16_000, 48_000] {
        // The insert is 1,000 bytes smaller than `kilobytes`, so that the largest message with its
        // header stays within the limit.
        let message = insert_of(kilobytes * 1000 - 1000);
        let mut piece = Vec::new();
        group.throughput(Throughput::Bytes(u64::try_from(message.len()).unwrap_or(0)));
        group.bench_function(format!("{kilobytes}_kB"), |b| {
            b.iter(|| runtime.block_on(take(black_box(&message), &mut piece, &budget)))
        });
    }
}

fn pool(c: &mut Criterion) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    let nonces = Arc::new(NonceSource::new().expect("the system has random bytes"));
    let observer = Observer::new(
        seawall::observe::ObserverSettings {
            counts_shapes: true,
            name_key: None,
            max_shapes: 100,
            max_namespaces: 100,
            keeps_seconds: false,
        },
        None,
    )
    .expect("the settings are valid");
    let limits = PoolLimits {
        max_pool_size: 32,
        min_pool_size: 0,
        max_server_connections: 32,
        max_connecting: 2,
        concurrency: Concurrency::Auto,
        connections_per_second: None,
        max_exempt_operations: None,
        max_idle_time: None,
        max_life_time: None,
        wait_queue_timeout: Duration::from_secs(1),
        wait_queue_size: 1,
        renewal: None,
    };
    let connector = Connector::new(None, Vec::new(), Duration::from_secs(1), nonces);
    let address = "127.0.0.1:1".parse().expect("the address is valid");
    let metrics = observer.recorder.server("bench");
    let pool = ServerPool::new(
        address,
        limits,
        connector,
        metrics,
        runtime.handle().clone(),
    );
    let identity = Arc::new(Identity::anonymous());
    pool.ready();
    let _far_ends: Vec<_> = (0..32)
        .map(|_| {
            let _in_runtime = runtime.enter();
            let (near, far) = UnixStream::pair().expect("a socket pair can be created");
            pool.adopt(
                &identity,
                Connection::new(Stream::Unix(near), Instant::now()),
            );
            far
        })
        .collect();
    c.bench_function("pool/check_out_and_in", |b| {
        b.iter_custom(|times| {
            runtime.block_on(async {
                let deadline = Instant::now() + Duration::from_secs(3600);
                let demand = Demand::slot(Sharer::Local, 1);
                let began = Instant::now();
                for _ in 0..times {
                    let taken = pool.check_out(&identity, demand, deadline).await;
                    let mut checkout = taken.expect("one of 32 connections is available");
                    black_box(checkout.begin());
                    checkout.finish();
                }
                began.elapsed()
            })
        })
    });
}

criterion_group!(
    benches,
    reference,
    inspection,
    replies,
    scram,
    pool,
    large_requests
);
criterion_main!(benches);
