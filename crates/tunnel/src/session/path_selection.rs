//! Path selection between packets and the link, for networks that limit UDP to a part of the TCP
//! rate.
//!
//! ```text
//!            backlog for a while         the link adds much
//!  Packets ────────────────────► Trial ───────────────────► Link ──► after a minute, and then
//!     ▲                            │ it adds little           │      twice as long, Packets
//!     └────────────────────────────┴──────────────────────────┘      at once if it is no faster
//! ```
//!
//! A slow path cannot be told from a path on which UDP is limited by measuring one of them, so both
//! are compared. In a trial both carry data. On an ordinary path they share the bottleneck and
//! together deliver what one did before. Where UDP is limited the link adds the withheld rate. A
//! trial therefore costs next to nothing, and only the rate that the peer confirms counts.
//!
//! Data counts when it arrives at the peer, in order or not: a limit causes gaps, and the data
//! behind a gap was delivered as well. The transport reports delivered packets. On the link, where
//! all data is in order, the answers to pings that follow the data confirm it
//! ([`PathSelection::wants_mark`]).
//!
//! Where other senders keep a queue on the path, the link's extra rate is taken from them: a second
//! flow gets a second share, and a new TCP connection displaces them. That is no sign of a limit,
//! so trials are rare there and have to gain more than a second share of one queue.
//!
//! Each side decides for the data that it sends, and only while it has a backlog. Data that the
//! link has just taken, or that the peer's credit holds back during a trial, still counts as
//! backlog.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::{FlowId, Time};

/// Backlog before the first trial when many packets were lost, as in front of a limit ...
const SUSPICIOUS_AFTER: Duration = Duration::from_secs(3);
/// ... and when there is no such sign. Each trial without a gain doubles it.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MAX: Duration = Duration::from_secs(3_600);
/// The share of packets lost that is suspicious: with less, a congestion control such as ours fills
/// any path.
const SUSPICIOUS_PERCENT: u64 = 5;

/// Share of the observed time with others' queue above which the path counts as crowded, as a
/// divisor. This sender's own queue exists for one part in twenty.
const CROWDED_PARTS: u32 = 3;
/// Factor of the trial interval on a crowded path. A trial there costs the others much and rarely
/// shows anything.
const CROWDED_PATIENCE: u32 = 10;
/// Gain that a trial must show on a crowded path, in per cent. Beside one other flow packets have
/// half of the path, so at most twice that rate is available.
const CROWDED_WORTH_PERCENT: u64 = 300;
/// Time between two looks at the queue that counts, at most: in a longer one it may have changed.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Length of a trial. A new TCP connection has found its rate after half of it.
const TRIAL: Duration = Duration::from_secs(3);
const TRIAL_ROUND_TRIPS: u32 = 12;
/// Rate that packets and link together must deliver, and then the link alone, in per cent of the
/// packets' rate.
const WORTH_PERCENT: u64 = 150;
const CONFIRMED_PERCENT: u64 = 130;

/// The first time on the link; each further one is twice as long.
const LINK_FOR: Duration = Duration::from_secs(60);
const LINK_FOR_MAX: Duration = Duration::from_secs(3_600);

/// Pieces on the link in a trial that are remembered; beyond it no more are sent there.
const PIECES_MAX: usize = 4_096;

/// Part of a round trip within which a writer must write more before it counts as a pause, as a
/// divisor. It is shorter than the wait for an answer, which takes one round trip.
const REFILL_SHARE: u32 = 8;

/// Round trips after which an unanswered marker ping is abandoned. Its answer travels in a packet,
/// which may be lost.
const MARK_ROUND_TRIPS: u32 = 3;

/// Round trips after which data that went on the link in a trial goes in packets as well, if the peer has
/// not confirmed it. One marker is under way at a time, so an answer takes up to two. On a path with losses the
/// link may deliver nothing for seconds, and all later data of a flow waits behind what it carries.
const LATE_ROUND_TRIPS: u32 = 3;

/// Decision of the path selection for the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelectionAction {
    /// Send data on the link as well.
    Try,
    /// Packets alone again; what went on the link and is not there may go once more.
    Stay,
    /// The link alone.
    Leave,
    /// Packets alone, after a time on the link.
    Return,
}

