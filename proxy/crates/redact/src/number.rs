//! Pseudonyms of numbers, dates and ObjectIds, as BSON values.

use seawall_wire::kind::{DECIMAL, DOUBLE, INT32, INT64};

use crate::keyed::{Keyed, Purpose};
use crate::ordered::{FRACTION_BITS, Number, OrderedMap, Pseudonym};

/// Domains of the keyed function. Values of different domains get unrelated pseudonyms.
const NUMBERS: u8 = 1;
const DATES: u8 = 2;
const OBJECT_IDS: u8 = 3;

/// Number of bits by which the pseudonym of a number is longer than the number. So there are 2^8
/// pseudonyms for each integer on average, and they can keep the order of the integers although
/// their positions are random.
const NUMBER_SPREAD_BITS: u32 = 8;

/// Number of bits by which the pseudonym of a time is longer than the time. With one bit, the
/// pseudonym of a date between 2005 and 2039 is a date before 2110.
const TIME_SPREAD_BITS: u32 = 1;

/// Largest coefficient of a Decimal128.
const MAX_COEFFICIENT: u128 = 10_u128.pow(34) - 1;

const EXPONENT_BIAS: i32 = 6176;

/// A BSON value: its type and its bytes.
pub(crate) type Encoded = (u8, Vec<u8>);

/// The pseudonym of a number in the ordered mode: it keeps the order of numbers. `None` for zero,
/// infinity and NaN, which have no pseudonym.
pub(crate) fn ordered_number(keyed: &Keyed, kind: u8, value: &[u8]) -> Option<Encoded> {
    let number = match kind {
        DOUBLE => of_double(f64::from_le_bytes(*value.first_chunk()?))?,
        INT32 => of_integer(i32::from_le_bytes(*value.first_chunk()?).into())?,
        INT64 => of_integer(i64::from_le_bytes(*value.first_chunk()?))?,
        _ => of_decimal(u128::from_le_bytes(*value.first_chunk()?))?,
    };
    let map = OrderedMap {
        keyed,
        domain: NUMBERS,
        spread_bits: NUMBER_SPREAD_BITS,
    };
    Some(encode(kind, &map.map(number)))
}

/// The pseudonym of a date in the ordered mode: it keeps the order of dates. The date and
/// its pseudonym are in milliseconds since 1970.
pub(crate) fn ordered_date(keyed: &Keyed, milliseconds: i64) -> i64 {
    let Some(number) = of_integer(milliseconds) else {
        return 0;
    };
    let pseudonym = times(keyed, DATES).map(number);
    let magnitude = i64::try_from(pseudonym.whole).unwrap_or(i64::MAX);
    match pseudonym.is_negative {
        true => -magnitude,
        false => magnitude,
    }
}

/// The pseudonym of an ObjectId in the ordered mode: it keeps the order of the times in ObjectIds.
/// All times from 19 January 2038 on (2^31 s after 1970) share one pseudonym.
pub(crate) fn ordered_object_id(keyed: &Keyed, id: [u8; 12]) -> [u8; 12] {
    let [a, b, c, d, mut rest @ ..] = id;
    let time = [a, b, c, d];
    let seconds = u32::from_be_bytes(time);
    let seconds = match seconds {
        0 => 0,
        _ => {
            let number = Number::of_integer(false, seconds.into());
            let whole = times(keyed, OBJECT_IDS).map(number).whole;
            u32::try_from(whole).unwrap_or(u32::MAX)
        }
    };
    keyed.permute(OBJECT_IDS, &time, &mut rest);
    let [a, b, c, d] = seconds.to_be_bytes();
    let [e, f, g, h, i, j, k, l] = rest;
    [a, b, c, d, e, f, g, h, i, j, k, l]
}

/// A pseudonym of a number. It has the same numeric type, and equal values of one type have equal
/// pseudonyms.
pub(crate) fn equal_number(keyed: &Keyed, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = value.to_vec();
    match (kind, value.first_chunk()) {
        (DOUBLE, Some(value)) => {
            let double = f64::from_le_bytes(*value);
            if !double.is_finite() {
                return bytes;
            }
            // 0.0 and -0.0 are equal, so they must have the same pseudonym.
            bytes = (double + 0.0).to_le_bytes().to_vec();
            loop {
                keyed.permute(kind, &[], &mut bytes);
                let permuted = bytes.first_chunk().map(|bytes| f64::from_le_bytes(*bytes));
                if permuted.is_some_and(|double| double.is_finite() && double != 0.0) {
                    return bytes;
                }
            }
        }
        (DECIMAL, _) => value.first_chunk().map_or(bytes, |value| {
            let value = u128::from_le_bytes(*value);
            equal_decimal(keyed, value).to_le_bytes().to_vec()
        }),
        _ => {
            keyed.permute(kind, &[], &mut bytes);
            bytes
        }
    }
}

