//! Compressed messages. Compression is negotiated separately with the client and with the server.

use std::io::{Read, Write};

use super::*;
use seawall_tests::raw::message::HEADER_BYTES;

pub(crate) const OP_COMPRESSED: i32 = 2012;
pub(crate) const SNAPPY: u8 = 1;
const ZLIB: u8 = 2;
const ZSTD: u8 = 3;

fn deflate(compressor: u8, content: &[u8]) -> Vec<u8> {
    match compressor {
        SNAPPY => snap::raw::Encoder::new().compress_vec(content).unwrap(),
        ZLIB => {
            let mut encoder =
                flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
        ZSTD => zstd::encode_all(content, 1).unwrap(),
        _ => content.to_vec(),
    }
}

fn inflate(compressor: u8, compressed: &[u8]) -> Vec<u8> {
    match compressor {
        SNAPPY => snap::raw::Decoder::new()
            .decompress_vec(compressed)
            .unwrap(),
        ZLIB => {
            let mut content = Vec::new();
            let mut decoder = flate2::read::ZlibDecoder::new(compressed);
            decoder.read_to_end(&mut content).unwrap();
            content
        }
        ZSTD => zstd::decode_all(compressed).unwrap(),
        other => panic!("compressor {other}"),
    }
}

/// Wraps a message in an `OP_COMPRESSED` whose header says that the uncompressed content has `size`
/// bytes.
fn claiming(message: &[u8], compressor: u8, op_code: i32, size: i32) -> Vec<u8> {
    let header = Header::parse(message).unwrap();
    let compressed = deflate(compressor, &message[HEADER_BYTES..]);
    let header = Header {
        message_length: i32::try_from(HEADER_BYTES + 9 + compressed.len()).unwrap(),
        op_code: OP_COMPRESSED,
        ..header
    };
    let size = size.to_le_bytes();
    let inner = op_code.to_le_bytes();
    [
        &header.to_bytes(),
        &inner[..],
        &size,
        &[compressor],
        &compressed,
    ]
    .concat()
}

pub(crate) fn compressed(message: &[u8], compressor: u8) -> Vec<u8> {
    let size = i32::try_from(message.len() - HEADER_BYTES).unwrap();
    claiming(
        message,
        compressor,
        Header::parse(message).unwrap().op_code,
        size,
    )
}

/// The compressor of a compressed message, and the message inside.
fn opened(message: &[u8]) -> (u8, RawReply) {
    let header = Header::parse(message).unwrap();
    assert_eq!(header.op_code, OP_COMPRESSED);
    let int = |at: usize| i32::from_le_bytes(message[at..at + 4].try_into().unwrap());
    let content = inflate(message[24], &message[25..]);
    assert_eq!(i32::try_from(content.len()).unwrap(), int(20));
    let header = Header {
        message_length: i32::try_from(HEADER_BYTES + content.len()).unwrap(),
        op_code: int(16),
        ..header
    };
    let plain = [&header.to_bytes()[..], &content].concat();
    (message[24], RawReply::parse(plain).unwrap())
}

async fn exchange(client: &mut RawClient, message: &OpMsg, compressor: u8) -> (u8, RawReply) {
    let bytes = compressed(&message.to_bytes(), compressor);
    client.send_bytes(&bytes).await.unwrap();
    opened(&client.read_message().await.unwrap())
}

fn request(document: Document) -> OpMsg {
    OpMsg {
        request_id: REQUEST_ID,
        ..OpMsg::new(document)
    }
}

#[tokio::test]
async fn compressors_are_negotiated_in_the_order_in_which_the_client_lists_them() {
    let rig = Rig::shared().await;
    let offers = [
        doc! {"compression": ["zlib", "none", "snappy"]},
        doc! {"compression": ["zstd"]},
        doc! {},
        doc! {"compression": ["snappy", "zstd"]},
        doc! {"compression": []},
        doc! {"compression": ["bogus"]},
        doc! {"compression": "snappy"},
    ];
    let (mut direct, mut through) = (rig.direct().await, rig.through().await);
    for offer in offers {
        let expected = direct.greet(offer.clone()).await.unwrap();
        let seen = through.greet(offer.clone()).await.unwrap();
        // Servers before 5.0 return code 10065. Seawall returns code 14, as newer servers do.
        let code = match expected.code() {
            Some(10065) if is_before(STABLE_API).await => Some(14),
            code => code,
        };
        assert_eq!(code, seen.code(), "{offer}");
        let list = |reply: &RawReply| reply.body.get("compression").cloned();
        assert_eq!(list(&expected), list(&seen), "{offer}");
    }
    let toml = "listen.compressors = \"disabled\"";
    let seawall = Seawall::start_configured(&rig.set.uri(), toml).await;
    let hello = connect(&seawall)
        .await
        .greet(doc! {"compression": ["zstd"]})
        .await
        .unwrap();
    assert_eq!(hello.body.get("compression"), None);
}

#[tokio::test]
async fn each_reply_is_compressed_like_its_request() {
    let rig = Rig::shared().await;
    let db = unique_name("compression");
    for (mut client, name) in [
        (rig.direct().await, "direct"),
        (rig.through().await, "through"),
    ] {
        // The client has not negotiated a compressor. A server and Seawall still accept a
        // compressed handshake message, and compress the reply.
        let (compressor, hello) = exchange(
            &mut client,
            &request(doc! {"isMaster": 1, "$db": "admin"}),
            ZLIB,
        )
        .await;
        assert!(hello.is_ok() && compressor == ZLIB, "{name}: {hello:?}");
        for (compressor, size) in [(SNAPPY, 10), (ZLIB, 100_000), (ZSTD, 5_000_000)] {
            let collection = format!("{name}{compressor}");
            let text = "0123456789".repeat(size / 10);
            let insert =
                doc! {"insert": &collection, "documents": [{"_id": 1, "text": &text}], "$db": &db};
            let (like, reply) = exchange(&mut client, &request(insert), compressor).await;
            assert!(reply.is_ok() && like == compressor, "{name}: {reply:?}");
            let find = doc! {"find": &collection, "$db": &db};
            for form in [request(find.clone()), request(find.clone()).checksum()] {
                let (like, reply) = exchange(&mut client, &form, compressor).await;
                assert_eq!(like, compressor);
                assert_eq!(reply.header.response_to, REQUEST_ID);
                let cursor = reply.body.get_document("cursor").unwrap();
                let first = cursor.get_array("firstBatch").unwrap()[0]
                    .as_document()
                    .unwrap();
                assert_eq!(first.get_str("text").unwrap(), text);
            }
            // Each message is independent: a plain command gets a plain reply.
            let plain = client.exchange(&request(find)).await.unwrap();
            assert_eq!(plain.header.op_code, OP_MSG);
        }
    }
}

#[tokio::test]
async fn a_compressed_message_with_a_wrong_header_closes_the_connection() {
    let rig = Rig::shared().await;
    let ping = request(doc! {"ping": 1, "$db": "admin"}).to_bytes();
    let size = i32::try_from(ping.len() - HEADER_BYTES).unwrap();
    let cases = [
        ("no compressor", claiming(&ping, 0, OP_MSG, size)),
        ("unknown compressor", claiming(&ping, 4, OP_MSG, size)),
        ("negative size", claiming(&ping, SNAPPY, OP_MSG, -1)),
        ("huge size", claiming(&ping, SNAPPY, OP_MSG, 48_000_001)),
        ("smaller zstd size", claiming(&ping, ZSTD, OP_MSG, size - 1)),
        ("larger zstd size", claiming(&ping, ZSTD, OP_MSG, size + 1)),
    ];
    for (name, message) in cases {
        let expected = reaction(&mut rig.direct().await, &message).await;
        let seen = reaction(&mut rig.through().await, &message).await;
        assert!(
            !expected.is_usable && expected.replies.is_empty(),
            "{name}: {expected:?}"
        );
        assert_eq!(expected, seen, "{name}");
    }
    // If a zlib message decompresses to fewer bytes than its header says, a server also parses
    // bytes that follow the decompressed content. Seawall closes the connection instead.
    let lying = claiming(&ping, ZLIB, OP_MSG, size + 40);
    assert!(!reaction(&mut rig.through().await, &lying).await.is_usable);
    // Seawall refuses a compressed message inside another compressed message. A server never
    // replies to such a message.
    let nested = compressed(&compressed(&ping, ZLIB), ZLIB);
    assert!(!reaction(&mut rig.through().await, &nested).await.is_usable);
}

#[tokio::test]
async fn messages_to_servers_use_the_compressor_of_the_connection_string() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    for (name, compressor) in [("snappy", SNAPPY), ("zlib", ZLIB), ("zstd", ZSTD)] {
        let recorder = Recorder::start(set.members()[0].address()).await.unwrap();
        let uri = format!(
            "mongodb://{}/?compressors={name}&directConnection=true",
            recorder.address()
        );
        let seawall = Seawall::start(&uri).await;
        let mut client = connect(&seawall).await;
        let text = "0123456789".repeat(300_000);
        let documents = [doc! {"_id": 1, "text": &text}, doc! {"_id": 2}];
        let insert = OpMsg::new(doc! {"insert": name, "$db": "servers"})
            .sequence("documents", documents.to_vec())
            .checksum();
        assert!(client.exchange(&insert).await.unwrap().is_ok());
        for _ in 0..3 {
            let find = doc! {"find": name, "filter": {}, "batchSize": 1};
            let found = client.command("servers", find).await.unwrap();
            let more = doc! {"getMore": found.cursor_id().unwrap(), "collection": name};
            let more = client.command("servers", more).await.unwrap();
            let cursor = |reply: &RawReply| reply.body.get_document("cursor").unwrap().clone();
            let first = cursor(&found).get_array("firstBatch").unwrap()[0].clone();
            assert_eq!(first.as_document().unwrap().get_str("text").unwrap(), text);
            assert_eq!(
                cursor(&more).get_array("nextBatch").unwrap(),
                &[doc! {"_id": 2}.into()]
            );
            // The client's message is compressed, too. Its compressor is independent of the
            // compressor that Seawall uses for the server.
            let both = request(doc! {"find": name, "$db": "servers"});
            let (like, reply) = exchange(&mut client, &both, ZLIB).await;
            assert!(reply.is_ok() && like == ZLIB);
        }
        let user = doc! {"createUser": name, "pwd": "secret-of-a-user", "roles": []};
        assert!(client.command("servers", user).await.unwrap().is_ok());
        let sent = recorder.connections();
        let sent: Vec<_> = sent.iter().flat_map(|c| c.messages_from_client()).collect();
        let packed: Vec<_> = sent
            .iter()
            .filter(|message| Header::parse(message).unwrap().op_code == OP_COMPRESSED)
            .collect();
        assert!(
            packed.len() >= 10,
            "expected at least 10 compressed messages, got {}",
            packed.len()
        );
        assert!(packed.iter().all(|message| message[24] == compressor));
        // MongoDB's specification forbids drivers to compress a command with a password.
        let is_plain = |message: &&&[u8]| message.windows(6).any(|w| w == b"secret");
        assert_eq!(sent.iter().filter(is_plain).count(), 1);
    }
}
