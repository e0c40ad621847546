//! Links that people know by name, with their numbers and where each number comes from.
//!
//! A preset is words of [`Settings`] and nothing else, so that any of them can be set otherwise
//! beside it. Forward is up, from the subscriber or the smaller site; back is down. Round trips
//! are halved. A number that nobody published is ours, and says "chosen".
//!
//! The table of `docs/guides/emulator.md` is written by [`markdown_table`]; a test keeps it so.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};

use super::settings::{Key, Name, Settings, Way};

/// A link with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// What to call it by.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// What is set both ways, or forward (up) where `down` says otherwise.
    pub up: &'static [(Key, &'static str)],
    /// What is set back (down) alone.
    pub down: &'static [(Key, &'static str)],
    /// Where each number comes from.
    pub sources: &'static [Source],
}

/// Where numbers come from.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Which numbers.
    pub of: &'static str,
    /// From where, or "chosen" and why.
    pub from: &'static str,
}

const fn source(of: &'static str, from: &'static str) -> Source {
    Source { of, from }
}

const DEFAULT_QUEUE: &str = "chosen: rate times round trip, at least 15 kB, as without a preset";
const NO_LOSS: &str = "chosen: none beside what the queue drops";
const STEADY: &str = "chosen: none, a leased line carries nobody else's packets";
const OOKLA_STARLINK: &str = "Ookla Speedtest, United States, Q2 2021 (reported by Advanced Television, 22 December 2021): median 97.23 Mbit/s down, 13.89 Mbit/s up";
const OOKLA_5G: &str = "Ookla Speedtest, United States, January to June 2024 (reported by RCR Wireless, 17 July 2024): T-Mobile over 5G, median 265.80 Mbit/s down, 14.56 Mbit/s up, latency 47 ms";
const FCC_LATENCY: &str = "FCC, Measuring Broadband America 2014 (fixed): peak-period round trip to a server in the provider's network, average DSL 49 ms, cable 32 ms";

