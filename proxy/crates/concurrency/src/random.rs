//! A small generator of pseudo-random numbers (SplitMix64), which vary the times between trials and
//! between other changes of the limit.
//!
//! Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        crate::float(self.next() >> 11) / crate::float(1 << 53)
    }

    /// A duration between 75 % and 125 % of `mean`.
    pub(crate) fn jittered(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(0.75 + 0.5 * self.fraction())
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() & 1 == 0
    }
}
