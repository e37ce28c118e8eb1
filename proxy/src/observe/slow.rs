//! Passes slow operations to the slow log and to the list of the latest slow operations.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, SystemTime},
};

use seawall_command::CommandBytes;
use seawall_shape::ShapeId;
use seawall_stats::Outcome;

use super::{
    ConnectedClient, Recorder,
    described::{LoggedOperation, shape_of},
    slow_log::{LinePermit, SlowLog, SlowLogEntry},
    slow_ring::DEFAULT_THRESHOLD,
    sums::Record,
};

/// The client that sent an operation, and the command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sender<'a> {
    /// The client; `None` if it is unknown.
    pub(super) client: Option<&'a ConnectedClient>,
    /// The user's number. Each user gets a limited share of the slow log's lines and of the list of
    /// slow operations.
    pub(super) user: u64,
    /// The command with its values; `None` if the slow log line must have no values.
    pub(super) command: Option<CommandBytes<'a>>,
}

impl Recorder {
    /// If an operation that has just ended was slow, adds it to the list of the latest slow
    /// operations, unless a limit of this list is reached. Also queues a line for the slow log, if
    /// the operation is in the log's sample and no limit of the log is reached. Ignores awaiting
    /// operations (they wait for an event), and operations to which Seawall itself replied.
    pub(super) fn log_if_slow(&self, record: &Record, sender: Sender<'_>) {
        let log = self.slow_log.load();
        let log = log.as_ref();
        let is_excluded = matches!(record.outcome, Outcome::Local) || record.is_awaiting;
        let shape = shape_of(record).as_u64();
        let threshold = log.map_or(DEFAULT_THRESHOLD, |log| log.threshold_of(shape));
        if is_excluded || record.phases.total() < threshold {
            return;
        }
        let at = SystemTime::now();
        self.slow_notes.note(record, sender.client, sender.user, at);
        let Some(log) = log.filter(|log| log.samples()) else {
            return;
        };
        // Ask for a permit before all look-ups: when all operations are slow, nearly all lines are
        // dropped here, without a look-up.
        if let Some(permit) = log.admit(sender.user, at) {
            self.log(permit, at, record, sender);
        }
    }

    fn log(&self, permit: LinePermit<'_>, at: SystemTime, record: &Record, sender: Sender<'_>) {
        let logged = LoggedOperation::of(record, &self.registry.lock());
        let Some(logged) = logged else { return };
        let servers = self.servers.lock();
        let server = record
            .server
            .and_then(|server| servers.get(server.0))
            .cloned();
        drop(servers);
        let user = sender.client.and_then(ConnectedClient::user);
        permit.write(&SlowLogEntry {
            at,
            shape: logged.shape.as_u64(),
            level: logged.level,
            fine_shape: logged.fine.map(ShapeId::as_u64),
            command: logged.namespace.command,
            opened_by: logged.opened_by,
            db: &logged.namespace.db,
            collection: &logged.namespace.collection,
            text: &logged.text,
            outcome: record.outcome.as_str(),
            error_code: record.code,
            total: record.phases.total(),
            phases: record.phases,
            request_bytes: record.request_bytes,
            reply_bytes: record.reply_bytes,
            documents: record.documents,
            server: server.as_deref(),
            client: sender.client.map_or(0, ConnectedClient::id),
            user: user.as_deref(),
            application: sender
                .client
                .and_then(|client| client.application().map(|name| &**name)),
            values: sender.command,
            is_streamed: record.is_streamed,
        });
    }

    /// Replaces the slow log; `None` switches it off. A separate thread waits until the queued
    /// lines of the earlier log are written: the caller must not wait, because a disk may be
    /// blocked.
    pub(crate) fn set_slow_log(self: &Arc<Self>, log: Option<SlowLog>) {
        self.set_slow_log_on(log, |ending| {
            let thread = thread::Builder::new().name("slow-log-end".to_owned());
            thread.spawn(ending).map(drop)
        });
    }

