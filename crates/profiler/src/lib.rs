//! The device profiler's shell: ports, runs, records and reports around the core `profile`.
//!
//! ```text
//!   plan.toml ─► measurement ─► run ─► port ─► device or cable ─► port ─┐
//!                     │          ▲                                      │
//!                     │          └───── traffic machine (core) ◄────────┤ stamps and arrivals
//!                     ▼                        │                        │
//!                  report                   records (columns on disk) ◄─┘
//! ```
//! All packets are sent and received on this host, so one clock stamps both ends. Losses of our own
//! ports are counted apart from those of the device. The crate decides nothing about traffic: the core
//! says which packet is sent when, and what became of it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod benchmark;
mod cable;
pub mod captured_flows;
mod clock;
mod device_stand;
mod figures;
pub mod fit_report;
mod fitting;
pub mod foreign_devices;
pub mod known_devices;
mod measurement;
mod neighbours;
pub mod page;
mod port;
mod probe;
mod published;
mod records;
pub mod report;
mod run;
mod validation;
pub mod validation_report;
mod virtual_device;

pub use figures::{DelayFigures, DelaySamples};
pub use fitting::CalibratedRuns;
pub use measurement::{
    MeasurementCell, MeasurementResult, MeasurementSettings, RunResult, measure,
};
/// Plan of a measurement, read from TOML.
pub use profile::MeasurementPlan;
/// Family of models that a fit chooses from.
pub use profile::ModelFamily;

pub use port::{PortLocation, reply_to_frame};
pub use records::{
    RUN_ROWS_MAX, RecordDirectory, RecordEnd, RecordError, RecordSummary, RunBlock,
    write_virtual_records,
};
pub use run::{ArrivalCounts, IcmpCount, PortCounts, RunEnd, RunOutcome};
pub use validation::{
    ModelPrediction, ModelValidation, RunComparison, ValidatedModel, validate, validate_runs,
};
pub use virtual_device::{EmulatorSimulator, virtual_runs};

/// Description of the stamps, for reports.
pub const STAMPS: &str = "kernel: a frame is stamped where the kernel hands it to the driver, and where the kernel takes it from the driver; both by CLOCK_REALTIME of this host";