/// A pseudonym of a date. The date and its pseudonym are in milliseconds since 1970. If a date is
/// within 2^47 ms (about 4459 years) before or after 1970, its pseudonym is in this range, too.
pub(crate) fn equal_date(keyed: &Keyed, milliseconds: i64) -> i64 {
    const DATE_BITS: u32 = 48;
    let mut bytes = milliseconds.to_le_bytes();
    let is_usual = milliseconds >> (DATE_BITS - 1) == milliseconds >> 63;
    let (low, _) = bytes.split_at_mut(6);
    if !is_usual {
        keyed.permute(DATES, b"far", &mut bytes);
        return i64::from_le_bytes(bytes);
    }
    keyed.permute(DATES, &[], low);
    let unsigned = i64::from_le_bytes(bytes);
    unsigned << (i64::BITS - DATE_BITS) >> (i64::BITS - DATE_BITS)
}

fn times(keyed: &Keyed, domain: u8) -> OrderedMap<'_> {
    OrderedMap {
        keyed,
        domain,
        spread_bits: TIME_SPREAD_BITS,
    }
}

fn of_integer(value: i64) -> Option<Number> {
    let magnitude = u128::from(value.unsigned_abs());
    (value != 0).then(|| Number::of_integer(value < 0, magnitude))
}

fn of_double(value: f64) -> Option<Number> {
    const MANTISSA_BITS: u32 = 52;
    if value == 0.0 || !value.is_finite() {
        return None;
    }
    let bits = value.to_bits();
    let exponent = i32::try_from(bits >> MANTISSA_BITS & 0x7ff).ok()?;
    let mantissa = bits & ((1 << MANTISSA_BITS) - 1);
    Some(Number {
        is_negative: value < 0.0,
        // All numbers of one sign whose absolute value is below 2^-60 share one pseudonym, so the
        // exponent of a subnormal number need not be exact.
        exponent: exponent - 1023,
        fraction: mantissa << (FRACTION_BITS - MANTISSA_BITS),
    })
}

/// The number that these bits of a Decimal128 represent; `None` for zero, infinity and NaN. The
/// bits are in the binary integer encoding.
fn of_decimal(bits: u128) -> Option<Number> {
    let (is_negative, coefficient, exponent) = decimal_parts(bits)?;
    if coefficient == 0 {
        return None;
    }
    let digits = exponent.unsigned_abs();
    if exponent >= 0 {
        let magnitude = 10_u128
            .checked_pow(digits)
            .and_then(|power| coefficient.checked_mul(power));
        return Some(Number::of_integer(
            is_negative,
            magnitude.unwrap_or(u128::MAX),
        ));
    }
    // Digits after the first `MAX_DIGITS` decimals are beyond the precision of the pseudonym.
    let (coefficient, digits) = match digits.checked_sub(MAX_DIGITS) {
        Some(lost) => {
            let power = 10_u128.checked_pow(lost);
            (power.map_or(0, |power| coefficient / power), MAX_DIGITS)
        }
        None => (coefficient, digits),
    };
    let one = 10_u128.pow(digits);
    Some(of_quotient(is_negative, coefficient, one))
}

/// [`of_decimal`] reads at most this number of digits after the decimal point of a Decimal128.
const MAX_DIGITS: u32 = 37;

/// The number `dividend / divisor`. The divisor is below 2^124, so twice the remainder fits into
/// 128 bits.
fn of_quotient(is_negative: bool, dividend: u128, divisor: u128) -> Number {
    let (whole, mut rest) = (dividend / divisor, dividend % divisor);
    let mut next_bit = || {
        rest *= 2;
        let bit = rest >= divisor;
        rest -= if bit { divisor } else { 0 };
        u64::from(bit)
    };
    if whole > 0 {
        let number = Number::of_integer(is_negative, whole);
        let missing = FRACTION_BITS.saturating_sub(whole.ilog2());
        let low = (0..missing).fold(0, |bits, _| bits << 1 | next_bit());
        return Number {
            fraction: number.fraction | low,
            ..number
        };
    }
    let exponent = (1..=SMALLEST).find(|_| next_bit() == 1);
    Number {
        is_negative,
        exponent: -exponent.unwrap_or(SMALLEST),
        fraction: (0..FRACTION_BITS).fold(0, |bits, _| bits << 1 | next_bit()),
    }
}

/// Exponents below `-SMALLEST` are not computed: numbers with such exponents share one pseudonym.
const SMALLEST: i32 = 62;

