//! Named links, with their numbers and the source of each number.
//!
//! A preset is only words of [`LinkSettings`], so that each of them can be overridden. Forward is
//! up, from the subscriber or the smaller site; back is down. Round trips are halved. A number
//! without a source is our own choice and says "chosen"; one that was found only as a quotation
//! names the quoting text.
//!
//! [`markdown_table`] writes the table of `docs/guides/emulator.md`; a test compares them.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};

use super::settings::{LinkSettings, SettingDirection, SettingKey, SettingName};

/// A link with a name.
#[derive(Clone, Copy, Debug)]
pub struct LinkPreset {
    /// Name for commands.
    pub name: &'static str,
    /// Title for people.
    pub title: &'static str,
    /// Settings for both directions, or for the forward direction (up) where `down` has another
    /// value.
    pub up: &'static [(SettingKey, &'static str)],
    /// Settings for the back direction (down) alone.
    pub down: &'static [(SettingKey, &'static str)],
    /// Sources of its numbers.
    pub sources: &'static [PresetSource],
}

/// Source of numbers.
#[derive(Clone, Copy, Debug)]
pub struct PresetSource {
    /// The numbers that it covers.
    pub of: &'static str,
    /// The source, or "chosen" and the reason.
    pub from: &'static str,
}

const fn source(of: &'static str, from: &'static str) -> PresetSource {
    PresetSource { of, from }
}

const DEFAULT_QUEUE: &str = "chosen: rate times round trip, at least 15 kB, as without a preset";
const NO_LOSS: &str = "chosen: none beside what the queue drops";
const STEADY: &str = "chosen: none, a leased line carries nobody else's packets";
const RADIO_ORDER: &str =
    "chosen: no source for single packets was found; order kept, as the radio layer keeps it";
const RADIO_LOSS: &str = "chosen: none, the radio layer repeats what is lost";
const WAAS_DELAY: &str = "Cisco Systems, \"Cisco Wide Area Application Services: Optimizing Third-Generation Wireless Networks\", data sheet: average round trip of the HTTP test 146 ms (156 ms in the upload test)";
const ERRANT: &str = "Trevisan et al., \"ERRANT: Realistic Emulation of Radio Access Networks\", Computer Networks 176, 2020: medians of the 909 tests over 4G, in Sweden and Norway, of the 1,000 that are published with the tool (github.com/marty90/errant, speed_test_sample.csv): 27.12 Mbit/s down, 10.57 Mbit/s up, round trip 84.8 ms";
const OOKLA_STARLINK: &str = "Ookla, \"How Starlink's Satellite Internet Stacks Up Against HughesNet and Viasat around the Globe\", Speedtest data of the United States, second quarter of 2021: median 97.23 Mbit/s down, 13.89 Mbit/s up, round trip 45 ms";

