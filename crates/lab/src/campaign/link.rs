//! What a campaign says of its link, and how the emulator is told.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vocab::{Bitrate, ByteCount, Probability, duration_text, format_duration, parse_duration};

use crate::topology::LinkArguments;

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Direction {
    /// The rate at which IP packets leave, bits per second.
    pub rate: Bitrate,
    /// The one-way delay behind the queue.
    #[serde(with = "duration_text")]
    pub delay: Duration,
    /// The queue's limit, bytes of IP packets.
    pub queue: ByteCount,
    /// The random loss behind the queue.
    pub loss: Probability,
}

impl Default for Direction {
    /// 10 Mbit/s and 15 ms: a small branch's line on which the whole demo takes three minutes.
    fn default() -> Self {
        Self {
            rate: Bitrate::from_bits_per_second(10_000_000),
            delay: Duration::from_millis(15),
            queue: ByteCount::new(125_000),
            loss: Probability::ZERO,
        }
    }
}

/// A link: from the client's side to the server's, and back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// From the client's side to the server's: uploads.
    pub forward: Direction,
    /// From the server's side to the client's: downloads.
    pub back: Direction,
}

impl Link {
    /// The arguments of `trunkline emulate run` for this link.
    #[must_use]
    pub fn arguments(&self, seed: u64) -> LinkArguments {
        let mut arguments = Vec::new();
        for (suffix, way) in [("", &self.forward), ("-back", &self.back)] {
            for (name, value) in [
                ("rate", way.rate.to_string()),
                ("delay", format_duration(way.delay)),
                ("queue", way.queue.to_string()),
                ("loss", way.loss.to_string()),
            ] {
                arguments.extend([format!("--{name}{suffix}"), value]);
            }
        }
        arguments.extend(["--seed".to_owned(), seed.to_string(), "--json".to_owned()]);
        LinkArguments(arguments)
    }

    /// Both delays together, without queues.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.forward.delay + self.back.delay
    }
}

impl FromStr for Link {
    type Err = anyhow::Error;

    /// Reads `rate=10Mbit,delay=15ms,queue=125kB,loss=0%`; what is not named keeps its default.
    /// `rate_back=` and so on set the direction from server to client alone.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut link = Link::default();
        let mut back_only = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let Some((key, value)) = part.split_once('=') else {
                bail!(
                    "`{part}` is not KEY=VALUE; write rate=10Mbit,delay=15ms,queue=125kB,loss=0%"
                );
            };
            match key.trim().strip_suffix("_back") {
                Some(key) => back_only.push((key.to_owned(), value)),
                None => {
                    set(&mut link.forward, key.trim(), value)?;
                    set(&mut link.back, key.trim(), value)?;
                }
            }
        }
        for (key, value) in back_only {
            set(&mut link.back, &key, value)?;
        }
        Ok(link)
    }
}

fn set(way: &mut Direction, key: &str, value: &str) -> Result<()> {
    let value = value.trim();
    match key {
        "rate" => way.rate = value.parse()?,
        "delay" => way.delay = parse_duration(value).context("the link's delay")?,
        "queue" => way.queue = value.parse()?,
        "loss" => way.loss = value.parse()?,
        _ => {
            bail!("a link has no `{key}`; it has rate, delay, queue and loss, each also with _back")
        }
    }
    Ok(())
}

impl fmt::Display for Link {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Direction {
            rate,
            delay,
            queue,
            loss,
        } = self.forward;
        write!(
            out,
            "rate={rate},delay={},queue={queue},loss={loss}",
            format_duration(delay)
        )?;
        if self.back.rate != rate {
            write!(out, ",rate_back={}", self.back.rate)?;
        }
        if self.back.delay != delay {
            write!(out, ",delay_back={}", format_duration(self.back.delay))?;
        }
        if self.back.queue != queue {
            write!(out, ",queue_back={}", self.back.queue)?;
        }
        if self.back.loss != loss {
            write!(out, ",loss_back={}", self.back.loss)?;
        }
        Ok(())
    }
}

impl Serialize for Link {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|error| serde::de::Error::custom(format!("{error:#}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_reads_back_as_written() {
        for text in [
            "rate=10Mbit,delay=15ms,queue=125kB,loss=0%",
            "rate=110kbit,delay=73ms,queue=32kB,loss=0.1%,rate_back=1.5Mbit,queue_back=64kB",
        ] {
            assert_eq!(text.parse::<Link>().unwrap().to_string(), text);
        }
        assert_eq!("".parse::<Link>().unwrap(), Link::default());
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, part) in [
            ("speed=1Mbit", "no `speed`"),
            ("rate=fast", "`fast` is not a rate"),
            ("rate", "KEY=VALUE"),
        ] {
            let error = text.parse::<Link>().unwrap_err();
            assert!(format!("{error:#}").contains(part), "{error:#}");
        }
    }
}
