//! Settings of a campaign's link, and the emulator's arguments for them.
//!
//! A link is written in one line, `rate=10Mbit,delay=15ms,queue=125kB,loss=0%`: settings of the
//! emulator by their names, each also with `_back` for the direction from server to client, and
//! optionally a preset, `preset=lte,loss=1%`. Other settings are as in [`LabLink::default`], or as
//! in the preset if one is named. A part without a setting's name belongs to the setting before it:
//! `loss=1%,burst=5,delay=20ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use emulate::{DirectionConfig, LinkConfig, LossModel};
use serde::{Deserialize, Serialize};
use vocab::{Bitrate, ByteCount, Probability, format_duration};

use crate::topology::LinkArguments;
use emulator::link::settings::{LinkSettings, SettingDirection, SettingKey, SettingName};

/// Settings of one direction for a report, in numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectionSummary {
    /// Rate at which IP packets leave; `None` without a limit.
    pub rate: Option<Bitrate>,
    /// The one-way delay behind the queue.
    pub delay: Duration,
    /// The queue's limit in bytes, if it has one.
    pub queue: Option<ByteCount>,
    /// Share of packets lost behind the queue; `None` where they are listed.
    pub loss: Option<f64>,
}

/// A link: forward from the client's side to the server's (uploads), and back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabLink(LinkSettings);

/// 10 Mbit/s and 15 ms: a small branch's line on which the whole demo takes three minutes.
const DEFAULT: [(SettingKey, &str); 4] = [
    (SettingKey::Rate, "10Mbit"),
    (SettingKey::Delay, "15ms"),
    (SettingKey::Queue, "125kB"),
    (SettingKey::Loss, "0%"),
];

impl Default for LabLink {
    fn default() -> Self {
        let mut settings = LinkSettings::default();
        for (key, word) in DEFAULT {
            let name = SettingName {
                key,
                way: SettingDirection::Forward,
            };
            settings
                .set(name, word)
                .expect("a test reads the default link");
        }
        Self(settings)
    }
}

impl LabLink {
    /// The arguments of `trunkline emulate run` for this link.
    #[must_use]
    pub fn arguments(&self, seed: u64) -> LinkArguments {
        let mut settings = self.0.clone();
        settings.set_seed(seed);
        let named = settings
            .named()
            .flat_map(|(name, word)| [format!("--{name}"), word]);
        LinkArguments(named.chain(["--json".to_owned()]).collect())
    }

    /// Tells whether the emulator can run the link.
    ///
    /// # Errors
    /// Fails when settings contradict each other, or a file cannot be read; the message names the
    /// settings.
    pub fn check(&self) -> Result<()> {
        self.0.resolve().map(|_| ())
    }

    /// The configuration of the models, with this seed.
    ///
    /// # Errors
    /// Fails as [`LabLink::check`] does.
    pub fn config(&self, seed: u64) -> Result<LinkConfig> {
        let mut settings = self.0.clone();
        settings.set_seed(seed);
        Ok(settings.resolve()?.config)
    }

    /// One direction in numbers; `None` where the link comes from a file that is not here.
    #[must_use]
    pub fn direction(&self, way: SettingDirection) -> Option<DirectionSummary> {
        let config = self.0.resolve().ok()?.config;
        Some(in_numbers(match way {
            SettingDirection::Forward => &config.forward,
            SettingDirection::Back => &config.back,
        }))
    }
}

impl LabLink {
    /// The same link with another delay and another chance of loss, in both directions.
    #[must_use]
    pub fn with_delay_and_loss(&self, delay: Option<Duration>, loss: Option<Probability>) -> Self {
        let mut settings = self.0.clone();
        let words = [
            (SettingKey::Delay, delay.map(format_duration)),
            (SettingKey::Loss, loss.map(|loss| loss.to_string())),
        ];
        for (key, word) in words {
            let Some(word) = word else { continue };
            for way in [SettingDirection::Forward, SettingDirection::Back] {
                let name = SettingName { key, way };
                // What is set forward holds for both, unless the way back has its own.
                let is_own = settings.preset().is_some() || settings.get(name).is_some();
                if way == SettingDirection::Forward || is_own {
                    settings
                        .set(name, &word)
                        .expect("quantities print as settings read them");
                }
            }
        }
        Self(settings)
    }