/// Backlog after data was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BacklogState {
    /// No written data.
    Nothing,
    /// Data is left that the peer's credit holds back.
    Credit,
    /// Data is left that could be sent at once.
    Data,
}

/// Bytes of a flow that went on the link in a trial.
#[derive(Clone, Debug)]
pub(super) struct TrialPiece {
    pub(super) flow: FlowId,
    pub(super) offset: u64,
    pub(super) length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectionStage {
    Packets,
    Trial {
        since: Time,
        before: u64,
        is_crowded: bool,
    },
    Link {
        since: Time,
        before: u64,
        is_confirmed: bool,
    },
}

/// A stretch of backlog.
#[derive(Clone, Copy, Debug)]
struct BacklogPeriod {
    from: Time,
    delivered: u64,
}

/// A ping on the link: who answers it has all pieces before it.
#[derive(Clone, Copy, Debug)]
struct MarkerPing {
    stamp_us: u32,
    sent: Time,
    /// The pieces of the trial that went before it.
    pieces: u64,
}

#[derive(Debug)]
pub(super) struct PathSelection {
    stage: SelectionStage,
    /// Start of the present backlog.
    backlog: Option<Time>,
    /// Backlog time in which others' queue was measurable, the part of it with such a queue, and
    /// the last time of the check.
    watched: Duration,
    crowded: Duration,
    looked_at: Option<Time>,
    /// Time at which the backlog ran out.
    dry_since: Option<Time>,
    /// Measurement in progress, and the rate of the last complete one, in bytes per second.
    stretch: Option<BacklogPeriod>,
    steady: Option<u64>,
    /// Bytes that the peer is known to have.
    delivered: u64,
    arrived: u64,
    lost: u64,
    patience: Duration,
    link_for: Duration,
    /// Data sent on the link that the peer has not confirmed, in order, and the number of pieces
    /// before it.
    pieces: VecDeque<(Time, TrialPiece)>,
    confirmed_pieces: u64,
    /// Number of pieces that were confirmed, or handed out as late.
    settled_pieces: u64,
    mark: Option<MarkerPing>,
}

impl PathSelection {
    pub(super) fn new() -> Self {
        Self {
            stage: SelectionStage::Packets,
            backlog: None,
            watched: Duration::ZERO,
            crowded: Duration::ZERO,
            looked_at: None,
            dry_since: None,
            stretch: None,
            steady: None,
            delivered: 0,
            arrived: 0,
            lost: 0,
            patience: PATIENCE,
            link_for: LINK_FOR,
            pieces: VecDeque::new(),
            confirmed_pieces: 0,
            settled_pieces: 0,
            mark: None,
        }
    }

    /// Restarts when packets get through again; earlier measurements are outdated.
    pub(super) fn restart(&mut self) {
        let Self {
            patience, link_for, ..
        } = *self;
        *self = Self {
            patience,
            link_for,
            ..Self::new()
        };
    }

    /// Returns `true` if the link takes data beside the packets.
    pub(super) fn is_trial(&self) -> bool {
        matches!(self.stage, SelectionStage::Trial { .. }) && self.pieces.len() < PIECES_MAX
    }

    /// Returns `true` if the link was selected although packets get through.
    pub(super) fn is_on_link(&self) -> bool {
        matches!(self.stage, SelectionStage::Link { .. })
    }

    /// Data went out, and so much is left.
    pub(super) fn sent(&mut self, now: Time, left: BacklogState) {
        // Before a trial a reader who gives no credit must not look like a path that is held back. In
        // one, credit is short because of gaps, and what arrives tells the rate all the same.
        let has_more = match (left, self.stage) {
            (BacklogState::Nothing, _) | (BacklogState::Credit, SelectionStage::Packets) => false,
            (BacklogState::Data, _)
            | (BacklogState::Credit, SelectionStage::Trial { .. } | SelectionStage::Link { .. }) => {
                true
            }
        };
        if has_more {
            self.backlog.get_or_insert(now);
            self.dry_since = None;
        } else {
            self.dry_since.get_or_insert(now);
        }
    }

    /// Data went out on the link in a trial.
    pub(super) fn sent_on_link(&mut self, now: Time, piece: TrialPiece) {
        self.pieces.push_back((now, piece));
    }

