//! Settings of a link in text form: flags, a file, a preset, the control socket.
//!
//! A [`LinkSettings`] is a set of named words, `rate` → `10Mbit` and so on ([`SettingKey`] lists the names).
//! Each has a twin for the way back, `rate-back`, which is the same as forward unless it is given.
//! Below the named words lies a preset, if one is named. [`LinkSettings::overlay`] lays other words
//! over them, as flags do over a file and as `trunkline emulate set` does over a running link, and
//! [`LinkSettings::resolve`] makes the core's configuration of the whole.
//!
//! ```text
//!   preset ◄─ file ◄─ flags ◄─ set ◄─ set …      (what is further right wins, word by word)
//! ```
//!
//! `rate`, `shaper` and `trace` all define the line: two of them at once are a contradiction, one
//! over another replaces it. The words are kept as they were written, because a log that repeats
//! them must give exactly the same link again.

mod file;
mod resolve;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use emulate::DirectionConfig;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vocab::{ByteCount, Probability};

pub(crate) use resolve::default_queue;
pub use resolve::{ResolvedSettings, UsedFile, described};
use words::{
    AqmSetting, BucketSetting, FileSource, LossSetting, NONE, OutageList, SettingValue,
    read_optional,
};

use super::presets;

/// Default seed of a link.
pub const DEFAULT_SEED: u64 = 1;

/// Name of a setting, without its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SettingKey {
    /// The line's rate.
    Rate,
    /// Bytes per packet beyond IP.
    Overhead,
    /// The propagation delay.
    Delay,
    /// Variation of the delay.
    Jitter,
    /// Lost packets.
    Loss,
    /// Duplicated packets.
    Duplicate,
    /// Packets with a flipped bit.
    Corrupt,
    /// Packets that arrive late.
    Reorder,
    /// The queue's limits.
    Queue,
    /// Queue discipline.
    Aqm,
    /// A token bucket in place of a rate.
    Shaper,
    /// A token bucket that drops.
    Police,
    /// A recorded line.
    Trace,
    /// Recorded changes.
    Schedule,
    /// Times at which nothing passes.
    Outage,
}

impl SettingKey {
    /// All of them, in the order in which people think of them.
    pub const ALL: [SettingKey; 15] = [
        SettingKey::Rate,
        SettingKey::Delay,
        SettingKey::Jitter,
        SettingKey::Loss,
        SettingKey::Queue,
        SettingKey::Aqm,
        SettingKey::Overhead,
        SettingKey::Shaper,
        SettingKey::Police,
        SettingKey::Trace,
        SettingKey::Schedule,
        SettingKey::Outage,
        SettingKey::Duplicate,
        SettingKey::Corrupt,
        SettingKey::Reorder,
    ];