/// All presets, from the slowest age to the fastest.
pub const PRESETS: [Preset; 12] = [
    Preset {
        name: "t1",
        title: "T1 leased line",
        up: &[(Key::Rate, "1.544Mbit"), (Key::Delay, "10ms")],
        down: &[],
        sources: &[
            source(
                "rate",
                "ITU-T G.703: 1544 kbit/s on the line; 1536 kbit/s of it carry data, because one bit of each 193 is framing (ITU-T G.704)",
            ),
            source("delay", "chosen: a line of about 2,000 km"),
            source("jitter, loss", STEADY),
            source("queue", DEFAULT_QUEUE),
        ],
    },
    Preset {
        name: "oc1",
        title: "OC-1 leased line",
        up: &[(Key::Rate, "51.84Mbit"), (Key::Delay, "10ms")],
        down: &[],
        sources: &[
            source(
                "rate",
                "ANSI T1.105: STS-1, 51.84 Mbit/s on the line; 50.112 Mbit/s of it are payload",
            ),
            source("delay", "chosen: a line of about 2,000 km"),
            source("jitter, loss", STEADY),
            source("queue", DEFAULT_QUEUE),
        ],
    },
    Preset {
        name: "3g-waas",
        title: "3G as the WAAS test saw it",
        up: &[
            (Key::Rate, "112kbit"),
            (Key::Delay, "73ms"),
            (Key::Queue, "14kB"),
        ],
        down: &[(Key::Rate, "1.55Mbit"), (Key::Queue, "193kB")],
        sources: &[
            source(
                "rate",
                "the same test (see delay), baseline transfers: 2 MB Word file, 2,055,168 bytes, down in 11 s (1.49 Mbit/s) and up in 152.75 s (0.108 Mbit/s); about 4 % added for headers",
            ),
            source("delay", WAAS_DELAY),
            source(
                "queue",
                "chosen: one second of the rate, as mobile networks have it",
            ),
            source("jitter", "chosen: none; the test states averages only"),
            source(
                "loss",
                "chosen: none; the test names loss but states no rate",
            ),
        ],
    },
    Preset {
        name: "lte",
        title: "LTE of 2012",
        up: &[
            (Key::Rate, "6Mbit"),
            (Key::Delay, "35ms"),
            (Key::Jitter, "5ms,normal"),
            (Key::Queue, "750kB"),
        ],
        down: &[(Key::Rate, "13Mbit"), (Key::Queue, "1625kB")],
        sources: &[
            source(
                "rate",
                "Huang et al., \"A Close Examination of Performance and Power Characteristics of 4G LTE Networks\", MobiSys 2012: median 13 Mbit/s down, 6 Mbit/s up",
            ),
            source("delay", "chosen: 70 ms of round trip"),
            source("jitter", "chosen; order kept, as the radio layer keeps it"),
            source("loss", "chosen: none, the radio layer repeats what is lost"),
            source("queue", "chosen: one second of the rate"),
        ],
    },
    Preset {
        name: "5g",
        title: "5G, mid-band",
        up: &[
            (Key::Rate, "14.56Mbit"),
            (Key::Delay, "23.5ms"),
            (Key::Jitter, "3ms,normal"),
            (Key::Queue, "455kB"),
        ],
        down: &[(Key::Rate, "265.8Mbit"), (Key::Queue, "8306kB")],
        sources: &[
            source("rate, delay", OOKLA_5G),
            source("jitter", "chosen; order kept, as the radio layer keeps it"),
            source("loss", "chosen: none, the radio layer repeats what is lost"),
            source("queue", "chosen: 250 ms of the rate"),
        ],
    },
    Preset {
        name: "adsl",
        title: "ADSL2+",
        up: &[
            (Key::Rate, "1.4Mbit"),
            (Key::Delay, "24.5ms"),
            (Key::Queue, "88kB"),
        ],
        down: &[(Key::Rate, "24Mbit"), (Key::Queue, "300kB")],
        sources: &[
            source(
                "rate",
                "ITU-T G.992.5 (ADSL2plus): up to 24 Mbit/s down, 1.4 Mbit/s up, on a short line",
            ),
            source("delay", FCC_LATENCY),
            source("queue", "chosen: 500 ms of the rate up, 100 ms down"),
            source("jitter, loss", NO_LOSS),
        ],
    },
    Preset {
        name: "vdsl",
        title: "VDSL2",
        up: &[
            (Key::Rate, "10Mbit"),
            (Key::Delay, "12ms"),
            (Key::Queue, "250kB"),
        ],
        down: &[(Key::Rate, "50Mbit"), (Key::Queue, "625kB")],
        sources: &[
            source(
                "rate",
                "chosen, within ITU-T G.993.2 (VDSL2), which reaches 100 Mbit/s each way on short lines",
            ),
            source("delay", "chosen"),
            source("queue", "chosen: 200 ms of the rate up, 100 ms down"),
            source("jitter, loss", NO_LOSS),
        ],
    },
    Preset {
        name: "cable",
        title: "Cable, DOCSIS 3",
        up: &[
            (Key::Rate, "20Mbit"),
            (Key::Delay, "16ms"),
            (Key::Jitter, "2ms,exponential"),
            (Key::Queue, "625kB"),
        ],
        down: &[(Key::Rate, "100Mbit"), (Key::Queue, "1250kB")],
        sources: &[
            source(
                "rate",
                "FCC, 2024 Section 706 Report (FCC 24-27): 100 Mbit/s down and 20 Mbit/s up are what broadband means",
            ),
            source("delay", FCC_LATENCY),
            source(
                "jitter",
                "chosen: the wait for a grant of the shared channel",
            ),
            source("queue", "chosen: 250 ms of the rate up, 100 ms down"),
            source("loss", NO_LOSS),
        ],
    },
    Preset {
        name: "wifi",
        title: "Wi-Fi, busy campus",
        up: &[
            (Key::Rate, "100Mbit"),
            (Key::Jitter, "1.5ms,lognormal,sigma=1.48"),
            (Key::Queue, "1MB"),
        ],
        down: &[],
        sources: &[
            source("rate", "chosen"),
            source(
                "delay, jitter",
                "Sui et al., \"Characterizing and Improving WiFi Latency in Large-Scale Operational Networks\", MobiSys 2016: median 3 ms, 90th percentile 20 ms; a log-normal through both, half of it each way (their 99th, 250 ms, is rarer here)",
            ),
            source("loss", "chosen: none, 802.11 repeats what is lost"),
            source("queue", "chosen: 80 ms of the rate"),
        ],
    },
    Preset {
        name: "transatlantic",
        title: "New York to London",
        up: &[(Key::Rate, "155.52Mbit"), (Key::Delay, "32.5ms")],
        down: &[],
        sources: &[
            source("rate", "chosen: OC-3, ANSI T1.105"),
            source(
                "delay",
                "Silicon UK, \"New Fibre Optic Cable To Boost Transatlantic Comms\": 65 ms of round trip over AC-1, the fastest cable before Hibernia Express (58.95 ms, The Broadcast Bridge, \"Trans-Atlantic Network Latency Reduced\")",
            ),
            source("jitter, loss", STEADY),
            source("queue", DEFAULT_QUEUE),
        ],
    },
    Preset {
        name: "geo",
        title: "Geostationary satellite",
        up: &[
            (Key::Rate, "10Mbit"),
            (Key::Delay, "300ms"),
            (Key::Queue, "750kB"),
        ],
        down: &[(Key::Rate, "100Mbit"), (Key::Queue, "7500kB")],
        sources: &[
            source(
                "rate",
                "APNIC blog, \"Fact checking Starlink's performance figures\", 28 November 2022: the geostationary subscription it compares with, 100 Mbit/s down, 10 Mbit/s up",
            ),
            source(
                "delay",
                "Michel et al., \"A First Look at Starlink Performance\", IMC 2022: about 600 ms of round trip at least; up to 558 ms of it is the way through space (RFC 2488 §2, Satellite Characteristics)",
            ),
            source("jitter, loss", "chosen: none, as in clear sky"),
            source("queue", "chosen: rate times round trip"),
        ],
    },
    Preset {
        name: "leo",
        title: "Starlink",
        up: &[
            (Key::Rate, "13.89Mbit"),
            (Key::Delay, "25ms"),
            (Key::Jitter, "5ms,normal"),
            (Key::Loss, "0.5%,burst=10"),
            (Key::Queue, "347kB"),
        ],
        down: &[(Key::Rate, "97.23Mbit"), (Key::Queue, "2431kB")],
        sources: &[
            source("rate", OOKLA_STARLINK),
            source(
                "delay",
                "APNIC blog, \"Fact checking Starlink's performance figures\", 28 November 2022: median round trip to European hosts about 50 ms, quartiles 40 and 60 ms",
            ),
            source("jitter", "chosen, within those quartiles"),
            source(
                "loss",
                "chosen; in bursts, because losses go with handovers (Kassem et al., \"A Browser-side View of Starlink Connectivity\", IMC 2022)",
            ),
            source("queue", "chosen: 200 ms of the rate"),
        ],
    },
];