    /// The data of a trial that the link has not delivered in time: it is to go in packets as well. Each piece
    /// is handed out once.
    pub(super) fn late_pieces(&mut self, now: Time, round_trip: Duration) -> Vec<TrialPiece> {
        let known = self.settled_pieces.saturating_sub(self.confirmed_pieces) as usize;
        let late =
            |(sent, _): &&(Time, TrialPiece)| now.since(*sent) >= round_trip * LATE_ROUND_TRIPS;
        let late = self.pieces.iter().skip(known).take_while(late);
        let late: Vec<TrialPiece> = late.map(|(_, piece)| piece.clone()).collect();
        self.settled_pieces = self.settled_pieces.max(self.confirmed_pieces) + late.len() as u64;
        late
    }

    /// Returns `true` if a ping is to follow the data that was sent on the link.
    pub(super) fn wants_mark(&self, now: Time, round_trip: Duration) -> bool {
        let is_waiting = |mark: MarkerPing| now.since(mark.sent) < round_trip * MARK_ROUND_TRIPS;
        self.is_trial() && !self.pieces.is_empty() && !self.mark.is_some_and(is_waiting)
    }

    /// Notes that the marker ping was sent.
    pub(super) fn marked(&mut self, now: Time, stamp_us: u32) {
        self.mark = Some(MarkerPing {
            stamp_us,
            sent: now,
            pieces: self.confirmed_pieces + self.pieces.len() as u64,
        });
    }

    /// A ping was answered; gives the pieces that are there therefore.
    pub(super) fn answered(&mut self, stamp_us: u32) -> Vec<TrialPiece> {
        let Some(mark) = self.mark.take_if(|mark| mark.stamp_us == stamp_us) else {
            return Vec::new();
        };
        let count = mark.pieces.saturating_sub(self.confirmed_pieces) as usize;
        let count = count.min(self.pieces.len());
        self.confirmed_pieces += count as u64;
        self.pieces.drain(..count).map(|(_, piece)| piece).collect()
    }

    /// Records that the peer has `bytes` more of a flow.
    pub(super) fn delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    /// Packets with so much data arrived, whether or not it was there before.
    pub(super) fn arrived(&mut self, bytes: u64) {
        self.arrived += bytes;
    }

    pub(super) fn lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// Takes the data of the finished trial that went on the link and that the peer has not
    /// confirmed.
    pub(super) fn take_pieces(&mut self) -> Vec<TrialPiece> {
        self.mark = None;
        self.confirmed_pieces += self.pieces.len() as u64;
        self.pieces.drain(..).map(|(_, piece)| piece).collect()
    }

    /// Records whether others keep a queue on the packets' path, where that is measurable.
    pub(super) fn watch_queue(&mut self, now: Time, is_shared: Option<bool>) {
        let last = self.looked_at.replace(now);
        let (Some(last), Some(is_shared)) = (last, is_shared) else {
            return;
        };
        if self.backlog.is_some() && self.stage == SelectionStage::Packets {
            let since = now.since(last).min(LOOK_MAX);
            self.watched += since;
            self.crowded += if is_shared { since } else { Duration::ZERO };
        }
    }

    /// Notes that the packets' congestion control still searches the path's rate. The rate grows by itself then,
    /// so that nothing can be compared with it.
    pub(super) fn searching(&mut self, now: Time) {
        if self.stage == SelectionStage::Packets {
            let backlog = self.backlog.map(|_| now);
            self.begin_backlog(backlog);
            self.stretch = None;
            self.steady = None;
        }
    }

