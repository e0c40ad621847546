//! What a path's losses look like: how many, and in runs of what length.
//!
//! A run is a row of neighbouring packets that did not arrive. Packets are declared lost in no
//! particular order, so each looks at both its neighbours: it begins a run, lengthens one, or joins
//! two. Counts are halved as time goes on, and a verdict that was wrong is taken back.

use std::time::Duration;

use vocab::{Probability, Time};

/// Half of what was counted is forgotten after this long: some hundred packets of a slow path, and
/// soon enough for a path that changes.
const HALF_LIFE: Duration = Duration::from_secs(8);

/// Losses of late, before any repair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossEstimate {
    /// The share of packets that did not arrive.
    pub rate: Probability,
    /// The mean length of a run of lost packets; at least 1.
    pub run_length: f64,
    /// The mean time between sending the first and the last packet of a run.
    pub run_span: Duration,
    /// How many packets all this rests on.
    pub evidence: u64,
}

/// Which neighbours of a lost packet are lost as well, and how long before or after it they were
/// sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Neighbours {
    pub(super) before: Option<Duration>,
    pub(super) after: Option<Duration>,
}

impl Neighbours {
    fn count(self) -> f64 {
        f64::from(u8::from(self.before.is_some()) + u8::from(self.after.is_some()))
    }

    fn span(self) -> f64 {
        let span = self.before.unwrap_or_default() + self.after.unwrap_or_default();
        span.as_secs_f64()
    }
}

/// Counts arrivals and losses.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    arrived: f64,
    lost: f64,
    runs: f64,
    /// Of all runs together, in seconds.
    span: f64,
    halved_at: Time,
}

impl Losses {
    pub(super) fn new(now: Time) -> Self {
        Self {
            arrived: 0.0,
            lost: 0.0,
            runs: 0.0,
            span: 0.0,
            halved_at: now,
        }
    }

    pub(super) fn arrived(&mut self) {
        self.arrived += 1.0;
    }

    pub(super) fn lost(&mut self, neighbours: Neighbours) {
        self.lost += 1.0;
        self.runs += 1.0 - neighbours.count();
        self.span += neighbours.span();
    }

    /// Takes back the verdict on a packet that came after all.
    pub(super) fn spurious(&mut self, neighbours: Neighbours) {
        self.lost = (self.lost - 1.0).max(0.0);
        self.runs = (self.runs - 1.0 + neighbours.count()).max(0.0);
        self.span = (self.span - neighbours.span()).max(0.0);
        self.arrived += 1.0;
    }

    pub(super) fn age(&mut self, now: Time) {
        while now.since(self.halved_at) >= HALF_LIFE {
            for count in [
                &mut self.arrived,
                &mut self.lost,
                &mut self.runs,
                &mut self.span,
            ] {
                *count /= 2.0;
            }
            self.halved_at += HALF_LIFE;
            if self.arrived + self.lost < 1.0 {
                *self = Self::new(now);
            }
        }
    }

    pub(super) fn estimate(&self) -> LossEstimate {
        let all = self.arrived + self.lost;
        let rate = if all > 0.0 { self.lost / all } else { 0.0 };
        let runs = self.runs.max(1.0);
        LossEstimate {
            rate: Probability::from_fraction(rate).unwrap_or(Probability::ZERO),
            run_length: (self.lost / runs).max(1.0),
            run_span: Duration::try_from_secs_f64(self.span / runs).unwrap_or_default(),
            evidence: all as u64,
        }
    }
}