    /// Replaces the slow log as [`Self::set_slow_log`] does. `spawn` starts the thread that closes
    /// the earlier log.
    fn set_slow_log_on(
        self: &Arc<Self>,
        log: Option<SlowLog>,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) {
        let Some(earlier) = self.slow_log.swap(log.map(Arc::new)) else {
            return;
        };
        let (recorder, log) = (Arc::clone(self), Arc::clone(&earlier));
        let ending = move || {
            // A thread that serves clients may still use the log for some microseconds. It must not
            // be the last owner of the log, because the last owner's drop waits for the disk.
            while Arc::strong_count(&log) > 1 {
                thread::yield_now();
            }
            log.flush();
            recorder.keep_left_out(&log);
        };
        if let Err(error) = spawn(Box::new(ending)) {
            earlier.do_not_wait();
            self.keep_left_out(&earlier);
            tracing::warn!(%error, "could not start the thread that closes the previous slow log");
        }
    }

    /// Adds the number of dropped lines of `log`, which is no longer in use, to `left_out_before`,
    /// the number of dropped lines of all earlier logs.
    fn keep_left_out(&self, log: &SlowLog) {
        let left_out = log.left_out();
        self.left_out_before.fetch_add(left_out, Ordering::Relaxed);
    }

    /// Number of lines that the slow logs of this process dropped: the current log and all earlier
    /// logs.
    pub(crate) fn slow_log_left_out(&self) -> u64 {
        let log = self.slow_log.load();
        let current = log.as_ref().map_or(0, |log| log.left_out());
        self.left_out_before.load(Ordering::Relaxed) + current
    }

    /// The duration from which an operation counts as slow, for shapes without their own threshold.
    pub(super) fn slow_threshold(&self) -> Duration {
        let log = self.slow_log.load();
        log.as_ref()
            .map_or(DEFAULT_THRESHOLD, |log| log.threshold())
    }

    /// Waits at most two seconds until all queued lines of the slow log are written and the number
    /// of dropped lines is reported.
    pub(crate) fn flush_slow_log(&self) {
        if let Some(log) = self.slow_log.load_full() {
            log.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::mpsc, thread, time::Duration};

    use bson::{Document, doc};
    use serde_json::Value;
    use tokio::time::Instant;

    use super::{
        super::{
            Observation, Observer, ObserverSettings,
            registry::OTHER,
            slow_log::{
                SlowLogSettings,
                tests::{BlockingWriter, WrittenLines, settings, start},
            },
            sums::Folded,
        },
        *,
    };
    use seawall_shape::{Description, Fingerprint};

    /// A command as a client sends it.
    struct ClientCommand(Vec<u8>);

    impl ClientCommand {
        fn new(command: Document) -> Self {
            Self(command.to_vec().unwrap())
        }

        fn find(field: &str) -> Self {
            Self::new(doc! { "find": "orders", "filter": { field: 1 }, "$db": "shop" })
        }

        fn get_more() -> Self {
            Self::new(doc! { "getMore": 7_i64, "collection": "orders", "$db": "shop" })
        }

        fn input(&self) -> CommandBytes<'_> {
            CommandBytes::of_body(&self.0)
        }

        fn fingerprint(&self) -> Fingerprint<'_> {
            seawall_shape::fingerprint(&self.input())
        }

        fn id(&self) -> ShapeId {
            self.fingerprint().shape
        }