/// The sign, coefficient and exponent of a Decimal128; `None` for infinity and NaN.
fn decimal_parts(bits: u128) -> Option<(bool, u128, i32)> {
    let is_negative = bits >> 127 == 1;
    match bits >> 122 & 0b11111 {
        0b11110 | 0b11111 => return None,
        // Coefficients in the long form are too large to be valid, so these numbers count as zero.
        0b11000.. => return Some((is_negative, 0, 0)),
        _ => {}
    }
    let coefficient = bits & ((1 << 113) - 1);
    let coefficient = if coefficient > MAX_COEFFICIENT {
        0
    } else {
        coefficient
    };
    let exponent = i32::try_from(bits >> 113 & 0x3fff).ok()? - EXPONENT_BIAS;
    Some((is_negative, coefficient, exponent))
}

fn decimal(is_negative: bool, coefficient: u128, exponent: i32) -> u128 {
    let exponent = u128::try_from(exponent + EXPONENT_BIAS).unwrap_or(0);
    u128::from(is_negative) << 127 | exponent << 113 | coefficient.min(MAX_COEFFICIENT)
}

fn encode(kind: u8, pseudonym: &Pseudonym) -> Encoded {
    let integer = || {
        let magnitude = i128::try_from(pseudonym.whole).unwrap_or(i128::MAX);
        if pseudonym.is_negative {
            -magnitude
        } else {
            magnitude
        }
    };
    let is_integer = matches!(kind, INT32 | INT64);
    if kind == INT32
        && let Ok(value) = i32::try_from(integer())
    {
        return (INT32, value.to_le_bytes().to_vec());
    }
    if is_integer && let Ok(value) = i64::try_from(integer()) {
        return (INT64, value.to_le_bytes().to_vec());
    }
    match kind {
        DOUBLE => (DOUBLE, double_of(pseudonym).to_le_bytes().to_vec()),
        _ => (DECIMAL, decimal_of(pseudonym).to_le_bytes().to_vec()),
    }
}

#[expect(
    clippy::as_conversions,
    reason = "rounding keeps the order; most pseudonyms have at most 53 bits and are exact"
)]
fn double_of(pseudonym: &Pseudonym) -> f64 {
    let bits = i32::try_from(pseudonym.part_bits).unwrap_or(0);
    let part = pseudonym.part as f64 * 2_f64.powi(-bits);
    let magnitude = (pseudonym.whole as f64 + part) * 2_f64.powi(pseudonym.scale);
    if pseudonym.is_negative {
        -magnitude
    } else {
        magnitude
    }
}

fn decimal_of(pseudonym: &Pseudonym) -> u128 {
    /// Maximum number of digits after the decimal point. They are computed from `part`, which has
    /// at most 44 bits, so its product with 10^24 fits into 128 bits.
    const MAX_PART_DIGITS: u32 = 24;
    /// Number of digits after the decimal point in the pseudonym of a number below one. The
    /// pseudonym's `whole` and `part` together have 53 bits, so their product with 10^22 fits into
    /// 128 bits.
    const SMALL_DIGITS: u32 = 22;
    let is_negative = pseudonym.is_negative;
    let exponent = |digits: u32| -i32::try_from(digits).unwrap_or(0);
    let part = u128::from(pseudonym.part);
    if pseudonym.scale < 0 {
        let whole = pseudonym.whole << pseudonym.part_bits | part;
        let shift = pseudonym.part_bits + pseudonym.scale.unsigned_abs();
        let coefficient = (whole * 10_u128.pow(SMALL_DIGITS)) >> shift;
        return decimal(is_negative, coefficient.max(1), exponent(SMALL_DIGITS));
    }
    let digits = 33_u32.saturating_sub(pseudonym.whole.ilog10());
    let digits = match part {
        0 => 0,
        _ => digits.min(MAX_PART_DIGITS),
    };
    let power = 10_u128.pow(digits);
    let coefficient = pseudonym.whole * power + ((part * power) >> pseudonym.part_bits);
    decimal(is_negative, coefficient, exponent(digits))
}

fn equal_decimal(keyed: &Keyed, value: u128) -> u128 {
    let Some((is_negative, mut coefficient, mut exponent)) = decimal_parts(value) else {
        return value;
    };
    while coefficient > 0 && coefficient.is_multiple_of(10) {
        coefficient /= 10;
        exponent += 1;
    }
    let parts = [
        &[u8::from(is_negative && coefficient > 0)][..],
        &coefficient.to_le_bytes(),
        &if coefficient == 0 { 0 } else { exponent }.to_le_bytes(),
    ];
    let block = keyed.block(Purpose::Decimal, NUMBERS, &parts);
    let [.., sign, digits] = block;
    let exponent = -i32::from(digits % 7);
    let coefficient = block
        .first_chunk()
        .map_or(1, |bytes| u128::from_le_bytes(*bytes));
    let coefficient = 1 + coefficient % MAX_COEFFICIENT;
    let is_negative = sign % 2 == 1;
    decimal(is_negative, coefficient, exponent)
}
