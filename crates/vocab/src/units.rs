//! Quantities with their units, read and written as users of tc and iperf3 write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// A text that is not a quantity of the kind asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not {expected}")]
pub struct ParseUnitError {
    text: String,
    expected: &'static str,
}

/// Bits per second.
///
/// `"64kbit"`, `"51.84Mbit"`, `"10Gbit"` (decimal prefixes, an optional `/s` or `ps` after them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bitrate(u64);

impl Bitrate {
    /// Makes a rate from bits per second.
    #[must_use]
    pub const fn from_bits_per_second(bits: u64) -> Self {
        Self(bits)
    }

    /// Bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// The time that `bytes` take on a line of this rate, rounded to the nanosecond;
    /// [`Duration::MAX`] at rate zero.
    #[must_use]
    pub fn time_for(self, bytes: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::MAX;
        }
        let rate = u128::from(self.0);
        let nanoseconds = (u128::from(bytes.bytes()) * 8_000_000_000 + rate / 2) / rate;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// The whole bytes that pass at this rate within `span`.
    #[must_use]
    pub fn bytes_in(self, span: Duration) -> ByteCount {
        let bits = u128::from(self.0) * span.as_nanos() / 1_000_000_000;
        ByteCount::new(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Bitrate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 as f64;
        match self.0 {
            0..=999 => write!(out, "{}bit", self.0),
            1_000..=999_999 => write!(out, "{}kbit", trimmed(bits / 1e3)),
            1_000_000..=999_999_999 => write!(out, "{}Mbit", trimmed(bits / 1e6)),
            _ => write!(out, "{}Gbit", trimmed(bits / 1e9)),
        }
    }
}

impl FromStr for Bitrate {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseUnitError {
            text: text.to_owned(),
            expected: "a rate; write it as \"64kbit\", \"51.84Mbit\" or \"1Gbit\"",
        };
        let (number, unit) = number_and_unit(text).ok_or_else(error)?;
        let unit = unit
            .strip_suffix("/s")
            .or_else(|| unit.strip_suffix("ps"))
            .unwrap_or(unit);
        let scale = match unit {
            "bit" => 1.0,
            "kbit" | "Kbit" => 1e3,
            "Mbit" | "mbit" => 1e6,
            "Gbit" | "gbit" => 1e9,
            "Tbit" | "tbit" => 1e12,
            _ => return Err(error()),
        };
        whole(number * scale).map(Self).ok_or_else(error)
    }
}

/// A number of bytes.
///
/// `"1500B"`, `"125kB"` (1000), `"64KiB"` (1024), `"4GiB"`; a bare number is bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(u64);

impl ByteCount {
    /// Makes a count of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Makes a count of kibibytes (1024 bytes).
    #[must_use]
    pub const fn kibibytes(count: u64) -> Self {
        Self(count << 10)
    }

    /// Makes a count of mebibytes (1024 × 1024 bytes).
    #[must_use]
    pub const fn mebibytes(count: u64) -> Self {
        Self(count << 20)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of bytes as an index; saturates where the platform's word is smaller.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for ByteCount {
    /// Uses binary units where they are exact and the decimal ones are no shorter, else decimal
    /// ones with three digits.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const EVEN: [(u64, &str); 4] = [
            (1 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
        ];
        let (scale, unit) = match self.0 {
            0..=999 => (1, "B"),
            1_000..=999_999 => (1_000, "kB"),
            1_000_000..=999_999_999 => (1_000_000, "MB"),
            1_000_000_000..=999_999_999_999 => (1_000_000_000, "GB"),
            _ => (1_000_000_000_000, "TB"),
        };
        let decimal = format!("{}{unit}", trimmed(self.0 as f64 / scale as f64));
        let is_exact = scale < 1_000 || self.0.is_multiple_of(scale / 1_000);
        for (scale, unit) in EVEN {
            if self.0 >= scale && self.0.is_multiple_of(scale) {
                let binary = format!("{}{unit}", self.0 / scale);
                if !is_exact || binary.len() <= decimal.len() {
                    return out.write_str(&binary);
                }
            }
        }
        out.write_str(&decimal)
    }
}

impl FromStr for ByteCount {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseUnitError {
            text: text.to_owned(),
            expected: "a size; write it as \"1500B\", \"125kB\" (1000), \"64KiB\" (1024) or \"4GiB\"",
        };
        let (number, unit) = number_and_unit(text).ok_or_else(error)?;
        let scale = match unit {
            "" | "B" => 1.0,
            "kB" | "KB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            _ => return Err(error()),
        };
        whole(number * scale).map(Self).ok_or_else(error)
    }
}

/// A probability between 0 and 1.
///
/// `"1%"`, `"0.05%"`, or a bare fraction below one, such as `"0.0005"`. A bare number from one up is
/// refused: tc reads `1` as 1 %, and a fraction of one is 100 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Probability(f64);

impl Probability {
    /// Never.
    pub const ZERO: Probability = Probability(0.0);

    /// A fraction between 0 and 1, or `None` outside it.
    #[must_use]
    pub fn from_fraction(fraction: f64) -> Option<Self> {
        (0.0..=1.0).contains(&fraction).then_some(Self(fraction))
    }

    /// The fraction between 0 and 1.
    #[must_use]
    pub const fn as_fraction(self) -> f64 {
        self.0
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nine digits keep what a double knows and hide the noise of its last bits.
        let percent = format!("{:.9}", self.0 * 100.0);
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        write!(out, "{percent}%")
    }
}

