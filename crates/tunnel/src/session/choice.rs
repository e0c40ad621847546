//! Whether packets are worth it: networks that limit UDP to a part of what TCP gets.
//!
//! ```text
//!            backlog for a while         the link adds much
//!  Packets ────────────────────► Trial ───────────────────► Link ──► after a minute, and then
//!     ▲                            │ it adds little           │      twice as long, Packets
//!     └────────────────────────────┴──────────────────────────┘      at once if it is no faster
//! ```
//!
//! A path that is merely slow looks the same from inside as one on which UDP is limited, so the two
//! ways are compared. In a trial both carry data: on an ordinary path they share the bottleneck and
//! deliver together what one did before; where UDP is limited the link adds what was withheld. A trial
//! therefore costs next to nothing, and only a rate that was delivered counts, by the peer's word.
//!
//! Each side judges for what it sends. Nothing is judged while there is no backlog.

use std::time::Duration;

use vocab::{FlowId, Time};

/// Backlog before the first trial when many packets were lost, as in front of a limit ...
const SUSPICIOUS_AFTER: Duration = Duration::from_secs(3);
/// ... and when there is nothing to suspect. Each trial in vain doubles it.
const PATIENCE: Duration = Duration::from_secs(30);
const PATIENCE_MAX: Duration = Duration::from_secs(3_600);
/// The share of packets lost that is suspicious: with less, a congestion control such as ours fills
/// any path.
const SUSPICIOUS_PERCENT: u64 = 5;

/// A rate is that of so long; a TCP connection that begins has found its rate by the half of it.
const TRIAL: Duration = Duration::from_secs(3);
const TRIAL_ROUND_TRIPS: u32 = 12;
/// How much more, in percent, both ways must deliver than packets did, and the link alone then.
const WORTH_PERCENT: u64 = 150;
const CONFIRMED_PERCENT: u64 = 130;

/// The first time on the link; each further one is twice as long.
const LINK_FOR: Duration = Duration::from_secs(60);
const LINK_FOR_MAX: Duration = Duration::from_secs(3_600);

/// Pieces on the link in a trial that are remembered; beyond it no more are sent there.
const PIECES_MAX: usize = 4_096;

/// What the session is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send data on the link as well.
    Try,
    /// Packets alone again; what went on the link and is not there may go once more.
    Stay,
    /// The link alone.
    Leave,
    /// Packets alone, after a time on the link.
    Return,
}

/// Bytes of a flow that went on the link in a trial.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) flow: FlowId,
    pub(super) offset: u64,
    pub(super) length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Packets,
    Trial {
        since: Time,
        before: u64,
    },
    Link {
        since: Time,
        before: u64,
        is_confirmed: bool,
    },
}

/// A stretch of backlog.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: Time,
    delivered: u64,
}

#[derive(Debug)]
pub(super) struct Choice {
    stage: Stage,
    /// Since when there has been backlog all the time.
    backlog: Option<Time>,
    /// What is being measured now, and the rate of the last full stretch, in bytes a second.
    stretch: Option<Stretch>,
    steady: Option<u64>,
    /// Bytes that the peer has said to have, in order.
    delivered: u64,
    arrived: u64,
    lost: u64,
    patience: Duration,
    link_for: Duration,
    pieces: Vec<Piece>,
}

