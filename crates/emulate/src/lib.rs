//! Link models: rate, delay, loss, queues and more, in real or virtual time.
//!
//! A [`Link`] is two independent [`LinkDirection`]s. A packet passes its models in this order:
//!
//! ```text
//! handle ─► policer ─► queue ─► line ─► loss ─► corruption, ─► delay, jitter, ─► poll_output
//!                      limit,   rate,   random, duplication    reordering
//!                      AQM      shaper, bursts,
//!                               trace   list
//!           token_     queue/   line.rs impairments.rs         delay.rs
//!           bucket.rs
//! ```
//!
//! Time and random numbers come from outside, so the same models carry the packets of a lab in real
//! time and those of a test in virtual time. The random impairments of a packet follow from the
//! seed and the packet's number alone. Settings may change while packets are in flight, by hand or
//! by a [`LinkSchedule`]. A later model (a router as the profiler fits it) replaces queue and line:
//! `bottleneck.rs` shows the interface that it must offer.
//!
//! It opens no device and reads no clock. Of a packet it reads only the length and, for active
//! queue management, the two ECN bits (`ecn.rs`).

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bottleneck;
mod config;
mod config_error;
mod counters;
mod delay;
mod device;
mod direction;
mod ecn;
mod impairments;
mod line;
mod link;
mod memory;
mod packet;
mod queue;
mod schedule;
mod token_bucket;
mod trace;
#[cfg(test)]
mod vectors;

pub use config::{
    CoDelConfig, DirectionConfig, EcnMode, GilbertElliott, JitterConfig, JitterDistribution,
    LineConfig, LinkConfig, LinkFraming, LossList, LossModel, PacketOrder, PeakBucket, PieConfig,
    QueueConfig, QueueDiscipline, QueueLimit, RedConfig, ReorderingConfig, TokenBucket,
};
pub use config_error::{ConfigError, RATE_MAX};
pub use counters::{DirectionCounters, TrafficCount};
pub use device::{DeviceCounters, DeviceDelivery, DeviceDrop, DeviceDropReason, EmulatedDevice};
pub use direction::{
    EnqueueOutcome, LinkDirection, PacketDelivery, PacketOutcome, PacketRecord, RECORDS_MAX,
};
pub use link::Link;
pub use memory::{
    HELD_BYTES_MAX, HELD_PACKETS_MAX, MemoryLimits, UNTAKEN_BYTES_MAX, UNTAKEN_PACKETS_MAX,
};
pub use packet::DropReason;
pub use schedule::{LinkSchedule, STEPS_MAX, ScheduleStep, SettingsChange};
pub use trace::{DeliveryTrace, OPPORTUNITIES_MAX, OPPORTUNITY, TraceError};