    /// Its name, as a flag without dashes.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// Its name, and that of its twin for the way back.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            SettingKey::Rate => ("rate", "rate-back"),
            SettingKey::Overhead => ("overhead", "overhead-back"),
            SettingKey::Delay => ("delay", "delay-back"),
            SettingKey::Jitter => ("jitter", "jitter-back"),
            SettingKey::Loss => ("loss", "loss-back"),
            SettingKey::Duplicate => ("duplicate", "duplicate-back"),
            SettingKey::Corrupt => ("corrupt", "corrupt-back"),
            SettingKey::Reorder => ("reorder", "reorder-back"),
            SettingKey::Queue => ("queue", "queue-back"),
            SettingKey::Aqm => ("aqm", "aqm-back"),
            SettingKey::Shaper => ("shaper", "shaper-back"),
            SettingKey::Police => ("police", "police-back"),
            SettingKey::Trace => ("trace", "trace-back"),
            SettingKey::Schedule => ("schedule", "schedule-back"),
            SettingKey::Outage => ("outage", "outage-back"),
        }
    }

    /// Name of its value in a help text.
    #[must_use]
    pub fn value_name(self) -> &'static str {
        match self {
            SettingKey::Rate => "RATE",
            SettingKey::Overhead => "BYTES",
            SettingKey::Delay => "TIME",
            SettingKey::Jitter => "JITTER",
            SettingKey::Loss => "LOSS",
            SettingKey::Duplicate | SettingKey::Corrupt => "SHARE",
            SettingKey::Reorder => "SHARE,TIME",
            SettingKey::Queue => "LIMITS",
            SettingKey::Aqm => "DISCIPLINE",
            SettingKey::Shaper | SettingKey::Police => "BUCKET",
            SettingKey::Trace | SettingKey::Schedule => "FILE",
            SettingKey::Outage => "OUTAGE",
        }
    }

    /// Description in one line.
    #[must_use]
    pub fn help(self) -> &'static str {
        match self {
            SettingKey::Rate => {
                "Sets the rate of the line, counted in bits of IP packets, such as \"10Mbit\" [default: no limit]"
            }
            SettingKey::Overhead => {
                "Adds this number of bytes to the IP length of each packet when rate and queue count it; \
                 use 14 to count Ethernet headers [default: 0]"
            }
            SettingKey::Delay => "Sets the one-way delay, such as \"15ms\" [default: 0]",
            SettingKey::Jitter => {
                "Varies the delay: \"5ms\" varies it uniformly by up to 5 ms more or less; other \
                 distributions are \"5ms,normal\", exponential, pareto[,shape=3] and lognormal[,sigma=1]. \
                 With \",reorder\" packets may overtake each other"
            }
            SettingKey::Loss => {
                "Drops packets after the line: \"1%\", \"1%,burst=5\" (5 packets in a row on average), \
                 \"ge:to_bad=1%,to_good=20%[,loss_good=0%][,loss_bad=100%]\", \"list:3,7,10-12[/PERIOD]\" \
                 or \"list:@FILE\""
            }
            SettingKey::Duplicate => "Duplicates this share of the packets, such as \"0.1%\"",
            SettingKey::Corrupt => {
                "Changes one bit in this share of the packets, such as \"0.01%\""
            }
            SettingKey::Reorder => {
                "Delays this share of the packets by an additional time, so that other packets overtake \
                 them, such as \"1%,5ms\""
            }
            SettingKey::Queue => {
                "Limits the queue: \"125kB\", \"100packets\", \"50ms\", or several limits with commas \
                 [default: rate times round-trip time, at least 15 kB]"
            }
            SettingKey::Aqm => {
                "Selects which packets the queue drops: drop-tail, drop-head, \
                 \"codel[:target=5ms,interval=100ms,ecn]\", \
                 \"pie[:target=15ms,update=15ms,burst=150ms,ecn]\", \
                 \"red:min=30kB,max=90kB,p=10%[,weight=0.002,gentle,ecn]\" [default: drop-tail]"
            }
            SettingKey::Shaper => {
                "Shapes the line with a token bucket instead of a constant rate: \
                 \"rate=10Mbit,burst=32kB[,peak=20Mbit]\""
            }
            SettingKey::Police => {
                "Polices the packets before the queue, and drops packets above the rate: \
                 \"rate=10Mbit,burst=32kB[,peak=20Mbit]\""
            }
            SettingKey::Trace => {
                "Replays a recorded line from this file instead of a constant rate: mahimahi's format, or \
                 CSV with time and rate (and delay, loss)"
            }
            SettingKey::Schedule => {
                "Changes settings over time by this CSV file, which has the column time and any of rate, \
                 delay and loss"
            }
            SettingKey::Outage => {
                "Stops the link for a time: \"at=10s,for=5s[,every=60s][,hold]\". Packets are lost, or with \
                 `hold` stay in the queue. Separate several outages by \";\""
            }
        }
    }

    /// Tells whether it defines the line; only one such setting can apply.
    fn is_line(self) -> bool {
        matches!(
            self,
            SettingKey::Rate | SettingKey::Shaper | SettingKey::Trace
        )
    }

    /// Reads a value only to see whether it is well written; opens no file.
    fn check(self, text: &str) -> Result<()> {
        match self {
            SettingKey::Rate => read_optional::<vocab::Bitrate>(text).map(drop),
            SettingKey::Overhead => read_optional::<ByteCount>(text).map(drop),
            SettingKey::Delay => read_optional::<std::time::Duration>(text).map(drop),
            SettingKey::Jitter => read_optional::<emulate::JitterConfig>(text).map(drop),
            SettingKey::Loss => read_optional::<LossSetting>(text).map(drop),
            SettingKey::Duplicate | SettingKey::Corrupt => {
                read_optional::<Probability>(text).map(drop)
            }
            SettingKey::Reorder => read_optional::<emulate::ReorderingConfig>(text).map(drop),
            SettingKey::Queue if text == QUEUE_DEFAULT => Ok(()),
            SettingKey::Queue => emulate::QueueLimit::read(text).map(drop),
            SettingKey::Aqm => AqmSetting::read(text).map(drop),
            SettingKey::Shaper | SettingKey::Police => {
                read_optional::<BucketSetting>(text).map(drop)
            }
            SettingKey::Trace | SettingKey::Schedule => read_optional::<FileSource>(text).map(drop),
            SettingKey::Outage => read_optional::<OutageList>(text).map(drop),
        }
    }
}

