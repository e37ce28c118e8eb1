//! Distributions of the time that operations spend in each phase: for all operations together, and
//! for the operations of each server. Operations that wait at the server for an event (awaiting
//! operations) are not recorded: their times show only how long no event happened.
//!
//! An operation is recorded only in the distributions of its server, or in the distributions for
//! operations without a server. The distributions of all operations together are computed later,
//! when the distributions are collected. So an operation is recorded once and not twice.

use seawall_stats::{
    DenseDistribution, Distribution, FineDistribution, PerPhase, Phase, PhaseTimes,
};

use super::rows::{merge_rows, row};

/// A distribution for each phase.
pub(super) type Phases = PerPhase<Distribution>;

/// The distributions of one thread since the last collection.
#[derive(Debug, Default)]
pub(super) struct PhaseTally {
    /// Operations that were sent to no server.
    serverless: PerPhase<DenseDistribution>,
    /// The distributions by server. A server without operations since the last collection takes no
    /// memory.
    servers: Vec<Option<Box<ServerTally>>>,
}

/// The distributions of the operations that were sent to one server.
#[derive(Debug, Default)]
struct ServerTally {
    /// The times in each phase, except the times in [`Phase::Server`] of operations with a reply:
    /// these are in `server`.
    phases: PerPhase<DenseDistribution>,
    /// The times in [`Phase::Server`] of operations with a reply: the times to the first byte of
    /// the reply. The buckets are finer than those of `phases`, because the caller of `take` gets
    /// this distribution and needs fine buckets. Each time is recorded only here. `take` later
    /// merges the times, in coarser buckets, into the distribution of [`Phase::Server`].
    server: DenseDistribution<32>,
}

impl ServerTally {
    fn add(&mut self, times: &PhaseTimes, has_reply: bool) {
        for ((phase, time), distribution) in times.iter().zip(self.phases.values_mut()) {
            match phase {
                Phase::Server if has_reply => self.server.record(*time),
                _ => distribution.record(*time),
            }
        }
    }
}

impl PhaseTally {
    /// Adds an operation. `server` is the index of its server, if it was sent to one. `has_reply`
    /// is true if the server has sent the first byte of its reply.
    pub(super) fn add(&mut self, times: &PhaseTimes, server: Option<usize>, has_reply: bool) {
        if let Some(server) = server {
            return row(&mut self.servers, server).add(times, has_reply);
        }
        let pairs = self.serverless.values_mut().zip(times.values());
        pairs.for_each(|(distribution, time)| distribution.record(*time));
    }

    /// Removes and returns everything that was added. For each server, calls `of_server` with the
    /// server's index and the times in [`Phase::Server`] of its operations with a reply.
    pub(super) fn take(&mut self, mut of_server: impl FnMut(usize, FineDistribution)) -> PhaseSums {
        let servers = self.servers.iter_mut().enumerate();
        let servers = servers.map(|(index, server)| {
            let mut tally = server.take()?;
            let times = tally.server.take();
            let mut phases = taken(&mut tally.phases);
            phases[Phase::Server].merge(&times.coarse());
            of_server(index, times);
            Some(Box::new(phases))
        });
        let mut sums = PhaseSums {
            whole: taken(&mut self.serverless),
            servers: servers.collect(),
        };
        for server in sums.servers.iter().flatten() {
            merge(&mut sums.whole, server);
        }
        sums
    }
}

fn taken(dense: &mut PerPhase<DenseDistribution>) -> Phases {
    let mut sums = Phases::default();
    let pairs = sums.values_mut().zip(dense.values_mut());
    pairs.for_each(|(sum, dense)| *sum = dense.take());
    sums
}

/// Adds the distributions of `other` to `sum`, phase by phase.
pub(super) fn merge(sum: &mut Phases, other: &Phases) {
    let pairs = sum.values_mut().zip(other.values());
    pairs.for_each(|(sum, other)| sum.merge(other));
}

/// The distributions of the operations of one thread, or of several threads together.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseSums {
    /// All operations, except awaiting operations and operations to which Seawall itself replied.
    pub(super) whole: Phases,
    /// The operations in `whole` that were sent to a server, by server.
    pub(super) servers: Vec<Option<Box<Phases>>>,
}

impl PhaseSums {
    pub(super) fn merge(&mut self, other: Self) {
        merge(&mut self.whole, &other.whole);
        merge_rows(&mut self.servers, other.servers, merge);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_times_of_all_operations_include_the_times_of_the_operations_at_each_server() {
        let mut tally = PhaseTally::default();
        let times = PhaseTimes::from([1, 2, 3, 4, 5, 6].map(Duration::from_millis));
        let servers = [None, Some(0), Some(2), Some(2)];
        for server in servers {
            tally.add(&times, server, true);
        }
        let mut fine = Vec::new();
        let sums = tally.take(|index, times| fine.push((index, times.count(), times.sum())));
        let server_time = |of: &Phases| (of[Phase::Server].count(), of[Phase::Server].sum());
        let times_4 = |count| (u64::from(count), Duration::from_millis(4) * count);
        assert_eq!(server_time(&sums.whole), times_4(4));
        let by_server = sums.servers.iter().map(|of| of.as_deref().map(server_time));
        let by_server: Vec<_> = by_server.collect();
        assert_eq!(by_server, [Some(times_4(1)), None, Some(times_4(2))]);
        let fine_4 = |index, count| (index, u64::from(count), Duration::from_millis(4) * count);
        assert_eq!(fine, [fine_4(0, 1), fine_4(2, 2)]);
        // A second `take` returns none of these operations, and allocates no memory for servers
        // without new operations.
        let again = tally.take(|_, _| panic!("the times were already returned"));
        assert_eq!(server_time(&again.whole), (0, Duration::ZERO));
        assert!(again.servers.iter().all(Option::is_none));
    }

    /// The reply time is the time until the server has sent the first byte of its reply.
    #[test]
    fn an_operation_without_a_reply_has_a_time_at_the_server_but_no_reply_time() {
        let mut tally = PhaseTally::default();
        let times = PhaseTimes::from([1, 2, 3, 4, 5, 6].map(Duration::from_millis));
        for has_reply in [true, false, false] {
            tally.add(&times, Some(0), has_reply);
        }
        let mut fine = Vec::new();
        let sums = tally.take(|_, times| fine.push(times.count()));
        assert_eq!(fine, [1]);
        assert_eq!(sums.whole[Phase::Server].count(), 3);
        let server = sums.servers[0].as_ref().unwrap();
        assert_eq!(server[Phase::Server].sum(), Duration::from_millis(12));
    }
}