    /// The same link with queues of one bandwidth-delay product, and at least so many bytes; a
    /// direction without a rate keeps its queue.
    #[must_use]
    pub fn with_queue_of_bdp(&self, least_bytes: u64) -> Self {
        let mut settings = self.0.clone();
        let ways = [SettingDirection::Forward, SettingDirection::Back];
        let figures = ways.map(|way| self.direction(way));
        let figures_forward = figures[0];
        let delay = |way: &Option<DirectionSummary>| way.map_or(Duration::ZERO, |way| way.delay);
        let round_trip: Duration = figures.iter().map(delay).sum();
        for (way, figures) in ways.into_iter().zip(&figures) {
            let is_needed = way == SettingDirection::Forward || *figures != figures_forward;
            if let Some(rate) = figures.and_then(|figures| figures.rate)
                && is_needed
            {
                let bdp = rate.bytes_in(round_trip).bytes().max(least_bytes);
                let name = SettingName {
                    key: SettingKey::Queue,
                    way,
                };
                settings
                    .set(name, &format!("{bdp}B"))
                    .expect("a size prints as the setting reads it");
            }
        }
        Self(settings)
    }
}

fn in_numbers(config: &DirectionConfig) -> DirectionSummary {
    DirectionSummary {
        rate: config.line.rate(),
        delay: config.delay,
        queue: config.queue.limit.bytes,
        loss: match &config.loss {
            LossModel::None => Some(0.0),
            LossModel::Random(rate) => Some(rate.as_fraction()),
            LossModel::GilbertElliott(states) => Some(states.loss_rate()),
            LossModel::List(_) => None,
        },
    }
}

/// Prefix of the name of a preset.
const PRESET: &str = "preset";

impl FromStr for LabLink {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words: Vec<(String, String)> = Vec::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let named = part
                .split_once('=')
                .filter(|(name, _)| words.is_empty() || is_name(name.trim()));
            match (named, words.last_mut()) {
                (Some((name, word)), _) => {
                    words.push((name.trim().to_owned(), word.trim().to_owned()));
                }
                (None, Some((_, word))) => {
                    word.push(',');
                    word.push_str(part);
                }
                (None, None) => bail!(
                    "`{part}` is not KEY=VALUE; write rate=10Mbit,delay=15ms,queue=125kB,loss=0%"
                ),
            }
        }
        let mut named = LinkSettings::default();
        for (name, word) in &words {
            if name == "seed" {
                bail!("a campaign has its own seeds; leave `seed` out of the link");
            }
            named.set_by_name(name, word)?;
        }
        if named.preset().is_some() {
            return Ok(Self(named));
        }
        let mut link = LabLink::default();
        link.0.overlay(named);
        Ok(link)
    }
}

fn is_name(text: &str) -> bool {
    text == PRESET || text.parse::<SettingName>().is_ok()
}

impl fmt::Display for LabLink {
    /// Writes the settings in a fixed order, the back direction after the forward one.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(preset) = self.0.preset() {
            write!(out, "{PRESET}={preset}")?;
            separator = ",";
        }
        let first = DEFAULT.map(|(key, _)| key);
        let others = SettingKey::ALL
            .into_iter()
            .filter(|key| !first.contains(key));
        let keys: Vec<SettingKey> = first.into_iter().chain(others).collect();
        for (way, suffix) in [
            (SettingDirection::Forward, ""),
            (SettingDirection::Back, "_back"),
        ] {
            for key in &keys {
                if let Some(word) = self.0.get(SettingName { key: *key, way }) {
                    write!(out, "{separator}{}{suffix}={word}", key.name())?;
                    separator = ",";
                }
            }
        }
        Ok(())
    }
}

impl Serialize for LabLink {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LabLink {
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
            "rate=10Mbit,delay=15ms,queue=125kB,loss=1%,burst=5,jitter=2ms,normal,reorder",
            "delay=15ms,queue=125kB,loss=0%,shaper=rate=1Mbit,burst=3kB",
            "preset=leo,loss=2%,burst=3,delay_back=30ms",
        ] {
            assert_eq!(text.parse::<LabLink>().unwrap().to_string(), text);
        }
        assert_eq!("".parse::<LabLink>().unwrap(), LabLink::default());
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, part) in [
            ("speed=1Mbit", "no setting `speed`"),
            ("preset=4g", "no preset has the name `4g`"),
            ("loss=1%,bursts=5", "`bursts` is unknown"),
            ("seed=7", "its own seeds"),
            ("rate=fast", "`fast` is not a rate"),
            ("rate", "KEY=VALUE"),
        ] {
            let error = text.parse::<LabLink>().unwrap_err();
            assert!(format!("{error:#}").contains(part), "{error:#}");
        }
    }

    #[test]
    fn the_emulator_is_told_every_word() {
        let link: LabLink = "preset=lte,loss=1%,burst=5,rate_back=2Mbit"
            .parse()
            .unwrap();
        let LinkArguments(arguments) = link.arguments(7);
        let told = arguments.join(" ");
        assert_eq!(
            told,
            "--preset lte --rate-back 2Mbit --loss 1%,burst=5 --seed 7 --json"
        );
        let back = link.direction(SettingDirection::Back).unwrap();
        assert_eq!(back.rate, Some(Bitrate::from_bits_per_second(2_000_000)));
        assert!((back.loss.unwrap() - 0.01).abs() < 1e-9);
    }
}
