//! The latest slow operations, for the API.
//!
//! When a slow operation ends, its thread only stores the measured values (it notes the operation).
//! Once a second, [`Totals`](super::Totals) adds the namespace and the text of the operation's
//! shape (it describes the operation). It takes both from the statistics rows in which the
//! operation is counted (see [`super::registry`]).
//!
//! The list of noted operations and the list of described operations are both bounded. The number
//! of noted operations per second is limited too, in total and for each user. So the list of
//! described operations covers some seconds even when all operations are slow, and one user alone
//! cannot fill the list.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use seawall_locks::Mutex;
use seawall_shape::ShapeId;
use seawall_stats::{Outcome, PhaseTimes};

use super::{
    ConnectedClient, Namespace, described::LoggedOperation, registry::Registry, slow_log::LineRate,
    sums::Record,
};

/// Maximum length of each of two lists of operations. The first list contains the noted operations:
/// the text of their shape has not been added yet. The second list contains the described
/// operations: this text has been added.
const KEPT: usize = 1_000;

/// Maximum number of slow operations that are noted in a second.
const NOTED_PER_SECOND: NonZeroU32 = NonZeroU32::new(200).expect("not zero");

/// Minimum duration of a slow operation while the slow log is off. While it is on, the thresholds
/// of the slow log apply.
pub(super) const DEFAULT_THRESHOLD: Duration = Duration::from_millis(100);

/// A slow operation, without values from its command.
#[derive(Clone, Debug)]
pub struct SlowOperation {
    /// When the operation ended.
    pub at: SystemTime,
    /// The client's application; `None` if it is not known.
    pub application: Option<Arc<str>>,
    /// The client's address; `None` if it is not known.
    pub client: Option<Arc<str>>,
    /// The client's user, as `source.name`; `None` if the client has not logged in or is not known.
    pub user: Option<Arc<str>>,
    /// The command and its namespace.
    pub namespace: Namespace,
    /// The shape, or group of shapes, that `text` describes.
    pub shape: ShapeId,
    /// The operation's own shape, if it differs from `shape`; else `None`.
    pub fine_shape: Option<ShapeId>,
    /// The text of the shape, without values; empty if the statistics row of the shape was evicted,
    /// or if shapes are not counted.
    pub text: Arc<str>,
    /// How the operation ended.
    pub outcome: Outcome,
    /// The error code, from the server or from Seawall; `None` if there is none.
    pub code: Option<i32>,
    /// The time in each phase.
    pub phases: PhaseTimes,
    /// Size of the replies in bytes.
    pub reply_bytes: u64,
    /// The server to which the operation was sent last; `None` if it was sent to no server.
    pub server: Option<Arc<str>>,
}

/// A slow operation to which the namespace and the text of its shape have not been added yet.
#[derive(Debug)]
struct Noted {
    at: SystemTime,
    record: Record,
    application: Option<Arc<str>>,
    client: Option<Arc<str>>,
    user: Option<Arc<str>>,
}

/// The slow operations that the threads have noted since the last collection.
pub(super) struct SlowNotes {
    rate: LineRate,
    noted: Mutex<Vec<Noted>>,
    left_out: AtomicU64,
}

impl Default for SlowNotes {
    fn default() -> Self {
        Self {
            rate: LineRate::new(Some(NOTED_PER_SECOND)),
            noted: Mutex::default(),
            left_out: AtomicU64::new(0),
        }
    }
}

