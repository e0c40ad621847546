//! Cells of a certificate: one file for each quantity, which sends, receives and judges.
//!
//! Each cell starts the emulator with its setting, and observes it only through sockets. Packets
//! that the host lost outside the model (in the receiver's own socket, or in the kernel before the
//! emulator) spoil a cell that counts losses; such a cell is measured again, and not reported if it
//! is spoilt again.

mod delay;
mod jitter;
mod loss;
mod queue;
mod rate;

use anyhow::Result;
use serde_json::Value;
use vocab::SeededRandom;

pub(super) use delay::{CompetingTraffic, DelayCell, added_delay};
pub(super) use jitter::{JitterCell, JitterShape};
pub(super) use loss::{LossCell, LossPattern, SeedsCell};
pub(super) use queue::{QueueCell, QueueUnit};
pub(super) use rate::RateCell;

use super::certificate::{CertificateCell, MeasuredQuantity};
use super::measuring_host::processor_time;
use super::raw::RawSampleWriter;
use super::stand::TestBed;
use host::wait;

/// Number of attempts for a cell that the host has spoilt.
const ATTEMPTS: u32 = 3;

/// Processor time, in percent of all, that a hypervisor may give to others while a cell counts time:
/// two ticks of 10 ms in ten seconds of two processors, which delays some 0.2 % of packets.
pub(super) const STOLEN_PERCENT_MAX: f64 = 0.1;

/// Greatest number of attempts for such a cell.
const STOLEN_ATTEMPTS: u32 = 8;

/// Equipment that a cell measures with.
pub(super) struct MeasurementBench<'a> {
    pub(super) stand: &'a mut TestBed,
    pub(super) raw: Option<&'a mut RawSampleWriter>,
    pub(super) random: SeededRandom,
}

impl MeasurementBench<'_> {
    /// Starts the emulator with these settings and a seed of its own; returns both.
    fn start(&mut self, settings: &[String]) -> Result<Vec<String>> {
        let mut settings = settings.to_vec();
        // Seeds of at most 53 bits survive any reader of JSON.
        let seed = self.random.next_u64() >> 11;
        settings.extend(["--seed".to_owned(), seed.to_string()]);
        self.stand.start(&settings)?;
        Ok(settings)
    }

    fn keep<R: std::fmt::Display>(
        &mut self,
        cells: &mut [CertificateCell],
        columns: &str,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<()> {
        let (Some(raw), Some(first)) = (self.raw.as_deref_mut(), cells.first()) else {
            return Ok(());
        };
        let name = raw.write(&first.title(), columns, rows)?;
        for cell in cells {
            cell.raw = Some(name.clone());
        }
        Ok(())
    }
}

/// A measurement.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CellTask {
    Rate(RateCell),
    Delay(DelayCell),
    Jitter(JitterCell),
    Loss(LossCell),
    Queue(QueueCell),
    Seeds(SeedsCell),
}

