//! The corpora: a few inputs for each target, in the input format of the target. This module
//! generates the corpora; the repository contains the generated files.

mod captures;

use std::{fs, io, path::Path};

use bson::{Bson, Document, RawDocumentBuf, doc, spec::BinarySubtype};
use seawall_wire::{
    CHECKSUM_PRESENT, Compressor, EXHAUST_ALLOWED, MORE_TO_COME, checksum, deflate,
    encode_op_msg_like, encode_op_reply, encode_request,
};

use crate::{documents, targets::LARGE_SHARE};

/// Name and content of a corpus file.
type Seed = (String, Vec<u8>);

/// Writes the corpora of all targets, one folder each.
///
/// # Errors
/// If a folder or a file cannot be written.
pub fn write(folder: &Path) -> io::Result<()> {
    for (target, seeds) in all() {
        let folder = folder.join(target);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}

/// Returns the name and the seeds of each target. Some targets have two entries.
fn all() -> Vec<(&'static str, Vec<Seed>)> {
    vec![
        ("message", with_front(&messages(), &[0x35])),
        ("reader", readers()),
        (
            "command",
            with_front(&commands(), &[1, 6, 1, 2, 0, 1, 1, 4]),
        ),
        ("command", grammar("grammar", &[4, 6, 3, 60, 0, 5, 0, 2])),
        ("reply", replies()),
        ("scram_server", scram(true)),
        ("scram_client", scram(false)),
        ("scram_carried", scram(true)),
        (
            "users_info",
            with_front(&users(), &[6, 1, 0, 0, 1, 3, 0, 1]),
        ),
        ("compressed", compressed()),
        ("fingerprint", with_front(&commands(), &[0, 4, 3, 1, 40, 0])),
        ("fingerprint", grammar("grammar", &[2, 9, 3, 1, 40, 0])),
        ("admin", requests()),
        ("config", configurations()),
        ("proxy_header", proxy_headers()),
        ("capture", captures::parts()),
        ("recorder_file", captures::recordings()),
        ("redact", with_front(&commands(), &[3, 4, 3, 1, 40, 0])),
        ("redact", grammar("grammar", &[1, 0])),
    ]
}

fn seed(name: &str, bytes: impl Into<Vec<u8>>) -> Seed {
    (name.to_owned(), bytes.into())
}

fn with_front(seeds: &[Seed], front: &[u8]) -> Vec<Seed> {
    let seeds = seeds.iter();
    seeds
        .map(|(name, bytes)| (name.clone(), [front, bytes].concat()))
        .collect()
}

/// Returns seeds whose bytes select commands from the grammar of [`documents::command`].
fn grammar(name: &str, front: &[u8]) -> Vec<Seed> {
    let choices = |start: u8| -> Vec<u8> {
        let numbers = (0..120_u8).map(|n| n.wrapping_mul(37).wrapping_add(start));
        front.iter().copied().chain(numbers).collect()
    };
    (0..12_u8)
        .map(|n| seed(&format!("{name}_{n:02}"), choices(n.wrapping_mul(21))))
        .collect()
}

fn lsid() -> Document {
    let id = bson::Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![7; 16],
    };
    doc! { "id": id }
}

