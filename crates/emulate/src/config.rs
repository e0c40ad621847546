//! What a link is set to: one [`DirectionConfig`] each way and one seed for all chance in it.

use std::time::Duration;

use thiserror::Error;
use vocab::{Bitrate, ByteCount, Probability};

/// The fastest line that the model takes: 1 Tbit/s. Above it a full-size packet lasts only a few
/// of the nanoseconds that time is counted in, and nothing that runs this model gets near.
pub const RATE_MAX: Bitrate = Bitrate::from_bits_per_second(1_000_000_000_000);

/// The longest one-way delay: 10 minutes, about a radio signal to Mars. It bounds no memory (the
/// direction's own limits do); it catches a slip of the unit.
const DELAY_MAX: Duration = Duration::from_secs(600);

/// One direction of a link.
///
/// Lengths are counted at one stated layer, for the rate and for the queue alike: the length of
/// the packet as handed in (an IP packet from its first header byte) plus [`overhead`] per packet.
///
/// [`overhead`]: DirectionConfig::overhead
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectionConfig {
    /// What the line carries per second. `None` is a line without a limit; zero is a line that
    /// stands still, as in an outage: packets wait in the queue.
    pub rate: Option<Bitrate>,
    /// From the end of a packet's serialisation to its arrival at the other end.
    pub delay: Duration,
    /// The chance that a packet is lost, each on its own. It is applied after the queue: a lost
    /// packet has taken its time on the line.
    pub loss: Probability,
    /// What the queue holds, the packet on the line included until its last bit has gone. A
    /// packet that does not fit in whole is dropped at the tail.
    pub queue: ByteCount,
    /// Added to each packet's length, for a line that is stated at a lower layer than IP: 14 for
    /// Ethernet's header, 38 with its check sum, preamble and gap.
    pub overhead: ByteCount,
}

impl Default for DirectionConfig {
    /// A wire: no limit of rate, no delay, no loss, and a queue that nothing ever waits in.
    fn default() -> Self {
        Self {
            rate: None,
            delay: Duration::ZERO,
            loss: Probability::ZERO,
            queue: ByteCount::mebibytes(1),
            overhead: ByteCount::new(0),
        }
    }
}

impl DirectionConfig {
    /// Says whether the model can be set so.
    ///
    /// # Errors
    /// When the rate or the delay is out of bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.rate.is_some_and(|rate| rate > RATE_MAX) {
            return Err(ConfigError::RateTooHigh {
                rate: self.rate.unwrap_or_default(),
            });
        }
        if self.delay > DELAY_MAX {
            return Err(ConfigError::DelayTooLong { delay: self.delay });
        }
        Ok(())
    }

    /// The bandwidth-delay product for this rate over a round trip of `round_trip`: the queue
    /// that lets one loss-based TCP connection keep the line full. Zero without a rate.
    #[must_use]
    pub fn bandwidth_delay_product(&self, round_trip: Duration) -> ByteCount {
        self.rate.unwrap_or_default().bytes_in(round_trip)
    }
}

/// A whole link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// From end A to end B.
    pub forward: DirectionConfig,
    /// From end B to end A.
    pub back: DirectionConfig,
    /// All chance in the link follows from it; the same seed and packets give the same losses.
    pub seed: u64,
}

impl LinkConfig {
    /// The same both ways.
    #[must_use]
    pub fn symmetric(direction: DirectionConfig, seed: u64) -> Self {
        Self {
            forward: direction,
            back: direction,
            seed,
        }
    }

    /// Says whether the model can be set so.
    ///
    /// # Errors
    /// When the rate or the delay of a direction is out of bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.forward.check()?;
        self.back.check()
    }
}

/// Why a link cannot be set so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Misuse: beyond [`RATE_MAX`].
    #[error(
        "a rate of {rate} is more than the model's {RATE_MAX}; leave the rate out for a line without a limit"
    )]
    RateTooHigh {
        /// What was asked for.
        rate: Bitrate,
    },
    /// Misuse: beyond 10 minutes.
    #[error("a delay of {delay:?} is more than the model's {DELAY_MAX:?}; check its unit")]
    DelayTooLong {
        /// What was asked for.
        delay: Duration,
    },
}
