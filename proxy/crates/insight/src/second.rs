//! The figures of one second. The history and the detectors get their data second by second.

use seawall_stats::{Figures, Gauges, ServerSample, Traffic, WeighedSeries, add_weighed};

/// The figures of the operations, connections and servers in one second.
#[derive(Debug, Default)]
pub struct Second {
    /// Figures and weight of each series. The weight decides which series the history keeps.
    pub series: WeighedSeries,
    /// Figures of all operations together. Not included: awaiting operations (a `getMore` that
    /// waits for new data), and operations whose reply Seawall created itself.
    pub whole: Figures,
    /// Gauges of Seawall itself, such as the number of client connections.
    pub gauges: Gauges,
    /// Counts of connections and logins in this second.
    pub traffic: Traffic,
    /// Samples of each server by its address, the oldest first.
    pub samples: Vec<(Box<str>, Vec<ServerSample>)>,
}

impl Second {
    /// Adds the figures of a later second.
    pub(super) fn merge(&mut self, later: Self) {
        for (label, (figures, weight)) in &later.series {
            add_weighed(&mut self.series, label, figures, *weight);
        }
        self.whole.merge(&later.whole);
        self.gauges.merge(&later.gauges);
        self.traffic.merge(&later.traffic);
        self.samples.extend(later.samples);
    }
}
