//! The retransmission timer with its four meanings, of which one is set at a time.
//!
//! ```text
//!   RTO ──────────► enter_loss, back-off (RFC 6298 §5)
//!   tail probe ───► one segment ahead of the RTO (RFC 8985 §7)
//!   reordering ───► look for losses again (RFC 8985 §6.3)
//!   persist ──────► ask for the window (RFC 9293 §3.8.6.1)
//! ```

use std::time::Duration;

use vocab::Time;

use super::rtt::{TIMEOUT_INITIAL, TIMEOUT_MOST};
use super::{PendingTransmission, SendSide};
use crate::info::RecoveryPhase;
use crate::segment::SegmentPayload;

/// Time-outs without an answer after which a connection ends; Linux's tcp_retries2.
const TIMEOUTS_MOST: u32 = 15;
/// Addition to the probe timer with several segments under way: two ticks of Linux at 250 Hz.
const PROBE_SLACK: Duration = Duration::from_millis(8);

/// Meaning of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimerPurpose {
    Timeout,
    TailProbe,
    Reordering,
    Persist,
}

/// Segment that is sent whatever the congestion window says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForcedTransmission {
    TailProbe,
    WindowProbe,
}

/// Result of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerOutcome {
    /// Output may wait.
    Handled,
    /// The peer has not answered for too long.
    GivenUp,
}

/// Timer of retransmissions and probes.
#[derive(Clone, Debug)]
pub(crate) struct RetransmissionTimer {
    due: Option<(TimerPurpose, Time)>,
    forced: Option<ForcedTransmission>,
    backoff: u32,
    /// Time-outs since the last progress.
    timeouts: u32,
    ack_delay_most: Duration,
}

impl RetransmissionTimer {
    pub(crate) fn new(ack_delay_most: Duration) -> Self {
        Self {
            due: None,
            forced: None,
            backoff: 0,
            timeouts: 0,
            ack_delay_most,
        }
    }

    pub(crate) fn due(&self) -> Option<Time> {
        self.due.map(|(_, due)| due)
    }

    pub(super) fn take_forced(&mut self) -> Option<ForcedTransmission> {
        self.forced.take()
    }

    pub(super) fn forget_backoff(&mut self) {
        self.backoff = 0;
    }

    pub(super) fn on_progress(&mut self) {
        self.timeouts = 0;
    }

    pub(super) fn wait_for_reordering(&mut self, until: Time) {
        self.due = Some((TimerPurpose::Reordering, until));
    }

    pub(super) fn waits_for_reordering(&self) -> bool {
        matches!(self.due, Some((TimerPurpose::Reordering, _)))
    }

    fn backed_off(&self, timeout: Duration) -> Duration {
        timeout
            .saturating_mul(1 << self.backoff.min(16))
            .min(TIMEOUT_MOST)
    }
}

impl SendSide {
    /// Time at which [`SendSide::on_timer`] has work.
    pub(crate) fn timer_due(&self) -> Option<Time> {
        self.timer.due()
    }

    /// Retransmission time-out with its back-off.
    fn current_timeout(&self) -> Duration {
        self.timer.backed_off(self.rtt.timeout())
    }

    pub(super) fn arm_timeout(&mut self, now: Time) {
        let due = now + self.current_timeout();
        self.timer.due = Some((TimerPurpose::Timeout, due));
    }

    /// After progress: RFC 6298 §5.2 and §5.3, RFC 8985 §7.2.
    pub(super) fn set_timer_after_ack(&mut self, now: Time) {
        if self.board.is_empty() {
            self.timer.due = None;
            return;
        }
        let timeout = now + self.current_timeout();
        self.timer.due = Some(match self.probe_due(now) {
            Some(probe) => (TimerPurpose::TailProbe, probe.min(timeout)),
            None => (TimerPurpose::Timeout, timeout),
        });
    }

    /// After new data: the probe comes before the time-out of the oldest segment.
    pub(super) fn set_probe_after_burst(&mut self, now: Time) {
        let Some(probe) = self.probe_due(now) else {
            return;
        };
        let oldest = self.board.front().map_or(now, |front| front.sent);
        let timeout = (oldest + self.current_timeout()).max(now);
        self.timer.due = Some((TimerPurpose::TailProbe, probe.min(timeout)));
    }

