//! One direction of a link: the models in their order, the limits on what they hold, the account.
//!
//! ```text
//!            has_room?            ends           lost?          due
//! handle ──► Bottleneck ──────────► RandomLoss ───► DelayLine ──► poll_output
//!     │ no                                │ yes
//!     └► dropped_by_queue                 └► dropped_by_loss
//! ```
//!
//! A packet moves from one model to the next at the moment at which it would, whenever the caller
//! looks: two callers that hand in the same packets at the same times see the same outcome,
//! however often they poll. Only [`Direction::poll_timeout`] is worth waking for: between the
//! line's end and the arrival nothing happens that shows outside.

use bytes::Bytes;
use vocab::{ByteCount, Random, Time};

use crate::bottleneck::Bottleneck;
use crate::config::DirectionConfig;
use crate::counters::{Counters, Tally};
use crate::delay::DelayLine;
use crate::loss::RandomLoss;

/// The most packets that one direction holds, queued and under way: what 1 Gbit/s of 250-byte
/// packets has under way in 2 s. Their book-keeping then takes about 50 MiB.
pub const HELD_PACKETS_MAX: u64 = 1 << 20;

/// The most packet bytes that one direction holds: what 2 Gbit/s has under way in 2 s.
pub const HELD_BYTES_MAX: ByteCount = ByteCount::mebibytes(512);

/// One direction of a link.
#[derive(Debug)]
pub struct Direction {
    bottleneck: Bottleneck,
    loss: RandomLoss,
    delay: DelayLine,
    counters: Counters,
    /// The latest time that any caller named; time does not run backwards in here.
    now: Time,
}

/// What became of a packet that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits in the queue or is on the line; loss may still meet it behind the line.
    Queued,
    /// It is gone.
    Dropped(DropReason),
}

/// Why a packet was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    QueueFull,
    /// The direction held [`HELD_PACKETS_MAX`] or [`HELD_BYTES_MAX`]: the emulation is not
    /// faithful from here on.
    MemoryLimit,
}

/// A packet at the far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When it arrives in the model; a caller that takes it out later is that much late.
    pub due: Time,
    /// The packet as it was handed in.
    pub packet: Bytes,
}

impl Direction {
    /// A direction with nothing in it. `random` is its own stream of chance.
    ///
    /// [`DirectionConfig::check`] says whether the model holds what `config` asks for.
    #[must_use]
    pub fn new(config: DirectionConfig, random: Random) -> Self {
        Self {
            bottleneck: Bottleneck::new(config.rate, config.queue, config.overhead),
            loss: RandomLoss::new(config.loss, random),
            delay: DelayLine::new(config.delay),
            counters: Counters::default(),
            now: Time::ZERO,
        }
    }

    /// Takes other settings from `now` on. Nothing queued or under way is dropped: the packet on
    /// the line keeps the bits it has sent, packets under way keep their arrival.
    pub fn set_config(&mut self, now: Time, config: DirectionConfig) {
        let now = self.advance(now);
        self.bottleneck
            .set(now, config.rate, config.queue, config.overhead);
        self.loss.set(config.loss);
        self.delay.set(config.delay);
    }

    /// Takes in a packet that comes to the queue at `now`.
    pub fn handle(&mut self, now: Time, packet: Bytes) -> Fate {
        let now = self.advance(now);
        let tally = Tally::one(packet.len());
        self.counters.offered += tally;
        if !self.bottleneck.has_room(packet.len()) {
            self.counters.dropped_by_queue += tally;
            return Fate::Dropped(DropReason::QueueFull);
        }
        if self.is_at_memory_limit(packet.len()) {
            self.counters.dropped_by_limit += tally;
            return Fate::Dropped(DropReason::MemoryLimit);
        }
        self.bottleneck.push(now, packet);
        Fate::Queued
    }

    /// Takes out the next packet that has arrived at the far end by `now`, in order.
    pub fn poll_output(&mut self, now: Time) -> Option<Delivery> {
        let now = self.advance(now);
        let (due, packet) = self.delay.pop(now)?;
        self.counters.delivered += Tally::one(packet.len());
        Some(Delivery { due, packet })
    }

    /// When to call [`Direction::poll_output`] next; `None` when nothing is on its way or the
    /// line stands still. There may be nothing to take out then, when the packet is lost.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.delay.next_due().or_else(|| {
            let end = self.bottleneck.next_end()?;
            Some(self.delay.arrival(end))
        })
    }

    /// When the packet on the line ends, so that the queue has room again; `None` when there is
    /// none or the line stands still. For callers who hold packets back instead of having them
    /// dropped.
    #[must_use]
    pub fn room_at(&self) -> Option<Time> {
        self.bottleneck.next_end()
    }

    /// The account as of the latest time that was named to this direction.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            queued: self.bottleneck.queued(),
            in_flight: self.delay.in_flight(),
            ..self.counters
        }
    }

    /// What waits in the queue or is on the line at `now`.
    pub fn queued(&mut self, now: Time) -> Tally {
        self.advance(now);
        self.bottleneck.queued()
    }

    /// Moves each packet whose last bit has left the line on to loss and delay.
    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        while let Some((end, packet)) = self.bottleneck.pop(self.now) {
            if self.loss.loses_next() {
                self.counters.dropped_by_loss += Tally::one(packet.len());
            } else {
                self.delay.push(end, packet);
            }
        }
        self.now
    }

    fn is_at_memory_limit(&self, length: usize) -> bool {
        let (queued, in_flight) = (self.bottleneck.queued(), self.delay.in_flight());
        queued.packets + in_flight.packets >= HELD_PACKETS_MAX
            || queued.bytes + in_flight.bytes + length as u64 > HELD_BYTES_MAX.bytes()
    }
}
