//! Quantities of a device model as text that reads back equal.
//!
//! The usual notation rounds to three digits. Where that would change the value, the smallest unit
//! is written instead: `"12345678ns"`, `"51841234bit"`, `"1234567B"`.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

use crate::{Bitrate, ByteCount, format_duration, parse_duration};

fn exact<T: Display + FromStr + PartialEq>(value: &T, smallest: String) -> String {
    let usual = value.to_string();
    if usual.parse::<T>().is_ok_and(|read| read == *value) {
        usual
    } else {
        smallest
    }
}

fn rate_text(rate: Bitrate) -> String {
    exact(&rate, format!("{}bit", rate.bits_per_second()))
}

/// For `#[serde(with)]` on a [`Bitrate`].
pub(super) mod rate {
    use super::{Bitrate, Deserialize, Deserializer, Serializer, rate_text};

    pub(in super::super) fn serialize<S: Serializer>(
        rate: &Bitrate,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&rate_text(*rate))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bitrate, D::Error> {
        Bitrate::deserialize(deserializer)
    }
}

/// For `#[serde(with)]` on an optional [`Bitrate`].
pub(super) mod optional_rate {
    use super::{Bitrate, Deserialize, Deserializer, Serializer, rate_text};

    pub(in super::super) fn serialize<S: Serializer>(
        rate: &Option<Bitrate>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match rate {
            Some(rate) => serializer.serialize_str(&rate_text(*rate)),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Bitrate>, D::Error> {
        Bitrate::deserialize(deserializer).map(Some)
    }
}

/// For `#[serde(with)]` on a [`ByteCount`].
pub(super) mod bytes {
    use super::{ByteCount, Deserialize, Deserializer, Serializer, exact};

    pub(in super::super) fn serialize<S: Serializer>(
        count: &ByteCount,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&exact(count, format!("{}B", count.bytes())))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ByteCount, D::Error> {
        ByteCount::deserialize(deserializer)
    }
}

/// For `#[serde(with)]` on an optional [`ByteCount`].
pub(super) mod optional_bytes {
    use super::{ByteCount, Deserialize, Deserializer, Serializer, bytes};

    pub(in super::super) fn serialize<S: Serializer>(
        count: &Option<ByteCount>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match count {
            Some(count) => bytes::serialize(count, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ByteCount>, D::Error> {
        ByteCount::deserialize(deserializer).map(Some)
    }
}

/// For `#[serde(with)]` on a [`Duration`].
pub(super) mod duration {
    use super::{
        Deserialize, Deserializer, Duration, Serializer, de, format_duration, parse_duration,
    };

    pub(in super::super) fn serialize<S: Serializer>(
        span: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let usual = format_duration(*span);
        if parse_duration(&usual) == Ok(*span) {
            serializer.serialize_str(&usual)
        } else {
            serializer.serialize_str(&format!("{}ns", span.as_nanos()))
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map_err(de::Error::custom)
    }
}
