//! Samples of a server's counters.

use std::time::SystemTime;

/// One sample of a server's counters.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSample {
    /// When the reply arrived, or when its absence was noticed.
    pub at: SystemTime,
    /// True if the server replied.
    pub answered: bool,
    /// The server's counters; empty if it did not reply.
    pub counters: Counters,
}

/// Values of counters, in a compact form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    names: &'static [&'static str],
    values: Box<[f64]>,
}

impl Counters {
    /// Pairs each name with a value. NaN marks a missing value. Cumulative counters must be
    /// converted to rates first.
    pub fn new(names: &'static [&'static str], values: Box<[f64]>) -> Self {
        Self { names, values }
    }

    /// The names and values, without the missing values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let pairs = self.names.iter().copied().zip(self.values.iter().copied());
        pairs.filter(|(_, value)| !value.is_nan())
    }
}
