//! Samples of a server's counters.

use std::time::SystemTime;

/// One sample of a server's counters.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSample {
    /// When the reply came, or when it was missing.
    pub at: SystemTime,
    /// True if the server replied in time.
    pub answered: bool,
    /// Its counters; empty without a reply.
    pub counters: Counters,
}

/// Values of counters, in a compact form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    names: &'static [&'static str],
    values: Box<[f64]>,
}

impl Counters {
    /// Names with a value each. NaN is a missing value. Cumulative counters are rates.
    pub fn new(names: &'static [&'static str], values: Box<[f64]>) -> Self {
        Self { names, values }
    }

    /// The names and values, without missing ones.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let pairs = self.names.iter().copied().zip(self.values.iter().copied());
        pairs.filter(|(_, value)| !value.is_nan())
    }
}
