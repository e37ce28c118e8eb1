use std::sync::Arc;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn queue(max_bytes: usize, max_bytes_per_second: Option<u64>) -> (Queue, AllCounts, Instant) {
    let now = Instant::now();
    let limits = QueueLimits {
        max_bytes,
        max_bytes_per_second,
    };
    (Queue::new(limits, now), AllCounts::default(), now)
}

fn taken(queue: &Queue) -> Vec<Content> {
    let batch = queue.take(Duration::ZERO);
    queue.release(batch.bytes);
    batch.records.into()
}

fn omitted(reason: OmissionReason, operations: u64, bytes: u64) -> Content {
    Content::Omitted(Omitted {
        client: 0,
        at_us: 5,
        operations,
        bytes,
        reason: reason.into(),
    })
}

#[test]
fn a_full_queue_records_the_number_of_omitted_commands() {
    let (queue, totals, now) = queue(2 * RECORD_BYTES, None);
    assert_eq!(queue.command(1, 4, &[7; 200], now, &totals), Some(1));
    for _ in 0..2 {
        assert_eq!(queue.command(1, 5, &[7; 100], now, &totals), None);
    }
    // This client is not in the capture yet. The queue has no room for the record of the client, so
    // the first command of the client is omitted.
    let began = ClientBegan {
        at_us: 5,
        ..ClientBegan::default()
    };
    assert_eq!(queue.begin_client(began, 100, &totals), None);
    let [Content::Command(command), gap] = &*taken(&queue) else {
        panic!("unexpected records");
    };
    assert_eq!(command.message.len(), 200);
    assert_eq!(*gap, omitted(OmissionReason::QueueFull, 3, 300));
    // `taken` has released the memory of the records, so there is room again.
    assert_eq!(queue.command(1, 6, &[7; 200], now, &totals), Some(2));
    assert_eq!(taken(&queue).len(), 1);
    assert_eq!(queue.used_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(queue.counts().omitted, [0, 3, 0, 0, 0]);
    assert_eq!(totals.omitted[1].load(Ordering::Relaxed), 3);
}

#[test]
fn a_reply_is_recorded_without_its_message_if_the_queue_has_no_room_for_it() {
    let (queue, totals, now) = queue(4 * RECORD_BYTES, None);
    let reply = Reply {
        operation: 1,
        at_us: 5,
        ..Reply::default()
    };
    let gap = omitted(OmissionReason::QueueFull, 0, 4000);
    assert!(!queue.reserve_message(4000, 5, now, &totals));
    queue.reply(reply.clone());
    assert_eq!(taken(&queue), [gap, Content::Reply(reply.clone())]);
    assert!(queue.reserve_message(40, 5, now, &totals));
    let message = Bytes::copy_from_slice(&[1; 40]);
    let whole = Reply { message, ..reply };
    queue.reply(whole.clone());
    assert_eq!(taken(&queue), [Content::Reply(whole)]);
    assert_eq!(queue.used_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn commands_over_the_rate_limit_are_omitted_and_later_commands_are_recorded() {
    let (queue, totals, now) = queue(1 << 20, Some(1_000));
    assert!(queue.command(1, 0, &[7; 1_500], now, &totals).is_some());
    assert_eq!(queue.command(1, 5, &[7; 10], now, &totals), None);
    assert_eq!(
        queue.command(1, 5, &[7; 10], now + SECOND / 4, &totals),
        None
    );
    let later = now + SECOND;
    assert!(queue.command(1, 0, &[7; 10], later, &totals).is_some());
    let records = taken(&queue);
    assert_eq!(records[1], omitted(OmissionReason::RateLimit, 2, 20));
    assert_eq!(queue.used_bytes.load(Ordering::Relaxed), 0);
}

fn ring(bytes: usize) -> (Queue, AllCounts, Instant) {
    let now = Instant::now();
    let limits = QueueLimits {
        max_bytes: 1 << 20,
        max_bytes_per_second: None,
    };
    let lead = LeadLimits {
        duration: SECOND,
        bytes,
    };
    (Queue::ring(limits, lead, now), AllCounts::default(), now)
}

fn reply_to(operation: u64, at_us: u64) -> Reply {
    Reply {
        operation,
        at_us,
        ..Reply::default()
    }
}

fn kinds(records: &[Content]) -> Vec<String> {
    let kinds = records.iter().map(|record| match record {
        Content::Event(event) => event.kind.clone(),
        Content::ClientBegan(client) => {
            format!("began {} {}", client.client, client.was_active)
        }
        Content::ClientEnded(client) => format!("ended {}", client.client),
        Content::Command(command) => format!("command {}", command.operation),
        Content::Reply(reply) => format!("reply {}", reply.operation),
        other => format!("{other:?}"),
    });
    kinds.collect()
}

/// A capture that begins at an event, such as a storm, contains the last records before the event.
#[test]
fn a_queue_that_waits_for_an_event_keeps_the_last_second_of_records_and_their_clients() {
    let (queue, totals, now) = ring(1 << 20);
    let began = |at_us| ClientBegan {
        at_us,
        ..ClientBegan::default()
    };
    for _ in 0..3 {
        queue.begin_client(began(0), 0, &totals).unwrap();
    }
    queue.command(1, 100, &[7; 10], now, &totals).unwrap();
    queue.command(2, 200, &[7; 10], now, &totals).unwrap();
    queue.end_client(ClientEnded {
        client: 2,
        at_us: 300,
    });
    // The queue keeps the records of one second, so after 1.5 s the records above are too old.
    queue.command(3, 1_500_000, &[7; 10], now, &totals).unwrap();
    queue.reply(reply_to(1, 1_500_001));
    queue.reply(reply_to(3, 1_600_000));
    let event = Event {
        at_us: 1_700_000,
        kind: "storm".to_owned(),
        text: String::new(),
    };
    assert_eq!(queue.begin(event, &totals), 1_500_000);
    // The queue has dropped the command of this reply, so the reply is dropped too.
    queue.reply(reply_to(2, 1_800_000));
    queue.command(1, 1_900_000, &[7; 10], now, &totals).unwrap();
    let expected = [
        "storm",
        "began 1 true",
        "began 3 true",
        "command 3",
        "reply 3",
        "command 4",
    ];
    assert_eq!(kinds(&taken(&queue)), expected);
    let counts = queue.counts();
    assert_eq!((counts.clients, counts.operations), (2, 2));
    assert_eq!(queue.used_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn records_older_than_one_second_are_dropped_when_an_event_begins_a_capture() {
    let (queue, totals, now) = ring(1 << 20);
    queue
        .begin_client(ClientBegan::default(), 0, &totals)
        .unwrap();
    queue.command(1, 100, &[7; 10], now, &totals).unwrap();
    let event = Event {
        at_us: 10_000_000,
        kind: "storm".to_owned(),
        text: String::new(),
    };
    assert_eq!(queue.begin(event, &totals), 10_000_000);
    // The reply to the dropped command is dropped too.
    queue.reply(reply_to(1, 10_000_001));
    assert_eq!(kinds(&taken(&queue)), ["storm", "began 1 true"]);
    assert_eq!(queue.counts().operations, 0);
    assert_eq!(queue.used_bytes(), 0);
}

/// A capture that begins at an event, such as a storm, contains the last records before the event.
#[test]
fn a_queue_that_waits_for_an_event_drops_old_records_over_its_memory_limit() {
    let (queue, totals, now) = ring(10 * RECORD_BYTES);
    queue
        .begin_client(ClientBegan::default(), 0, &totals)
        .unwrap();
    for at_us in 0..1_000 {
        let message = vec![7; usize::try_from(at_us % 700).unwrap()];
        queue.command(1, at_us, &message, now, &totals).unwrap();
        queue.omit(OmissionReason::TooLarge, 1, 10, at_us, &totals);
        let used = queue.used_bytes.load(Ordering::Relaxed);
        assert!(used <= 11 * RECORD_BYTES, "{used}");
    }
    assert_eq!(queue.counts(), Counts::default());
}

#[test]
fn omissions_directly_before_an_event_are_counted() {
    let (queue, totals, _) = ring(2 * RECORD_BYTES);
    queue.omit(OmissionReason::QueueFull, 3, 10, 5, &totals);
    queue.begin(Event::default(), &totals);
    let gap = omitted(OmissionReason::QueueFull, 3, 10);
    assert!(taken(&queue).contains(&gap));
    assert_eq!(queue.counts().omitted, [0, 3, 0, 0, 0]);
}

#[test]
fn records_that_are_added_after_the_end_of_a_capture_are_dropped() {
    let (queue, totals, now) = queue(1 << 20, None);
    queue.omit_command(1, OmissionReason::Secret, 10, 0, &totals);
    assert_eq!(
        queue.begin_client(ClientBegan::default(), 0, &totals),
        Some(1)
    );
    queue.end(EndReason::Stopped);
    queue.end(EndReason::Shutdown);
    assert_eq!(queue.begin_client(ClientBegan::default(), 0, &totals), None);
    assert_eq!(queue.command(1, 0, &[7; 10], now, &totals), None);
    queue.reply(Reply::default());
    queue.omit_command(1, OmissionReason::Secret, 10, 0, &totals);
    let batch = queue.take(SECOND);
    assert_eq!(batch.records.len(), 2);
    assert_eq!(queue.counts().omitted, [1, 0, 0, 0, 0]);
    assert_eq!(batch.end, Some(EndReason::Stopped));
    assert_eq!(queue.counts().operations, 0);
}

/// The message of a reply. `freed` counts it if it is freed while the queue is not locked.
struct Counted {
    queue: Arc<Queue>,
    freed: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &[7; 10]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let is_unlocked = self.queue.state.try_lock().is_some();
        let freed = usize::from(is_unlocked);
        self.freed.fetch_add(freed, Ordering::Relaxed);
    }
}

/// Frees a reply that was added to a queue, or that the queue refuses.
type Free = fn(&Queue, &AllCounts, Reply);

/// All captured clients use the lock, and freeing a large record takes long.
#[test]
fn records_are_freed_while_the_queue_is_not_locked() {
    let later: Free = |queue, _, reply| {
        queue.reply(reply);
        queue.reply(reply_to(1, 2_000_000));
    };
    let event: Free = |queue, totals, reply| {
        queue.reply(reply);
        let event = Event {
            at_us: 2_000_000,
            ..Event::default()
        };
        queue.begin(event, totals);
    };
    let without_command: Free = |queue, totals, reply| {
        let command = queue.command(1, 0, &[7; 10], Instant::now(), totals);
        assert_eq!(command, Some(reply.operation));
        queue.reply(Reply {
            at_us: 1_500_000,
            ..reply
        });
        let event = Event {
            at_us: 2_000_000,
            ..Event::default()
        };
        queue.begin(event, totals);
    };
    let discarded: Free = |queue, totals, reply| {
        queue.reply(reply);
        queue.discard(EndReason::Stopped, VecDeque::new(), totals);
    };
    let taken: Free = |queue, totals, reply| {
        queue.reply(reply);
        let rest = queue.take(Duration::ZERO).records;
        queue.discard(EndReason::DiskLimit, rest, totals);
    };
    let refused: Free = |queue, _, reply| {
        queue.end(EndReason::Stopped);
        queue.reply(reply);
    };
    let cases = [
        (true, later),
        (true, event),
        (true, without_command),
        (true, discarded),
        (false, discarded),
        (false, taken),
        (false, refused),
    ];
    for (number, (is_ring, free)) in cases.into_iter().enumerate() {
        let (queue, totals, now) = match is_ring {
            true => ring(1 << 20),
            false => queue(1 << 20, None),
        };
        let (queue, freed) = (Arc::new(queue), Arc::new(AtomicUsize::new(0)));
        assert!(queue.reserve_message(10, 0, now, &totals));
        let message = Bytes::from_owner(Counted {
            queue: Arc::clone(&queue),
            freed: Arc::clone(&freed),
        });
        let reply = Reply {
            message,
            ..reply_to(1, 0)
        };
        free(&queue, &totals, reply);
        assert_eq!(freed.load(Ordering::Relaxed), 1, "case {number}");
    }
}
