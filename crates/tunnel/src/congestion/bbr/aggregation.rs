//! Aggregation of acknowledgements: bytes acknowledged at once beyond the expected amount, because
//! the path or the receiver batches packets or acknowledgements ("BBR.extra_acked"). That much more
//! must be in flight to keep sending until the next acknowledgement.

use vocab::Time;

/// Rounds over which the greatest extra is remembered (BBR.ExtraAckedFilterLen).
const FILTER_ROUNDS: u64 = 10;

/// Measures aggregation.
#[derive(Clone, Copy, Debug)]
pub(in crate::congestion) struct AckAggregation {
    since: Time,
    delivered: u64,
    /// Greatest extra of this half of the filter's length, and of the one before.
    extra: [u64; 2],
    half_began: u64,
}

impl AckAggregation {
    pub(in crate::congestion) fn new(now: Time) -> Self {
        Self {
            since: now,
            delivered: 0,
            extra: [0; 2],
            half_began: 0,
        }
    }

    /// Restarts after a pause, whose length is no property of the path.
    pub(in crate::congestion) fn restart(&mut self, now: Time) {
        self.since = now;
        self.delivered = 0;
    }

    /// Takes in `acked` bytes on a path that delivers `rate` bytes per second.
    pub(in crate::congestion) fn update(
        &mut self,
        now: Time,
        rate: f64,
        acked: u64,
        window: u64,
        round: u64,
        is_pipe_full: bool,
    ) {
        let expected = (rate * now.since(self.since).as_secs_f64()) as u64;
        let expected = if self.delivered <= expected {
            self.restart(now);
            0
        } else {
            expected
        };
        self.delivered += acked;
        let half = if is_pipe_full { FILTER_ROUNDS / 2 } else { 1 };
        if round >= self.half_began + half {
            self.half_began = round;
            self.extra = [0, self.extra[0]];
        }
        let extra = self.delivered.saturating_sub(expected).min(window);
        self.extra[0] = self.extra[0].max(extra);
    }

    /// Bytes to allow in flight on top.
    pub(in crate::congestion) fn extra(&self) -> u64 {
        self.extra[0].max(self.extra[1])
    }
}