/// All presets, from the slowest age to the fastest.
pub const PRESETS: [LinkPreset; 12] = [
    LinkPreset {
        name: "t1",
        title: "T1 leased line",
        up: &[(SettingKey::Rate, "1.544Mbit"), (SettingKey::Delay, "10ms")],
        down: &[],
        sources: &[
            source(
                "rate",
                "ITU-T G.704 §2.1 (Basic frame structure at 1544 kbit/s). Data get 1536 kbit/s of it: each 125 µs, 24 channels of eight bits follow one framing bit (Dallas Semiconductor, DS2152 data sheet)",
            ),
            source("delay", "chosen: a line of about 2,000 km"),
            source("jitter, loss", STEADY),
            source("queue", DEFAULT_QUEUE),
        ],
    },
    LinkPreset {
        name: "oc1",
        title: "OC-1 leased line",
        up: &[(SettingKey::Rate, "51.84Mbit"), (SettingKey::Delay, "10ms")],
        down: &[],
        sources: &[
            source(
                "rate",
                "Adtran, MX2800 STS-1 System Manual, STS-1 Overview: 8,000 frames a second of 9 rows and 90 columns of bytes, 51.84 Mbit/s; three of the columns are overhead, so the payload has 50.112 Mbit/s",
            ),
            source("delay", "chosen: a line of about 2,000 km"),
            source("jitter, loss", STEADY),
            source("queue", DEFAULT_QUEUE),
        ],
    },
    LinkPreset {
        name: "3g-waas",
        title: "3G as the WAAS test saw it",
        up: &[
            (SettingKey::Rate, "112kbit"),
            (SettingKey::Delay, "73ms"),
            (SettingKey::Queue, "14kB"),
        ],
        down: &[(SettingKey::Rate, "1.55Mbit"), (SettingKey::Queue, "193kB")],
        sources: &[
            source(
                "rate",
                "the same test (see delay), transfers without acceleration: a Word file of 2,055,168 bytes, down by HTTP in 11 s (1.49 Mbit/s, table 2), up by FTP in 152.75 s (0.108 Mbit/s, table 4); about 4 % added for headers. Its other files of 1 MB and more: 1.2 to 1.8 Mbit/s down by HTTP (timed in whole seconds), 0.09 to 0.13 Mbit/s up",
            ),
            source("delay", WAAS_DELAY),
            source(
                "queue",
                "chosen: one second of the rate; the test states none",
            ),
            source("jitter", "chosen: none; the test states averages only"),
            source(
                "loss",
                "chosen: none; the test names loss but states no rate",
            ),
        ],
    },
    LinkPreset {
        name: "lte",
        title: "LTE in Scandinavia, before 2020",
        up: &[
            (SettingKey::Rate, "10.57Mbit"),
            (SettingKey::Delay, "42.4ms"),
            (SettingKey::Jitter, "5ms,normal"),
            (SettingKey::Queue, "1321kB"),
        ],
        down: &[
            (SettingKey::Rate, "27.12Mbit"),
            (SettingKey::Queue, "3390kB"),
        ],
        sources: &[
            source("rate, delay", ERRANT),
            source("jitter", RADIO_ORDER),
            source("loss", RADIO_LOSS),
            source(
                "queue",
                "chosen: one second of the rate; that mobile networks queue far too much is shown by Jiang et al., \"Understanding Bufferbloat in Cellular Networks\", 2012",
            ),
        ],
    },
    LinkPreset {
        name: "5g",
        title: "5G",
        up: &[
            (SettingKey::Rate, "21.08Mbit"),
            (SettingKey::Delay, "9.5ms"),
            (SettingKey::Jitter, "3ms,normal"),
            (SettingKey::Queue, "659kB"),
        ],
        down: &[
            (SettingKey::Rate, "166.13Mbit"),
            (SettingKey::Queue, "5192kB"),
        ],
        sources: &[
            source(
                "rate",
                "Ookla, \"Growing and Slowing: The State of 5G Worldwide in 2021\", 20 December 2021, Speedtest data of the third quarter: worldwide median 166.13 Mbit/s down, 21.08 Mbit/s up",
            ),
            source(
                "delay",
                "Ofcom, \"Which mobile operator has the longest file download time?\", on its Mobile Matters report of 2024: average response time over 5G from 16.3 ms (Three) to 21.4 ms (O2); 19 ms of round trip is between",
            ),
            source("jitter", RADIO_ORDER),
            source("loss", RADIO_LOSS),
            source("queue", "chosen: 250 ms of the rate"),
        ],
    },
    LinkPreset {
        name: "adsl",
        title: "ADSL2+",
        up: &[
            (SettingKey::Rate, "1.4Mbit"),
            (SettingKey::Delay, "18.5ms"),
            (SettingKey::Queue, "88kB"),
        ],
        down: &[(SettingKey::Rate, "24Mbit"), (SettingKey::Queue, "300kB")],
        sources: &[
            source(
                "rate",
                "chosen: what ADSL2+ (ITU-T G.992.5) is commonly said to reach on a short line; most lines have less",
            ),
            source(
                "delay",
                "Verizon, \"Network Performance\", giving the FCC's Measuring Broadband America 2016 of its DSL: round trip 37.05 ms (tier of 3.1 to 7 Mbit/s; slower tiers 37.22 and 39.65 ms)",
            ),
            source("queue", "chosen: 500 ms of the rate up, 100 ms down"),
            source("jitter, loss", NO_LOSS),
        ],
    },
    LinkPreset {
        name: "vdsl",
        title: "VDSL2",
        up: &[
            (SettingKey::Rate, "10Mbit"),
            (SettingKey::Delay, "12ms"),
            (SettingKey::Queue, "250kB"),
        ],
        down: &[(SettingKey::Rate, "40Mbit"), (SettingKey::Queue, "500kB")],
        sources: &[
            source(
                "rate",
                "BT Wholesale, statement to ISPreview, 27 January 2010, on its VDSL2 from the street cabinet: up to 40 Mbit/s down, up to 10 Mbit/s up",
            ),
            source("delay", "chosen: between ADSL2+ and cable"),
            source("queue", "chosen: 200 ms of the rate up, 100 ms down"),
            source("jitter, loss", NO_LOSS),
        ],
    },
    LinkPreset {
        name: "cable",
        title: "Cable, DOCSIS 3",
        up: &[
            (SettingKey::Rate, "20Mbit"),
            (SettingKey::Delay, "4ms"),
            (SettingKey::Jitter, "1ms,exponential"),
            (SettingKey::Queue, "625kB"),
        ],
        down: &[(SettingKey::Rate, "100Mbit"), (SettingKey::Queue, "1250kB")],
        sources: &[
            source(
                "rate",
                "what broadband means to the FCC since its 2024 Section 706 Report (18 March 2024; read in the summary of Inside Global Tech, 8 April 2024): 100 Mbit/s down, 20 Mbit/s up",
            ),
            source(
                "delay, jitter",
                "White, Sundaresan, Briscoe (CableLabs), \"Low Latency DOCSIS: Technology Overview\", 2019: around 10 ms on the access link, which is all that is meant here, when it is idle; chosen: that 2 ms of these vary, as the wait for a grant does",
            ),
            source(
                "queue",
                "up: Flickinger et al. (Comcast), \"Improving Latency with Active Queue Management (AQM) During COVID-19\", 2021: roughly 250 ms of latency under load without AQM, so 250 ms of the rate (with DOCSIS-PIE 15 to 30 ms: `--aqm pie`); down: chosen, 100 ms of the rate",
            ),
            source("loss", NO_LOSS),
        ],
    },
    LinkPreset {
        name: "wifi",
        title: "Wi-Fi, busy campus",
        up: &[
            (SettingKey::Rate, "100Mbit"),
            (SettingKey::Jitter, "1ms,lognormal,sigma=1.7"),
            (SettingKey::Queue, "1MB"),
        ],
        down: &[],
        sources: &[
            source("rate", "chosen"),
            source(
                "delay, jitter",
                "Sui et al., \"Characterizing and Improving WiFi Latency in Large-Scale Operational Networks\", MobiSys 2016: pings take as little as 3 ms, taken as their median, 20 ms at the 90th percentile and 250 ms at the 99th; here 3.2, 18 and 82 ms. Each packet draws its own: in a dense stream a late one holds up those behind it",
            ),
            source("loss", "chosen: none, 802.11 repeats what is lost"),
            source("queue", "chosen: 80 ms of the rate"),
        ],
    },
    LinkPreset {
        name: "transatlantic",
        title: "New York to London",
        up: &[
            (SettingKey::Rate, "155.52Mbit"),
            (SettingKey::Delay, "32.5ms"),
        ],
        down: &[],
        sources: &[
            source("rate", "chosen: OC-3, three times OC-1"),
            source(
                "delay",
                "TeleGeography, CommsUpdate, 30 September 2010: over AC-1, then the fastest cable, 60.8 ms of round trip from New York to the west of England and \"a few additional milliseconds\" to London; 65 ms taken. Hibernia Express, 2015: 58.95 ms (The Broadcast Bridge, \"Trans-Atlantic Network Latency Reduced\")",
            ),
            source("jitter, loss", STEADY),
            source("queue", DEFAULT_QUEUE),
        ],
    },
    LinkPreset {
        name: "geo",
        title: "Geostationary satellite",
        up: &[
            (SettingKey::Rate, "10Mbit"),
            (SettingKey::Delay, "300ms"),
            (SettingKey::Queue, "750kB"),
        ],
        down: &[(SettingKey::Rate, "100Mbit"), (SettingKey::Queue, "7500kB")],
        sources: &[
            source(
                "rate",
                "APNIC blog, \"Fact checking Starlink's performance figures\", 28 November 2022, by the authors of the measurement: the geostationary subscription it compares with, 100 Mbit/s down, 10 Mbit/s up",
            ),
            source(
                "delay",
                "Michel et al., \"A First Look at Starlink Performance\", IMC 2022: about 600 ms of round trip at least; up to 558 ms of it is the way through space (RFC 2488 §2, Satellite Characteristics)",
            ),
            source("jitter, loss", "chosen: none, as in clear sky"),
            source("queue", "chosen: rate times round trip"),
        ],
    },
    LinkPreset {
        name: "leo",
        title: "Starlink",
        up: &[
            (SettingKey::Rate, "13.89Mbit"),
            (SettingKey::Delay, "22.5ms"),
            (SettingKey::Jitter, "4.2ms,normal"),
            (SettingKey::Loss, "0.5%,burst=10"),
            (SettingKey::Queue, "347kB"),
        ],
        down: &[
            (SettingKey::Rate, "97.23Mbit"),
            (SettingKey::Queue, "2431kB"),
        ],
        sources: &[
            source("rate, delay", OOKLA_STARLINK),
            source(
                "jitter",
                "Huston (APNIC), \"A transport protocol's view of Starlink\", 17 May 2024, as The Register quotes it on 22 May 2024: one round trip differs from the next by 6.7 ms on average, as two of 4.2 ms normal jitter each way do; without the leaps at handover",
            ),
            source(
                "loss",
                "the same (see jitter): 1 to 2 % lost without congestion; 1 % of round trips here. Chosen: bursts of 10, because losses go with handovers (Kassem et al., \"A Browser-side View of Starlink Connectivity\", IMC 2022)",
            ),
            source("queue", "chosen: 200 ms of the rate"),
        ],
    },
];