impl SlowNotes {
    /// Notes an operation that ended at `at`. Counts the operation as omitted instead if the list
    /// of noted operations is full, or if the limit of operations per second or the user's share of
    /// this limit is used up.
    pub(super) fn note(
        &self,
        record: &Record,
        client: Option<&ConnectedClient>,
        user: u64,
        at: SystemTime,
    ) {
        if self.rate.admits(user, at) {
            let noted = Noted {
                at,
                record: record.clone(),
                application: client.and_then(|client| client.application().cloned()),
                client: client.map(|client| Arc::clone(client.peer())),
                user: client.and_then(|client| client.user()),
            };
            let mut all = self.noted.lock();
            // The limit per second does not bound this list: if the clock was set, `rate` may have
            // admitted several times that number since the last collection.
            if all.len() < KEPT {
                all.push(noted);
                return;
            }
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of slow operations that were not noted.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Removes and returns the noted operations. Adds to each operation the namespace and the text
    /// of its shape, from the statistics rows in `registry`.
    pub(super) fn take(&self, registry: &Registry, servers: &[Arc<str>]) -> Vec<SlowOperation> {
        let noted = std::mem::take(&mut *self.noted.lock());
        let described = noted.into_iter().filter_map(|noted| {
            let record = &noted.record;
            let logged = LoggedOperation::of(record, registry)?;
            let server = record.server.and_then(|server| servers.get(server.0));
            Some(SlowOperation {
                at: noted.at,
                application: noted.application,
                client: noted.client,
                user: noted.user,
                namespace: logged.namespace,
                shape: logged.shape,
                fine_shape: logged.fine,
                text: logged.text,
                outcome: record.outcome,
                code: record.code,
                phases: record.phases,
                reply_bytes: record.reply_bytes,
                server: server.cloned(),
            })
        });
        described.collect()
    }
}

/// The latest slow operations, sorted from the earliest to the latest.
#[derive(Debug, Default)]
pub(super) struct SlowRing(VecDeque<SlowOperation>);

impl SlowRing {
    /// Adds operations. If there are then more than [`KEPT`] operations, removes the earliest ones.
    pub(super) fn extend(&mut self, operations: Vec<SlowOperation>) {
        self.0.extend(operations);
        let excess = self.0.len().saturating_sub(KEPT);
        self.0.drain(..excess);
    }

    /// The operations, sorted from the latest to the earliest.
    pub(super) fn latest(&self) -> impl Iterator<Item = &SlowOperation> {
        self.0.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use tokio::time::Instant;

    use super::*;
    use crate::observe::Observer;
    use seawall_command::CommandBytes;

    fn observer() -> Observer {
        Observer::with_shapes()
    }

    fn run(observer: &Observer, field: &str, user: u64, time: Duration) {
        let body = doc! {"find": "c", "filter": {field: "secret"}, "$db": "d"};
        let body = body.to_vec().unwrap();
        let input = CommandBytes::of_body(&body);
        let client = observer.clients.connected("10.0.0.1:7".into(), None);
        client.set_application(Some(&"x".repeat(1_000)));
        client.set_user(Some("admin.u"));
        let began = Instant::now();
        let mut observation = observer.recorder.begin(&input, 0, began);
        observation.set_sender(&client, user, None);
        observation.finish(Outcome::Ok, began + time);
    }

    #[test]
    fn slow_operations_are_kept_without_values_and_with_a_shortened_application_name() {
        let observer = observer();
        run(&observer, "fast", 1, Duration::from_millis(99));
        run(&observer, "slow", 1, Duration::from_millis(100));
        let kept = observer.totals.slow_operations(None, 10);
        let [slow] = &*kept else { panic!("{kept:?}") };
        assert_eq!(&*slow.text, "{filter:{slow:?}}");
        assert_eq!(slow.phases.total(), Duration::from_millis(100));
        assert_eq!(slow.application.as_deref().map(str::len), Some(256));
        assert_eq!(slow.user.as_deref(), Some("admin.u"));
        assert_eq!(slow.client.as_deref(), Some("10.0.0.1:7"));
        let of_shape = |id: &str| observer.totals.slow_operations(Some(id), 10).len();
        assert_eq!(of_shape(&slow.shape.to_string()), 1);
        assert_eq!(of_shape("0000000000000000"), 0);
    }

    #[test]
    fn the_list_of_slow_operations_keeps_only_the_latest_thousand() {
        let observer = observer();
        run(&observer, "slow", 1, Duration::from_secs(1));
        let slow = observer.totals.slow_operations(None, 1).pop().unwrap();
        let mut ring = SlowRing::default();
        for second in 0..3_000 {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            ring.extend(vec![SlowOperation { at, ..slow.clone() }]);
        }
        let latest: Vec<_> = ring.latest().collect();
        let last = SystemTime::UNIX_EPOCH + Duration::from_secs(2_999);
        assert_eq!((latest.len(), latest[0].at), (KEPT, last));
    }

    #[test]
    fn one_user_cannot_use_the_whole_limit_of_slow_operations_per_second() {
        let notes = SlowNotes::default();
        let observer = observer();
        run(&observer, "slow", 1, Duration::from_secs(1));
        let noted = observer.recorder.slow_notes.noted.lock().pop();
        let record = noted.unwrap().record;
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        let note = |user| {
            notes.note(&record, None, user, at);
            notes.noted.lock().len()
        };
        let of_one = (0..10_000).fold(0, |_, _| note(1));
        assert!((170..180).contains(&of_one), "{of_one}");
        assert_eq!(note(2), of_one + 1);
        assert_eq!(notes.left_out(), 10_000 - u64::try_from(of_one).unwrap());
    }
}