const WAAS_DELAY: &str = "Cisco Systems, \"Cisco Wide Area Application Services: Optimizing Third-Generation Wireless Networks\", 2009: average round trip of the HTTP test 146 ms (156 ms in the upload test)";

/// The preset of this name.
///
/// # Errors
/// When there is none; the message lists those there are.
pub fn find(name: &str) -> Result<&'static Preset> {
    PRESETS
        .iter()
        .find(|preset| preset.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| {
            let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            anyhow!(
                "there is no preset `{name}`; there are {}; `trunkline emulate presets` shows their numbers",
                names.join(", ")
            )
        })
}

impl Preset {
    /// Its words as settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        for (way, words) in [(Way::Forward, self.up), (Way::Back, self.down)] {
            for (key, word) in words {
                settings
                    .set(Name { key: *key, way }, word)
                    .expect("a test reads every word of every preset");
            }
        }
        settings
    }

    /// What one setting is, up and down; `None` where it is not set.
    #[must_use]
    pub fn word(&self, way: Way, key: Key) -> Option<&'static str> {
        let find = |words: &[(Key, &'static str)]| {
            words
                .iter()
                .find(|(other, _)| *other == key)
                .map(|(_, word)| *word)
        };
        match way {
            Way::Forward => find(self.up),
            Way::Back => find(self.down).or_else(|| find(self.up)),
        }
    }

    /// Both ways of one setting in a cell: `6Mbit / 13Mbit`, or once where they are the same.
    #[must_use]
    pub fn cell(&self, key: Key) -> String {
        let up = self.word(Way::Forward, key).unwrap_or("–");
        let down = self.word(Way::Back, key).unwrap_or("–");
        if up == down {
            up.to_owned()
        } else {
            format!("{up} / {down}")
        }
    }
}

/// The columns of the tables of presets.
pub const COLUMNS: [(&str, Key); 5] = [
    ("rate up / down", Key::Rate),
    ("delay", Key::Delay),
    ("jitter", Key::Jitter),
    ("loss", Key::Loss),
    ("queue up / down", Key::Queue),
];

/// The table of presets and the list of their sources, as they stand in the guide.
#[must_use]
pub fn markdown_table() -> String {
    let mut text = String::from("| preset | |");
    for (title, _) in COLUMNS {
        let _ = write!(text, " {title} |");
    }
    text.push_str("\n| --- | --- |");
    text.push_str(&" --- |".repeat(COLUMNS.len()));
    text.push('\n');
    for preset in &PRESETS {
        let _ = write!(text, "| `{}` | {} |", preset.name, preset.title);
        for (_, key) in COLUMNS {
            let cell = match (key, preset.cell(key)) {
                (Key::Queue, cell) if cell == "–" => "rate × round trip".to_owned(),
                (_, cell) => cell,
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text.push('\n');
    for preset in &PRESETS {
        let _ = writeln!(text, "- `{}`", preset.name);
        for Source { of, from } in preset.sources {
            let _ = writeln!(text, "  - {of}: {from}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_link_that_the_models_hold() {
        for preset in &PRESETS {
            let mut settings = Settings::default();
            settings.set_preset(preset.name).unwrap();
            let resolved = settings.resolve();
            assert!(resolved.is_ok(), "{}: {resolved:?}", preset.name);
        }
    }

    #[test]
    fn every_number_of_a_preset_has_a_source() {
        for preset in &PRESETS {
            for (key, _) in preset.up.iter().chain(preset.down) {
                let named = preset
                    .sources
                    .iter()
                    .any(|source| source.of.split(", ").any(|of| of == key.name()));
                assert!(named, "{}: {}", preset.name, key.name());
            }
        }
    }

    #[test]
    fn the_guide_holds_the_same_table() {
        let guide = include_str!("../../../../docs/guides/emulator.md");
        assert!(
            guide.contains(&markdown_table()),
            "docs/guides/emulator.md must hold:\n{}",
            markdown_table()
        );
    }
}
