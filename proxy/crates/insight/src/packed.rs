//! Packs periods into few bytes, so that a week of periods fits into memory. A period has the
//! figures of all series in one step of the history.
//!
//! Numbers are LEB128, because most are small. zstd compresses the result. Labels are packed as
//! numbers, which the caller assigns.

use std::time::Duration;

use seawall_stats::{Distribution, Figures, Gauge, GaugeSpan, Gauges, PhaseTimes};

/// Limit of the unpacked bytes of a frame (one packed step of the history): enough for 10,000
/// series of 1 KiB. The sum of the [`unpacked_bytes`] of a frame's series must not exceed this
/// limit.
pub(super) const MAX_UNPACKED_BYTES: usize = 16 << 20;

/// The bytes are not a packed period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored period of the history is damaged")]
pub(crate) struct Damaged;

/// The largest number of bytes that a series takes in an unpacked step of the history.
pub(super) fn unpacked_bytes(figures: &Figures) -> usize {
    /// Maximum bytes of a number.
    const NUMBER: usize = 10;
    /// Maximum bytes of the distance from the previous bucket. There are 256 buckets.
    const DISTANCE: usize = 2;
    // A series has a number for its label, `NUMBERS` numbers, and a number for its bucket count.
    // Each bucket then has a distance and a count.
    (1 + NUMBERS + 1) * NUMBER + figures.durations.buckets().len() * (DISTANCE + NUMBER)
}

/// Packs the figures of series. Each series is identified by its label's number.
pub(super) fn pack<'a>(series: impl Iterator<Item = (u32, &'a Figures)>) -> Vec<u8> {
    let mut plain = Vec::new();
    for (label, figures) in series {
        put(&mut plain, u64::from(label));
        put_figures(&mut plain, figures);
    }
    // Compression into memory fails only if memory is exhausted.
    zstd::bulk::compress(&plain, 1).unwrap_or_default()
}

/// Unpacks bytes from [`pack`].
pub(super) fn unpack(bytes: &[u8]) -> Result<Vec<(u32, Figures)>, Damaged> {
    unpack_if(bytes, |_| true)
}

/// Unpacks a series if `is_wanted` accepts the number of its label. Other series are skipped and
/// use no memory.
pub(super) fn unpack_if(
    bytes: &[u8],
    is_wanted: impl Fn(u32) -> bool,
) -> Result<Vec<(u32, Figures)>, Damaged> {
    let plain = zstd::bulk::decompress(bytes, MAX_UNPACKED_BYTES).map_err(|_| Damaged)?;
    let mut rest = &*plain;
    let mut series = Vec::new();
    while !rest.is_empty() {
        let label = u32::try_from(take(&mut rest)?).map_err(|_| Damaged)?;
        match is_wanted(label) {
            true => series.push((label, take_figures(&mut rest)?)),
            false => skip_figures(&mut rest)?,
        }
    }
    Ok(series)
}

fn put_figures(bytes: &mut Vec<u8>, figures: &Figures) {
    let durations = &figures.durations;
    let plain = [
        figures.count,
        figures.errors,
        figures.request_bytes,
        figures.reply_bytes,
        figures.documents,
        figures.more_count,
    ];
    let times = figures.phases.values().copied().chain([
        figures.more_time,
        durations.sum(),
        durations.max(),
    ]);
    let times = times.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    plain
        .into_iter()
        .chain(times)
        .for_each(|number| put(bytes, number));
    let buckets = durations.buckets();
    put(bytes, u64::try_from(buckets.len()).unwrap_or(0));
    let mut last = 0;
    for (bucket, count) in buckets {
        put(bytes, u64::try_from(bucket - last).unwrap_or(0));
        put(bytes, count);
        last = bucket;
    }
}

fn take_figures(bytes: &mut &[u8]) -> Result<Figures, Damaged> {
    let count = take(bytes)?;
    let errors = take(bytes)?;
    let request_bytes = take(bytes)?;
    let reply_bytes = take(bytes)?;
    let documents = take(bytes)?;
    let more_count = take(bytes)?;
    let mut phases = PhaseTimes::default();
    for phase in phases.values_mut() {
        *phase = Duration::from_nanos(take(bytes)?);
    }
    let mut time = || take(bytes).map(Duration::from_nanos);
    let (more_time, sum, max) = (time()?, time()?, time()?);
    let mut buckets = Vec::new();
    let mut last = 0_usize;
    for _ in 0..take(bytes)? {
        let step = usize::try_from(take(bytes)?).map_err(|_| Damaged)?;
        last = last.checked_add(step).ok_or(Damaged)?;
        if last >= Distribution::<8>::BUCKETS {
            return Err(Damaged);
        }
        buckets.push((last, take(bytes)?));
    }
    Ok(Figures {
        count,
        errors,
        durations: Distribution::from_parts(buckets, sum, max),
        phases,
        request_bytes,
        reply_bytes,
        documents,
        more_count,
        more_time,
    })
}

/// Number of integers between the label and the bucket count of a packed series: six counts, the
/// times of the six phases, and three other times.
const NUMBERS: usize = 6 + 6 + 3;

fn skip_figures(bytes: &mut &[u8]) -> Result<(), Damaged> {
    skip(bytes, NUMBERS)?;
    let buckets = usize::try_from(take(bytes)?).map_err(|_| Damaged)?;
    skip(bytes, buckets.checked_mul(2).ok_or(Damaged)?)
}

