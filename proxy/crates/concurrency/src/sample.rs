//! A sample: the measurements of one server in one window of about 100 ms.

use std::time::Duration;

/// Number of groups of operations. The caller assigns each operation to a group by the usual server
/// time of its shape (the command without its values). For instance, the times of one group differ
/// by at most a factor of four. If the share of long operations changes, the controller can then
/// see that the server itself has not become slower or faster.
pub const GROUPS: usize = 8;

/// Identifies an epoch: the time between two resets of a controller. The controller ignores samples
/// of earlier epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub(crate) u64);

/// The completed operations of one group in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupSample {
    /// Number of operations whose reply was not too late ([`Sample::late`]). Exempt operations
    /// (long operations that the limit does not count) are included.
    pub completed: u64,
    /// Sum of the server times of these operations. A server time lasts from sending the command to
    /// the end of the reply.
    pub server_time: Duration,
    /// Sum of the binary logarithms of these server times in seconds. The mean of the logarithms
    /// shows if all operations have become slower by a factor; a few long operations hardly change
    /// this mean.
    pub log_sum: f64,
    /// Number of these operations that began while at most [`Sample::LOW_LOAD`] operations were in
    /// progress. These operations show how fast the server is without load from this proxy.
    pub low_load_completed: u64,
    /// The part of `log_sum` that comes from the operations that `low_load_completed` counts.
    pub low_load_log_sum: f64,
}

/// The measurements of one server in one window. The code that enforces the limit updates them when
/// an operation begins to wait, begins to run and ends. Each update costs a few additions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The epoch in which the window began ([`Controller::epoch`](crate::Controller::epoch)).
    pub epoch: Epoch,
    /// Length of the window: 100 ms, or more if the caller was late. Measurements of shorter
    /// windows vary too much.
    pub window: Duration,
    /// The completed operations, by group.
    pub groups: [GroupSample; GROUPS],
    /// Sum of the squares of all server times in `groups`, in square seconds. This sum, divided by
    /// the sum of the server times, is the mean server time of the operations in progress at a
    /// random moment. Long operations dominate this mean, because each of them is in progress for
    /// longer.
    pub server_time_squares: f64,
    /// Number of replies that arrived too late to be useful: the operation had exceeded its time
    /// limit, or its client had left. Operations that end with another error count as completed.
    pub late: u64,
    /// Number of replies whose times cannot be compared, for example because a slow client decided
    /// how long the operation took. They show only that the server replies.
    pub uncompared: u64,
    /// The sum of the times that operations waited, because of the limit or for a connection. The
    /// wait of an operation is added when the operation begins.
    pub wait_time: Duration,
    /// The part of the window in which at least one operation waited, because of the limit or for a
    /// connection.
    pub time_with_waiting: Duration,
    /// Number of operations that wait at the end of the window.
    pub waiting: u64,
    /// Mean number of operations in progress during the window: the integral of the number over
    /// time, divided by the window. Exempt operations (long operations that the limit does not
    /// count) are not included.
    pub mean_in_progress: f64,
    /// Number of operations in progress at the end of the window, without exempt operations.
    pub in_progress: u64,
    /// Number of exempt operations (long operations that the limit does not count) at the end of
    /// the window.
    pub exempt: u64,
}

impl Sample {
    /// An operation began at low load if at most this many operations were in progress, including
    /// itself. With two operations, almost every server still has an idle core for each operation.
    pub const LOW_LOAD: u64 = 2;

    /// Adds an operation whose reply arrived in time. `group` is below [`GROUPS`]; a larger number
    /// counts as the last group. `at_low_load` is true if at most [`Sample::LOW_LOAD`] operations
    /// were in progress when it began.
    pub fn record(&mut self, group: usize, server_time: Duration, at_low_load: bool) {
        let seconds = server_time.as_secs_f64();
        self.server_time_squares += seconds * seconds;
        let Some(group) = self.groups.get_mut(group.min(GROUPS - 1)) else {
            return;
        };
        let log = seconds.max(1e-7).log2();
        group.completed += 1;
        group.server_time += server_time;
        group.log_sum += log;
        if at_low_load {
            group.low_load_completed += 1;
            group.low_load_log_sum += log;
        }
    }

    /// Number of completed operations of all groups.
    pub fn completed(&self) -> u64 {
        self.groups.iter().map(|group| group.completed).sum()
    }

    /// The sum of the server times of all groups.
    pub(crate) fn server_time(&self) -> Duration {
        self.groups.iter().map(|group| group.server_time).sum()
    }
}