fn reads() -> Vec<(&'static str, Document)> {
    vec![
        (
            "hello",
            doc! { "hello": 1, "client": { "application": { "name": "a" } }, "$db": "admin" },
        ),
        ("ping", doc! { "ping": 1, "$db": "admin" }),
        (
            "find",
            doc! {
                "find": "c", "filter": { "a": { "$gt": 1, "$in": [1, 2] }, "b.c": "x" }, "sort": { "a": -1 },
                "limit": 1, "maxTimeMS": 5_000, "lsid": lsid(), "$db": "d",
                "$readPreference": { "mode": "secondary", "tags": [{ "r": "e" }, {}], "maxStalenessSeconds": 90 },
            },
        ),
        (
            "find_every_type",
            doc! { "find": "c", "filter": documents::every_type(), "$db": "d" },
        ),
        (
            "aggregate",
            doc! {
                "aggregate": "c", "pipeline": [
                    { "$match": { "$or": [{ "a": 1 }, { "b": { "$elemMatch": { "c": 1 } } }] } },
                    { "$lookup": { "from": "o", "let": { "v": "$a" }, "pipeline": [{ "$limit": 1 }], "as": "j" } },
                    { "$group": { "_id": "$a", "n": { "$sum": 1 } } }, { "$out": "x" },
                ],
                "cursor": {}, "maxTimeMS": 1.0, "$db": "d",
            },
        ),
        (
            "change_stream",
            doc! { "aggregate": 1, "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "admin" },
        ),
        (
            "distinct",
            doc! { "distinct": "c", "key": "a", "query": { "$text": { "$search": "s" } }, "$db": "d" },
        ),
        (
            "get_more",
            doc! { "getMore": 77_i64, "collection": "c", "batchSize": 2, "maxTimeMS": 9_i64, "$db": "d" },
        ),
        (
            "kill_cursors",
            doc! { "killCursors": "c", "cursors": [1_i64, 2_i64], "$db": "d" },
        ),
        (
            "explain",
            doc! { "explain": { "count": "c", "query": { "a": null } }, "$db": "d" },
        ),
        (
            "legacy_query",
            doc! { "$query": { "isMaster": 1 }, "$readPreference": { "mode": "nearest" } },
        ),
    ]
}

fn writes() -> Vec<(&'static str, Document)> {
    let statements = vec![
        doc! { "q": { "_id": 1 }, "u": { "$set": { "a.0": 1 }, "$inc": { "n": 1 } }, "multi": true },
        doc! { "q": {}, "u": [{ "$set": { "b": "$a" } }], "arrayFilters": [{ "x.y": 1 }] },
    ];
    let deep = (0..60).fold(doc! { "x": 1 }, |inner, _| doc! { "a": inner });
    vec![
        (
            "insert",
            doc! { "insert": "c", "documents": [{ "_id": 1 }, {}], "txnNumber": 3_i64, "lsid": lsid(), "$db": "d" },
        ),
        (
            "update",
            doc! { "update": "c", "updates": statements, "ordered": false, "writeConcern": { "w": 0 }, "$db": "d" },
        ),
        (
            "delete",
            doc! { "delete": "c", "deletes": [{ "q": { "a": { "$exists": true } }, "limit": 1 }], "$db": "d" },
        ),
        (
            "find_and_modify",
            doc! { "findAndModify": "c", "query": { "a": 1 }, "update": { "$push": { "l": { "$each": [1] } } }, "$db": "d" },
        ),
        (
            "bulk_write",
            doc! { "bulkWrite": 1, "ops": [{ "insert": 0, "document": {} }], "nsInfo": [{ "ns": "d.c" }], "$db": "admin" },
        ),
        (
            "commit",
            doc! {
                "commitTransaction": 1, "lsid": lsid(), "txnNumber": 3_i64, "autocommit": false, "$client": {},
                "$db": "admin",
            },
        ),
        (
            "sasl_start",
            doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": "n,,n=u,r=abcd", "$db": "admin" },
        ),
        ("deep", doc! { "find": "c", "filter": deep, "$db": "d" }),
    ]
}

fn commands() -> Vec<Seed> {
    let all = reads().into_iter().chain(writes());
    all.map(|(name, command)| seed(name, documents::encode(&command)))
        .collect()
}

/// Returns a section with a document sequence.
fn sequence(identifier: &str, documents: &[Document]) -> Vec<u8> {
    let documents: Vec<_> = documents.iter().flat_map(documents::encode).collect();
    let size = i32::try_from(4 + identifier.len() + 1 + documents.len());
    let size = size.expect("a seed is small").to_le_bytes();
    [&[1][..], &size, identifier.as_bytes(), &[0], &documents].concat()
}

/// Returns an `OP_MSG` with these sections and the right length.
fn op_msg(flags: u32, sections: &[Vec<u8>]) -> Vec<u8> {
    let mut message = encode_op_msg_like(0, 7, 0, &[]);
    message.truncate(16);
    message.extend_from_slice(&flags.to_le_bytes());
    message.extend(sections.concat());
    let checksum_bytes = if flags & CHECKSUM_PRESENT == 0 { 0 } else { 4 };
    let length = i32::try_from(message.len() + checksum_bytes).expect("a seed is small");
    if let Some(field) = message.first_chunk_mut() {
        *field = length.to_le_bytes();
    }
    if checksum_bytes > 0 {
        let sum = checksum([message.as_slice()]);
        message.extend_from_slice(&sum.to_le_bytes());
    }
    message
}

fn messages() -> Vec<Seed> {
    let body = documents::encode(&doc! { "insert": "c", "$db": "d" });
    let ping = documents::encode(&doc! { "ping": 1, "$db": "d" });
    let body_section = [&[0][..], &body].concat();
    let rows = [doc! { "_id": 1 }, doc! {}, doc! { "a": "b" }];
    let rows = sequence("documents", &rows);
    let others = sequence("others", &[doc! { "q": {} }]);
    let query = [b"\0\0\0\0admin.$cmd\0\0\0\0\0\xff\xff\xff\xff", &*ping].concat();
    let mut old = encode_request(1, &[]);
    old.truncate(12);
    let old = [&old[..], &2004_i32.to_le_bytes(), &query].concat();
    vec![
        seed("ping", encode_request(1, &ping)),
        seed(
            "ping_with_checksum",
            encode_op_msg_like(CHECKSUM_PRESENT, 1, 2, &ping),
        ),
        seed(
            "one_sequence",
            op_msg(0, &[body_section.clone(), rows.clone()]),
        ),
        seed(
            "two_sequences",
            op_msg(
                MORE_TO_COME,
                &[body_section.clone(), rows.clone(), others.clone()],
            ),
        ),
        seed(
            "body_last_with_checksum",
            op_msg(
                CHECKSUM_PRESENT | EXHAUST_ALLOWED,
                &[rows.clone(), others.clone(), body_section.clone()],
            ),
        ),
        seed(
            "three_sequences",
            op_msg(
                0,
                &[
                    body_section.clone(),
                    rows.clone(),
                    others,
                    sequence("x", &[]),
                ],
            ),
        ),
        seed(
            "sequence_twice",
            op_msg(0, &[body_section.clone(), rows.clone(), rows]),
        ),
        seed(
            "long_identifier",
            op_msg(0, &[body_section, sequence(&"n".repeat(300), &[])]),
        ),
        seed("op_query", old),
        seed("op_reply", encode_op_reply(8, 3, 1, &ping)),
    ]
}

fn readers() -> Vec<Seed> {
    let messages = messages();
    let all: Vec<u8> = messages
        .iter()
        .flat_map(|(_, bytes)| bytes.clone())
        .collect();
    let first = messages
        .first()
        .map(|(_, bytes)| bytes.clone())
        .unwrap_or_default();
    let of = |name: &str, front: [u8; 3], bytes: &[u8]| seed(name, [&front[..], bytes].concat());
    // A large message is too large for the corpus. So the target itself puts a large message in
    // front of some streams: the sum of the input's second byte and the stream's bytes must be a
    // multiple of `LARGE_SHARE`. The last byte of this seed is chosen so that the sum is such a
    // multiple.
    let behind_large = |name: &str, front: [u8; 3]| {
        let sum = first
            .iter()
            .fold(front[1], |sum, byte| sum.wrapping_add(*byte));
        let last = 0_u8.wrapping_sub(sum) % LARGE_SHARE;
        of(name, front, &[&first[..], &[last]].concat())
    };
    let cut = all.get(..all.len() - 5).unwrap_or_default();
    vec![
        of("all_messages", [3, 0, 3], &all),
        of("cut_in_the_last", [9, 1, 3], cut),
        of("before_a_login", [5, 2, 1], &all),
        of(
            "header_only",
            [1, 0, 3],
            first.get(..16).unwrap_or_default(),
        ),
        behind_large("large", [0x20, 0xf0, 3]),
        behind_large("just_over_large", [0x20, 0xf1, 3]),
        behind_large("streamed_completed", [0x41, 0xf9, 3]),
        behind_large("streamed_passed_over", [0x42, 0xfb, 3]),
        behind_large("streamed_not_allowed", [0x43, 0xfb, 2]),
        behind_large("streamed_in_pieces", [0x44, 0xfa, 3]),
    ]
}

fn replies() -> Vec<Seed> {
    let rows: Vec<Bson> = (0..5)
        .map(|i| doc! { "_id": i, "code": 7 }.into())
        .collect();
    let bulk = doc! { "cursor": { "id": 0_i64, "firstBatch": [
        { "ok": 1.0, "idx": 0, "n": 1 }, { "ok": 0.0, "idx": 1, "code": 11000, "errmsg": "E", "n": 0 },
    ], "ns": "admin.$cmd.bulkWrite" }, "nErrors": 1, "nInserted": 1, "nMatched": 5, "ok": 1.0 };
    let regex = bson::Regex {
        pattern: bson::raw::CString::try_from("^a.*").expect("the text has no NUL"),
        options: bson::raw::CString::try_from("i").expect("the text has no NUL"),
    };
    let replies = [
        (
            "cursor",
            0,
            doc! { "cursor": { "firstBatch": rows, "id": 77_i64, "ns": "d.c" }, "ok": 1.0 },
        ),
        (
            "not_primary",
            0,
            doc! {
                "topologyVersion": { "counter": 6_i64 }, "errorLabels": ["RetryableWriteError"], "ok": 0.0,
                "errmsg": "not primary", "code": 10107, "codeName": "NotWritablePrimary",
            },
        ),
        (
            "write_errors",
            0,
            doc! {
                "n": 3, "writeErrors": [{ "index": 1, "code": 11000 }, { "code": 91, "errmsg": "x" }], "ok": 1,
                "writeConcernError": { "code": 91, "codeName": "a", "errInfo": { "code": 64 } },
            },
        ),
        ("bulk_write", 3, bulk),
        (
            "find_and_modify",
            2,
            doc! { "lastErrorObject": { "n": 1, "updatedExisting": true }, "value": { "n": 7 }, "ok": 1.0 },
        ),
        (
            "distinct",
            1,
            doc! { "values": [regex, "a", 1.5, { "code": 91 }, null], "ok": 1.0 },
        ),
        ("every_type", 0, documents::every_type()),
        (
            "deep",
            0,
            (0..300).fold(doc! { "code": 91 }, |inner, _| doc! { "a": inner }),
        ),
        (
            "number",
            0,
            doc! { "n": 1_i64, "ok": true, "code": 189_i64 },
        ),
    ];
    let replies = replies.iter();
    replies
        .map(|(name, form, reply)| {
            seed(
                name,
                [
                    &[*form, 0x21, 6, 1, 1, 0, 1, 1, 4][..],
                    &documents::encode(reply),
                ]
                .concat(),
            )
        })
        .collect()
}

/// Returns seeds with payloads of a SCRAM conversation. The first bytes of a seed select the
/// mechanism and the changes to a message.
fn scram(is_client: bool) -> Vec<Seed> {
    let payloads: &[(&str, &str)] = match is_client {
        true => &[
            (
                "client_first",
                "n,,n=us=3Der=2C with signs,r=fyko+d2lbbFgONRv9qkxdawL",
            ),
            (
                "client_first_y",
                "y,,n=user,r=fyko+d2lbbFgONRv9qkxdawL,x=extension",
            ),
            (
                "client_first_authzid",
                "n,a=user,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
            ),
            ("client_first_binding", "p=tls-unique,,n=user,r=abcd"),
            ("client_first_mandatory", "n,,m=x,n=user,r=abcd"),
            (
                "client_final",
                "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            ),
            (
                "client_final_extension",
                "c=biws,r=fyko,e=x,p=AAAA,p=AAAAAAAAAAAAAAAAAAAAAAAAAAA=",
            ),
        ],
        false => &[
            (
                "server_first",
                "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=c29tZSBzYWx0,i=4096",
            ),
            (
                "server_first_sign",
                "r=fyko+d2lbbFgONRv9qkxdawLx,s=c29tZSBzYWx0,i=+4096",
            ),
            (
                "server_first_many",
                "r=fyko+d2lbbFgONRv9qkxdawLx,s=c29tZSBzYWx0,i=4294967295",
            ),
            ("server_final", "v=rmF9pqV8S7suAoZWja4dJRkFsKQ="),
            ("server_error", "e=other-error"),
        ],
    };
    let mut seeds = Vec::new();
    for (name, payload) in payloads {
        for mechanism in [0_u8, 1] {
            let front = [mechanism, 8, 1, 1, 20, 0, 3, 65, 0, 0];
            let bytes = [&front[..], payload.as_bytes()].concat();
            seeds.push(seed(&format!("{name}_{mechanism}"), bytes));
        }
    }
    for changed in 0..8_u8 {
        let front = [changed % 2, 12, changed, 1, 2, 30, 0, 3, 66, 5, 0, 0, 67, 1];
        seeds.push(seed(&format!("altered_{changed}"), front));
    }
    seeds
}

fn users() -> Vec<Seed> {
    let user = doc! {
        "_id": "admin.user", "user": "user", "db": "admin",
        "userId": bson::Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] },
        "mechanisms": ["SCRAM-SHA-1", "SCRAM-SHA-256"],
        "credentials": {
            "SCRAM-SHA-1": {
                "iterationCount": 10_000, "salt": "13oLAmruKAfWrnvAqCzyRA==",
                "storedKey": "JqXOO0TnCLQVo7Q/oInBisrQvto=", "serverKey": "zGRa1NLBOqR6qeMUA0dJD+lbL5g=",
            },
            "SCRAM-SHA-256": {
                "iterationCount": 15_000_i64, "salt": "8IbCZW2LWMXirFR1MIU3QPJMBfSzP6Rt7yTYaQ==",
                "storedKey": "Qbt0aSuFLavyJ2aXJbeet+2GqQmtp/s8QimYQ3RYDMo=",
                "serverKey": "s0CFWpjzoNLa4w646R1XakW+yisVOaVa+wCtZkn9qlc=",
            },
        },
        "authenticationRestrictions": [{ "clientSource": ["127.0.0.1", "192.168.0.0/16"] }],
        "inheritedAuthenticationRestrictions": [
            [{ "clientSource": ["::1/128", "10.0.0.0/8", "::ffff:1.2.3.4"] }],
            [{ "clientSource": ["127.0.0.0/8"] }, { "serverAddress": ["127.0.0.1/32"] }],
        ],
    };
    let mut free = user.clone();
    free.insert("authenticationRestrictions", Bson::Array(Vec::new()));
    free.insert(
        "inheritedAuthenticationRestrictions",
        Bson::Array(Vec::new()),
    );
    let of = |name: &str, reply: &Document| seed(name, documents::encode(reply));
    vec![
        of("restricted", &doc! { "users": [user], "ok": 1.0 }),
        of("unrestricted", &doc! { "users": [free], "ok": 1 }),
        of("no_user", &doc! { "users": [], "ok": 1.0 }),
        of(
            "refused",
            &doc! { "ok": 0.0, "code": 13, "errmsg": "not authorized" },
        ),
        seed("empty", RawDocumentBuf::new().as_bytes()),
    ]
}

