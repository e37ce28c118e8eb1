//! Checks that the inspection and the fingerprint of a command use only the stack, for a command of
//! any size.

#![allow(clippy::unwrap_used, reason = "this file contains only tests")]

use allocation_counter::{AllocationInfo, measure};
use bson::{Document, doc};
use seawall_command::Command;
use seawall_command::CommandBytes;
use seawall_shape::fingerprint;
use seawall_wire::{OpMsg, encode_request};

fn inspected(command: &Document) -> AllocationInfo {
    let message = encode_request(1, &command.to_vec().unwrap());
    measure(|| {
        let parsed = OpMsg::parse(&message).unwrap();
        let command = Command::inspect(parsed.body).unwrap();
        let input = CommandBytes {
            body: command.body,
            sequences: &[],
        };
        std::hint::black_box(fingerprint(&input).shape);
    })
}

#[test]
fn the_counter_of_allocations_counts_one_allocation() {
    assert_eq!(measure(|| drop(Box::new([7_u8; 64]))).count_total, 1);
}

#[test]
fn inspection_and_fingerprint_allocate_nothing() {
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
