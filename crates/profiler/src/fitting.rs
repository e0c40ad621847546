//! Fit of a device model to records: from a directory, or from runs in memory.
//!
//! ```text
//!  records ─► runs over the cable ─► calibration ─┐
//!         └─► runs through the device ────────────┴─► fit ─► model with intervals
//! ```
//! Runs that the measurement counted as void are left out and named.

use std::time::Duration;

use anyhow::{Result, ensure};
use profile::{
    CableCalibration, DeviceFit, ExperimentPurpose, FitError, FitOptions, MeasuredRun,
    MeasurementSubject, ModelFamily, PacketFate, TrafficSummary, fit_device,
};

use crate::records::{RecordDirectory, RunBlock};

/// Records of the runs of a fit that are in memory at once: 16 million take about 1 GB.
const FIT_ROWS_MAX: u64 = 1 << 24;
/// Uncertainty of a delay without a calibration: that of stamps in microseconds.
const UNCALIBRATED_RESOLUTION: Duration = Duration::from_micros(1);

/// Runs of a measurement for a fit: the cable's delay is subtracted.
#[derive(Clone, Debug)]
pub struct CalibratedRuns {
    /// Runs through the device.
    pub runs: Vec<MeasuredRun>,
    /// Calibration by the runs over the cable.
    pub calibration: Option<CableCalibration>,
    /// Ports of the plan.
    pub ports: u16,
    /// Sentences about runs and records that are missing.
    pub remarks: Vec<String>,
}

impl CalibratedRuns {
    /// Calibrates runs in memory. Runs through the device are kept, and those over the cable are not.
    #[must_use]
    pub fn new(runs: Vec<MeasuredRun>, ports: u16) -> Self {
        let calibration = CableCalibration::of(&runs);
        let mut remarks = Vec::new();
        let mut device: Vec<MeasuredRun> = Vec::new();
        for mut run in runs {
            if run.plan.subject == MeasurementSubject::Cable {
                continue;
            }
            if let Some(reason) = unusable(&run) {
                remarks.push(format!(
                    "run {} ({}) is left out: {reason}",
                    run.plan.number, run.plan.experiment
                ));
                continue;
            }
            if let Some(calibration) = &calibration {
                calibration.subtract(&mut run);
            }
            device.push(run);
        }
        if calibration.is_none() {
            remarks.push(
                "no packet was sent over a cable: delays contain those of our own ports, and their \
                 noise is taken for 1 us; give an experiment subjects = [\"cable\", \"device\"]"
                    .to_owned(),
            );
        }
        Self {
            runs: device,
            calibration,
            ports,
            remarks,
        }
    }

    /// Reads and calibrates the runs of a directory that count for a fit.
    ///
    /// # Errors
    /// When the records are damaged, or too many.
    pub fn read(records: &RecordDirectory) -> Result<Self> {
        let chosen = |block: &&RunBlock| !block.is_void && counts_for_fit(block);
        let rows: u64 = records
            .blocks
            .iter()
            .filter(chosen)
            .map(|block| block.rows.end - block.rows.start)
            .sum();
        ensure!(
            rows <= FIT_ROWS_MAX,
            "{} has {rows} records for a fit, and at most {FIT_ROWS_MAX} are read; measure with fewer \
             --packets",
            records.path().display()
        );
        let runs = records
            .blocks
            .iter()
            .filter(chosen)
            .map(|block| records.read(block))
            .collect::<Result<Vec<_>, _>>()?;
        let mut calibrated = Self::new(runs, records.plan.ports);
        calibrated.remarks.extend(records.remarks.iter().cloned());
        let void = records.blocks.iter().filter(|block| block.is_void).count();
        if void > 0 {
            calibrated.remarks.push(format!(
                "{void} of {} runs are void and left out: our own ports lost packets, the clock was \
                 set, or they ended before their time",
                records.blocks.len()
            ));
        }
        Ok(calibrated)
    }

    /// Uncertainty of a delay.
    #[must_use]
    pub fn resolution(&self) -> Duration {
        self.calibration
            .as_ref()
            .map_or(UNCALIBRATED_RESOLUTION, CableCalibration::noise)
    }

    /// Fits a model of `family` to the runs.
    ///
    /// # Errors
    /// When no packet came through the device alone, or no model holds what was found.
    pub fn fit(&self, name: &str, family: ModelFamily) -> Result<DeviceFit, FitError> {
        let options = FitOptions {
            name: name.to_owned(),
            ports: self.ports,
            resolution: self.resolution(),
            // It has been subtracted.
            cable_delay: Duration::ZERO,
            family,
        };
        fit_device(&self.runs, &options)
    }
}

/// Tells whether a fit reads the run.
fn counts_for_fit(block: &RunBlock) -> bool {
    match (block.plan.purpose, block.plan.subject) {
        (
            ExperimentPurpose::Transit
            | ExperimentPurpose::Contention
            | ExperimentPurpose::Overload
            | ExperimentPurpose::InputOverload,
            _,
        ) => true,
        // A plan without lone packets over the cable calibrates by others.
        (ExperimentPurpose::Report, MeasurementSubject::Cable) => true,
        (ExperimentPurpose::Report, MeasurementSubject::Device)
        | (ExperimentPurpose::HeldOut, _) => false,
    }
}

/// Reason why a run through the device says nothing about it.
pub(crate) fn unusable(run: &MeasuredRun) -> Option<String> {
    let mut summary = TrafficSummary::default();
    let mut early = 0_u64;
    for record in &run.records {
        summary.add(record);
        let is_early = record.received.is_some_and(|at| at < record.sent);
        early += u64::from(is_early && record.fate != PacketFate::Duplicated);
    }
    if early > 0 {
        return Some(format!(
            "{early} packets arrived before they were sent, so the clock was set meanwhile"
        ));
    }
    summary.is_void().then(|| {
        format!(
            "our own ports lost {} of {} packets",
            summary.lost_at_port, summary.sent
        )
    })
}
