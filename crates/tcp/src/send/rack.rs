//! Loss by time: RACK, RFC 8985 §6, with the reordering window of Linux.

use std::time::Duration;

use vocab::Time;

use super::scoreboard::{SendScoreboard, SentSegment};

/// Segments that arrive behind a gap before it counts as a loss, RFC 6675 §2 (DupThresh).
pub(crate) const REORDERING_INITIAL: u32 = 3;
/// Greatest reordering that is believed, in segments (tcp_max_reordering).
const REORDERING_MOST: u32 = 300;
/// Recoveries for which a wider reordering window persists, RFC 8985 §6.2 step 4.
const WINDOW_PERSISTS: u32 = 16;
/// Greatest multiple of a quarter of the least RTT.
const WINDOW_STEPS_MOST: u32 = 255;
/// Least wait for a reordering window's end; Linux's TCP_TIMEOUT_MIN.
const WAIT_LEAST: Duration = Duration::from_millis(2);

/// State of RACK.
#[derive(Clone, Debug)]
pub(crate) struct RackDetector {
    /// The segment that was sent last among those that arrived: its time and rank, and its RTT.
    newest: Option<(Time, u64)>,
    rtt: Duration,
    /// Reordering in segments, and the number of times that it was seen.
    reordering: u32,
    reorderings_seen: u32,
    /// A segment arrived, or a reduction was undone, since the last look for losses.
    has_news: bool,
    window_steps: u32,
    persists: u32,
    /// A wider window was set already for data below this position.
    widened_until: u64,
}

impl RackDetector {
    pub(crate) fn new() -> Self {
        Self {
            newest: None,
            rtt: Duration::ZERO,
            reordering: REORDERING_INITIAL,
            reorderings_seen: 0,
            has_news: false,
            window_steps: 1,
            persists: 0,
            widened_until: 0,
        }
    }

    pub(crate) fn reorderings_seen(&self) -> u32 {
        self.reorderings_seen
    }

    pub(crate) fn has_more_than_usual_reordering(&self) -> bool {
        self.reordering > REORDERING_INITIAL
    }

    /// Takes a segment that arrived: RFC 8985 §6.2 steps 1 and 2.
    pub(crate) fn on_delivered(
        &mut self,
        now: Time,
        segment: &SentSegment,
        least: Option<Duration>,
    ) {
        let rtt = now.since(segment.sent);
        // The acknowledgement may be for an earlier transmission.
        if segment.ambiguous && least.is_some_and(|least| rtt < least) {
            return;
        }
        self.rtt = rtt;
        self.has_news = true;
        if self.newest.is_none_or(|(_, order)| segment.order > order) {
            self.newest = Some((segment.sent, segment.order));
        }
    }

    /// Tells whether an acknowledgement is a reason to look for losses, and takes note of the look.
    pub(crate) fn takes_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Notes that a reduction was undone: which segments are lost must be judged again.
    pub(crate) fn on_undo(&mut self) {
        self.has_news = true;
    }

    /// Notes a segment that arrived after others that were sent later: RFC 8985 §6.2 step 3.
    pub(crate) fn on_reordering(&mut self, distance: u64, mss: u32) {
        let segments = distance.div_ceil(u64::from(mss.max(1)));
        let segments = u32::try_from(segments).unwrap_or(REORDERING_MOST);
        self.reordering = self.reordering.max(segments.min(REORDERING_MOST));
        self.reorderings_seen += 1;
    }

    /// Notes that the receiver had a segment twice: the window was too narrow, RFC 8985 §6.2 step 4.
    pub(crate) fn on_duplicate(&mut self, una: u64, next: u64) {
        if una < self.widened_until {
            return;
        }
        self.window_steps = (self.window_steps + 1).min(WINDOW_STEPS_MOST);
        self.persists = WINDOW_PERSISTS;
        self.widened_until = next;
    }

    /// Notes the end of a loss episode.
    pub(crate) fn on_recovered(&mut self) {
        self.persists = self.persists.saturating_sub(1);
        if self.persists == 0 {
            self.window_steps = 1;
        }
    }

    fn window(&self, is_recovering: bool, sacked: u32, times: RackTimes) -> Duration {
        if self.reorderings_seen == 0 && (is_recovering || sacked >= self.reordering) {
            return Duration::ZERO;
        }
        (times.least.unwrap_or_default() / 4 * self.window_steps)
            .min(times.smoothed.unwrap_or_default())
    }

