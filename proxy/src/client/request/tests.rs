use bson::{Document, doc, rawdoc};

use super::*;
use seawall_transport::{MemoryBudget, MessageReader, Sharer};
use seawall_wire::{CHECKSUM_PRESENT, encode_op_msg_like};

/// The request that a server gets for `command` with these edits. Checks the lengths and the
/// checksum of the request.
async fn edited(command: &Document, flags: u32, edits: Edits<'_>) -> Document {
    let bytes = encode_op_msg_like(flags, 1, 0, &command.to_vec().unwrap());
    let budget = MemoryBudget::of_bytes(1 << 20);
    let mut reader = MessageReader::new(Sharer::default());
    let mut stream = &*bytes;
    let read = reader.next(&mut stream, MAX_MESSAGE_BYTES, &budget);
    let message = read.await.unwrap().unwrap();
    let parsed = OpMsg::parse(&message.bytes).unwrap();
    let command = Command::inspect(parsed.body).unwrap();
    let outgoing = Outgoing::new(&message, &parsed, &command, edits);
    let sent = outgoing.to_bytes();
    assert_eq!(sent.len(), outgoing.len());
    let header = Header::parse(sent.first_chunk().unwrap(), MAX_MESSAGE_BYTES).unwrap();
    assert_eq!(header.message_length, sent.len());
    let sent = OpMsg::parse(&sent).unwrap();
    Document::from_reader(sent.body).unwrap()
}

#[tokio::test]
async fn a_server_gets_the_command_with_the_added_and_the_replaced_fields() {
    let client = rawdoc! { "$client": { "driver": "d" } };
    // The element of the document, without the length before it and the NUL after it.
    let client = client.as_bytes();
    let client = client.get(4..client.len() - 1).unwrap();
    let command = doc! { "find": "c", "maxTimeMS": 90, "$db": "d" };
    for flags in [0, CHECKSUM_PRESENT] {
        let unchanged = edited(&command, flags, Edits::default()).await;
        assert_eq!(unchanged, command);
        let edits = Edits {
            client: Some(client),
            max_time_ms: Some(7),
            adds_read_preference: true,
        };
        let read_preference = doc! { "mode": "primaryPreferred" };
        let mut expected = doc! { "find": "c", "maxTimeMS": 7, "$db": "d" };
        expected.insert("$client", doc! { "driver": "d" });
        expected.insert("$readPreference", read_preference.clone());
        assert_eq!(edited(&command, flags, edits).await, expected);
        let without_limit = doc! { "ping": 1, "$db": "d" };
        let mut expected = without_limit.clone();
        expected.insert("$client", doc! { "driver": "d" });
        expected.insert("$readPreference", read_preference);
        expected.insert("maxTimeMS", 7);
        assert_eq!(edited(&without_limit, flags, edits).await, expected);
    }
}
