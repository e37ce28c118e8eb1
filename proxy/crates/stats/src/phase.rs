//! The phases of an operation. They add up to its total time.

use std::{
    ops::{Index, IndexMut},
    slice,
    time::Duration,
};

/// The parts of an operation's time, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Waiting for a permit. Permits limit the number of operations in flight.
    Permit,
    /// Selecting a server and checking out a connection to this server. Includes a first attempt
    /// that failed.
    Checkout,
    /// The time from the end of the checkout until the last byte of the command is written to the
    /// server.
    Forward,
    /// The time from the last written byte of the command to the first byte of the reply.
    Server,
    /// The time from the first to the last byte of the reply. A large reply is forwarded as it
    /// arrives, so a client that reads it slowly makes this phase long.
    Receive,
    /// Writing the rest of the reply to the client, after the last byte of the reply has arrived
    /// from the server.
    Send,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 6] = [
        Self::Permit,
        Self::Checkout,
        Self::Forward,
        Self::Server,
        Self::Receive,
        Self::Send,
    ];

    /// The phase with this name; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == name)
    }

    /// The name of the phase in metrics, in the API and in the history file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Checkout => "checkout",
            Self::Forward => "forward",
            Self::Server => "server",
            Self::Receive => "receive",
            Self::Send => "send",
        }
    }
}

/// A value for each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerPhase<T>([T; Phase::ALL.len()]);

/// The time in each phase.
pub type PhaseTimes = PerPhase<Duration>;

impl<T> PerPhase<T> {
    /// Each phase with its value, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Phase, &T)> {
        Phase::ALL.into_iter().zip(&self.0)
    }

    /// The values, in the order of the phases.
    pub fn values(&self) -> slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Mutable access to the values, in the order of the phases.
    pub fn values_mut(&mut self) -> slice::IterMut<'_, T> {
        self.0.iter_mut()
    }
}

impl PhaseTimes {
    /// The sum of all phases.
    pub fn total(&self) -> Duration {
        self.0.iter().sum()
    }

    /// Adds the times of `other`, phase by phase.
    pub fn merge(&mut self, other: &Self) {
        let pairs = self.0.iter_mut().zip(&other.0);
        pairs.for_each(|(mine, theirs)| *mine += *theirs);
    }
}

impl<T> From<[T; Phase::ALL.len()]> for PerPhase<T> {
    /// `values` has one value for each phase, in the order of [`Phase::ALL`].
    fn from(values: [T; Phase::ALL.len()]) -> Self {
        Self(values)
    }
}

impl<T> Index<Phase> for PerPhase<T> {
    type Output = T;

    fn index(&self, phase: Phase) -> &T {
        let [permit, checkout, forward, server, receive, send] = &self.0;
        match phase {
            Phase::Permit => permit,
            Phase::Checkout => checkout,
            Phase::Forward => forward,
            Phase::Server => server,
            Phase::Receive => receive,
            Phase::Send => send,
        }
    }
}

impl<T> IndexMut<Phase> for PerPhase<T> {
    fn index_mut(&mut self, phase: Phase) -> &mut T {
        let [permit, checkout, forward, server, receive, send] = &mut self.0;
        match phase {
            Phase::Permit => permit,
            Phase::Checkout => checkout,
            Phase::Forward => forward,
            Phase::Server => server,
            Phase::Receive => receive,
            Phase::Send => send,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_per_phase_are_stored_in_the_order_of_the_phases() {
        let mut values = PerPhase::from([0, 1, 2, 3, 4, 5]);
        for (position, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(values[phase], position);
            values[phase] += 10;
        }
        let all: Vec<_> = values.values().copied().collect();
        assert_eq!(all, [10, 11, 12, 13, 14, 15]);
        assert!(values.iter().map(|(phase, _)| phase).eq(Phase::ALL));
    }
}
