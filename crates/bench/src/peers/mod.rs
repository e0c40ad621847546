//! The emulator's policer and shaper beside those of the kernel, on the same traffic.
//!
//! ```text
//!   kernel      sending ─veth─ middle (nft limit, or tbf) ─veth─ receiving
//!   trunkline   sending ═TUN═╡ emulator (--police, or --shaper) ╞═TUN═ receiving
//! ```
//! The peers are an independent check of the models: `nft limit rate over` in packets per second,
//! which counts whole packets, and tbf, which counts an Ethernet header with each packet as
//! `--overhead 14` does. A packet's fate is what a socket at the far end sees of it, its time the
//! kernel's stamp of a capture there; neither side is asked what it did.
//!
//! For CoDel, PIE and RED in the kernel only their presence is reported: their drops depend on
//! random numbers or on microseconds, so that they are compared by vectors, not side by side.

mod policer;
mod room;
mod shaper;
mod traffic;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use host::ProgramEnvironment;
use host::machine::MachineInfo;
use host::progress::ProgressReporter;
use host::wait;

pub use policer::{PolicerSettings, burst_passed};
pub(crate) use room::MeasuringNamespaces;
pub use room::{HostLosses, LimiterOwner};

/// One quantity of one setting, of both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// The kernel's program.
    pub peer: &'static str,
    /// The measured quantity.
    pub quantity: &'static str,
    /// Setting of both sides.
    pub setting: String,
    /// Unit of the figures.
    pub unit: &'static str,
    /// Value that the setting promises; `None` where it promises none.
    pub expected: Option<f64>,
    /// Value measured behind the kernel.
    pub kernel: f64,
    /// Value measured behind the emulator.
    pub trunkline: f64,
    /// The emulator's less the kernel's; of departures, the same quantile of the differences
    /// packet by packet.
    pub difference: f64,
    /// Error of the kernel's value, in percent of the expected one.
    pub kernel_error_percent: Option<f64>,
    /// The emulator's.
    pub trunkline_error_percent: Option<f64>,
    /// Difference in packets.
    pub packets: u64,
}

impl ComparisonRow {
    /// A row whose difference is that of its figures.
    fn new(peer: &'static str, quantity: &'static str, setting: &str, unit: &'static str) -> Self {
        Self {
            peer,
            quantity,
            setting: setting.to_owned(),
            unit,
            expected: None,
            kernel: 0.0,
            trunkline: 0.0,
            difference: 0.0,
            kernel_error_percent: None,
            trunkline_error_percent: None,
            packets: 0,
        }
    }

    fn figures(mut self, kernel: f64, trunkline: f64, packets: usize) -> Self {
        (self.kernel, self.trunkline) = (kernel, trunkline);
        self.difference = trunkline - kernel;
        self.packets = packets as u64;
        self
    }

    fn against(mut self, expected: f64) -> Self {
        let error = |figure: f64| Some((figure - expected) / expected * 100.0);
        self.expected = Some(expected);
        self.kernel_error_percent = error(self.kernel);
        self.trunkline_error_percent = error(self.trunkline);
        self
    }
}

/// A peer that was not measured beside the emulator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedPeer {
    /// The kernel's program.
    pub peer: &'static str,
    /// Why.
    pub reason: String,
}

/// All results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeersReport {
    /// Date.
    pub date: String,
    /// Machine.
    pub machine: MachineInfo,
    /// Measured quantities.
    pub rows: Vec<ComparisonRow>,
    /// Peers that were not measured.
    pub not_compared: Vec<SkippedPeer>,
}

/// Seconds that [`measure()`] takes, about.
pub const EXPECTED_S: f64 = 75.0;

