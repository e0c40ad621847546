//! Certificate: settings, measurements, the machine, and the verdict.
//!
//! It is a JSON file (docs/formats/certificate.md). A reader gets the same structures back, so that
//! a report can cite it and `emulate run` can use it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::measuring_host::MeasuringHost;
use super::stand::{DeviceKind, IpVersion};
use super::statistics::{CONFIDENCE, ConfidenceInterval};

/// The version of the file's format.
pub const FORMAT_VERSION: u32 = 1;

/// The file's name in the state directory.
pub const FILE_NAME: &str = "emulator-certificate.json";

/// Quantity that a cell measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredQuantity {
    /// The line's rate.
    Rate,
    /// The one-way delay.
    Delay,
    /// Its variation.
    Jitter,
    /// The share of packets lost.
    Loss,
    /// The mean length of a run of losses.
    Burst,
    /// The queue's limit.
    Queue,
    /// Number of seeds whose loss lies inside its interval.
    Seeds,
}

impl MeasuredQuantity {
    /// Every one, in the order in which they are measured.
    pub const ALL: [MeasuredQuantity; 7] = [
        MeasuredQuantity::Rate,
        MeasuredQuantity::Delay,
        MeasuredQuantity::Jitter,
        MeasuredQuantity::Loss,
        MeasuredQuantity::Burst,
        MeasuredQuantity::Queue,
        MeasuredQuantity::Seeds,
    ];

    /// Its name in the file and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MeasuredQuantity::Rate => "rate",
            MeasuredQuantity::Delay => "delay",
            MeasuredQuantity::Jitter => "jitter",
            MeasuredQuantity::Loss => "loss",
            MeasuredQuantity::Burst => "burst",
            MeasuredQuantity::Queue => "queue",
            MeasuredQuantity::Seeds => "seeds",
        }
    }
}

impl fmt::Display for MeasuredQuantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for MeasuredQuantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|quantity| quantity.name() == text)
            .ok_or_else(|| format!("`{text}` is not measured; use one of {names}"))
    }
}

/// One setting with its measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CertificateCell {
    /// The quantity.
    pub quantity: MeasuredQuantity,
    /// Configured value, in `unit`.
    pub configured: f64,
    /// The unit of `configured`, `measured` and `interval`.
    pub unit: String,
    /// Measured value.
    pub measured: f64,
    /// (measured − configured) / configured; null where that is 0.
    pub error_percent: Option<f64>,
    /// Interval of the true value with `confidence`.
    pub interval: ConfidenceInterval,
    /// 0 to 1.
    pub confidence: f64,
    /// Packets, or events, that it rests on.
    pub samples: u64,
    /// Condition that distinguishes this cell from others of the same setting.
    pub condition: String,
    /// True if all of `bars` hold.
    pub within_bars: bool,
    /// Pass criteria and their results.
    pub bars: Vec<PassCriterion>,
    /// Further figures; each name ends in its unit.
    pub figures: BTreeMap<String, f64>,
    /// The options of `trunkline emulate run`.
    pub settings: Vec<String>,
    /// The file of the raw samples, in the directory that the certificate names.
    pub raw: Option<String>,
    /// Report of the emulator itself, for comparison; no other field is derived from it.
    pub emulator: Value,
}

/// Joint verdict of all statistical tests of one certificate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CertificateVerdict {
    /// Greatest probability that a correct emulator fails.
    pub level: f64,
    /// Number of criteria that can be missed by chance alone.
    pub tests: u32,
    /// The least likely of them; 1 without any.
    pub smallest_p: f64,
    /// Cells outside a bar of this kind.
    pub missed_cells: u32,
    /// Probability of so many misses, or more.
    pub as_many_p: f64,
    /// True if a correct emulator gives this result often enough.
    pub explains: bool,
}

/// A criterion that must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassCriterion {
    /// The criterion, in words.
    pub what: String,
    /// True if it holds.
    pub holds: bool,
    /// For a criterion that can be missed by chance: the probability that a correct emulator is at
    /// least this far off. Null for a deterministic criterion.
    #[serde(default)]
    pub chance_p: Option<f64>,
}

impl CertificateCell {
    pub(super) fn new(
        quantity: MeasuredQuantity,
        (configured, unit): (f64, &str),
        measured: f64,
        interval: ConfidenceInterval,
        samples: u64,
    ) -> Self {
        let error_percent =
            (configured != 0.0).then(|| (measured - configured) / configured * 100.0);
        Self {
            quantity,
            configured,
            unit: unit.to_owned(),
            measured,
            error_percent,
            interval,
            confidence: CONFIDENCE,
            samples,
            condition: String::new(),
            within_bars: true,
            bars: Vec::new(),
            figures: BTreeMap::new(),
            settings: Vec::new(),
            raw: None,
            emulator: Value::Null,
        }
    }