/// The preset with this name.
///
/// # Errors
/// Fails when there is none; the message lists the presets.
pub fn find(name: &str) -> Result<&'static LinkPreset> {
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

impl LinkPreset {
    /// Its words as link settings.
    #[must_use]
    pub fn settings(&self) -> LinkSettings {
        let mut settings = LinkSettings::default();
        for (way, words) in [
            (SettingDirection::Forward, self.up),
            (SettingDirection::Back, self.down),
        ] {
            for (key, word) in words {
                settings
                    .set(SettingName { key: *key, way }, word)
                    .expect("a test reads every word of every preset");
            }
        }
        settings
    }

    /// Value of one setting, up and down; `None` where it is not set.
    #[must_use]
    pub fn word(&self, way: SettingDirection, key: SettingKey) -> Option<&'static str> {
        let find = |words: &[(SettingKey, &'static str)]| {
            words
                .iter()
                .find(|(other, _)| *other == key)
                .map(|(_, word)| *word)
        };
        match way {
            SettingDirection::Forward => find(self.up),
            SettingDirection::Back => find(self.down).or_else(|| find(self.up)),
        }
    }

    /// Both ways of one setting in a cell: `6Mbit / 13Mbit`, or once where they are the same.
    #[must_use]
    pub fn cell(&self, key: SettingKey) -> String {
        let up = self.word(SettingDirection::Forward, key).unwrap_or("–");
        let down = self.word(SettingDirection::Back, key).unwrap_or("–");
        if up == down {
            up.to_owned()
        } else {
            format!("{up} / {down}")
        }
    }
}