impl FromStr for Probability {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseUnitError {
            text: text.to_owned(),
            expected: "a probability; write it as \"1%\" or \"0.01\"",
        };
        let (number, unit) = number_and_unit(text).ok_or_else(error)?;
        let fraction = match unit {
            "" if number >= 1.0 => {
                return Err(ParseUnitError {
                    text: text.to_owned(),
                    expected: "a probability: a bare number is a fraction below 1; write one per \
                               cent as \"1%\" or \"0.01\", and all as \"100%\"",
                });
            }
            "" => number,
            "%" => number / 100.0,
            _ => return Err(error()),
        };
        Self::from_fraction(fraction).ok_or_else(error)
    }
}

/// Reads a span of time: `"250ms"`, `"1.5s"`, `"20us"`, `"100ns"`, `"5min"`, `"1h"`, or `"0"`.
///
/// # Errors
/// When the text has no unit (zero apart) or is not a number.
pub fn parse_duration(text: &str) -> Result<Duration, ParseUnitError> {
    let error = || ParseUnitError {
        text: text.to_owned(),
        expected: "a time; write it as \"250ms\", \"1.5s\" or \"20us\"",
    };
    let (number, unit) = number_and_unit(text).ok_or_else(error)?;
    let nanoseconds = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        "h" => 3600e9,
        "" if number == 0.0 => 1.0,
        _ => return Err(error()),
    };
    whole(number * nanoseconds)
        .map(Duration::from_nanos)
        .ok_or_else(error)
}

/// Writes a span of time so that [`parse_duration`] reads it back.
#[must_use]
pub fn format_duration(span: Duration) -> String {
    let nanoseconds = span.as_nanos() as f64;
    match span.as_nanos() {
        0 => "0s".to_owned(),
        1..=999 => format!("{}ns", span.as_nanos()),
        1_000..=999_999 => format!("{}us", trimmed(nanoseconds / 1e3)),
        1_000_000..=999_999_999 => format!("{}ms", trimmed(nanoseconds / 1e6)),
        _ => format!("{}s", trimmed(nanoseconds / 1e9)),
    }
}

/// For `#[serde(with = "vocab::duration_text")]` on a [`Duration`] field written as text.
pub mod duration_text {
    use super::{Deserialize, Deserializer, Duration, Serializer, de, format_duration};

    /// Writes `"250ms"`.
    ///
    /// # Errors
    /// When the serializer fails.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*span))
    }

    /// Reads `"250ms"`.
    ///
    /// # Errors
    /// When the text is not a time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        super::parse_duration(&text).map_err(de::Error::custom)
    }
}

macro_rules! serde_as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    )*};
}

serde_as_text!(Bitrate, ByteCount, Probability, crate::NodeId);

/// Splits `"51.84Mbit"` into the number and the unit; the number must not be negative.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|character: char| !character.is_ascii_digit() && character != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

/// The nearest whole number, if it fits.
fn whole(value: f64) -> Option<u64> {
    let rounded = value.round();
    (rounded >= 0.0 && rounded < u64::MAX as f64).then_some(rounded as u64)
}

/// Three digits after the point at most, none that are zero.
fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_parse_in_tc_and_iperf3_notation() {
        assert_eq!("51.84Mbit".parse(), Ok(Bitrate(51_840_000)));
        assert_eq!("64kbit/s".parse(), Ok(Bitrate(64_000)));
        assert_eq!("1 Gbit".parse(), Ok(Bitrate(1_000_000_000)));
        assert_eq!(Bitrate(51_840_000).to_string(), "51.84Mbit");
        assert!("51.84".parse::<Bitrate>().is_err());
        assert!("-1Mbit".parse::<Bitrate>().is_err());
    }

    #[test]
    fn sizes_tell_1000_from_1024() {
        assert_eq!("125kB".parse(), Ok(ByteCount(125_000)));
        assert_eq!("64KiB".parse(), Ok(ByteCount(65_536)));
        assert_eq!("1500".parse(), Ok(ByteCount(1_500)));
        assert_eq!(ByteCount(125_000).to_string(), "125kB");
        assert_eq!(ByteCount(65_536).to_string(), "64KiB");
        assert_eq!(ByteCount(100_000_000_000).to_string(), "100GB");
        assert_eq!(ByteCount(128_000).to_string(), "128kB");
        assert_eq!(ByteCount(536_870_912).to_string(), "512MiB");
        assert_eq!(ByteCount(2_055_168).to_string(), "2007KiB");
    }

    #[test]
    fn probabilities_and_times_have_bounds_and_units() {
        assert_eq!("0.05%".parse(), Ok(Probability(0.0005)));
        assert_eq!(Probability(0.0005).to_string(), "0.05%");
        assert!("101%".parse::<Probability>().is_err());
        assert_eq!("0".parse(), Ok(Probability::ZERO));
        assert_eq!("0.01".parse(), Ok(Probability(0.01)));
        assert_eq!("100%".parse(), Ok(Probability(1.0)));
        assert_eq!(Probability(1.0).to_string(), "100%");
        for bare in ["1", "1.0", "01", "2.5", "5", "50", "100"] {
            let error = bare.parse::<Probability>().unwrap_err().to_string();
            assert!(error.contains("\"1%\" or \"0.01\""), "{error}");
        }
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(parse_duration("15").is_err());
        assert_eq!(format_duration(Duration::from_micros(1500)), "1.5ms");
    }

    #[test]
    fn a_packet_takes_its_time_on_the_line() {
        let rate = Bitrate::from_bits_per_second(10_000_000);
        assert_eq!(rate.time_for(ByteCount(1500)), Duration::from_micros(1200));
        assert_eq!(
            rate.bytes_in(Duration::from_millis(100)),
            ByteCount(125_000)
        );
        assert_eq!(Bitrate(0).time_for(ByteCount(1)), Duration::MAX);
    }

    #[test]
    fn errors_say_what_to_write() {
        let error = "ten".parse::<Bitrate>().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("`ten` is not a rate; write it as")
        );
    }
}
