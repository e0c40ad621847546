//! Loss recovery: episodes, the proportional rate reduction, and the undoing of false alarms.
//!
//! ```text
//!             SACK                  RACK finds a loss
//!   ┌────────► Disorder ───────────────┐
//!   │                                  ▼
//!  Open ─── RACK finds a loss ───► Recovery ── all acknowledged ──► Open
//!   ▲ │                                │
//!   │ └── tail probe repaired a loss ► Reduced ──► Open
//!   │            retransmission time-out from any state
//!   └── all acknowledged, or spurious (F-RTO, Eifel, DSACK) ── Loss ◄──┘
//! ```
//!
//! Sources: RFC 6675 §5 (episodes), RFC 6937 §3 and RFC 9937 (proportional rate reduction), RFC 5682 §3
//! (F-RTO with SACK), RFC 3522 and RFC 4015 (Eifel), RFC 3708 (duplicate reports), as Linux joins
//! them.

use vocab::Time;

use super::scoreboard::SentSegment;
use super::{PeerAck, SendSide};
use crate::congestion::CongestionWindow;
use crate::info::RecoveryPhase;

/// Events of one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeliveryReport {
    /// Segments that arrived.
    pub(crate) delivered: u32,
    /// The cumulative acknowledgement advanced.
    pub(crate) advanced: bool,
    /// A block reported something new.
    pub(crate) sacked: bool,
    /// The receiver reported a duplicate.
    pub(crate) duplicate: bool,
    pub(crate) is_pure: bool,
    /// A segment that was sent more than once is acknowledged.
    pub(crate) retransmission_arrived: bool,
    /// A segment that was sent once, before the time-out, arrived.
    pub(crate) original_arrived: bool,
    pub(crate) first_acknowledged_at: Option<Time>,
    pub(crate) last_acknowledged_at: Option<Time>,
    pub(crate) first_sacked_at: Option<Time>,
    pub(crate) last_sacked_at: Option<Time>,
    /// Position behind the highest sacked segment.
    pub(crate) highest: u64,
    /// Lowest position that arrived behind higher ones without being sent again.
    pub(crate) lowest_reordered: Option<u64>,
}

impl DeliveryReport {
    /// Notes a segment that was sent once.
    /// It was reordered if a segment behind `highest` had arrived before.
    pub(crate) fn note_original(&mut self, segment: &SentSegment, highest: u64, high: u64) {
        if segment.start < highest {
            let lowest = self.lowest_reordered.unwrap_or(segment.start);
            self.lowest_reordered = Some(lowest.min(segment.start));
        }
        self.original_arrived |= segment.end() <= high;
    }
}

/// Window before an episode, to return to when it was a false alarm. It outlives the episode, because a
/// report of duplicates may come later.
#[derive(Clone, Copy, Debug)]
struct UndoRecord {
    /// First position of the episode.
    start: u64,
    /// Retransmissions that no duplicate report has explained; `None` before the first one.
    unexplained: Option<u32>,
    window: u32,
    threshold: u32,
}

/// Probe of the tail that is under way, RFC 8985 §7.
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    /// Position behind the data when it was sent.
    end: u64,
    is_retransmission: bool,
}

/// State of loss recovery.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecoveryState {
    phase: RecoveryPhase,
    /// Position whose acknowledgement ends the episode.
    high: u64,
    /// RFC 6937 §2: prr_delivered, prr_out, RecoverFS.
    reduction_delivered: u32,
    reduction_sent: u32,
    window_before: u32,
    undo: Option<UndoRecord>,
    /// Millisecond of the first retransmission of the episode.
    first_retransmission: Option<u64>,
    /// The time-out may have been spurious, RFC 5682.
    doubts_timeout: bool,
    new_data_first: bool,
    tail_probe: Option<TailProbe>,
}

impl RecoveryState {
    pub(crate) fn phase(&self) -> RecoveryPhase {
        self.phase
    }

    pub(crate) fn high(&self) -> u64 {
        self.high
    }

    pub(crate) fn is_alert(&self) -> bool {
        self.phase != RecoveryPhase::Open
    }

    pub(crate) fn is_reducing(&self) -> bool {
        matches!(self.phase, RecoveryPhase::Reduced | RecoveryPhase::Recovery)
    }

    pub(crate) fn probes_tail(&self) -> bool {
        self.tail_probe.is_some()
    }

    /// New data go before retransmissions, RFC 5682 §3.1 step 2.
    pub(crate) fn prefers_new_data(&self) -> bool {
        self.new_data_first
    }