fn compressed() -> Vec<Seed> {
    let content =
        documents::encode(&doc! { "find": "c", "filter": documents::every_type(), "$db": "d" });
    let content = content.repeat(3);
    let message = encode_request(7, &content);
    let mut seeds = vec![
        seed(
            "content_snappy",
            [&[0, 0, 0, 5, 1, 30, 0, 3, 9][..], &content].concat(),
        ),
        seed(
            "content_zstd",
            [&[1, 0, 0, 5, 1, 30, 0, 3, 9][..], &content].concat(),
        ),
        seed(
            "content_zlib",
            [&[2, 0, 0, 5, 1, 30, 0, 3, 9][..], &content].concat(),
        ),
    ];
    for (index, compressor) in (0..).zip(Compressor::ALL) {
        let name = compressor.name();
        let message = deflate(&message, compressor).expect("there is enough memory");
        seeds.push(seed(
            &format!("message_{name}"),
            [&[index, 0, 1][..], &message].concat(),
        ));
        let bare = message.get(25..).unwrap_or_default();
        seeds.push(seed(
            &format!("bytes_{name}"),
            [&[index, 0, 1][..], bare].concat(),
        ));
        let bomb = encode_request(7, &vec![0; 60_000]);
        let bomb = deflate(&bomb, compressor).expect("there is enough memory");
        if bomb.len() < 1_000 {
            seeds.push(seed(
                &format!("bomb_{name}"),
                [&[index, 0, 1][..], &bomb].concat(),
            ));
        }
    }
    seeds
}

