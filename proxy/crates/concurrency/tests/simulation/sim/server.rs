//! The model of a server: cores that all runnable operations share.
//!
//! Each runnable operation gets an equal share of the cores, but at most one core. An operation
//! costs more CPU if few operations run, because threads sleep and wake. It also costs more CPU if
//! many operations run, because they share caches and locks. The figures were measured with mongod
//! 6.0.5: about 45 µs at 16 to 32 operations, 104 µs at 256.

use std::{cmp::Reverse, collections::BinaryHeap};

/// CPU time of a small operation in µs, by the number of runnable operations.
const COST_US: [(f64, f64); 12] = [
    (1.0, 72.0),
    (2.0, 68.0),
    (4.0, 62.0),
    (8.0, 54.0),
    (16.0, 46.0),
    (24.0, 45.0),
    (32.0, 46.0),
    (64.0, 58.0),
    (128.0, 78.0),
    (256.0, 104.0),
    (1024.0, 112.0),
    (4096.0, 120.0),
];

/// The best cost: the lowest CPU time in [`COST_US`].
pub(crate) const BEST_COST_US: f64 = 45.0;

/// A floating-point number with a total order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ordered(pub(crate) f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The reason why an operation becomes more expensive when others run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Contention {
    /// The CPU time of an operation depends on the number of runnable operations. The dependence
    /// was measured with mongod ([`COST_US`]).
    Mongod,
    /// A lock convoy: the CPU time of an operation grows with the square of the number `n` of
    /// runnable operations. It is `1 + share * (n - 1) * n / 8` times the lowest CPU time. The
    /// value of this variant is `share`.
    Convoy(f64),
}

/// A simulated server.
pub(crate) struct Server {
    cores: f64,
    is_stalled: bool,
    /// The CPU time of an operation relative to its lowest CPU time, by number of runnable
    /// operations.
    factors: Vec<f64>,
    /// The work that an operation would have completed if it had run since the beginning of the
    /// simulation. The unit is the work that takes 1 µs of CPU time if the number of runnable
    /// operations is the best for the server.
    received: f64,
    updated_at: f64,
    /// Runnable operations by the value of `received` at which they end.
    runnable: BinaryHeap<Reverse<(Ordered, u32)>>,
}

impl Server {
    pub(crate) fn new(cores: f64, contention: Contention) -> Self {
        Self {
            cores,
            is_stalled: false,
            factors: (0..4_097)
                .map(|n| factor(f64::from(n), contention))
                .collect(),
            received: 0.0,
            updated_at: 0.0,
            runnable: BinaryHeap::new(),
        }
    }

    /// The growth of `received` per µs.
    fn rate(&self) -> f64 {
        if self.is_stalled || self.runnable.is_empty() {
            return 0.0;
        }
        let n = self.runnable.len();
        let share = (self.cores / n as f64).min(1.0);
        share / self.factors[n.min(self.factors.len() - 1)]
    }

    fn advance(&mut self, now: f64) {
        self.received += (now - self.updated_at) * self.rate();
        self.updated_at = now;
    }

    pub(crate) fn set_cores(&mut self, cores: f64, now: f64) {
        self.advance(now);
        self.cores = cores;
    }

    pub(crate) fn set_stalled(&mut self, is_stalled: bool, now: f64) {
        self.advance(now);
        self.is_stalled = is_stalled;
    }

    pub(crate) fn set_contention(&mut self, contention: Contention, now: f64) {
        self.advance(now);
        self.factors = (0..4_097)
            .map(|n| factor(f64::from(n), contention))
            .collect();
    }

    /// Makes an operation runnable. `cpu_us` is the CPU time that the operation needs if the number
    /// of runnable operations is the best for the server. With another number, it needs more CPU
    /// time.
    pub(crate) fn begin(&mut self, operation: u32, cpu_us: f64, now: f64) {
        self.advance(now);
        self.runnable
            .push(Reverse((Ordered(self.received + cpu_us), operation)));
    }

    /// The time at which the next operation ends, in µs; infinity if none ends.
    pub(crate) fn next_end(&self) -> f64 {
        let Some(Reverse((end, _))) = self.runnable.peek() else {
            return f64::INFINITY;
        };
        let rate = self.rate();
        if rate == 0.0 {
            return f64::INFINITY;
        }
        self.updated_at + (end.0 - self.received).max(0.0) / rate
    }

    /// Ends the operation whose work is complete at `now`.
    pub(crate) fn end(&mut self, now: f64) -> u32 {
        self.advance(now);
        let Reverse((end, operation)) = self.runnable.pop().expect("an operation ends now");
        self.received = self.received.max(end.0);
        operation
    }
}

fn factor(n: f64, contention: Contention) -> f64 {
    match contention {
        Contention::Convoy(share) => 1.0 + share * (n - 1.0).max(0.0) * (n / 8.0),
        Contention::Mongod => {
            let after = COST_US.iter().position(|(at, _)| *at >= n);
            let cost = match after {
                Some(0) => COST_US[0].1,
                Some(index) => {
                    let ((n0, c0), (n1, c1)) = (COST_US[index - 1], COST_US[index]);
                    c0 + (c1 - c0) * (n / n0).ln() / (n1 / n0).ln()
                }
                None => COST_US[COST_US.len() - 1].1,
            };
            cost / BEST_COST_US
        }
    }
}
