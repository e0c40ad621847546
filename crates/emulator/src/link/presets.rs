//! Named links, with their numbers and the source of each number.
//!
//! A preset is only words of [`LinkSettings`], so that each of them can be overridden. Forward is
//! up, from the subscriber or the smaller site; back is down. Round trips are halved. A number
//! without a source is our own choice and says "The project chose"; one that was found only as a quotation
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
    /// The source, or "The project chose …" and the reason.
    pub from: &'static str,
}

const fn source(of: &'static str, from: &'static str) -> PresetSource {
    PresetSource { of, from }
}

const DEFAULT_QUEUE: &str =
    "The project chose the emulator's default queue: rate times round-trip time, at least 15 kB.";
const NO_LOSS: &str = "The project chose no random loss, so only a full queue drops packets.";
const NO_JITTER_NO_LOSS: &str =
    "The project chose no jitter and no random loss, so only a full queue drops packets.";
const STEADY: &str = "The project chose no jitter and no loss, because a leased line carries no packets of other customers.";
const RADIO_ORDER: &str = "The project chose this jitter, because it found no published jitter of single packets. Packets keep their order, because the radio layer keeps their order.";
const RADIO_LOSS: &str =
    "The project chose no loss, because the radio layer retransmits lost packets.";
const WAAS_DELAY: &str = "The data sheet \"Cisco Wide Area Application Services: Optimizing Third-Generation Wireless Networks\" of Cisco Systems gives an average round-trip time of 146 ms for the HTTP test, and 156 ms for the upload test. The preset uses 146 ms.";
const ERRANT: &str = "Trevisan et al. describe the tool ERRANT (\"ERRANT: Realistic Emulation of Radio Access Networks\", Computer Networks 176, 2020), and publish 1,000 tests with it (github.com/marty90/errant, speed_test_sample.csv). Of the 1,000 tests, 909 used 4G in Sweden and Norway. The medians of the 909 tests are 27.12 Mbit/s down, 10.57 Mbit/s up, and a round-trip time of 84.8 ms.";
const OOKLA_STARLINK: &str = "Ookla's article \"How Starlink's Satellite Internet Stacks Up Against HughesNet and Viasat around the Globe\" gives Speedtest medians of the United States for the second quarter of 2021: 97.23 Mbit/s down, 13.89 Mbit/s up, and a round-trip time of 45 ms.";

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
                "ITU-T G.704 §2.1 (Basic frame structure at 1544 kbit/s) defines the rate of a T1 line. Data get 1536 kbit/s of this rate: in each 125 µs, 24 channels of eight bits follow one framing bit (Dallas Semiconductor, DS2152 data sheet).",
            ),
            source(
                "delay",
                "The project chose the delay of a line of about 2,000 km.",
            ),
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
                "Adtran's MX2800 STS-1 System Manual (STS-1 Overview) describes the frames of the line. The line carries 8,000 frames a second of 9 rows and 90 columns of bytes, which is 51.84 Mbit/s. Three of the columns are overhead, so the payload has 50.112 Mbit/s.",
            ),
            source(
                "delay",
                "The project chose the delay of a line of about 2,000 km.",
            ),
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
                "The same Cisco data sheet as for the delay gives transfer times without acceleration. A Word file of 2,055,168 bytes was transferred down by HTTP in 11 s (1.49 Mbit/s, table 2), and up by FTP in 152.75 s (0.108 Mbit/s, table 4). To these rates, the project added about 4 % for packet headers. The other files of 1 MB and more reached 1.2 to 1.8 Mbit/s down by HTTP (measured in whole seconds), and 0.09 to 0.13 Mbit/s up.",
            ),
            source("delay", WAAS_DELAY),
            source(
                "queue",
                "The project chose a queue that can contain one second of data at the link's rate. The Cisco data sheet does not state the size of the queue.",
            ),
            source(
                "jitter",
                "The project chose no jitter, because the Cisco data sheet gives the average delay and no other statistics of the delay.",
            ),
            source(
                "loss",
                "The project chose no loss, because the Cisco data sheet mentions loss but gives no loss rate.",
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
                "The project chose a queue that can contain one second of data at the link's rate. Jiang et al. (\"Understanding Bufferbloat in Cellular Networks\", 2012) show that mobile networks have very large queues.",
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
                "Ookla's article \"Growing and Slowing: The State of 5G Worldwide in 2021\" of 20 December 2021 gives worldwide Speedtest medians for the third quarter: 166.13 Mbit/s down and 21.08 Mbit/s up.",
            ),
            source(
                "delay",
                "Ofcom's article \"Which mobile operator has the longest file download time?\" summarises its Mobile Matters report of 2024. The average response times over 5G are from 16.3 ms (operator Three) to 21.4 ms (operator O2). The project chose a round-trip time of 19 ms, because 19 ms is between the response times of Three and O2.",
            ),
            source("jitter", RADIO_ORDER),
            source("loss", RADIO_LOSS),
            source(
                "queue",
                "The project chose a queue that can contain 250 ms of data at the link's rate.",
            ),
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
                "The project chose the rate that ADSL2+ (ITU-T G.992.5) is commonly said to reach on a short line. Most ADSL2+ lines have lower rates.",
            ),
            source(
                "delay",
                "Verizon's page \"Network Performance\" quotes the round-trip times of Verizon's DSL from the FCC's report Measuring Broadband America 2016. The round-trip time of Verizon's DSL is 37.05 ms in the tier of 3.1 to 7 Mbit/s, and 37.22 and 39.65 ms in slower tiers. The preset uses 37.05 ms.",
            ),
            source(
                "queue",
                "The project chose a queue that can contain 500 ms of data at the link's rate up, and 100 ms down.",
            ),
            source("jitter, loss", NO_JITTER_NO_LOSS),
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
                "In a statement to ISPreview of 27 January 2010, BT Wholesale gives the rates of its VDSL2 from the street cabinet: up to 40 Mbit/s down and up to 10 Mbit/s up.",
            ),
            source(
                "delay",
                "The project chose a delay between the delays of the presets for ADSL2+ and cable.",
            ),
            source(
                "queue",
                "The project chose a queue that can contain 200 ms of data at the link's rate up, and 100 ms down.",
            ),
            source("jitter, loss", NO_JITTER_NO_LOSS),
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
                "Since its 2024 Section 706 Report (18 March 2024; quoted from Inside Global Tech, 8 April 2024), the FCC defines broadband as 100 Mbit/s down and 20 Mbit/s up.",
            ),
            source(
                "delay, jitter",
                "White, Sundaresan and Briscoe of CableLabs (\"Low Latency DOCSIS: Technology Overview\", 2019) give a latency of around 10 ms for an idle access link. The preset emulates an idle access link, and not the network behind it. The project chose a variable delay of 2 ms within the 10 ms, because the wait for a grant varies.",
            ),
            source(
                "queue",
                "For the direction up, Flickinger et al. of Comcast (\"Improving Latency with Active Queue Management (AQM) During COVID-19\", 2021) measured the latency under load. Without AQM, the latency is roughly 250 ms, so the queue up can contain 250 ms of data at the link's rate. With DOCSIS-PIE, the latency is 15 to 30 ms; to emulate DOCSIS-PIE, add `--aqm pie`. For the direction down, the project chose a queue that can contain 100 ms of data at the link's rate.",
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
            source(
                "rate",
                "The project chose this rate without a published source.",
            ),
            source(
                "delay, jitter",
                "Sui et al. (\"Characterizing and Improving WiFi Latency in Large-Scale Operational Networks\", MobiSys 2016) measured pings. In their measurement, a ping takes at least 3 ms, 20 ms at the 90th percentile, and 250 ms at the 99th percentile. The preset uses about 3 ms as the median: over the preset, a ping takes 3.2 ms in the median, 18 ms at the 90th percentile, and 82 ms at the 99th percentile. In the preset, each packet has its own random delay, and in a dense stream a late packet delays the packets after it.",
            ),
            source(
                "loss",
                "The project chose no loss, because 802.11 retransmits lost packets.",
            ),
            source(
                "queue",
                "The project chose a queue that can contain 80 ms of data at the link's rate.",
            ),
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
            source(
                "rate",
                "The project chose the rate of OC-3, which is three times the rate of OC-1.",
            ),
            source(
                "delay",
                "TeleGeography's CommsUpdate of 30 September 2010 gives the round-trip time over AC-1, which was the fastest cable in 2010. Over AC-1, the round-trip time is 60.8 ms from New York to the west of England, with \"a few additional milliseconds\" to London. The preset uses a round-trip time of 65 ms. In 2015, the cable Hibernia Express had a round-trip time of 58.95 ms (The Broadcast Bridge, \"Trans-Atlantic Network Latency Reduced\").",
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
                "In the APNIC blog of 28 November 2022 (\"Fact checking Starlink's performance figures\"), the authors of the measurement compare Starlink with a geostationary subscription. The geostationary subscription has 100 Mbit/s down and 10 Mbit/s up.",
            ),
            source(
                "delay",
                "Michel et al. (\"A First Look at Starlink Performance\", IMC 2022) give a round-trip time of at least about 600 ms for a geostationary satellite. Up to 558 ms of the round-trip time is the way through space (RFC 2488 §2, Satellite Characteristics).",
            ),
            source(
                "jitter, loss",
                "The project chose no jitter and no loss, as with a clear sky.",
            ),
            source(
                "queue",
                "The project chose a queue of rate times round-trip time.",
            ),
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
                "The Register of 22 May 2024 quotes Huston of APNIC (\"A transport protocol's view of Starlink\", 17 May 2024): a round-trip time differs from the next by 6.7 ms on average. In the preset, a normal jitter of 4.2 ms in each direction gives the same average difference. The preset does not emulate the larger changes of the delay at handovers.",
            ),
            source(
                "loss",
                "The same article as for the jitter reports that 1 to 2 % of the packets are lost without congestion. The preset loses packets in 1 % of the round trips. The project chose losses of 10 packets in a row on average, because losses occur at handovers (Kassem et al., \"A Browser-side View of Starlink Connectivity\", IMC 2022).",
            ),
            source(
                "queue",
                "The project chose a queue that can contain 200 ms of data at the link's rate.",
            ),
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
                "no preset has the name `{name}`; the presets are {}; `trunkline emulate presets` \
                 shows their numbers",
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
