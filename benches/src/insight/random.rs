//! Random numbers that are the same in every run.

/// The generator SplitMix64. (Steele, Lea and Flood: "Fast splittable pseudorandom number
/// generators", 2014.)
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of numbers for this seed. Consecutive seeds give unrelated sequences.
    pub fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn unit(&mut self) -> f64 {
        let high_half = u32::try_from(self.next() >> 32).unwrap_or(u32::MAX);
        f64::from(high_half) / 2_f64.powi(32)
    }

    /// A number from 0 (inclusive) to `bound` (exclusive).
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % bound).unwrap_or(0)
    }

    /// Returns `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.flatten().take(length).collect()
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Random ranks by Zipf's law with exponent 1: the n-th rank has the weight 1/n.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// For each rank, the sum of its weight and of the weights of all ranks before it.
    cumulative: Vec<f64>,
}

impl Zipf {
    /// A distribution over this many ranks.
    pub fn new(ranks: u32) -> Self {
        let weights = (1..=ranks).map(|number| 1.0 / f64::from(number));
        let cumulative = weights.scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self {
            cumulative: cumulative.collect(),
        }
    }

    /// A random rank, counted from 0. Rank 0 has the largest weight.
    pub fn draw(&self, random: &mut Random) -> usize {
        let all = self.cumulative.last().copied().unwrap_or_default();
        let drawn = random.unit() * all;
        let rank = self.cumulative.partition_point(|sum| *sum <= drawn);
        rank.min(self.cumulative.len().saturating_sub(1))
    }
}