    /// Decides on the carrier. Call it when the peer has acknowledged something, with a typical
    /// round trip.
    pub(super) fn judge(&mut self, now: Time, round_trip: Duration) -> Option<SelectionAction> {
        let span = TRIAL.max(round_trip * TRIAL_ROUND_TRIPS);
        self.notice_pause(now, round_trip);
        let Some(backlog) = self.backlog else {
            // Nothing can be told, and on the link nothing is lost by going back to packets.
            return match self.stage {
                SelectionStage::Packets => None,
                SelectionStage::Trial { .. } => {
                    self.stage = SelectionStage::Packets;
                    Some(SelectionAction::Stay)
                }
                SelectionStage::Link { since, .. } => self.return_after(now, since),
            };
        };
        match self.stage {
            SelectionStage::Packets => {
                self.measure(now, span / 2);
                let before = self.steady?;
                let lasted = now.since(backlog);
                let is_crowded = self.crowded * CROWDED_PARTS > self.watched;
                let patience = if is_crowded {
                    self.patience * CROWDED_PATIENCE
                } else if self.is_suspicious() && self.patience == PATIENCE {
                    SUSPICIOUS_AFTER
                } else {
                    self.patience
                };
                if lasted < patience.max(span) {
                    return None;
                }
                self.stretch = None;
                self.stage = SelectionStage::Trial {
                    since: now,
                    before,
                    is_crowded,
                };
                Some(SelectionAction::Try)
            }
            SelectionStage::Trial {
                since,
                before,
                is_crowded,
            } => {
                if now.since(since) < span / 2 {
                    return None;
                }
                let both = self.measure(now, span / 2)?;
                let worth = match is_crowded {
                    true => CROWDED_WORTH_PERCENT,
                    false => WORTH_PERCENT,
                };
                if is_percent(both, worth, before) {
                    self.stretch = None;
                    self.stage = SelectionStage::Link {
                        since: now,
                        before,
                        is_confirmed: false,
                    };
                    return Some(SelectionAction::Leave);
                }
                self.stage = SelectionStage::Packets;
                self.begin_backlog(Some(now));
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                Some(SelectionAction::Stay)
            }
            SelectionStage::Link {
                since,
                before,
                is_confirmed,
            } => {
                if is_confirmed || now.since(since) < span / 2 {
                    return self.return_after(now, since);
                }
                let alone = self.measure(now, span / 2)?;
                if is_percent(alone, CONFIRMED_PERCENT, before) {
                    self.stage = SelectionStage::Link {
                        since,
                        before,
                        is_confirmed: true,
                    };
                    return None;
                }
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                self.leave_link(now)
            }
        }
    }

    fn notice_pause(&mut self, now: Time, round_trip: Duration) {
        let is_pause = |since| now.since(since) >= round_trip / REFILL_SHARE;
        if self.dry_since.is_some_and(is_pause) {
            self.dry_since = None;
            self.begin_backlog(None);
            self.stretch = None;
            self.steady = None;
        }
    }

    /// Another backlog, or none.
    fn begin_backlog(&mut self, at: Option<Time>) {
        self.backlog = at;
        self.watched = Duration::ZERO;
        self.crowded = Duration::ZERO;
    }

    fn return_after(&mut self, now: Time, since: Time) -> Option<SelectionAction> {
        if now.since(since) < self.link_for {
            return None;
        }
        self.link_for = (self.link_for * 2).min(LINK_FOR_MAX);
        self.leave_link(now)
    }

    fn leave_link(&mut self, now: Time) -> Option<SelectionAction> {
        self.stage = SelectionStage::Packets;
        self.begin_backlog(self.backlog.map(|_| now));
        self.stretch = None;
        self.steady = None;
        (self.arrived, self.lost) = (0, 0);
        Some(SelectionAction::Return)
    }

    /// The rate of a full stretch of backlog, when one has just ended.
    fn measure(&mut self, now: Time, span: Duration) -> Option<u64> {
        let delivered = self.delivered;
        let stretch = *self.stretch.get_or_insert(BacklogPeriod {
            from: now,
            delivered,
        });
        let took = now.since(stretch.from);
        if took < span {
            return None;
        }
        let bytes = delivered - stretch.delivered;
        let rate = (bytes as f64 / took.as_secs_f64()) as u64;
        self.steady = Some(rate);
        self.stretch = Some(BacklogPeriod {
            from: now,
            delivered,
        });
        Some(rate)
    }

