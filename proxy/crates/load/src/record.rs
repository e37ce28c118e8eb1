//! The results of each second of a load. A step of a client (connect, `hello`, log in or operation)
//! counts in the second in which the step ended.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::link::Failure;
use seawall_stats::Distribution;

/// One step of a client. Each step has the client's timeout, and is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadStep {
    Connect,
    Hello,
    LogIn,
    Operation,
}

impl LoadStep {
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

/// The results of one kind of step: the number of steps with each outcome, and their latency.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) ok: u64,
    pub(super) timed_out: u64,
    pub(super) closed: u64,
    pub(super) refused: u64,
    pub(super) wrong: u64,
    /// Latency of steps that succeeded or timed out. A step that timed out counts with its waiting
    /// time.
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

/// The results of one second, or of several seconds together.
#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    connect: Tally,
    hello: Tally,
    log_in: Tally,
    operation: Tally,
    /// Latency of operations, measured from the time when they were due. Operations that timed out
    /// are in [`Self::timed_out_from_due`].
    pub(super) from_due: Distribution,
    /// Waiting time of operations that timed out, measured from the time when they were due.
    pub(super) timed_out_from_due: Distribution,
    /// Number of operations that were due but not sent. Their client had no connection or waited
    /// for a reply, or no client was free for them.
    pub(super) missed: u64,
    /// The lateness of the harness's timers: the time from their due time until they woke up.
    pub(super) lateness: Distribution,
}

impl Second {
    pub(super) fn step(&self, step: LoadStep) -> &Tally {
        match step {
            LoadStep::Connect => &self.connect,
            LoadStep::Hello => &self.hello,
            LoadStep::LogIn => &self.log_in,
            LoadStep::Operation => &self.operation,
        }
    }

    pub(super) fn step_mut(&mut self, step: LoadStep) -> &mut Tally {
        match step {
            LoadStep::Connect => &mut self.connect,
            LoadStep::Hello => &mut self.hello,
            LoadStep::LogIn => &mut self.log_in,
            LoadStep::Operation => &mut self.operation,
        }
    }

    /// The number of operations that succeeded with a correct reply.
    pub(super) fn served(&self) -> u64 {
        self.step(LoadStep::Operation).ok
    }

    /// Latency of all operations, measured from the time when they were due. An operation that
    /// timed out counts with its waiting time.
    pub(super) fn all_from_due(&self) -> Distribution {
        let mut all = self.from_due.clone();
        all.merge(&self.timed_out_from_due);
        all
    }

    fn add(&mut self, other: &Self) {
        for step in LoadStep::ALL {
            self.step_mut(step).add(other.step(step));
        }
        self.from_due.merge(&other.from_due);
        self.timed_out_from_due.merge(&other.timed_out_from_due);
        self.missed += other.missed;
        self.lateness.merge(&other.lateness);
    }
}

/// The results of a load, by the number of whole seconds since it began.
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

    /// Records a step that ended now.
    pub(super) fn record_step<T>(
        &mut self,
        step: LoadStep,
        result: &Result<T, Failure>,
        took: Duration,
    ) {
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

    /// Records the latency of an operation: the time since it was due. The operation has just
    /// succeeded, or the load ended before its reply arrived.
    pub(super) fn record_latency(&mut self, due: Instant) {
        let now = Instant::now();
        self.second(now).from_due.record(now - due);
    }

    /// Records the waiting time of an operation that has just timed out.
    pub(super) fn record_timeout(&mut self, due: Instant) {
        let now = Instant::now();
        self.second(now).timed_out_from_due.record(now - due);
    }

    /// Records an operation that was due at `due` and not sent.
    pub(super) fn count_missed(&mut self, due: Instant) {
        self.second(due).missed += 1;
    }

    pub(super) fn record_lateness(&mut self, by: Duration) {
        self.second(Instant::now()).lateness.record(by);
    }

    /// The sum of the results of all seconds.
    pub(super) fn total(&self) -> Second {
        let mut total = Second::default();
        self.seconds.values().for_each(|second| total.add(second));
        total
    }

    /// The results of one second, as a line of text.
    pub(super) fn line(&mut self, second: u64) -> String {
        let results = self.seconds.entry(second).or_default();
        let hello = results.step(LoadStep::Hello);
        let timed_out: u64 = LoadStep::ALL
            .iter()
            .map(|step| results.step(*step).timed_out)
            .sum();
        format!(
            "{:>4} s  {:>6} operations  {:>6} timed out  {:>6} missed  hello p99 {:>7.1} ms  operation p99 {:>7.1} ms  late {:>5.1} ms",
            second + 1,
            results.served(),
            timed_out,
            results.missed,
            milliseconds(hello.latency.quantile(0.99)),
            milliseconds(results.all_from_due().quantile(0.99)),
            milliseconds(results.lateness.quantile(0.99)),
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
    async fn each_step_is_counted_in_the_second_in_which_it_ended() {
        let began = Instant::now();
        let mut record = Record::new(began);
        record.record_step(LoadStep::Hello, &Ok(()), Duration::from_millis(3));
        advance(Duration::from_millis(1500)).await;
        record.record_step::<()>(
            LoadStep::Hello,
            &Err(Failure::TimedOut),
            Duration::from_millis(40),
        );
        record.record_step::<()>(
            LoadStep::Operation,
            &Err(Failure::Refused(6)),
            Duration::from_millis(1),
        );
        record.record_latency(began + Duration::from_millis(1400));
        record.count_missed(began);
        assert_eq!(record.seconds.len(), 2);
        let hello = |second: u64| record.seconds[&second].step(LoadStep::Hello);
        assert_eq!((hello(0).ok, hello(1).ok, hello(1).timed_out), (1, 0, 1));
        assert_eq!(
            (record.seconds[&0].missed, record.seconds[&1].missed),
            (1, 0)
        );
        let total = record.total();
        // A step that timed out counts with its waiting time.
        assert_eq!(total.step(LoadStep::Hello).latency.count(), 2);
        assert_eq!(total.step(LoadStep::Operation).refused, 1);
        assert!(total.step(LoadStep::Operation).latency.count() == 0);
        assert_eq!(total.from_due.max(), Duration::from_millis(100));
    }
}