/// Advances past `count` numbers. Only the last byte of a number has a high bit of 0.
fn skip(bytes: &mut &[u8], count: usize) -> Result<(), Damaged> {
    let Some(last) = count.checked_sub(1) else {
        return Ok(());
    };
    let mut ends = bytes.iter().enumerate().filter(|(_, byte)| **byte < 0x80);
    let (end, _) = ends.nth(last).ok_or(Damaged)?;
    let (_, rest) = bytes.split_at_checked(end + 1).ok_or(Damaged)?;
    *bytes = rest;
    Ok(())
}

/// Packs gauges. Without gauges, the result is empty. Each gauge is identified by its position in
/// [`Gauge::ALL`].
pub(super) fn pack_gauges(gauges: &Gauges) -> Vec<u8> {
    if gauges.is_empty() {
        return Vec::new();
    }
    let mut plain = Vec::new();
    for (gauge, span) in gauges.iter() {
        let number = Gauge::ALL.iter().position(|of| *of == gauge);
        put(&mut plain, u64::try_from(number.unwrap_or(0)).unwrap_or(0));
        put(&mut plain, span.count);
        for value in [span.min, span.max, span.sum] {
            plain.extend_from_slice(&value.to_le_bytes());
        }
    }
    // Compression into memory fails only if memory is exhausted.
    zstd::bulk::compress(&plain, 1).unwrap_or_default()
}

/// Limit of the unpacked bytes of gauges: enough for more than 1,000 gauges.
const MAX_GAUGE_BYTES: usize = 64 << 10;

/// Unpacks bytes from [`pack_gauges`]. Skips gauges that only later versions of Seawall know.
pub(super) fn unpack_gauges(bytes: &[u8]) -> Result<Gauges, Damaged> {
    let mut gauges = Gauges::default();
    if bytes.is_empty() {
        return Ok(gauges);
    }
    let plain = zstd::bulk::decompress(bytes, MAX_GAUGE_BYTES).map_err(|_| Damaged)?;
    let mut rest = &*plain;
    while !rest.is_empty() {
        let number = usize::try_from(take(&mut rest)?).map_err(|_| Damaged)?;
        let count = take(&mut rest)?;
        let (min, max, sum) = (
            take_float(&mut rest)?,
            take_float(&mut rest)?,
            take_float(&mut rest)?,
        );
        if let Some(gauge) = Gauge::ALL.get(number) {
            let span = GaugeSpan {
                count,
                sum,
                min,
                max,
            };
            gauges.add(*gauge, span);
        }
    }
    Ok(gauges)
}

fn take_float(bytes: &mut &[u8]) -> Result<f64, Damaged> {
    let (first, rest) = bytes.split_first_chunk().ok_or(Damaged)?;
    *bytes = rest;
    let value = f64::from_le_bytes(*first);
    value.is_finite().then_some(value).ok_or(Damaged)
}

/// Appends a number as LEB128.
pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or(0);
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

/// Reads a LEB128 number from the start of `bytes` and advances past it.
pub(super) fn take(bytes: &mut &[u8]) -> Result<u64, Damaged> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(Damaged)?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Damaged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figures(durations: &[u32], numbers: [u32; 5]) -> Figures {
        let mut all = Distribution::<8>::default();
        let wide = durations.iter().map(|ns| u64::from(*ns));
        wide.for_each(|ns| all.record(Duration::from_nanos(ns)));
        let [count, errors, request_bytes, reply_bytes, documents] = numbers.map(u64::from);
        Figures {
            count,
            errors,
            durations: Distribution::from_parts(all.buckets(), all.sum(), all.max()),
            phases: [all.sum(); 6].into(),
            request_bytes,
            reply_bytes,
            documents,
            more_count: count / 2,
            more_time: all.max(),
        }
    }

    #[test]
    fn gauges_are_unchanged_after_they_are_packed_and_unpacked() {
        let mut gauges = Gauges::default();
        assert_eq!(unpack_gauges(&pack_gauges(&gauges)), Ok(gauges.clone()));
        for (gauge, value) in Gauge::ALL.iter().zip([0.0, 1.5, 1e12].iter().cycle()) {
            gauges.record(*gauge, *value);
            gauges.record(*gauge, value / 3.0);
        }
        assert_eq!(unpack_gauges(&pack_gauges(&gauges)), Ok(gauges));
    }

    proptest! {
        #[test]
        fn unpacked_series_equal_the_packed_series(
            all in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u32>(), 0..20), any::<[u32; 5]>()), 0..20),
        ) {
            let series: Vec<_> = all.iter().map(|(label, d, n)| (*label, figures(d, *n))).collect();
            let packed = pack(series.iter().map(|(label, figures)| (*label, figures)));
            let even = |label: u32| label.is_multiple_of(2);
            let wanted: Vec<_> = series.iter().filter(|(label, _)| even(*label)).cloned().collect();
            prop_assert_eq!(unpack_if(&packed, even), Ok(wanted));
            let plain = zstd::bulk::decompress(&packed, MAX_UNPACKED_BYTES).unwrap();
            let most: usize = series.iter().map(|(_, figures)| unpacked_bytes(figures)).sum();
            prop_assert!(plain.len() <= most);
            prop_assert_eq!(unpack(&packed), Ok(series));
        }

        #[test]
        fn unpacking_damaged_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), plain in any::<bool>()) {
            let bytes = if plain { zstd::bulk::compress(&bytes, 1).unwrap() } else { bytes };
            if let Ok(series) = unpack(&bytes) {
                prop_assert!(series.len() <= bytes.len() * 8);
            }
            drop((unpack_if(&bytes, |_| false), unpack_gauges(&bytes)));
        }
    }
}