    fn is_suspicious(&self) -> bool {
        self.lost * 100 > (self.arrived + self.lost) * SUSPICIOUS_PERCENT
    }
}

fn is_percent(rate: u64, percent: u64, of: u64) -> bool {
    u128::from(rate) * 100 >= u128::from(of) * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(50);

    /// Lets time pass with backlog, at a rate in bytes per second, until there is a decision or
    /// `limit` is reached. Returns the number of whole seconds until then.
    fn next(
        choice: &mut PathSelection,
        now: &mut Time,
        rate: u64,
        limit: Duration,
    ) -> Option<(SelectionAction, u64)> {
        let begun = *now;
        while now.since(begun) < limit {
            *now += ROUND_TRIP;
            choice.sent(*now, BacklogState::Data);
            choice.delivered(rate / 20);
            if let Some(verdict) = choice.judge(*now, ROUND_TRIP) {
                return Some((verdict, now.since(begun).as_secs()));
            }
        }
        None
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn shared_bottleneck_keeps_packets_and_reduces_trials() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        for wait in [30, 60, 120, 240] {
            let verdict = next(&mut choice, &mut now, 1_000_000, HOUR);
            assert_eq!(verdict, Some((SelectionAction::Try, wait)));
            assert!(choice.is_trial());
            let verdict = next(&mut choice, &mut now, 1_200_000, HOUR);
            assert_eq!(verdict, Some((SelectionAction::Stay, 3)));
            assert!(!choice.is_trial());
        }
    }

    #[test]
    fn limited_udp_is_left_within_seven_seconds() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        for minutes in [1, 2, 4] {
            choice.lost(300_000);
            choice.arrived(700_000);
            let verdict = next(&mut choice, &mut now, 125_000, HOUR);
            assert_eq!(verdict, Some((SelectionAction::Try, 3)));
            let verdict = next(&mut choice, &mut now, 2_000_000, HOUR);
            assert_eq!(verdict, Some((SelectionAction::Leave, 3)));
            assert!(choice.is_on_link());
            let verdict = next(&mut choice, &mut now, 2_000_000, HOUR);
            assert_eq!(verdict, Some((SelectionAction::Return, 60 * minutes)));
        }
    }