    pub(super) fn under(mut self, condition: impl Into<String>) -> Self {
        self.condition = condition.into();
        self
    }

    pub(super) fn figure(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_owned(), value);
        self
    }

    pub(super) fn must(mut self, what: impl Into<String>, holds: bool) -> Self {
        let what = what.into();
        self.within_bars &= holds;
        self.bars.push(PassCriterion {
            what,
            holds,
            chance_p: None,
        });
        self
    }

    /// Adds a criterion that can be missed by chance, once in so many cells; `p` is the probability
    /// of a result at least this far off.
    pub(super) fn must_by_chance(self, what: impl Into<String>, holds: bool, p: f64) -> Self {
        let mut cell = self.must(what, holds);
        if let Some(bar) = cell.bars.last_mut() {
            bar.chance_p = Some(p);
        }
        cell
    }

    /// Title of the cell, in words: `rate 64 kbit/s`.
    #[must_use]
    pub fn title(&self) -> String {
        let condition = match self.condition.as_str() {
            "" => String::new(),
            condition => format!(", {condition}"),
        };
        format!(
            "{} {} {}{condition}",
            self.quantity, self.configured, self.unit
        )
    }
}

/// Loads that the machine carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostCapacity {
    /// 1500-byte UDP packets, each handed over by itself.
    pub gbit_s: f64,
    /// 64-byte UDP packets, likewise; thousands in a second.
    pub kpps: f64,
    /// 1500-byte UDP packets by segmentation offload.
    pub gbit_s_offloaded: f64,
    /// 64-byte UDP packets by segmentation offload.
    pub kpps_offloaded: f64,
    /// One TCP connection.
    pub tcp_gbit_s: f64,
    /// 1500-byte UDP packets, sent the faster way, through a line that is set to far more: the
    /// highest rate that can be set and held.
    pub line_gbit_s: f64,
}

/// All of one calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationCertificate {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Start time (RFC 3339).
    pub date: String,
    /// Duration.
    pub took_s: f64,
    /// True for the short form, with fewer and shorter cells.
    pub quick: bool,
    /// Attachment of the emulator to the measuring ends.
    pub device: DeviceKind,
    /// IP version of the packets that measured. Older files do not state it; they used IPv4.
    #[serde(default)]
    pub protocol: IpVersion,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The machine, and its state during the measurement.
    pub host: MeasuringHost,
    /// Loads that the machine carries without loss, with at most a window of packets in flight.
    pub capacity: Option<HostCapacity>,
    /// Every cell that was measured.
    pub cells: Vec<CertificateCell>,
    /// True if no cell failed and all cells meet their criteria, except for misses that chance
    /// explains (`chance`).
    pub within_bars: bool,
    /// Verdict on whether chance explains the missed statistical criteria. Null in older files.
    #[serde(default)]
    pub chance: Option<CertificateVerdict>,
    /// Cells that could not be measured, and why.
    pub failures: Vec<String>,
    /// Forced rates that this host was not seen to carry, as text. Empty in older
    /// files, which do not say.
    #[serde(default)]
    pub forced: Vec<String>,
    /// Directory of the raw samples.
    pub raw: Option<String>,
}