    /// Marks lost segments: RFC 8985 §6.2 step 5. Returns their number, and the time to look again.
    pub(crate) fn detect(
        &self,
        now: Time,
        board: &mut SendScoreboard,
        is_recovering: bool,
        times: RackTimes,
    ) -> (u32, Option<Time>) {
        let Some((_, newest_order)) = self.newest else {
            return (0, None);
        };
        let window = self.window(is_recovering, board.sacked_count(), times);
        let patience = self.rtt + window;
        let mut wait = Duration::ZERO;
        let lost = board.mark_by_time(|segment| {
            if segment.order >= newest_order {
                return None;
            }
            let remaining = patience.saturating_sub(now.since(segment.sent));
            wait = wait.max(remaining);
            Some(remaining.is_zero())
        });
        let again = (!wait.is_zero()).then(|| now + wait + WAIT_LEAST);
        (lost, again)
    }

    /// Tells whether a segment may be counted as lost at a time-out: it is old enough.
    pub(crate) fn is_overdue(&self, now: Time, segment: &SentSegment) -> bool {
        now.since(segment.sent) >= self.rtt
    }
}

/// RTTs that the reordering window follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RackTimes {
    pub(crate) least: Option<Duration>,
    pub(crate) smoothed: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const TIMES: RackTimes = RackTimes {
        least: Some(Duration::from_millis(40)),
        smoothed: Some(Duration::from_millis(40)),
    };

    fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    /// Segments sent one millisecond after the other; those from `first` on arrive at `now`.
    fn after_sacks(rack: &mut RackDetector, first: u64, count: u64, now: Time) -> SendScoreboard {
        let mut board = SendScoreboard::default();
        for index in 0..10 {
            board.push(at(index), index * 100, 100);
        }
        board.sack(first * 100, (first + count) * 100, |segment| {
            rack.on_delivered(now, segment, None);
        });
        board
    }

    #[test]
    fn three_segments_behind_a_gap_make_a_loss() {
        let mut rack = RackDetector::new();
        let mut board = after_sacks(&mut rack, 1, 3, at(43));
        let (lost, again) = rack.detect(at(43), &mut board, false, TIMES);
        assert_eq!((lost, again, board.next_lost()), (1, None, Some(0)));
    }

    #[test]
    fn one_segment_behind_a_gap_starts_the_window() {
        let mut rack = RackDetector::new();
        let mut board = after_sacks(&mut rack, 1, 1, at(41));
        let (lost, again) = rack.detect(at(41), &mut board, false, TIMES);
        assert_eq!(lost, 0);
        // A quarter of the least RTT after the RTT of the one that arrived, and Linux's 2 ms.
        assert_eq!(again, Some(at(40 + 10 + 2)));
        let (lost, again) = rack.detect(at(52), &mut board, false, TIMES);
        assert_eq!((lost, again), (1, None));
    }

    #[test]
    fn reordering_keeps_the_window_after_three_segments() {
        let mut rack = RackDetector::new();
        rack.on_reordering(500, 100);
        let mut board = after_sacks(&mut rack, 1, 5, at(45));
        let (lost, again) = rack.detect(at(45), &mut board, false, TIMES);
        assert_eq!(lost, 0);
        assert!(again.is_some());
    }

    #[test]
    fn a_lost_retransmission_is_found_by_later_segments() {
        let mut rack = RackDetector::new();
        let mut board = after_sacks(&mut rack, 1, 3, at(43));
        rack.detect(at(43), &mut board, false, TIMES);
        board.resend(at(44), 0);
        board.push(at(45), 1_000, 100);
        board.sack(1_000, 1_100, |segment| {
            rack.on_delivered(at(85), segment, Some(40 * MILLISECOND))
        });
        let (lost, _) = rack.detect(at(85), &mut board, true, TIMES);
        // The retransmission, and those sent before that have not arrived.
        assert_eq!(board.next_lost(), Some(0));
        assert_eq!(lost, 7);
    }

    #[test]
    fn losses_are_looked_for_after_arrivals_alone() {
        let mut rack = RackDetector::new();
        assert!(!rack.takes_news());
        after_sacks(&mut rack, 1, 1, at(41));
        assert!(rack.takes_news());
        assert!(!rack.takes_news());
        rack.on_undo();
        assert!(rack.takes_news());
    }

    #[test]
    fn duplicates_widen_the_window_once_a_round() {
        let mut rack = RackDetector::new();
        rack.on_reordering(100, 100);
        rack.on_duplicate(0, 1_000);
        rack.on_duplicate(500, 1_500);
        assert_eq!(rack.window(false, 0, TIMES), 20 * MILLISECOND);
        rack.on_duplicate(1_000, 2_000);
        assert_eq!(rack.window(false, 0, TIMES), 30 * MILLISECOND);
        for _ in 0..WINDOW_PERSISTS {
            rack.on_recovered();
        }
        assert_eq!(rack.window(false, 0, TIMES), 10 * MILLISECOND);
    }
}