    #[test]
    fn faster_path_regains_its_data_soon() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        let verdict = next(&mut choice, &mut now, 500_000, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Try, 30)));
        // Both double, by chance; alone the link gets what packets got before.
        let verdict = next(&mut choice, &mut now, 1_000_000, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Leave, 3)));
        let verdict = next(&mut choice, &mut now, 500_000, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Return, 3)));
    }

    #[test]
    fn growth_of_a_search_is_not_taken_for_the_links_rate() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        choice.lost(300_000);
        choice.arrived(700_000);
        let mut rate = 20_000;
        for _ in 0..200 {
            choice.searching(now);
            assert_eq!(next(&mut choice, &mut now, rate, ROUND_TRIP), None);
            rate += 10_000;
        }
        choice.searching(now);
        let verdict = next(&mut choice, &mut now, rate, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Try, 3)));
        choice.searching(now);
        let verdict = next(&mut choice, &mut now, rate, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Stay, 3)));
    }

    #[test]
    fn data_that_the_link_does_not_deliver_goes_in_packets_once() {
        let mut choice = PathSelection::new();
        let at = |round_trips: u32| Time::ZERO + ROUND_TRIP * round_trips;
        for (sent, offset) in [(0, 0), (0, 1_000), (1, 2_000), (2, 3_000)] {
            let piece = TrialPiece {
                flow: FlowId(0),
                offset,
                length: 1_000,
            };
            choice.sent_on_link(at(sent), piece);
            if offset == 0 {
                choice.marked(at(0), 7);
            }
        }
        let offsets = |pieces: Vec<TrialPiece>| -> Vec<u64> {
            pieces.iter().map(|piece| piece.offset).collect()
        };
        assert_eq!(offsets(choice.answered(7)), [0]);
        assert!(choice.late_pieces(at(2), ROUND_TRIP).is_empty());
        assert_eq!(offsets(choice.late_pieces(at(3), ROUND_TRIP)), [1_000]);
        assert_eq!(offsets(choice.late_pieces(at(4), ROUND_TRIP)), [2_000]);
        choice.marked(at(4), 8);
        assert_eq!(choice.answered(8).len(), 3, "the link delivers them late");
        assert!(choice.late_pieces(at(9), ROUND_TRIP).is_empty());
    }

    #[test]
    fn no_selection_without_backlog() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        for _ in 0..100 {
            let verdict = next(&mut choice, &mut now, 500_000, Duration::from_secs(2));
            assert_eq!(verdict, None);
            choice.sent(now, BacklogState::Nothing);
            now += ROUND_TRIP / REFILL_SHARE;
            assert_eq!(choice.judge(now, ROUND_TRIP), None);
        }
    }

    #[test]
    fn immediate_new_data_continues_the_backlog() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        for _ in 0..10 {
            choice.sent(now, BacklogState::Nothing);
            let verdict = next(&mut choice, &mut now, 500_000, Duration::from_secs(2));
            assert_eq!(verdict, None);
        }
        let verdict = next(&mut choice, &mut now, 500_000, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Try, 10)));
    }

    #[test]
    fn second_share_of_a_queue_keeps_packets() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        let mut until_verdict = |choice: &mut PathSelection, rate: u64, is_shared: bool| {
            let begun = now;
            while now.since(begun) < HOUR {
                now += ROUND_TRIP;
                choice.watch_queue(now, Some(is_shared));
                choice.sent(now, BacklogState::Data);
                choice.delivered(rate / 20);
                if let Some(verdict) = choice.judge(now, ROUND_TRIP) {
                    return Some((verdict, now.since(begun).as_secs()));
                }
            }
            None
        };
        // Losses there are the queue's.
        choice.lost(300_000);
        choice.arrived(700_000);
        let crowded = until_verdict(&mut choice, 500_000, true);
        assert_eq!(crowded, Some((SelectionAction::Try, 300)));
        let verdict = until_verdict(&mut choice, 1_000_000, true);
        assert_eq!(verdict, Some((SelectionAction::Stay, 3)));
        // The others have gone.
        let alone = until_verdict(&mut choice, 500_000, false);
        assert_eq!(alone, Some((SelectionAction::Try, 60)));
        let verdict = until_verdict(&mut choice, 500_000, false);
        assert_eq!(verdict, Some((SelectionAction::Stay, 3)));
        let crowded = until_verdict(&mut choice, 500_000, true);
        assert_eq!(crowded, Some((SelectionAction::Try, 1200)));
        let verdict = until_verdict(&mut choice, 2_000_000, true);
        assert_eq!(
            verdict,
            Some((SelectionAction::Leave, 3)),
            "that is more than theirs"
        );
    }

    #[test]
    fn lack_of_credit_neither_starts_nor_ends_trials() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        for _ in 0..1_000 {
            now += ROUND_TRIP;
            choice.sent(now, BacklogState::Credit);
            choice.delivered(1_000);
            assert_eq!(choice.judge(now, ROUND_TRIP), None);
        }
        let verdict = next(&mut choice, &mut now, 500_000, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Try, 30)));
        let end = now + Duration::from_secs(2);
        while now < end {
            now += ROUND_TRIP;
            choice.sent(now, BacklogState::Credit);
            choice.delivered(50_000);
            assert_eq!(choice.judge(now, ROUND_TRIP), None);
        }
        let verdict = next(&mut choice, &mut now, 1_000_000, HOUR);
        assert_eq!(verdict, Some((SelectionAction::Leave, 1)));
    }

    #[test]
    fn marker_pong_confirms_the_data_before_it() {
        let (mut choice, mut now) = (PathSelection::new(), Time::ZERO);
        next(&mut choice, &mut now, 500_000, HOUR);
        assert!(!choice.wants_mark(now, ROUND_TRIP), "nothing went there");
        let mut offset = 0;
        let mut go = |choice: &mut PathSelection| {
            let (flow, length) = (FlowId(0), 1_000);
            let piece = TrialPiece {
                flow,
                offset,
                length,
            };
            choice.sent_on_link(Time::ZERO, piece);
            offset += length;
        };
        go(&mut choice);
        go(&mut choice);
        assert!(choice.wants_mark(now, ROUND_TRIP));
        choice.marked(now, 7);
        go(&mut choice);
        assert!(!choice.wants_mark(now, ROUND_TRIP), "one at a time");
        assert!(choice.answered(6).is_empty(), "another's");
        assert_eq!(choice.answered(7).len(), 2);
        assert!(choice.answered(7).is_empty(), "once");
        // The answer to the next is lost.
        choice.marked(now, 8);
        now += ROUND_TRIP * MARK_ROUND_TRIPS;
        go(&mut choice);
        assert!(choice.wants_mark(now, ROUND_TRIP));
        choice.marked(now, 9);
        let there = choice.answered(9);
        let offsets: Vec<u64> = there.iter().map(|piece| piece.offset).collect();
        assert_eq!(offsets, [2_000, 3_000]);
        go(&mut choice);
        choice.marked(now, 10);
        assert_eq!(choice.take_pieces().len(), 1);
        assert!(choice.answered(10).is_empty(), "of a trial that is over");
    }
}
