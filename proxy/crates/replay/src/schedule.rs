//! Decides when a command starts: when it is due, and after which other commands.
//!
//! A command waits until the earlier commands on the same connection, in the same session and on
//! the same cursor have ended. In strict order, it also waits for all operations that had ended
//! before it began in the capture. It waits for no other command: when it is due, it starts, even
//! if other earlier commands have not ended.
//!
//! Times are durations since the first record of the capture was due.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use foldhash::fast::RandomState;

use crate::plan::CapturedSession;

/// The number of an operation in this replay, in the order of the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OperationId(pub u64);

/// The pace of a replay: how fast commands are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Commands are sent at the captured times, divided by this factor.
    Speed(f64),
    /// This number of commands is sent per second, at equal intervals.
    Rate(f64),
    /// Commands are sent as fast as the target replies.
    Max,
}

impl Pace {
    /// The due time of a command, measured from the due time of the first record. `offset` is the
    /// command's time since the first record of the capture, and `number` is the number of earlier
    /// commands that the planner chose to send.
    pub(crate) fn due(self, offset: Duration, number: u64) -> Duration {
        let seconds = match self {
            Self::Speed(factor) => offset.as_secs_f64() / factor,
            Self::Rate(per_second) => seawall_stats::float(number) / per_second,
            Self::Max => 0.0,
        };
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// Commands in the same lane run one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// A connection of the replay.
    Connection(u64),
    /// A session, identified by its captured id.
    Session(CapturedSession),
    /// A cursor, identified by its captured id.
    Cursor(i64),
}

/// An operation that has not ended.
#[derive(Debug, Default)]
struct Entry {
    lanes: Vec<Lane>,
    /// Number of operations for which this operation waits.
    waits_for: usize,
    /// The operations that wait for this operation.
    followers: Vec<OperationId>,
    is_due: bool,
    /// In strict order, this operation waits until all operations whose `captured_end` is below
    /// this number have ended in the replay. In the capture, they had ended before it began.
    barrier: u64,
    /// The number that [`Schedule::note_captured_end`] gave to the end of this operation in the
    /// capture. `None` if this end was not read yet, or if the order is not strict.
    captured_end: Option<u64>,
}

/// The operations that have not ended, and their order.
#[derive(Debug)]
pub(crate) struct Schedule {
    is_strict: bool,
    entries: HashMap<OperationId, Entry, RandomState>,
    /// The last operation of each lane, if it has not ended.
    last: HashMap<Lane, OperationId, RandomState>,
    /// The operations that are not due yet, in the order in which they become due.
    later: VecDeque<(Duration, OperationId)>,
    /// The operations that may start.
    ready: VecDeque<OperationId>,
    /// The operations that are due and wait only because of their [`Entry::barrier`]. Each is
    /// stored with its barrier.
    barred: BTreeSet<(u64, OperationId)>,
    /// The values of [`Entry::captured_end`] of the operations that have ended in the capture, but
    /// not in the replay.
    open_ends: BTreeSet<u64>,
    /// Number of ends that got a number in [`Self::note_captured_end`]. The numbers begin at 0, so
    /// the next end gets this number.
    ends: u64,
}

impl Schedule {
    /// Creates an empty schedule.
    pub(crate) fn new(is_strict: bool) -> Self {
        Self {
            is_strict,
            entries: HashMap::default(),
            last: HashMap::default(),
            later: VecDeque::new(),
            ready: VecDeque::new(),
            barred: BTreeSet::new(),
            open_ends: BTreeSet::new(),
            ends: 0,
        }
    }

    /// Adds the next operation of the capture. If `due` is earlier than the due time of the
    /// previous operation, this operation becomes due together with the previous one.
    pub(crate) fn push(&mut self, operation: OperationId, due: Duration, lanes: Vec<Lane>) {
        let mut entry = Entry {
            barrier: self.ends,
            ..Entry::default()
        };
        for lane in &lanes {
            let before = self.last.insert(*lane, operation);
            if let Some(before) = before.and_then(|before| self.entries.get_mut(&before)) {
                before.followers.push(operation);
                entry.waits_for += 1;
            }
        }
        entry.lanes = lanes;
        self.entries.insert(operation, entry);
        let latest = self.later.back().map_or(Duration::ZERO, |(due, _)| *due);
        self.later.push_back((due.max(latest), operation));
    }

    /// Adds a lane to an operation that was added before, so that later operations in the lane
    /// follow it. Does nothing if the operation has ended.
    pub(crate) fn extend(&mut self, operation: OperationId, lane: Lane) {
        if let Some(entry) = self.entries.get_mut(&operation) {
            entry.lanes.push(lane);
            self.last.insert(lane, operation);
        }
    }