/// Valid requests for the target `admin`: the name of the seed, and the path of the request.
const PATHS: [(&str, &str); 20] = [
    ("metrics", "/metrics"),
    ("status", "/api/v1/status"),
    ("shapes", "/api/v1/shapes?since=10m&sort=p99&limit=3"),
    ("shape", "/api/v1/shapes/00ff00ff00ff00ff?since=1h"),
    ("namespaces", "/api/v1/namespaces?since=1d&sort=count"),
    ("servers", "/api/v1/servers"),
    (
        "timeline",
        "/api/v1/timeline?since=10m&step=10s&db=d&collection=c&command=find",
    ),
    (
        "timeline_of_shape",
        "/api/v1/timeline?since=7d&shape=00ff00ff00ff00ff",
    ),
    (
        "changes",
        "/api/v1/changes?against=2026-11-21T10:00:00%2B01:00&window=5m",
    ),
    ("changes_ago", "/api/v1/changes?against=2h"),
    ("changes_since", "/api/v1/changes?against=1795255200"),
    ("stalls", "/api/v1/stalls?since=1h"),
    ("report", "/api/v1/report?since=1h&against=yesterday"),
    ("pools", "/api/v1/pools"),
    ("topology", "/api/v1/topology"),
    ("clients", "/api/v1/clients?limit=5"),
    ("storms", "/api/v1/storms"),
    ("profile", "/api/v1/profile?seconds=1&frequency=99"),
    ("live", "/health/live"),
    ("ready", "/health/ready"),
];