        fn described(&self) -> Description {
            seawall_shape::describe(&self.input())
        }
    }

    /// An observer with one shape row, and the output of its slow log.
    fn observer(slow_log: SlowLogSettings) -> (Observer, WrittenLines) {
        let written = WrittenLines::default();
        (observer_with(start(slow_log, written.clone())), written)
    }

    fn observer_with(log: SlowLog) -> Observer {
        let counted = ObserverSettings {
            counts_shapes: true,
            max_shapes: 1,
            name_key: None,
            max_namespaces: 10,
            keeps_seconds: false,
        };
        Observer::new(counted, Some(log)).unwrap()
    }

    fn every_operation() -> SlowLogSettings {
        SlowLogSettings {
            threshold: Duration::ZERO,
            ..settings()
        }
    }

    fn begin<'a>(observer: &'a Observer, command: &ClientCommand) -> Observation<'a> {
        observer
            .recorder
            .begin(&command.input(), 100, Instant::now())
    }

    fn run(observer: &Observer, command: &ClientCommand) {
        begin(observer, command).finish(Outcome::Ok, Instant::now());
    }

    fn hex(id: ShapeId) -> Value {
        id.to_string().into()
    }

    #[test]
    fn the_slow_log_line_of_a_getmore_has_the_shape_that_opened_its_cursor() {
        let find = ClientCommand::find("a");
        let (observer, written) = observer(SlowLogSettings {
            threshold: Duration::from_secs(3_600),
            shape_thresholds: vec![(find.id().as_u64(), Duration::ZERO)],
            ..settings()
        });
        let opening = begin(&observer, &find);
        let origin = opening.origin().unwrap();
        opening.finish(Outcome::Ok, Instant::now());
        let mut more = begin(&observer, &ClientCommand::get_more());
        more.attribute_to(origin);
        // The next reply of an exhaust cursor belongs to the same cursor.
        let again = more.begin_next_reply(Instant::now());
        more.finish(Outcome::Ok, Instant::now());
        again.finish(Outcome::Ok, Instant::now());
        // This `getMore` is not logged: its cursor is unknown, so the threshold of the `find` does
        // not apply to it.
        run(&observer, &ClientCommand::get_more());
        drop(observer);
        let lines = written.lines();
        let field = |name: &str| -> Vec<_> { lines.iter().map(|line| line.get(name)).collect() };
        assert_eq!(
            field("command"),
            [
                Some(&"find".into()),
                Some(&"getMore".into()),
                Some(&"getMore".into())
            ]
        );
        let find_command = Value::from("find");
        assert_eq!(
            field("opened_by"),
            [None, Some(&find_command), Some(&find_command)]
        );
        assert_eq!(field("shape"), [Some(&hex(find.id())); 3]);
        assert_eq!(field("text"), [Some(&find.described().shape.into()); 3]);
        assert_eq!(field("level"), [Some(&"fine".into()); 3]);
        assert_eq!(field("collection"), [Some(&"orders".into()); 3]);
    }

    /// If the table of shapes is full, a row named `other` counts the operations of further shapes.
    /// The log names the row that counts a slow operation.
    #[test]
    fn a_slow_operation_of_a_shape_without_a_row_is_logged_with_the_id_of_the_row_named_other() {
        let (observer, written) = observer(every_operation());
        let (first, folded) = (ClientCommand::find("a"), ClientCommand::find("b"));
        run(&observer, &first);
        let opening = begin(&observer, &folded);
        let origin = opening.origin().unwrap();
        opening.finish(Outcome::Ok, Instant::now());
        let mut more = begin(&observer, &ClientCommand::get_more());
        more.attribute_to(origin);
        more.finish(Outcome::Ok, Instant::now());
        drop(observer);
        let lines = written.lines();
        assert_eq!(lines[0]["shape"], hex(first.id()));
        assert_eq!(lines[0].get("fine_shape"), None);
        for line in &lines[1..] {
            // The table is too small for coarse rows (rows of groups of similar shapes), so an
            // `other` row counts the operation.
            let of = folded.fingerprint();
            let (db, collection) = (of.readable_db(), of.readable_collection());
            let row = ShapeId::of_other_row(of.op, &db, &collection);
            assert_eq!(line["shape"], hex(row));
            assert_eq!(line["level"], "rest");
            assert_eq!(line["text"], OTHER);
            assert_eq!(line["fine_shape"], hex(folded.id()));
        }
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn a_running_operation_whose_shape_loses_its_row_is_logged_as_evicted() {
        let (observer, written) = observer(every_operation());
        let (light, heavy) = (ClientCommand::find("a"), ClientCommand::find("b"));
        let under_way = begin(&observer, &light);
        let time = Duration::from_secs(1);
        let coarse = heavy.fingerprint().coarse;
        let folded = HashMap::from([(heavy.id(), Folded { coarse, time })]);
        let mut registry = observer.recorder.registry.lock();
        // Let the heavy shape occur twice: a shape that occurred only once gets no row.
        registry.watch(folded.clone());
        assert!(registry.turn_over(folded, time, SystemTime::now()));
        assert_eq!(registry.evicted(), 1);
        drop(registry);
        under_way.finish(Outcome::Ok, Instant::now());
        drop(observer);
        let lines = written.lines();
        assert_eq!(lines[0]["shape"], hex(light.id()));
        assert_eq!(lines[0]["level"], "evicted");
        assert_eq!(lines[0]["text"], "");
        assert_eq!(lines[0]["collection"], "orders");
    }

    /// The tables are those of the shapes, of the clients and of the servers.
    #[test]
    fn the_end_of_an_operation_locks_no_table_if_the_queue_of_the_slow_log_is_full() {
        let written = WrittenLines::default();
        let (held, block) = BlockingWriter::new(&written);
        let observer = observer_with(start(every_operation(), held));
        // Variables are dropped in reverse order. `block` is declared again, so that it is dropped
        // before the log if an assertion fails: the drop of the log waits until the writer is
        // unblocked.
        let block = block;
        let command = ClientCommand::find("a");
        run(&observer, &command);
        // From here on the writing thread is blocked and reads nothing from the queue.
        block.wait_until_it_writes();
        while observer.recorder.slow_log_left_out() == 0 {
            run(&observer, &command);
        }
        let operations: Vec<_> = (0..100).map(|_| begin(&observer, &command)).collect();
        let (ended, all_ended) = mpsc::channel();
        thread::scope(|scope| {
            let registry = observer.recorder.registry.lock();
            let clients = observer.clients.rows.lock();
            let servers = observer.recorder.servers.lock();
            scope.spawn(move || {
                for operation in operations {
                    operation.finish(Outcome::Ok, Instant::now());
                }
                ended.send(()).unwrap();
            });
            let ended = all_ended.recv_timeout(Duration::from_secs(20));
            drop((registry, clients, servers));
            ended.expect("operations end while the tables are locked");
        });
        assert_eq!(observer.recorder.slow_log_left_out(), 101);
        drop(block);
        drop(observer);
        let lines = written.lines();
        let left_out = lines.iter().filter_map(|line| line.get("left_out"));
        let left_out: u64 = left_out.filter_map(Value::as_u64).sum();
        assert_eq!(left_out, 101);
    }

    #[test]
    fn dropped_log_lines_stay_counted_if_no_thread_can_close_the_log() {
        let written = WrittenLines::default();
        let (held, block) = BlockingWriter::new(&written);
        let observer = observer_with(start(every_operation(), held));
        // Variables are dropped in reverse order. `block` is declared again, so that it unblocks
        // the writer before the log is dropped: the drop of the log waits for the writer.
        let block = block;
        let command = ClientCommand::find("a");
        run(&observer, &command);
        block.wait_until_it_writes();
        while observer.recorder.slow_log_left_out() == 0 {
            run(&observer, &command);
        }
        let log = Arc::downgrade(&observer.recorder.slow_log.load_full().unwrap());
        observer
            .recorder
            .set_slow_log_on(None, |_| Err(io::Error::other("no thread")));
        assert!(log.upgrade().is_none(), "expected the log to be dropped");
        assert_eq!(observer.recorder.slow_log_left_out(), 1);
        drop(block);
    }
}