impl CellTask {
    /// Quantities of its cells; a task for loss in bursts has a cell for the bursts as well.
    pub(super) fn quantities(&self) -> &'static [MeasuredQuantity] {
        match self {
            CellTask::Rate(_) => &[MeasuredQuantity::Rate],
            CellTask::Delay(_) => &[MeasuredQuantity::Delay],
            CellTask::Jitter(_) => &[MeasuredQuantity::Jitter],
            CellTask::Loss(cell) => cell.quantities(),
            CellTask::Queue(_) => &[MeasuredQuantity::Queue],
            CellTask::Seeds(_) => &[MeasuredQuantity::Seeds],
        }
    }

    /// Title that is shown while a person waits.
    pub(super) fn title(&self) -> String {
        match self {
            CellTask::Rate(cell) => cell.title(),
            CellTask::Delay(cell) => cell.title(),
            CellTask::Jitter(cell) => cell.title(),
            CellTask::Loss(cell) => cell.title(),
            CellTask::Queue(cell) => cell.title(),
            CellTask::Seeds(cell) => cell.title(),
        }
    }

    /// About how long it takes, in seconds.
    pub(super) fn expected_s(&self) -> f64 {
        match self {
            CellTask::Rate(cell) => cell.expected_s(),
            CellTask::Delay(cell) => cell.expected_s(),
            CellTask::Jitter(cell) => cell.expected_s(),
            CellTask::Loss(cell) => cell.expected_s(),
            CellTask::Queue(cell) => cell.expected_s(),
            CellTask::Seeds(cell) => cell.expected_s(),
        }
    }

    /// Measures it.
    ///
    /// # Errors
    /// When the emulator does not start, or the host spoils the cell again and again.
    pub(super) fn measure(&self, bench: &mut MeasurementBench<'_>) -> Result<Vec<CertificateCell>> {
        match self {
            CellTask::Rate(cell) => undisturbed(bench, |bench| cell.measure(bench)),
            CellTask::Delay(cell) => undisturbed(bench, |bench| cell.measure(bench)),
            CellTask::Jitter(cell) => undisturbed(bench, |bench| cell.measure(bench)),
            CellTask::Loss(cell) => cell.measure(bench),
            CellTask::Queue(cell) => cell.measure(bench),
            CellTask::Seeds(cell) => cell.measure(bench),
        }
    }
}

/// Measures a quantity that depends on time, and repeats it while too much processor time was
/// stolen: while this machine did not run, no program on it can have been punctual.
fn undisturbed(
    bench: &mut MeasurementBench<'_>,
    mut measure: impl FnMut(&mut MeasurementBench<'_>) -> Result<Vec<CertificateCell>>,
) -> Result<Vec<CertificateCell>> {
    let (stolen, attempts, cells) = least_stolen(|| {
        wait::not_interrupted()?;
        let before = processor_time();
        let cells = measure(bench)?;
        let stolen = processor_time().stolen_since(before);
        Ok((100.0 * stolen, cells))
    })?;
    let described = cells.into_iter().map(|cell| {
        cell.figure("stolen_percent", stolen)
            .figure("attempts", attempts.into())
    });
    Ok(described.collect())
}

/// The result with the least stolen time, that time, and the number of attempts. Whether there is
/// another attempt depends only on the stolen time, never on the result.
fn least_stolen<T>(mut measure: impl FnMut() -> Result<(f64, T)>) -> Result<(f64, u32, T)> {
    let (mut least, mut result) = measure()?;
    let mut attempts = 1;
    while least > STOLEN_PERCENT_MAX && attempts < STOLEN_ATTEMPTS {
        attempts += 1;
        let (stolen, other) = measure()?;
        if stolen < least {
            (least, result) = (stolen, other);
        }
    }
    Ok((least, attempts, result))
}

/// Packets that the emulator says the host has lost: a reason to measure again, never a figure.
pub fn lost_by_the_host(account: &Value) -> u64 {
    ["forward", "back"]
        .iter()
        .flat_map(|way| {
            [
                "unread_packets",
                "dropped_by_limit_packets",
                "untaken_packets",
                "failed_writes_packets",
            ]
            .map(|key| account[*way][key].as_u64().unwrap_or_default())
        })
        .sum()
}

fn words(settings: &[&str]) -> Vec<String> {
    settings.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stolen: &[f64]) -> (f64, u32, usize) {
        let mut next = stolen.iter().copied().enumerate();
        least_stolen(|| {
            let (number, stolen) = next.next().expect("no more are asked for");
            Ok((stolen, number))
        })
        .unwrap()
    }

    #[test]
    fn undisturbed_cell_is_measured_once() {
        assert_eq!(of(&[0.05]), (0.05, 1, 0));
    }

    #[test]
    fn the_least_disturbed_of_several_stands() {
        assert_eq!(of(&[3.0, 0.4, 0.0]), (0.0, 3, 2));
        let all = [3.0, 0.4, 0.5, 7.0, 0.9, 0.2, 0.3, 8.0];
        assert_eq!(of(&all), (0.2, 8, 5));
    }
}