fn requests() -> Vec<Seed> {
    const LOCAL: &str = "host: 127.0.0.1:9909";
    const TOKEN: &str = "authorization: Bearer token";
    let of =
        |name: &str, front: u8, text: &str| seed(name, [&[front][..], text.as_bytes()].concat());
    let mut seeds: Vec<_> = PATHS
        .iter()
        .map(|(name, path)| of(name, 0, &format!("GET {path}\n{LOCAL}\n\n")))
        .collect();
    seeds.extend([
        of("with_token", 1, &format!("GET /api/v1/shapes\n{TOKEN}\n\n")),
        of(
            "report_with_token",
            1,
            &format!("GET /api/v1/report?since=5m\n{TOKEN}\n\n"),
        ),
        of(
            "wrong_token",
            1,
            "GET /api/v1/status\nauthorization: Bearer tokens\n\n",
        ),
        of("drain", 1, &format!("POST /api/v1/drain\n{TOKEN}\n\n{{}}")),
        of(
            "evil_host",
            0,
            "GET /api/v1/status\nhost: evil.example:9909\n\n",
        ),
        of(
            "evil_origin",
            0,
            &format!("GET /api/v1/status\n{LOCAL}\norigin: http://evil.example\n\n"),
        ),
        of(
            "other_site",
            0,
            &format!("GET /metrics\n{LOCAL}\nsec-fetch-site: cross-site\n\n"),
        ),
        of(
            "protobuf",
            0,
            "GET /metrics\nhost: [::1]\naccept: application/vnd.google.protobuf\n\n",
        ),
        of(
            "absolute",
            0,
            "GET http://seawall.internal/api/v1/status\nhost: seawall.internal\n\n",
        ),
    ]);
    seeds
}