    /// Time of a probe of the tail: RFC 8985 §7.2 (PTO), if there may be one.
    fn probe_due(&self, now: Time) -> Option<Time> {
        let may_probe = self.uses_sack
            && !self.board.is_empty()
            && matches!(
                self.recovery.phase(),
                RecoveryPhase::Open | RecoveryPhase::Reduced
            );
        if !may_probe {
            return None;
        }
        let wait = match self.rtt.smoothed() {
            None => TIMEOUT_INITIAL,
            Some(smoothed) if self.board.count() == 1 => 2 * smoothed + self.timer.ack_delay_most,
            Some(smoothed) => 2 * smoothed + PROBE_SLACK,
        };
        Some(now + wait)
    }

    pub(super) fn start_persisting(&mut self, now: Time) {
        if self.timer.due.is_none() {
            self.timer.due = Some((TimerPurpose::Persist, now + self.current_timeout()));
        }
    }

    /// Takes an opened window: the persist timer ends.
    pub(crate) fn stop_persisting(&mut self) {
        if matches!(self.timer.due, Some((TimerPurpose::Persist, _))) {
            self.timer.due = None;
            self.timer.backoff = 0;
            self.timer.timeouts = 0;
        }
    }

    /// Handles the timer if it is due.
    pub(crate) fn on_timer(&mut self, now: Time) -> TimerOutcome {
        let Some((purpose, due)) = self.timer.due else {
            return TimerOutcome::Handled;
        };
        if due > now {
            return TimerOutcome::Handled;
        }
        self.timer.due = None;
        match purpose {
            TimerPurpose::Timeout => return self.on_timeout(now),
            TimerPurpose::TailProbe if self.board.is_empty() => {}
            TimerPurpose::TailProbe => {
                if !self.recovery.probes_tail() {
                    self.timer.forced = Some(ForcedTransmission::TailProbe);
                }
                self.arm_timeout(now);
            }
            TimerPurpose::Reordering => self.on_reordering_timer(now),
            TimerPurpose::Persist => {
                if self.timer.timeouts >= TIMEOUTS_MOST {
                    return TimerOutcome::GivenUp;
                }
                self.timer.timeouts += 1;
                self.timer.backoff += 1;
                self.timer.forced = Some(ForcedTransmission::WindowProbe);
                self.timer.due = Some((TimerPurpose::Persist, now + self.current_timeout()));
            }
        }
        TimerOutcome::Handled
    }

    fn on_timeout(&mut self, now: Time) -> TimerOutcome {
        if self.board.is_empty() {
            return TimerOutcome::Handled;
        }
        if self.timer.timeouts >= TIMEOUTS_MOST {
            return TimerOutcome::GivenUp;
        }
        self.enter_loss(now, self.timer.timeouts);
        self.timer.timeouts += 1;
        self.timer.backoff += 1;
        self.arm_timeout(now);
        TimerOutcome::Handled
    }

    fn on_reordering_timer(&mut self, now: Time) {
        let lost = self.board.lost_count();
        let waits_again = self.detect_losses(now);
        if self.board.lost_count() > lost {
            let in_flight = self.board.in_flight();
            if !matches!(
                self.recovery.phase(),
                RecoveryPhase::Recovery | RecoveryPhase::Loss
            ) {
                self.enter_recovery();
                // The first retransmission goes out at once, RFC 6937 §3.
                self.window.segments = in_flight + 1;
            }
        }
        if !waits_again {
            self.arm_timeout(now);
        }
    }

    /// A new segment, or the last one again: RFC 8985 §7.3 (Loss Probe).
    pub(super) fn tail_probe(&mut self, now: Time) -> Option<PendingTransmission> {
        let number = self.board.back_number()?;
        let transmission = match self.sendable(now) {
            Some(length) => self.transmit_new(now, length),
            None => self.retransmit(now, number),
        };
        let is_retransmission =
            transmission.position < self.next && self.board.back_number() == Some(number);
        self.note_tail_probe(is_retransmission);
        self.arm_timeout(now);
        // The burst's end must not move the time-out.
        self.usage.sent_new = false;
        Some(transmission)
    }

    /// A segment that the receiver has had: its answer tells the window.
    pub(super) fn window_probe(&mut self) -> PendingTransmission {
        PendingTransmission {
            position: self.una - 1,
            payload: SegmentPayload::Empty,
            is_fin: false,
            is_push: false,
        }
    }
}
