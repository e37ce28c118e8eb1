//! What an operation costs on the way: `cargo bench -p seawall-benches --bench path`.
//!
//! Read every row beside `reference/sha256_64_bytes`, which is the same work on every machine.

use std::hint::black_box;

use bson::{Document, doc};
use criterion::{Criterion, criterion_group, criterion_main};
use seawall::{
    auth::{
        ClientConversation, ClientFirst, Mechanism, NonceSource, ServerConversation,
        derive_from_password,
    },
    command::{Command, ReplyScanner},
    shape::{self, Input},
    wire::{OpMsg, encode_request},
};
use sha2::{Digest, Sha256};

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
        let body = command.to_vec().expect("a command");
        let message = encode_request(1, &body);
        c.bench_function(&format!("wire/parse/{name}"), |b| {
            b.iter(|| OpMsg::parse(black_box(&message)).expect("sound").flags)
        });
        c.bench_function(&format!("command/inspect/{name}"), |b| {
            b.iter(|| Command::inspect(black_box(&body)).expect("sound").class)
        });
        c.bench_function(&format!("shape/fingerprint/{name}"), |b| {
            b.iter(|| {
                shape::fingerprint(&Input {
                    body: black_box(&body),
                    sequences: &[],
                })
                .shape
            })
        });
        c.bench_function(&format!("path/inspect_and_fingerprint/{name}"), |b| {
            b.iter(|| {
                let parsed = OpMsg::parse(black_box(&message)).expect("sound");
                let command = Command::inspect(parsed.body).expect("sound");
                let input = Input {
                    body: parsed.body,
                    sequences: &[],
                };
                (command.class, shape::fingerprint(&input).shape)
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
        let bytes = reply.to_vec().expect("a reply");
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
    let nonces = NonceSource::new().expect("random numbers");
    for mechanism in Mechanism::ALL {
        let derived = derive_from_password(mechanism, "user", "pencil", b"salt-of-the-user", 4096);
        let derived = derived.expect("keys");
        c.bench_function(&format!("auth/login/{mechanism}"), |b| {
            b.iter(|| {
                let (client, first) = ClientConversation::start(mechanism, "user", &nonces.nonce());
                let first = ClientFirst::parse(&first).expect("sound");
                let (server, challenge) =
                    ServerConversation::start(first, &derived.keys, &nonces.nonce());
                let (_, proof) = client
                    .respond(&challenge, &derived.client_key, &derived.keys)
                    .expect("fitting keys");
                server.verify(&proof).expect("a good proof").server_final
            })
        });
    }
}

criterion_group!(benches, reference, inspection, replies, scram);
criterion_main!(benches);