/// Returns headers of the PROXY protocol, each followed by a client's first bytes.
fn proxy_headers() -> Vec<Seed> {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    const IPV4: &[u8] = &[192, 0, 2, 7, 192, 0, 2, 1, 0x30, 0x39, 0x69, 0x89];
    const FIRST_BYTES: &[u8] = &[60, 0, 0, 0, 1, 0, 0, 0];
    let followed = |name: &str, header: &[u8]| seed(name, [header, FIRST_BYTES].concat());
    let version_2 = |command: &[u8]| [SIGNATURE, command].concat();
    vec![
        followed("v1_ipv4", b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 27017\r\n"),
        followed(
            "v1_ipv6",
            b"PROXY TCP6 2001:db8::7 2001:db8::1 12345 27017\r\n",
        ),
        followed("v1_unknown", b"PROXY UNKNOWN\r\n"),
        followed("v2_local", &version_2(&[0x20, 0, 0, 0])),
        followed(
            "v2_ipv4",
            &version_2(&[&[0x21, 0x11, 0, 12], IPV4].concat()),
        ),
        followed(
            "v2_with_field",
            &version_2(&[&[0x21, 0x11, 0, 17], IPV4, &[4, 0, 2, 0, 0]].concat()),
        ),
        seed("none", FIRST_BYTES),
    ]
}

fn configurations() -> Vec<Seed> {
    const SMALLEST: &str =
        "[deployment]\nuri = \"mongodb://user:secret-of-a-user@host:27017/?a=b\"\n";
    let file = |name: &str, text: &str| seed(name, format!("\0{SMALLEST}{text}"));
    let environment = |name: &str, text: &str| seed(name, format!("\u{1}{text}"));
    vec![
        file("smallest", ""),
        file(
            "listen",
            "[listen]\naddress = [\"127.0.0.1:27018\", \"unix:/run/seawall.sock\", \"[::1]:0\"]\n\
             max_client_connections = 100\nbacklog = 5\ncompressors = \"zstd, snappy\"\n",
        ),
        file(
            "relay",
            "mode = \"relay\"\nrelay_encrypted = true\noriginal_destination = true\nrelay_proxy_port = 27117\n",
        ),
        file(
            "pool",
            "[pool]\nmax_pool_size = 10\nmin_pool_size = 2\nmax_connecting = 2\nconcurrency = 8\n\
             max_idle_time_ms = 0\nwait_queue_timeout_ms = 100\n\
             [limits]\nmax_users = 5\nmessage_memory_bytes = 134217728\n",
        ),
        file(
            "users",
            "[auth]\ncredentials = \"users\"\n[[auth.users]]\nname = \"u\"\nsource = \"admin\"\n\
             [auth.users.scram_sha_256]\niterations = 4096\nsalt = \"c29tZSBzYWx0\"\n\
             stored_key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n\
             server_key = \"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"\n",
        ),
        file(
            "slow_log",
            "[slow_log]\nthreshold_ms = 100\nsample_percent = 12.5\nfile = \"/var/log/slow\"\n\
             [slow_log.shape_thresholds_ms]\n00ff00ff00ff00ff = 5\n",
        ),
        file(
            "fault",
            "[fault]\ncommand = \"find\"\nnamespace = \"d.c\"\nshare_percent = 10\ndelay_ms = 5\nerror_code = 91\n",
        ),
        file(
            "admin",
            "[admin]\naddress = \"localhost:9909\"\nallowed_hosts = \"seawall.internal, B.example\"\n\
             [log]\nlevel = \"warn\"\nformat = \"json\"\n[shutdown]\ndrain_ms = 1\n",
        ),
        file(
            "admin_public",
            "[admin]\naddress = \"0.0.0.0:9909\"\ntoken_file = \"/no/such/file\"\n",
        ),
        file("no_toml", "[pool\nmax = \"\\q\"\n\"a\\nb\" = 1\n"),
        file(
            "wrong_types",
            "mode = 5\n[pool]\nmax_pool_size = \"a\\r\\nb\"\n\"a\\nb\" = { c = [1, 2.5] }\n",
        ),
        file(
            "deep",
            &format!("[pool]\nmax_pool_size = {}", "[".repeat(300)),
        ),
        environment(
            "variables",
            "SEAWALL_DEPLOYMENT__URI=mongodb://environment/\nSEAWALL_LISTEN__ADDRESS=127.0.0.1:3, unix:/run/s\n\
             SEAWALL_POOL__MAX_POOL_SIZE=2\nSEAWALL_POOL__CONCURRENCY=off\n\
             SEAWALL_SLOW_LOG__SHAPE_THRESHOLDS_MS=00ff00ff00ff00ff=5\n\
             SEAWALL_PORT=tcp://1.2.3.4:27017\nSEAWALL_POOL__NO=1\nHOME=/root\n",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use seawall_config::Settings;

    use super::*;

    #[test]
    fn the_seed_named_pool_and_the_seed_named_users_are_valid_configurations() {
        for (name, bytes) in configurations() {
            if matches!(&*name, "pool" | "users") {
                let text = str::from_utf8(&bytes).unwrap().trim_start_matches('\0');
                let problems = Settings::from_toml(text).err();
                assert_eq!(problems, None, "{name}");
            }
        }
    }
}