    /// Notes that an operation had ended in the capture before the next operation began. In strict
    /// order, gives this end the next [`Entry::captured_end`].
    pub(crate) fn note_captured_end(&mut self, operation: OperationId) {
        if !self.is_strict {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&operation)
            && entry.captured_end.is_none()
        {
            entry.captured_end = Some(self.ends);
            self.open_ends.insert(self.ends);
            self.ends += 1;
        }
    }

    /// Notes that an operation ended in the replay.
    pub(crate) fn end(&mut self, operation: OperationId) {
        let Some(entry) = self.entries.remove(&operation) else {
            return;
        };
        for lane in &entry.lanes {
            if self.last.get(lane) == Some(&operation) {
                self.last.remove(lane);
            }
        }
        for follower in entry.followers {
            if let Some(waiting) = self.entries.get_mut(&follower) {
                waiting.waits_for -= 1;
                self.start_if_possible(follower);
            }
        }
        if let Some(end) = entry.captured_end {
            self.open_ends.remove(&end);
            self.lift_barriers();
        }
    }

    /// The next operation that may start at `now`.
    pub(crate) fn next(&mut self, now: Duration) -> Option<OperationId> {
        while let Some((due, operation)) = self.later.front().copied()
            && due <= now
        {
            self.later.pop_front();
            if let Some(entry) = self.entries.get_mut(&operation) {
                entry.is_due = true;
                self.start_if_possible(operation);
            }
        }
        self.ready.pop_front()
    }

    /// The time at which the next operation becomes due; `None` if all operations are due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.later.front().map(|(due, _)| *due)
    }

    /// The time at which the last added operation becomes due; `None` if all operations are due
    /// already.
    pub(crate) fn last_due(&self) -> Option<Duration> {
        self.later.back().map(|(due, _)| *due)
    }