/// The columns of the tables of presets.
pub const COLUMNS: [(&str, SettingKey); 5] = [
    ("rate up / down", SettingKey::Rate),
    ("delay", SettingKey::Delay),
    ("jitter", SettingKey::Jitter),
    ("loss", SettingKey::Loss),
    ("queue up / down", SettingKey::Queue),
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
                (SettingKey::Queue, cell) if cell == "–" => "rate × round trip".to_owned(),
                (_, cell) => cell,
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text.push('\n');
    for preset in &PRESETS {
        let _ = writeln!(text, "- `{}`", preset.name);
        for PresetSource { of, from } in preset.sources {
            let _ = writeln!(text, "  - {of}: {from}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use emulate::{Link, LinkDirection};
    use vocab::Time;

    use super::*;

    #[test]
    fn models_hold_every_preset() {
        for preset in &PRESETS {
            let mut settings = LinkSettings::default();
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

    /// Round trips of pings through the preset, one every ten seconds, in milliseconds; and the
    /// share of them that is lost.
    fn pings(name: &str) -> (Vec<f64>, f64) {
        const PINGS: u32 = 20_000;
        let mut settings = LinkSettings::default();
        settings.set_preset(name).unwrap();
        let mut link = Link::new(settings.resolve().unwrap().config);
        let mut round_trips = Vec::new();
        for number in 0..u64::from(PINGS) {
            let sent = Time::from_nanos(number * 10_000_000_000);
            let answered = pass(&mut link.forward, sent);
            if let Some(back) = answered.and_then(|there| pass(&mut link.back, there)) {
                round_trips.push(back.since(sent).as_secs_f64() * 1e3);
            }
        }
        let lost = 1.0 - round_trips.len() as f64 / f64::from(PINGS);
        (round_trips, lost)
    }

    /// Arrival time of a ping of 28 bytes, if it arrives.
    fn pass(direction: &mut LinkDirection, now: Time) -> Option<Time> {
        direction.handle(now, Bytes::from_static(&[0; 28]));
        let mut due = None;
        while let Some(next) = direction.poll_timeout() {
            while let Some(delivery) = direction.poll_output(next) {
                due = Some(delivery.due);
            }
        }
        due
    }

    fn at(share: f64, round_trips: &mut [f64]) -> f64 {
        round_trips.sort_by(f64::total_cmp);
        round_trips[(round_trips.len() as f64 * share) as usize]
    }

    fn assert_near(what: &str, measured: f64, published: f64, share: f64) {
        assert!(
            (measured / published - 1.0).abs() < share,
            "{what}: {measured}, not {published}"
        );
    }

    #[test]
    fn round_trips_are_those_of_the_sources() {
        for (name, published_ms) in [
            ("3g-waas", 146.0),
            ("lte", 84.8),
            ("5g", 19.0),
            ("adsl", 37.05),
            ("cable", 10.0),
            ("transatlantic", 65.0),
            ("geo", 600.0),
            ("leo", 45.0),
        ] {
            let (mut round_trips, _) = pings(name);
            assert_near(name, at(0.5, &mut round_trips), published_ms, 0.05);
        }
    }

    #[test]
    fn wifi_preset_has_its_sources_delay_tail() {
        let (mut round_trips, _) = pings("wifi");
        for (share, named_ms) in [(0.5, 3.2), (0.9, 18.0), (0.99, 82.0)] {
            assert_near("wifi", at(share, &mut round_trips), named_ms, 0.1);
        }
    }

    #[test]
    fn leo_varies_and_loses_as_its_source_says() {
        let (round_trips, lost) = pings("leo");
        let steps = round_trips.windows(2).map(|two| (two[1] - two[0]).abs());
        let mean = steps.sum::<f64>() / (round_trips.len() - 1) as f64;
        assert_near("difference", mean, 6.7, 0.05);
        assert_near("lost", lost, 0.01, 0.3);
    }
}