/// Word for the default queue.
pub(super) const QUEUE_DEFAULT: &str = "default";

/// Direction that a setting applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SettingDirection {
    /// From A to B, and also back unless the back setting is given.
    Forward,
    /// From B to A.
    Back,
}

/// The name of a setting: `rate`, `rate-back`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettingName {
    /// The setting.
    pub key: SettingKey,
    /// The direction.
    pub way: SettingDirection,
}

impl SettingName {
    /// Every name there is.
    pub fn all() -> impl Iterator<Item = SettingName> {
        [SettingDirection::Forward, SettingDirection::Back]
            .into_iter()
            .flat_map(|way| {
                SettingKey::ALL
                    .into_iter()
                    .map(move |key| SettingName { key, way })
            })
    }

    /// `rate`, or `rate-back`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self.way {
            SettingDirection::Forward => self.key.names().0,
            SettingDirection::Back => self.key.names().1,
        }
    }
}

impl fmt::Display for SettingName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.text())
    }
}

impl FromStr for SettingName {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        // Scenarios write `rate_back`, as TOML's users expect.
        let text = text.replace('_', "-");
        let (name, way) = match text.strip_suffix("-back") {
            Some(name) => (name, SettingDirection::Back),
            None => (text.as_str(), SettingDirection::Forward),
        };
        match SettingKey::ALL.into_iter().find(|key| key.name() == name) {
            Some(key) => Ok(SettingName { key, way }),
            None => {
                let names: Vec<&str> = SettingKey::ALL.into_iter().map(SettingKey::name).collect();
                bail!(
                    "a link has no setting `{name}`; it has {}, each also with `-back`, and `preset` and `seed`",
                    names.join(", ")
                )
            }
        }
    }
}

/// Settings as they were named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSettings {
    preset: Option<String>,
    seed: Option<u64>,
    words: BTreeMap<SettingName, String>,
}

/// The name under which [`LinkSettings::set_by_name`] takes a preset.
const PRESET: &str = "preset";
/// The name under which [`LinkSettings::set_by_name`] takes the seed.
const SEED: &str = "seed";

