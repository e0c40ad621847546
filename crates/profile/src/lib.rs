//! Black-box device profiler without ports: plan, traffic, records, fitted model, validation.
//!
//! ```text
//!  MeasurementPlan ─► runs ─► TrafficMachine ─► packets ─► ports ─► device ─► ports ─┐
//!   plan.toml                      ▲  │                                              │
//!                                  └──┼──────────── received packets ◄───────────────┘
//!                                     ▼
//!                               PacketRecord ─► fit ─► DeviceModel with intervals ─► validate
//!                                                       device.toml                  held-out runs
//! ```
//!
//! Time, chance and packets come from outside, so the same plan measures a real device through
//! ports and an emulated one in virtual time. The emulator is not a part of this crate: whoever
//! validates a model hands in a [`DeviceSimulator`].

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod calibration;
mod column_head;
mod fit;
mod plan;
mod record;
mod simulator;
mod traffic;
mod validate;

pub use calibration::{CableCalibration, CableDelay};
pub use column_head::{COLUMN_HEAD_MAX, ColumnHead, ColumnHeadError};
pub use fit::{
    DeviceFit, FitError, FitOptions, FittedParameter, ModelFamily, ParameterKind, PortTransit,
    fit_device, slower_port_pairs,
};
pub use plan::{
    AddressFamily, EXPERIMENTS_MAX, ExperimentPlan, ExperimentPurpose, FLOWS_MAX,
    IPV6_PACKET_SIZE_MIN, MeasurementPlan, MeasurementSubject, PACKET_SIZE_MAX, PACKET_SIZE_MIN,
    PACKETS_MAX, PLAN_PORTS_MAX, PlanError, RUNS_MAX, RunPlan, SizeShare, TrafficPattern,
    TrafficPlan,
};
pub use record::{MeasuredRun, OWN_LOSS_MAX, PacketFate, PacketRecord, TrafficSummary};
pub use simulator::{DeviceSimulator, SimulatedPacket};
pub use traffic::{
    ArrivalOrigin, FlowEndpoints, OUTSTANDING_MAX, OutgoingPacket, PacketContent, PacketIntegrity,
    ReceivedPacket, TrafficMachine, device_address, emulated_endpoints, is_emulated, subnet_port,
};
pub use validate::{
    FlowGoodputErrors, PacketPrediction, RunScore, TransferFigures, held_out_runs, predict_run,
    score_predictions, score_run,
};