impl Choice {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Packets,
            backlog: None,
            stretch: None,
            steady: None,
            delivered: 0,
            arrived: 0,
            lost: 0,
            patience: PATIENCE,
            link_for: LINK_FOR,
            pieces: Vec::new(),
        }
    }

    /// Packets carry anew: what was known of them is of another time.
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

    /// Whether the link takes data beside the packets.
    pub(super) fn is_trial(&self) -> bool {
        matches!(self.stage, Stage::Trial { .. }) && self.pieces.len() < PIECES_MAX
    }

    /// Whether the link was chosen although packets get through.
    pub(super) fn is_on_link(&self) -> bool {
        matches!(self.stage, Stage::Link { .. })
    }

    /// Data went out, and whether more waits.
    pub(super) fn sent(&mut self, now: Time, has_more: bool) {
        if has_more {
            self.backlog.get_or_insert(now);
        } else {
            self.backlog = None;
            self.stretch = None;
            self.steady = None;
        }
    }

    /// Data went out on the link in a trial.
    pub(super) fn sent_on_link(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// The peer has so many bytes more of a flow, in order.
    pub(super) fn delivered(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    pub(super) fn arrived(&mut self, bytes: u64) {
        self.arrived += bytes;
    }

    pub(super) fn lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// What went on the link in the trial that has ended.
    pub(super) fn take_pieces(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.pieces)
    }

    /// To be asked when the peer has acknowledged something, with a typical round trip.
    pub(super) fn judge(&mut self, now: Time, round_trip: Duration) -> Option<Verdict> {
        let span = TRIAL.max(round_trip * TRIAL_ROUND_TRIPS);
        let Some(backlog) = self.backlog else {
            // Nothing can be told, and on the link nothing is lost by going back to packets.
            return match self.stage {
                Stage::Packets => None,
                Stage::Trial { .. } => {
                    self.stage = Stage::Packets;
                    Some(Verdict::Stay)
                }
                Stage::Link { since, .. } => self.return_after(now, since),
            };
        };
        match self.stage {
            Stage::Packets => {
                self.measure(now, span / 2);
                let before = self.steady?;
                let patience = if self.is_suspicious() && self.patience == PATIENCE {
                    SUSPICIOUS_AFTER
                } else {
                    self.patience
                };
                if now.since(backlog) < patience.max(span) {
                    return None;
                }
                self.stretch = None;
                self.stage = Stage::Trial { since: now, before };
                Some(Verdict::Try)
            }
            Stage::Trial { since, before } => {
                if now.since(since) < span / 2 {
                    return None;
                }
                let both = self.measure(now, span / 2)?;
                if is_percent(both, WORTH_PERCENT, before) {
                    self.stretch = None;
                    self.stage = Stage::Link {
                        since: now,
                        before,
                        is_confirmed: false,
                    };
                    return Some(Verdict::Leave);
                }
                self.stage = Stage::Packets;
                self.backlog = Some(now);
                self.patience = (self.patience * 2).min(PATIENCE_MAX);
                Some(Verdict::Stay)
            }
            Stage::Link {
                since,
                before,
                is_confirmed,
            } => {
                if is_confirmed || now.since(since) < span / 2 {
                    return self.return_after(now, since);
                }
                let alone = self.measure(now, span / 2)?;
                if is_percent(alone, CONFIRMED_PERCENT, before) {
                    self.stage = Stage::Link {
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

    fn return_after(&mut self, now: Time, since: Time) -> Option<Verdict> {
        if now.since(since) < self.link_for {
            return None;
        }
        self.link_for = (self.link_for * 2).min(LINK_FOR_MAX);
        self.leave_link(now)
    }

    fn leave_link(&mut self, now: Time) -> Option<Verdict> {
        self.stage = Stage::Packets;
        self.backlog = self.backlog.map(|_| now);
        self.stretch = None;
        self.steady = None;
        (self.arrived, self.lost) = (0, 0);
        Some(Verdict::Return)
    }

    /// The rate of a full stretch of backlog, when one has just ended.
    fn measure(&mut self, now: Time, span: Duration) -> Option<u64> {
        let delivered = self.delivered;
        let stretch = *self.stretch.get_or_insert(Stretch {
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
        self.stretch = Some(Stretch {
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

    /// Lets time pass with backlog, at so many bytes a second, until there is a verdict, `limit` at
    /// most; says after how many whole seconds it came.
    fn next(
        choice: &mut Choice,
        now: &mut Time,
        rate: u64,
        limit: Duration,
    ) -> Option<(Verdict, u64)> {
        let begun = *now;
        while now.since(begun) < limit {
            *now += ROUND_TRIP;
            choice.sent(*now, true);
            choice.delivered(rate / 20);
            if let Some(verdict) = choice.judge(*now, ROUND_TRIP) {
                return Some((verdict, now.since(begun).as_secs()));
            }
        }
        None
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_path_that_shares_its_bottleneck_keeps_packets_and_is_asked_less_and_less() {
        let (mut choice, mut now) = (Choice::new(), Time::ZERO);
        for wait in [30, 60, 120, 240] {
            let verdict = next(&mut choice, &mut now, 1_000_000, HOUR);
            assert_eq!(verdict, Some((Verdict::Try, wait)));
            assert!(choice.is_trial());
            let verdict = next(&mut choice, &mut now, 1_200_000, HOUR);
            assert_eq!(verdict, Some((Verdict::Stay, 3)));
            assert!(!choice.is_trial());
        }
    }

    #[test]
    fn limited_udp_is_found_out_within_seven_seconds_and_left() {
        let (mut choice, mut now) = (Choice::new(), Time::ZERO);
        for minutes in [1, 2, 4] {
            choice.lost(300_000);
            choice.arrived(700_000);
            let verdict = next(&mut choice, &mut now, 125_000, HOUR);
            assert_eq!(verdict, Some((Verdict::Try, 3)));
            let verdict = next(&mut choice, &mut now, 2_000_000, HOUR);
            assert_eq!(verdict, Some((Verdict::Leave, 3)));
            assert!(choice.is_on_link());
            let verdict = next(&mut choice, &mut now, 2_000_000, HOUR);
            assert_eq!(verdict, Some((Verdict::Return, 60 * minutes)));
        }
    }

    #[test]
    fn a_path_that_became_faster_by_itself_is_not_left_for_long() {
        let (mut choice, mut now) = (Choice::new(), Time::ZERO);
        let verdict = next(&mut choice, &mut now, 500_000, HOUR);
        assert_eq!(verdict, Some((Verdict::Try, 30)));
        // Both double, by chance; alone the link gets what packets got before.
        let verdict = next(&mut choice, &mut now, 1_000_000, HOUR);
        assert_eq!(verdict, Some((Verdict::Leave, 3)));
        let verdict = next(&mut choice, &mut now, 500_000, HOUR);
        assert_eq!(verdict, Some((Verdict::Return, 3)));
    }

    #[test]
    fn nothing_is_judged_without_backlog() {
        let (mut choice, mut now) = (Choice::new(), Time::ZERO);
        for _ in 0..100 {
            let verdict = next(&mut choice, &mut now, 500_000, Duration::from_secs(2));
            assert_eq!(verdict, None);
            choice.sent(now, false);
        }
    }
}
