//! Link models: rate, delay, loss, queues and more, in whatever time they are handed.
//!
//! A [`Link`] is two independent [`LinkDirection`]s. A packet passes its models in this order:
//!
//! ```text
//! handle ─► policer ─► queue ─► line ─► loss ─► corruption, ─► delay, jitter, ─► poll_output
//!                      limit,   rate,   random, duplication    reordering
//!                      AQM      shaper, bursts,
//!                               trace   list
//!           token_     queue/   line.rs misfortune.rs          delay.rs
//!           bucket.rs
//! ```
//!
//! Time and chance come in from outside, so the same models carry the packets of a lab in real
//! time and those of a test in virtual time. What chance does to a packet follows from the seed
//! and from the packet's number alone. Settings may change while packets are under way, by hand
//! or by a [`LinkSchedule`]. A later model (a router as the profiler fits it) takes the place of queue
//! and line: `bottleneck.rs` is what it has to offer.
//!
//! It opens no device and reads no clock, and looks at nothing in a packet but its length and,
//! for active queue management, its two bits of congestion notification (`ecn.rs`).

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bottleneck;
mod config;
mod config_error;
mod counters;
mod delay;
mod direction;
mod ecn;
mod line;
mod link;
mod memory;
mod misfortune;
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