    /// Number of operations that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if all operations have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn start_if_possible(&mut self, operation: OperationId) {
        let Some(entry) = self.entries.get(&operation) else {
            return;
        };
        if !entry.is_due || entry.waits_for > 0 {
            return;
        }
        match self.is_lifted(entry.barrier) {
            true => self.ready.push_back(operation),
            false => drop(self.barred.insert((entry.barrier, operation))),
        }
    }

    /// True if all operations whose [`Entry::captured_end`] is below `barrier` have ended in the
    /// replay.
    fn is_lifted(&self, barrier: u64) -> bool {
        self.open_ends.first().is_none_or(|open| *open >= barrier)
    }

    fn lift_barriers(&mut self) {
        while let Some((barrier, operation)) = self.barred.first().copied()
            && self.is_lifted(barrier)
        {
            self.barred.pop_first();
            self.ready.push_back(operation);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn id(number: u64) -> OperationId {
        OperationId(number)
    }

    fn all_ready(schedule: &mut Schedule, now: Duration) -> Vec<u64> {
        std::iter::from_fn(|| schedule.next(now).map(|operation| operation.0)).collect()
    }

    #[test]
    fn the_pace_decides_when_a_command_is_due() {
        let second = Duration::from_secs(1);
        let cases = [
            (Pace::Speed(1.0), second),
            (Pace::Speed(4.0), second / 4),
            (Pace::Speed(0.5), second * 2),
            (Pace::Rate(100.0), second / 20),
            (Pace::Max, Duration::ZERO),
        ];
        for (pace, due) in cases {
            assert_eq!(pace.due(second, 5), due, "{pace:?}");
        }
        assert_eq!(Pace::Speed(1e-300).due(second, 0), Duration::MAX);
    }

    #[test]
    fn an_operation_starts_when_it_is_due_even_if_earlier_operations_have_not_ended() {
        let mut schedule = Schedule::new(false);
        for number in 0..3 {
            let due = Duration::from_millis(10 * number);
            schedule.push(id(number), due, vec![Lane::Connection(number)]);
        }
        assert_eq!(all_ready(&mut schedule, Duration::ZERO), [0]);
        assert_eq!(schedule.next_due(), Some(Duration::from_millis(10)));
        assert!(all_ready(&mut schedule, Duration::from_millis(9)).is_empty());
        assert_eq!(all_ready(&mut schedule, Duration::from_millis(20)), [1, 2]);
        assert_eq!((schedule.next_due(), schedule.len()), (None, 3));
    }

    #[test]
    fn commands_in_the_same_lane_start_one_after_another() {
        let lanes = [
            Lane::Connection(1),
            Lane::Session([1; 16]),
            Lane::Cursor(77),
        ];
        for lane in lanes {
            let mut schedule = Schedule::new(false);
            for number in 0..3 {
                schedule.push(id(number), Duration::ZERO, vec![lane]);
            }
            schedule.push(id(3), Duration::ZERO, vec![Lane::Connection(9)]);
            assert_eq!(all_ready(&mut schedule, NOW), [0, 3]);
            schedule.end(id(0));
            assert_eq!(all_ready(&mut schedule, NOW), [1]);
            schedule.end(id(1));
            assert_eq!(all_ready(&mut schedule, NOW), [2]);
            schedule.end(id(2));
            schedule.end(id(3));
            assert!(schedule.is_empty() && schedule.last.is_empty());
        }
    }

    #[test]
    fn a_get_more_follows_the_operation_that_opened_its_cursor() {
        let mut schedule = Schedule::new(false);
        schedule.push(id(0), Duration::ZERO, vec![Lane::Connection(1)]);
        schedule.extend(id(0), Lane::Cursor(77));
        let lanes = vec![Lane::Connection(2), Lane::Cursor(77)];
        schedule.push(id(1), Duration::ZERO, lanes);
        assert_eq!(all_ready(&mut schedule, NOW), [0]);
        schedule.end(id(0));
        assert_eq!(all_ready(&mut schedule, NOW), [1]);
        schedule.extend(id(0), Lane::Cursor(77));
        assert_eq!(schedule.last.get(&Lane::Cursor(77)), Some(&id(1)));
    }

    #[test]
    fn in_strict_order_an_operation_waits_for_those_that_ended_before_it_began_in_the_capture() {
        // In the capture, operations 0 and 1 overlap, and operation 2 began after the end of 0 and
        // before the end of 1.
        let mut schedule = Schedule::new(true);
        schedule.push(id(0), Duration::ZERO, vec![Lane::Connection(0)]);
        schedule.push(id(1), Duration::ZERO, vec![Lane::Connection(1)]);
        schedule.note_captured_end(id(0));
        schedule.push(id(2), Duration::ZERO, vec![Lane::Connection(2)]);
        schedule.note_captured_end(id(1));
        schedule.push(id(3), Duration::ZERO, vec![Lane::Connection(3)]);
        assert_eq!(all_ready(&mut schedule, NOW), [0, 1]);
        schedule.end(id(0));
        assert_eq!(all_ready(&mut schedule, NOW), [2]);
        schedule.end(id(1));
        assert_eq!(all_ready(&mut schedule, NOW), [3]);
    }

    #[derive(Clone, Debug)]
    struct Captured {
        connection: u64,
        session: u8,
        due_ms: u64,
        /// Number of later operations that begin before this operation ends.
        overlap: usize,
    }

    fn captured() -> impl Strategy<Value = Vec<Captured>> {
        let one = (0_u64..4, 0_u8..3, 0_u64..50, 0_usize..4);
        let one = one.prop_map(|(connection, session, due_ms, overlap)| Captured {
            connection,
            session,
            due_ms,
            overlap,
        });
        proptest::collection::vec(one, 1..40)
    }

    proptest! {
        /// Each operation starts exactly once, when it is due or later, and after the operations
        /// that it must follow. The order in which operations end does not matter.
        #[test]
        fn all_operations_start_in_an_allowed_order(
            captured in captured(),
            strict: bool,
            choices in proptest::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let mut schedule = Schedule::new(strict);
            let lanes = |one: &Captured| {
                vec![Lane::Connection(one.connection), Lane::Session([one.session; 16])]
            };
            for (number, one) in captured.iter().enumerate() {
                for (before, earlier) in captured.iter().enumerate().take(number) {
                    if before + earlier.overlap + 1 == number {
                        schedule.note_captured_end(id(u64::try_from(before).unwrap()));
                    }
                }
                let number = u64::try_from(number).unwrap();
                schedule.push(id(number), Duration::from_millis(one.due_ms), lanes(one));
            }
            let (mut running, mut ended) = (Vec::new(), BTreeSet::new());
            for millisecond in 0.. {
                let now = Duration::from_millis(millisecond);
                for operation in all_ready(&mut schedule, now) {
                    let number = usize::try_from(operation).unwrap();
                    let one = &captured[number];
                    prop_assert!(one.due_ms <= millisecond);
                    for (before, earlier) in captured.iter().enumerate().take(number) {
                        let shares = earlier.connection == one.connection || earlier.session == one.session;
                        let had_ended = before + earlier.overlap < number;
                        if shares || (strict && had_ended) {
                            prop_assert!(ended.contains(&before), "{before} {number}");
                        }
                    }
                    running.push(number);
                }
                if running.is_empty() {
                    if schedule.is_empty() {
                        break;
                    }
                    prop_assert!(schedule.next_due().is_some(), "no operation can start");
                    continue;
                }
                let choice = choices[ended.len()].index(running.len());
                let number = running.swap_remove(choice);
                ended.insert(number);
                schedule.end(id(u64::try_from(number).unwrap()));
            }
            prop_assert_eq!(ended.len(), captured.len());
        }
    }
}
