//! Two directions and one seed.

use vocab::{Random, Time};

use crate::config::LinkConfig;
use crate::direction::Direction;

/// The streams of chance that follow from a link's seed; a later model takes the next pair, so
/// that what a seed gives today it gives for ever.
const STREAM_LOSS_FORWARD: u64 = 0;
const STREAM_LOSS_BACK: u64 = 1;

/// A link between an end A and an end B.
#[derive(Debug)]
pub struct Link {
    /// From A to B.
    pub forward: Direction,
    /// From B to A.
    pub back: Direction,
}

impl Link {
    /// A link with nothing in it.
    ///
    /// [`LinkConfig::check`] says whether the model holds what `config` asks for.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        let random = |stream| Random::for_stream(config.seed, stream);
        Self {
            forward: Direction::new(config.forward, random(STREAM_LOSS_FORWARD)),
            back: Direction::new(config.back, random(STREAM_LOSS_BACK)),
        }
    }

    /// Takes other settings from `now` on without losing a packet; the seed stays the first one's.
    pub fn set_config(&mut self, now: Time, config: LinkConfig) {
        self.forward.set_config(now, config.forward);
        self.back.set_config(now, config.back);
    }

    /// When to look next at either direction.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match (self.forward.poll_timeout(), self.back.poll_timeout()) {
            (Some(forward), Some(back)) => Some(forward.min(back)),
            (one, other) => one.or(other),
        }
    }
}
