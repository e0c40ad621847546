//! Errors of a link configuration, each with the nearest accepted value, and the bounds that they
//! name.

use std::time::Duration;

use thiserror::Error;
use vocab::{Bitrate, ByteCount};

/// The fastest line that the model takes: 1 Tbit/s. Above it a full-size packet lasts only a few
/// of the nanoseconds that time is counted in, and nothing that runs this model gets near.
pub const RATE_MAX: Bitrate = Bitrate::from_bits_per_second(1_000_000_000_000);

/// The longest one-way delay: 10 minutes, about a radio signal to Mars. It bounds no memory (the
/// direction's own limits do); it catches a slip of the unit.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(600);

/// A log-normal tail beyond this is no jitter: one packet in a thousand would take 500,000 times
/// the median.
pub(crate) const LOG_SIGMA_MAX: f64 = 4.0;

/// Why a link cannot be set so: always misuse, with the nearest thing that would work.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ConfigError {
    /// The rate exceeds [`RATE_MAX`].
    #[error(
        "a rate of {rate} is more than the model's {RATE_MAX}; leave the rate out for a line without a limit"
    )]
    RateTooHigh {
        /// The requested rate.
        rate: Bitrate,
    },
    /// The delay exceeds 10 minutes.
    #[error("a delay of {delay:?} is more than the model's {DELAY_MAX:?}; check its unit")]
    DelayTooLong {
        /// The requested delay.
        delay: Duration,
    },
    /// A queue that nothing fits into.
    #[error(
        "a queue of zero lets nothing pass, because the packet on the line counts too; the least is 1 packet"
    )]
    QueueOfZero,
    /// The queue has no limit.
    #[error("a queue needs a limit in bytes, in packets or in time")]
    QueueWithoutLimit,
    /// A time limit on a line without a rate.
    #[error(
        "a queue limited in time needs a rate to tell time by; set a rate, or limit it in bytes or packets"
    )]
    TimeLimitWithoutRate,
    /// A time limit on a trace.
    #[error(
        "a queue limited in time needs a steady rate and a trace has none; limit it in bytes or packets"
    )]
    TimeLimitWithTrace,
    /// A discipline that would divide by zero or never rest.
    #[error("{name} needs {what}")]
    ZeroInDiscipline {
        /// Name of the discipline.
        name: &'static str,
        /// The names that are accepted.
        what: &'static str,
    },
    /// A discipline that would hardly ever act, or the wrong way.
    #[error("{what} of {span:?} is too long; use {most:?} or less")]
    DisciplineTooSlow {
        /// The setting, with the name of its discipline.
        what: &'static str,
        /// The requested time span.
        span: Duration,
        /// The greatest accepted value.
        most: Duration,
    },
    /// RED's settings contradict each other.
    #[error(
        "RED needs minimum below maximum and a weight above 0 and up to 1; got {minimum}, {maximum} and {weight}"
    )]
    RedOutOfOrder {
        /// The requested minimum.
        minimum: ByteCount,
        /// The requested maximum.
        maximum: ByteCount,
        /// The requested weight.
        weight: f64,
    },
    /// A bucket that never fills.
    #[error("a {what} needs a rate above zero; for an outage use a rate of 0 or a schedule")]
    BucketWithoutRate {
        /// Shaper or policer.
        what: &'static str,
    },
    /// A bucket that a full-size packet does not fit into.
    #[error("a {what}'s burst of {burst} lets no full-size packet pass; make it {least} or more")]
    BurstBelowPacket {
        /// Shaper or policer.
        what: &'static str,
        /// The requested burst.
        burst: ByteCount,
        /// The least accepted value.
        least: ByteCount,
    },
    /// A peak that contradicts the rate.
    #[error(
        "a {what}'s peak of {peak} is below its rate of {rate}; leave the peak out or raise it"
    )]
    PeakBelowRate {
        /// Shaper or policer.
        what: &'static str,
        /// The requested peak rate.
        peak: Bitrate,
        /// The requested rate.
        rate: Bitrate,
    },
    /// A mean burst below one packet.
    #[error("a mean burst of {burst} packets cannot be; the least is 1")]
    BurstTooShort {
        /// The requested mean burst length.
        burst: f64,
    },
    /// A loss rate that these bursts cannot reach.
    #[error(
        "bursts of {burst} packets, each followed by at least one that passes, lose at most {:.1}% of all; lower the rate or lengthen the bursts",
        most * 100.0
    )]
    BurstTooRare {
        /// The requested mean burst length.
        burst: f64,
        /// The highest share that would work.
        most: f64,
    },
    /// A loss list that contradicts its period.
    #[error("packet {packet} of the loss list is beyond its period of {period} packets")]
    LossBeyondPeriod {
        /// The packet's number.
        packet: u64,
        /// The period.
        period: u64,
    },
    /// A Pareto distribution without a mean.
    #[error("a Pareto distribution of shape {shape} has no mean; use a shape above 1, such as 3")]
    ParetoShape {
        /// The requested shape.
        shape: f64,
    },
    /// A log-normal distribution that is no jitter.
    #[error("a log-normal sigma of {sigma} is out of bounds; use 0 to {LOG_SIGMA_MAX}")]
    LogNormalSigma {
        /// The requested sigma.
        sigma: f64,
    },
    /// A schedule that goes back in time or never rests.
    #[error("{0}")]
    Schedule(String),
}