impl LinkSettings {
    /// Tells whether no setting is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == LinkSettings::default()
    }

    /// Names one setting.
    ///
    /// # Errors
    /// When the value is not well written.
    pub fn set(&mut self, name: SettingName, value: &str) -> Result<()> {
        let value = value.trim();
        let is_file = matches!(name.key, SettingKey::Trace | SettingKey::Schedule);
        if !is_file && matches!(value.as_bytes(), [b'-', b'0'..=b'9' | b'.', ..]) {
            bail!("`{name}`: `{value}` is below zero, which no setting can be");
        }
        name.key.check(value).with_context(|| format!("`{name}`"))?;
        self.words.insert(name, value.to_owned());
        Ok(())
    }

    /// Names a setting, the preset or the seed.
    ///
    /// # Errors
    /// When there is no such setting or the value is not well written.
    pub fn set_by_name(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            PRESET => self.set_preset(value),
            SEED => {
                self.seed = Some(value.trim().parse().map_err(|_| {
                    anyhow!("`seed`: `{value}` is not a whole number from 0 to 2^64 - 1")
                })?);
                Ok(())
            }
            _ => self.set(name.parse()?, value),
        }
    }

    /// Sets the preset below the words.
    ///
    /// # Errors
    /// Fails when there is no such preset.
    pub fn set_preset(&mut self, name: &str) -> Result<()> {
        if name != NONE {
            presets::find(name)?;
        }
        self.preset = Some(name.to_owned());
        Ok(())
    }

    /// Sets the seed of all random numbers.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = Some(seed);
    }

    /// Seed of all random numbers.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(DEFAULT_SEED)
    }

    /// Preset below the words.
    #[must_use]
    pub fn preset(&self) -> Option<&str> {
        self.preset.as_deref().filter(|preset| *preset != NONE)
    }

    /// Text of one setting.
    #[must_use]
    pub fn get(&self, name: SettingName) -> Option<&str> {
        self.words.get(&name).map(String::as_str)
    }

    /// Reads a settings file, TOML with `[forward]` and `[back]`; file names in it are relative to
    /// its directory.
    ///
    /// # Errors
    /// Fails when the file cannot be read, or has an error.
    pub fn from_file(path: &Path) -> Result<Self> {
        file::read(path)
    }

    /// Lays other settings over these: those that are named there replace those here.
    pub fn overlay(&mut self, over: LinkSettings) {
        if over.preset.is_some() {
            self.preset = over.preset;
        }
        if over.seed.is_some() {
            self.seed = over.seed;
        }
        for way in [SettingDirection::Forward, SettingDirection::Back] {
            let is_line = |name: &SettingName| name.way == way && name.key.is_line();
            if over.words.keys().any(is_line) {
                self.words.retain(|name, _| !is_line(name));
            }
        }
        self.words.extend(over.words);
    }

    /// Applies other settings over those of a running link. A preset among them replaces the whole
    /// link: earlier settings no longer count. The seed stays the link's.
    pub fn change(&mut self, over: LinkSettings) {
        if over.preset.is_some() {
            *self = Self {
                seed: self.seed,
                ..Self::default()
            };
        }
        self.overlay(over);
    }

    /// Turns relative names of files into absolute ones, so that they are found from elsewhere.
    pub fn anchor(&mut self, directory: &Path) {
        for (name, value) in &mut self.words {
            let anchored = |file: &str| directory.join(file).display().to_string();
            match name.key {
                SettingKey::Trace | SettingKey::Schedule if value != NONE => {
                    *value = anchored(value)
                }
                SettingKey::Loss => {
                    if let Some(file) = value.strip_prefix("list:@") {
                        *value = format!("list:@{}", anchored(file));
                    }
                }
                _ => {}
            }
        }
    }

    /// The files that are named.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.words
            .iter()
            .filter_map(|(name, value)| match name.key {
                SettingKey::Trace | SettingKey::Schedule if value != NONE => {
                    Some(PathBuf::from(value))
                }
                SettingKey::Loss => value.strip_prefix("list:@").map(PathBuf::from),
                _ => None,
            })
    }

    /// Makes the configuration of a link.
    ///
    /// # Errors
    /// Fails when words contradict each other, when a file cannot be read, or when the models
    /// cannot use a setting; names the nearest accepted one.
    pub fn resolve(&self) -> Result<ResolvedSettings> {
        resolve::resolve(self)
    }

    /// All resulting settings of one direction, in words; `config` is the configuration that these
    /// settings resolve to.
    ///
    /// # Errors
    /// Fails when the settings contradict themselves.
    pub fn in_force(
        &self,
        way: SettingDirection,
        config: &DirectionConfig,
    ) -> Result<Vec<(&'static str, String)>> {
        resolve::in_force(self, way, config)
    }

    /// All named settings, in a fixed order.
    pub fn named(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let preset = self
            .preset
            .iter()
            .map(|preset| (PRESET.to_owned(), preset.clone()));
        let seed = self
            .seed
            .iter()
            .map(|seed| (SEED.to_owned(), seed.to_string()));
        let words = self
            .words
            .iter()
            .map(|(name, value)| (name.to_string(), value.clone()));
        preset.chain(words).chain(seed)
    }
}

impl Serialize for LinkSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.named())
    }
}

impl<'de> Deserialize<'de> for LinkSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let words = BTreeMap::<String, String>::deserialize(deserializer)?;
        let mut settings = LinkSettings::default();
        for (name, value) in words {
            settings
                .set_by_name(&name, &value)
                .map_err(|error| D::Error::custom(format!("{error:#}")))?;
        }
        Ok(settings)
    }
}