    /// There are no new data: retransmissions go on. `true` if they were held back.
    pub(crate) fn gives_up_new_data(&mut self) -> bool {
        if !self.new_data_first {
            return false;
        }
        self.new_data_first = false;
        self.doubts_timeout = false;
        true
    }

    pub(crate) fn note_sent(&mut self) {
        if self.is_reducing() {
            self.reduction_sent += 1;
        }
    }

    pub(crate) fn note_retransmission(&mut self, now: Time) {
        self.first_retransmission
            .get_or_insert(now.as_nanos() / 1_000_000);
        if let Some(undo) = &mut self.undo {
            undo.unexplained = Some(undo.unexplained.unwrap_or(0) + 1);
        }
    }

    /// Sets the window so that it shrinks in step with what arrives: RFC 6937 §3, with the slow-start
    /// bound only while each acknowledgement brings progress without a new loss (RFC 9937).
    pub(crate) fn reduce_proportionally(
        &mut self,
        window: &mut CongestionWindow,
        in_flight: u32,
        report: &DeliveryReport,
        newly_lost: u32,
    ) {
        if report.delivered == 0 || self.window_before == 0 {
            return;
        }
        self.reduction_delivered += report.delivered;
        let allowed = if in_flight > window.threshold {
            let share = u64::from(window.threshold) * u64::from(self.reduction_delivered);
            let share = share.div_ceil(u64::from(self.window_before));
            share.saturating_sub(u64::from(self.reduction_sent)) as u32
        } else {
            let behind = self.reduction_delivered.saturating_sub(self.reduction_sent);
            let mut allowed = behind.max(report.delivered);
            if report.advanced && newly_lost == 0 {
                allowed += 1;
            }
            allowed.min(window.threshold - in_flight)
        };
        // The first retransmission goes out at once.
        let least = u32::from(self.reduction_sent == 0);
        window.segments = in_flight + allowed.max(least);
    }

    fn start_reduction(&mut self, window: &mut CongestionWindow, next: u64) {
        self.high = next;
        self.tail_probe = None;
        self.reduction_delivered = 0;
        self.reduction_sent = 0;
        self.window_before = window.segments;
        window.threshold = window.reduced_threshold();
    }

    /// Tells whether the first retransmission was sent after the segment that is acknowledged now.
    fn retransmission_was_needless(&self, ack: &PeerAck<'_>) -> bool {
        match (ack.echo, self.first_retransmission) {
            (Some((echo, _)), Some(first)) => echo < first,
            _ => false,
        }
    }

    fn may_undo(&self, ack: &PeerAck<'_>) -> bool {
        self.undo.is_some_and(|undo| {
            undo.unexplained == Some(0) || self.retransmission_was_needless(ack)
        })
    }
}

impl SendSide {
    /// Reads the report of a duplicate, which stands in the first block (RFC 2883 §4).
    pub(super) fn take_duplicates(&mut self, ack: &PeerAck<'_>, report: &mut DeliveryReport) {
        let Some((start, end)) = ack.blocks.first().copied() else {
            return;
        };
        let is_inside_next = ack
            .blocks
            .get(1)
            .is_some_and(|second| second.0 <= start && end <= second.1);
        if end <= start || !(end <= ack.position || is_inside_next) {
            return;
        }
        report.duplicate = true;
        self.rack.on_duplicate(self.una, self.next);
        if let Some(undo) = &mut self.recovery.undo
            && end > undo.start
        {
            let segments = u32::try_from((end - start).div_ceil(u64::from(self.mss))).unwrap_or(1);
            undo.unexplained = undo.unexplained.map(|count| count.saturating_sub(segments));
        }
    }

