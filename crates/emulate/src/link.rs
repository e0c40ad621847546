//! Two directions and one seed.

use vocab::{SeededRandom, Time};

use crate::config::LinkConfig;
use crate::direction::LinkDirection;

/// The directions' numbers, by which their seeds follow from the link's.
const FORWARD: u64 = 0;
const BACK: u64 = 1;

/// A link between an end A and an end B.
#[derive(Debug)]
pub struct Link {
    /// Direction from A to B.
    pub forward: LinkDirection,
    /// Direction from B to A.
    pub back: LinkDirection,
}

impl Link {
    /// Makes an empty link.
    ///
    /// [`LinkConfig::check`] tells whether the model can use `config`.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        let seed = |way| SeededRandom::for_stream(config.seed, way).next_u64();
        Self {
            forward: LinkDirection::new(config.forward, seed(FORWARD)),
            back: LinkDirection::new(config.back, seed(BACK)),
        }
    }

    /// Takes other settings from `now` on without losing a packet; the seed stays the first one's.
    pub fn set_config(&mut self, now: Time, config: LinkConfig) {
        self.forward.set_config(now, config.forward);
        self.back.set_config(now, config.back);
    }

    /// Time of the next event in either direction.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match (self.forward.poll_timeout(), self.back.poll_timeout()) {
            (Some(forward), Some(back)) => Some(forward.min(back)),
            (one, other) => one.or(other),
        }
    }
}
