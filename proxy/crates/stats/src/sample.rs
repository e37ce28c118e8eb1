//! Samples of a server's counters.

use std::time::SystemTime;

/// One sample of a server's counters.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSample {
    /// The time at which the reply arrived. If the server did not reply soon enough, this is the
    /// time at which Seawall recorded the sample.
    pub at: SystemTime,
    /// True if the server replied.
    pub has_reply: bool,
    /// The server's counters; empty if the server did not reply.
    pub counters: Counters,
}

/// The values of counters by name. All samples share one list of names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    names: &'static [&'static str],
    values: Box<[f64]>,
}

impl Counters {
    /// Pairs each name with the value at the same index. NaN marks a missing value. The caller must
    /// first convert cumulative counters to rates.
    pub fn new(names: &'static [&'static str], values: Box<[f64]>) -> Self {
        Self { names, values }
    }

    /// The names and values, without the missing values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let pairs = self.names.iter().copied().zip(self.values.iter().copied());
        pairs.filter(|(_, value)| !value.is_nan())
    }
}