    /// Moves the state after an acknowledgement; `true` if RACK has set the timer.
    pub(super) fn recover(
        &mut self,
        now: Time,
        una_before: u64,
        ack: &PeerAck<'_>,
        report: &mut DeliveryReport,
    ) -> bool {
        if self.una >= self.recovery.high {
            match self.recovery.phase {
                RecoveryPhase::Reduced if self.una > self.recovery.high => {
                    self.end_reduction();
                    self.recovery.phase = RecoveryPhase::Open;
                }
                RecoveryPhase::Recovery => {
                    self.end_episode(ack);
                    self.end_reduction();
                }
                RecoveryPhase::Open
                | RecoveryPhase::Disorder
                | RecoveryPhase::Reduced
                | RecoveryPhase::Loss => {}
            }
        }
        match self.recovery.phase {
            RecoveryPhase::Recovery => {
                let needless = report.advanced
                    && una_before < self.una
                    && self.recovery.undo.is_some()
                    && self.recovery.retransmission_was_needless(ack);
                let explained = self
                    .recovery
                    .undo
                    .is_some_and(|undo| undo.unexplained == Some(0));
                if needless && self.board.resent_count() == 0 {
                    self.undo_reduction(true);
                    self.recovery.phase = self.calm_phase();
                } else if explained {
                    self.undo_reduction(false);
                    self.recovery.phase = self.calm_phase();
                }
                let set = self.detect_losses_after_ack(now);
                if self.recovery.phase != RecoveryPhase::Recovery && self.board.lost_count() > 0 {
                    self.enter_recovery();
                }
                set
            }
            RecoveryPhase::Loss => {
                self.recovery.new_data_first = false;
                let lost_before = self.board.lost_count();
                if self.recover_from_timeout(ack, report) {
                    return false;
                }
                let set = self.detect_losses_after_ack(now);
                if self.recovery.phase == RecoveryPhase::Open
                    && self.board.lost_count() > lost_before
                {
                    self.enter_recovery();
                }
                set
            }
            RecoveryPhase::Open | RecoveryPhase::Disorder | RecoveryPhase::Reduced => {
                if self
                    .recovery
                    .undo
                    .is_some_and(|undo| undo.unexplained == Some(0))
                    && self.recovery.phase != RecoveryPhase::Reduced
                {
                    self.undo_reduction(false);
                }
                let set = self.detect_losses_after_ack(now);
                if self.board.lost_count() > 0 {
                    self.enter_recovery();
                } else if self.recovery.phase != RecoveryPhase::Reduced {
                    self.recovery.phase = self.calm_phase();
                    if self.recovery.phase == RecoveryPhase::Open {
                        self.recovery.first_retransmission = None;
                    }
                }
                set
            }
        }
    }

    fn calm_phase(&self) -> RecoveryPhase {
        if self.board.sacked_count() > 0 {
            RecoveryPhase::Disorder
        } else {
            RecoveryPhase::Open
        }
    }

    /// Looks for losses if the acknowledgement brought news.
    fn detect_losses_after_ack(&mut self, now: Time) -> bool {
        self.rack.takes_news() && self.detect_losses(now)
    }

    /// Looks for losses; `true` if the timer now waits for the reordering window.
    pub(super) fn detect_losses(&mut self, now: Time) -> bool {
        if !self.uses_sack {
            return false;
        }
        let is_recovering = matches!(
            self.recovery.phase,
            RecoveryPhase::Recovery | RecoveryPhase::Loss
        );
        let times = self.rack_times();
        let (_, again) = self.rack.detect(now, &mut self.board, is_recovering, times);
        if let Some(again) = again {
            self.timer.wait_for_reordering(again);
        }
        again.is_some()
    }

    /// Starts an episode: RFC 6675 §5 step (4).
    pub(super) fn enter_recovery(&mut self) {
        let threshold = self.window.current_threshold();
        let was_reducing = self.recovery.is_reducing();
        self.recovery.undo = Some(UndoRecord {
            start: self.una,
            unexplained: Some(self.board.resent_count()).filter(|count| *count > 0),
            window: self.window.segments,
            threshold: if was_reducing { 0 } else { threshold },
        });
        if !was_reducing {
            self.recovery.start_reduction(&mut self.window, self.next);
        }
        self.recovery.phase = RecoveryPhase::Recovery;
        self.counters.recoveries += 1;
    }

    /// Ends an episode whose data are all acknowledged.
    fn end_episode(&mut self, ack: &PeerAck<'_>) {
        if self.recovery.may_undo(ack) {
            self.undo_reduction(false);
        } else {
            self.rack.on_recovered();
        }
        self.recovery.phase = RecoveryPhase::Open;
        self.recovery.doubts_timeout = false;
    }

    /// The window is the threshold after a reduction, RFC 6937 §3.
    fn end_reduction(&mut self) {
        let is_real = self.recovery.phase == RecoveryPhase::Reduced || self.recovery.undo.is_some();
        if is_real && self.window.threshold < u32::MAX {
            self.window.segments = self.window.threshold;
        }
    }

    /// Returns to the window before the episode, RFC 4015 §3.2.
    fn undo_reduction(&mut self, forgives: bool) {
        if forgives {
            self.board.forgive_losses();
        }
        if let Some(undo) = self.recovery.undo.take() {
            self.window.undo(undo.window, undo.threshold);
            self.counters.undone += 1;
        }
        self.recovery.first_retransmission = None;
        self.rack.on_undo();
    }

