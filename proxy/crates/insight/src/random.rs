//! Random numbers for simulated loads. The same seed gives the same numbers.

use seawall_stats::float;

/// A linear congruential generator (Knuth's MMIX).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of(seed: u64) -> Self {
        // The multiplication gives consecutive seeds very different start values.
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5EA_3A11)
    }

    /// A number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        float(self.0 >> 11) / float(1 << 53)
    }

    /// A number that is normally distributed, with mean 0 and standard deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with this probability.
    pub(crate) fn is(&mut self, chance: f64) -> bool {
        self.unit() < chance
    }
}