/// Measures every setting on both sides. With `raw`, each packet's arrival is written there.
///
/// # Errors
/// When a side cannot be set up, or the machine is too busy for a burst to be one.
pub fn measure(
    environment: &ProgramEnvironment,
    raw: Option<&Path>,
    progress: &dyn ProgressReporter,
) -> Result<PeersReport> {
    let raw = RawSamples::new(raw)?;
    let date = jiff::Timestamp::now().to_string();
    let mut rows = Vec::new();
    let steps = (policer::SETTINGS.len() + shaper::SETTINGS.len()) as f64;
    for (index, setting) in policer::SETTINGS.iter().enumerate() {
        wait::not_interrupted()?;
        progress.step(index as f64 / steps, &format!("policer {setting}"));
        rows.extend(policer::compare(environment, setting, &raw)?);
    }
    for (index, setting) in shaper::SETTINGS.iter().enumerate() {
        wait::not_interrupted()?;
        let done = (policer::SETTINGS.len() + index) as f64 / steps;
        progress.step(done, &format!("shaper {setting}"));
        rows.extend(shaper::compare(environment, setting, &raw)?);
    }
    Ok(PeersReport {
        date,
        machine: MachineInfo::describe(&["nft", "tc"]),
        rows,
        not_compared: disciplines(environment)?,
    })
}

/// Finds the kernel's disciplines that are not available.
fn disciplines(environment: &ProgramEnvironment) -> Result<Vec<SkippedPeer>> {
    const DISCIPLINES: [(&str, &str); 3] = [
        ("codel", "codel"),
        ("pie", "pie"),
        (
            "red",
            "red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 bandwidth 10mbit",
        ),
    ];
    let room = MeasuringNamespaces::create(environment, LimiterOwner::Kernel)?;
    Ok(DISCIPLINES
        .into_iter()
        .map(|(peer, settings)| SkippedPeer {
            peer,
            reason: match room.replace_discipline(settings) {
                Ok(()) => "in this kernel; the model is held to vectors instead".to_owned(),
                Err(error) => format!("not in this kernel ({})", cause(&format!("{error:#}"))),
            },
        })
        .collect())
}

/// Error text of a failed program itself, out of [`command::run`](host::command::run)'s message.
fn cause(message: &str) -> &str {
    let line = message.trim().lines().last().unwrap_or_default();
    line.split_once("): ").map_or(line, |(_, said)| said)
}

/// Directory for raw samples, if they are kept.
struct RawSamples(Option<PathBuf>);

impl RawSamples {
    fn new(directory: Option<&Path>) -> Result<Self> {
        if let Some(directory) = directory {
            fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        Ok(Self(directory.map(Path::to_owned)))
    }

    /// Writes a line for each packet.
    fn keep(&self, name: &str, side: LimiterOwner, heading: &str, rows: &[String]) -> Result<()> {
        let Some(directory) = &self.0 else {
            return Ok(());
        };
        let path = directory.join(format!("{name}-{}.csv", side.name()));
        let text = format!("{heading}\n{}\n", rows.join("\n"));
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_tells_both_errors_and_the_difference() {
        let row = ComparisonRow::new("tbf", "rate", "r", "bit/s")
            .figures(99.0, 102.0, 7)
            .against(100.0);
        assert_eq!(row.difference, 3.0);
        assert_eq!(row.kernel_error_percent, Some(-1.0));
        assert_eq!(row.trunkline_error_percent, Some(2.0));
        assert_eq!(row.packets, 7);
    }

    #[test]
    fn a_reason_is_what_the_program_said() {
        let message = "`ip x` failed (exit status: 2): Error: Specified qdisc kind is unknown.\n";
        assert_eq!(cause(message), "Error: Specified qdisc kind is unknown.");
        assert_eq!(cause("no such file"), "no such file");
    }

    #[test]
    fn raw_samples_have_one_file_per_side() {
        let folder = tempfile::tempdir().unwrap();
        let raw = RawSamples::new(Some(&folder.path().join("raw"))).unwrap();
        let rows = ["0,5".to_owned(), "1,9".to_owned()];
        raw.keep("tbf-1", LimiterOwner::Kernel, "number,received_ns", &rows)
            .unwrap();
        let text = fs::read_to_string(folder.path().join("raw/tbf-1-kernel.csv")).unwrap();
        assert_eq!(text, "number,received_ns\n0,5\n1,9\n");
        RawSamples::new(None)
            .unwrap()
            .keep("x", LimiterOwner::Kernel, "", &[])
            .unwrap();
    }
}