    /// Starts again after a time-out: RFC 5681 §3.1 equation (4), RFC 6298 §5.4 and §5.5.
    pub(super) fn enter_loss(&mut self, now: Time, timeouts_before: u32) {
        let reneged = self.board.front().is_some_and(|front| front.sacked);
        if reneged {
            self.board.renege();
        }
        self.mark_overdue(now, reneged);
        let is_new = !matches!(
            self.recovery.phase,
            RecoveryPhase::Recovery | RecoveryPhase::Loss
        );
        let reduces = is_new
            || self.una >= self.recovery.high
            || (self.recovery.phase == RecoveryPhase::Loss && timeouts_before == 0);
        if reduces {
            self.recovery.undo = Some(UndoRecord {
                start: self.una,
                unexplained: Some(self.board.resent_count()).filter(|count| *count > 0),
                window: self.window.segments,
                threshold: self.window.current_threshold(),
            });
            self.window.threshold = self.window.reduced_threshold();
        }
        self.window.on_timeout(self.board.in_flight());
        self.recovery.phase = RecoveryPhase::Loss;
        self.recovery.high = self.next;
        self.recovery.tail_probe = None;
        self.recovery.doubts_timeout = is_new || timeouts_before > 0;
        self.recovery.new_data_first = false;
        self.counters.timeouts += 1;
    }

    /// Counts the first segment and all that are older than an RTT as lost.
    fn mark_overdue(&mut self, now: Time, all: bool) {
        let Some(back) = self.board.back_number() else {
            return;
        };
        let first = back + 1 - u64::from(self.board.count());
        for number in first..=back {
            let is_lost = self.board.get(number).is_some_and(|segment| {
                number == first || all || self.rack.is_overdue(now, segment)
            });
            if is_lost {
                self.board.mark_lost(number);
            }
        }
    }

    /// RFC 5682 §3.1 (SACK-enhanced F-RTO). `true` if nothing is left to do for this acknowledgement.
    fn recover_from_timeout(&mut self, ack: &PeerAck<'_>, report: &DeliveryReport) -> bool {
        let is_recovered = self.una >= self.recovery.high;
        if report.advanced && self.recovery.may_undo(ack) {
            self.leave_spurious_timeout();
            return true;
        }
        if self.recovery.doubts_timeout {
            // Step 3.b: data that was sent once has arrived.
            if report.original_arrived {
                self.leave_spurious_timeout();
                return true;
            }
            if self.next > self.recovery.high {
                // Step 3.a: the time-out was real.
                if report.sacked || (report.is_pure && !report.advanced) {
                    self.recovery.doubts_timeout = false;
                }
            } else if report.advanced && !is_recovered {
                // Step 2.b: send new data and see.
                self.recovery.high = self.next;
                self.recovery.new_data_first = true;
                return true;
            }
        }
        if is_recovered {
            self.end_episode(ack);
        }
        false
    }

    fn leave_spurious_timeout(&mut self) {
        self.undo_reduction(true);
        self.recovery.phase = self.calm_phase();
        self.recovery.doubts_timeout = false;
        self.recovery.new_data_first = false;
    }

    /// Notes a probe of the tail.
    pub(super) fn note_tail_probe(&mut self, is_retransmission: bool) {
        self.recovery.tail_probe = Some(TailProbe {
            end: self.next,
            is_retransmission,
        });
        self.counters.tail_probes += 1;
    }

    /// Judges a probe of the tail: RFC 8985 §7.4.2 (Detecting Losses Using TLP).
    pub(super) fn end_tail_probe(&mut self, ack: &PeerAck<'_>, report: &DeliveryReport) {
        let Some(probe) = self.recovery.tail_probe else {
            return;
        };
        if ack.position < probe.end {
            return;
        }
        let is_repair = probe.is_retransmission
            && !report.duplicate
            && (ack.position > probe.end || report.advanced);
        if !probe.is_retransmission || report.duplicate || !is_repair {
            self.recovery.tail_probe = None;
            return;
        }
        if ack.position > probe.end {
            // The probe filled a hole: the loss counts as congestion.
            self.recovery.tail_probe = None;
            if !self.recovery.is_alert() {
                self.recovery.start_reduction(&mut self.window, self.next);
                self.recovery.undo = None;
                self.recovery.phase = RecoveryPhase::Reduced;
                self.end_reduction();
                self.recovery.phase = self.calm_phase();
            }
        }
    }
}