impl CalibrationCertificate {
    /// Reads one.
    ///
    /// # Errors
    /// When it is not there, or not a certificate of this version.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| {
            format!(
                "{} is not a certificate; make a new one with `trunkline emulate calibrate`",
                path.display()
            )
        })
    }

    /// Reads one from its text.
    ///
    /// # Errors
    /// When it is not a certificate of this version.
    pub fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct CertificateHead {
            format_version: u32,
        }
        let head: CertificateHead = serde_json::from_str(text)?;
        if head.format_version != FORMAT_VERSION {
            bail!(
                "it is of format {}, and this program reads {FORMAT_VERSION}",
                head.format_version
            );
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Writes the certificate, complete or not at all.
    ///
    /// # Errors
    /// Fails when the directory cannot be made or written.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let beside = path.with_extension("json.new");
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&beside, text)
            .and_then(|()| fs::rename(&beside, path))
            .inspect_err(|_| drop(fs::remove_file(&beside)))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Cells that miss a bar.
    pub fn missed(&self) -> impl Iterator<Item = &CertificateCell> {
        self.cells.iter().filter(|cell| !cell.within_bars)
    }

    /// One sentence for a report that rests on this emulator.
    #[must_use]
    pub fn citation(&self) -> String {
        let worst = |quantity: MeasuredQuantity| {
            self.cells
                .iter()
                .filter(|cell| cell.quantity == quantity)
                .filter_map(|cell| cell.error_percent)
                .map(f64::abs)
                .fold(None, |worst: Option<f64>, error| {
                    Some(worst.map_or(error, |worst| worst.max(error)))
                })
        };
        let worsts: Vec<String> = [
            MeasuredQuantity::Rate,
            MeasuredQuantity::Delay,
            MeasuredQuantity::Loss,
        ]
        .into_iter()
        .filter_map(|quantity| Some(format!("{quantity} {:.3} %", worst(quantity)?)))
        .collect();
        let missed = self.missed().count();
        format!(
            "{} over {}, {} ({} × {}, Linux {}); largest errors: {}; {}",
            self.date,
            self.device,
            match (self.quick, self.forced.is_empty()) {
                (true, true) => "short form",
                (false, true) => "full form",
                (true, false) => "short form with forced rates",
                (false, false) => "full form with forced rates",
            },
            self.host.processors,
            self.host.processor_model,
            self.host.kernel,
            if worsts.is_empty() {
                "none measured".to_owned()
            } else {
                worsts.join(", ")
            },
            match missed {
                0 if self.failures.is_empty() =>
                    format!("all {} cells within their bars", self.cells.len()),
                _ if self.within_bars => format!(
                    "{missed} of {} cells miss a bar, as chance alone explains",
                    self.cells.len()
                ),
                _ => format!(
                    "{missed} of {} cells miss a bar, {} could not be measured",
                    self.cells.len(),
                    self.failures.len()
                ),
            }
        )
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::calibrate) fn sample() -> CalibrationCertificate {
        let rate = CertificateCell::new(
            MeasuredQuantity::Rate,
            (64.0, "kbit/s"),
            64.001,
            [63.999, 64.003],
            106,
        )
        .must("within 0.02 %", true)
        .figure("lateness_p99_us", 12.0);
        let loss = CertificateCell::new(
            MeasuredQuantity::Loss,
            (0.05, "percent"),
            0.06,
            [0.055, 0.065],
            2_400,
        )
        .under("bursts of 5")
        .must("0.05 inside the 99.9 % interval", false);
        CalibrationCertificate {
            format_version: FORMAT_VERSION,
            date: "2026-11-21T12:00:00+00:00".to_owned(),
            took_s: 61.5,
            quick: true,
            device: DeviceKind::Tun,
            protocol: IpVersion::V4,
            seed: 7,
            host: MeasuringHost::default(),
            capacity: Some(HostCapacity {
                gbit_s: 1.5,
                kpps: 140.0,
                gbit_s_offloaded: 3.0,
                kpps_offloaded: 300.0,
                tcp_gbit_s: 3.6,
                line_gbit_s: 3.5,
            }),
            cells: vec![rate, loss],
            within_bars: false,
            chance: None,
            failures: Vec::new(),
            forced: vec!["10Gbit forced; this host carried 2Gbit".to_owned()],
            raw: None,
        }
    }

    #[test]
    fn a_certificate_reads_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/down/certificate.json");
        sample().write(&path).unwrap();
        assert_eq!(CalibrationCertificate::read(&path).unwrap(), sample());
    }

    #[test]
    fn cells_have_the_agreed_keys() {
        let document = serde_json::to_value(sample()).unwrap();
        let cell = &document["cells"][0];
        assert_eq!(cell["quantity"], "rate");
        assert_eq!(cell["unit"], "kbit/s");
        for key in ["configured", "measured", "error_percent"] {
            assert!(cell[key].is_f64(), "{key}");
        }
        assert_eq!(cell["interval"].as_array().unwrap().len(), 2);
        assert!(document["host"].is_object());
    }

    #[test]
    fn invalid_certificate_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.json");
        for text in ["", "{}", "[1,2]", r#"{"format_version":1}"#, "\u{0}"] {
            fs::write(&path, text).unwrap();
            let error = CalibrationCertificate::read(&path).unwrap_err();
            assert!(error.to_string().contains("emulate calibrate"), "{error}");
        }
        let newer = serde_json::to_string(&CalibrationCertificate {
            format_version: 99,
            ..sample()
        });
        let error = CalibrationCertificate::parse(&newer.unwrap()).unwrap_err();
        assert!(error.to_string().contains("format 99"), "{error}");
    }

    #[test]
    fn the_citation_names_the_worst_and_what_missed() {
        let text = sample().citation();
        assert!(text.contains("loss 20.000 %"), "{text}");
        assert!(
            text.ends_with("1 of 2 cells miss a bar, 0 could not be measured"),
            "{text}"
        );
        let excused = CalibrationCertificate {
            within_bars: true,
            ..sample()
        };
        let text = excused.citation();
        assert!(
            text.ends_with("1 of 2 cells miss a bar, as chance alone explains"),
            "{text}"
        );
    }
}
