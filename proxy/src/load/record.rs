//! What happened, by the second in which it ended.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::link::Failure;
use crate::history::Distribution;

/// One part of what a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Connect,
    Hello,
    LogIn,
    Operation,
}

impl Step {
    pub(super) const ALL: [Self; 4] = [Self::Connect, Self::Hello, Self::LogIn, Self::Operation];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Hello => "hello",
            Self::LogIn => "log_in",
            Self::Operation => "operation",
        }
    }
}

/// How often a step went how.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) ok: u64,
    pub(super) timed_out: u64,
    pub(super) closed: u64,
    pub(super) refused: u64,
    pub(super) wrong: u64,
    /// Of those that were answered, and of those that were given up: they took at least so long.
    pub(super) latency: Distribution,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.timed_out += other.timed_out;
        self.closed += other.closed;
        self.refused += other.refused;
        self.wrong += other.wrong;
        self.latency.merge(&other.latency);
    }
}

/// One second, or all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    connect: Tally,
    hello: Tally,
    log_in: Tally,
    operation: Tally,
    /// Operations from the moment that they were due.
    pub(super) from_due: Distribution,
    /// Operations that came due while their client had no connection, or no place.
    pub(super) missed: u64,
    /// How late the generator itself was.
    pub(super) lateness: Distribution,
}

impl Second {
    pub(super) fn step(&self, step: Step) -> &Tally {
        match step {
            Step::Connect => &self.connect,
            Step::Hello => &self.hello,
            Step::LogIn => &self.log_in,
            Step::Operation => &self.operation,
        }
    }

    fn step_mut(&mut self, step: Step) -> &mut Tally {
        match step {
            Step::Connect => &mut self.connect,
            Step::Hello => &mut self.hello,
            Step::LogIn => &mut self.log_in,
            Step::Operation => &mut self.operation,
        }
    }

    /// Operations answered, each with what was asked for.
    pub(super) fn served(&self) -> u64 {
        self.step(Step::Operation).ok
    }

    fn add(&mut self, other: &Self) {
        for step in Step::ALL {
            self.step_mut(step).add(other.step(step));
        }
        self.from_due.merge(&other.from_due);
        self.missed += other.missed;
        self.lateness.merge(&other.lateness);
    }
}

/// All seconds of a run.
#[derive(Clone, Debug)]
pub(super) struct Record {
    began: Instant,
    pub(super) seconds: BTreeMap<u64, Second>,
}

impl Record {
    pub(super) fn new(began: Instant) -> Self {
        Self {
            began,
            seconds: BTreeMap::new(),
        }
    }

    /// A step that ended now.
    pub(super) fn step<T>(&mut self, step: Step, result: &Result<T, Failure>, took: Duration) {
        let tally = self.second(Instant::now()).step_mut(step);
        match result {
            Ok(_) => tally.ok += 1,
            Err(Failure::TimedOut) => tally.timed_out += 1,
            Err(Failure::Closed(_)) => tally.closed += 1,
            Err(Failure::Refused(_)) => tally.refused += 1,
            Err(Failure::Wrong(_)) => tally.wrong += 1,
        }
        if matches!(result, Ok(_) | Err(Failure::TimedOut)) {
            tally.latency.record(took);
        }
    }

    /// An operation that ended now, answered or given up.
    pub(super) fn since_due(&mut self, due: Instant) {
        let now = Instant::now();
        self.second(now).from_due.record(now - due);
    }

    /// An operation that was due at that time, and never begun.
    pub(super) fn missed(&mut self, due: Instant) {
        self.second(due).missed += 1;
    }

    pub(super) fn late(&mut self, by: Duration) {
        self.second(Instant::now()).lateness.record(by);
    }

    /// All seconds together.
    pub(super) fn total(&self) -> Second {
        let mut total = Second::default();
        self.seconds.values().for_each(|second| total.add(second));
        total
    }

    /// One second in a line for people.
    pub(super) fn line(&mut self, second: u64) -> String {
        let of_it = self.seconds.entry(second).or_default();
        let hello = of_it.step(Step::Hello);
        let given_up: u64 = Step::ALL
            .iter()
            .map(|step| of_it.step(*step).timed_out)
            .sum();
        format!(
            "{:>4} s  {:>6} operations  {:>6} given up  {:>6} missed  hello p99 {:>7.1} ms  operation p99 {:>7.1} ms  late {:>5.1} ms",
            second + 1,
            of_it.served(),
            given_up,
            of_it.missed,
            milliseconds(hello.latency.quantile(0.99)),
            milliseconds(of_it.from_due.quantile(0.99)),
            milliseconds(of_it.lateness.quantile(0.99)),
        )
    }

    fn second(&mut self, at: Instant) -> &mut Second {
        let second = at.saturating_duration_since(self.began).as_secs();
        self.seconds.entry(second).or_default()
    }
}

pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn things_are_counted_in_the_second_in_which_they_end() {
        let began = Instant::now();
        let mut record = Record::new(began);
        record.step(Step::Hello, &Ok(()), Duration::from_millis(3));
        advance(Duration::from_millis(1500)).await;
        record.step::<()>(
            Step::Hello,
            &Err(Failure::TimedOut),
            Duration::from_millis(40),
        );
        record.step::<()>(
            Step::Operation,
            &Err(Failure::Refused(6)),
            Duration::from_millis(1),
        );
        record.since_due(began + Duration::from_millis(1400));
        record.missed(began);
        assert_eq!(record.seconds.len(), 2);
        let hello = |second: u64| record.seconds[&second].step(Step::Hello);
        assert_eq!((hello(0).ok, hello(1).ok, hello(1).timed_out), (1, 0, 1));
        assert_eq!(
            (record.seconds[&0].missed, record.seconds[&1].missed),
            (1, 0)
        );
        let total = record.total();
        // What was given up took at least as long as its client waited.
        assert_eq!(total.step(Step::Hello).latency.count(), 2);
        assert_eq!(total.step(Step::Operation).refused, 1);
        assert!(total.step(Step::Operation).latency.count() == 0);
        assert_eq!(total.from_due.max(), Duration::from_millis(100));
    }
}
