//! Test of whether packets leave at a rate of their own right before one is dropped.
//!
//! ```text
//!  sent        │││││││x x xx       whatever the sender does
//!  a queue     │   │   │   │       what leaves before a loss has waited: each a packet's time behind the other
//!  a policer   │││││││             what passes, passes as it was sent
//! ```
//! A queue that drops is full, so that the last packets it took leave in its own time, not in the sender's. A
//! bucket that drops has let nothing wait: packets come out as they went in, or as a faster line before it spaced
//! them. Such a line is told from the queue by what was dropped: behind the line it has taken its turn there, and
//! leaves a gap; a queue leaves none.

use super::super::passage::{PacketFate, PacketPassage};
use super::super::statistics::quantile;
use super::waiting::densest;
use super::{FASTER_LINE, PassageObservation};

/// Time resolution of a capture.
const TOLD_APART: f64 = 60e-6;
/// Greatest difference of two equal gaps, as a share of a packet's time: acknowledgements take
/// paths of their own, and behind the bottleneck only gaps count.
const SAME_BEFORE: f64 = 0.2;
const SAME_BEHIND: f64 = 0.12;
/// Least number of gaps for a diagnosis.
const LEAST_GAPS: usize = 4;

/// Least share of line gaps among all clear ones that shows a queue: some losses may be random.
const QUEUED: f64 = 0.75;
/// ... and greatest share that shows none: acknowledgements of packets from a bucket are spaced by
/// its rate, too, and so are the packets that they release.
const UNCHANGED: f64 = 0.4;

/// Least wait in a queue, in packets, which must also exceed the noise of clocks and
/// acknowledgements.
const PLACE: f64 = 0.8;

/// Spacing that the gaps before losses show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LossSpacing {
    /// The gaps are those of a line of so many bytes per second, and not the sender's.
    Queued(f64),
    /// The gaps are the sender's.
    Unchanged,
}

/// Two packets that passed, with no loss in between.
#[derive(Clone, Copy, Debug)]
struct PacketGap {
    /// Bytes of the later one, and of those between whose departures are not known.
    bytes: f64,
    /// Seconds between them when they left ...
    left: f64,
    /// ... and when they were sent.
    sent: f64,
}

impl PassageObservation {
    /// `rate` is that of the bucket that explains losses best.
    pub(super) fn spacing(&self, rate: f64) -> Option<LossSpacing> {
        let order = match self.is_behind {
            true => self.arrivals(),
            false => self.passages.clone(),
        };
        let departures = self.departures(&order);
        let across = across_losses(&order, &departures, self.is_behind);
        let steady = match self.is_behind {
            true => steady_across_losses(&order, &departures),
            false => None,
        };
        let before =
            |line: f64| before_losses(&order, &departures, self.shortest_useful_gap(line) * line);
        let mut leaving: Vec<f64> = before(rate)
            .iter()
            .filter(|gap| gap.left > 0.0)
            .map(|gap| gap.bytes / gap.left)
            .collect();
        let densest = if leaving.len() < LEAST_GAPS {
            None
        } else {
            densest(&mut leaving)
        };
        let is_queue = |line: &f64| across.is_some_and(|across| across * line < FASTER_LINE);
        let lines = [Some(rate), self.waiting_rate, densest];
        let votes = |line: f64| (self.votes(&before(line), line), line);
        let best = lines
            .into_iter()
            .flatten()
            .filter(is_queue)
            .map(votes)
            .max_by_key(|((queued, _), _)| *queued);
        let ((queued, unchanged), line) = best.unwrap_or_else(|| {
            let ((_, unchanged), line) = votes(rate);
            ((0, unchanged), line)
        });
        let share = queued as f64 / (queued + unchanged) as f64;
        let backlog = self.backlogs_at_losses(line).and_then(|mut backlogs| {
            quantile(&mut backlogs, 0.25).zip(quantile(&mut backlogs, 0.75))
        });
        // A full queue has as many packets before each loss, one more or less; a line before a bucket any number.
        let is_full = backlog.is_some_and(|(low, high)| low > PLACE && high - low < 1.0);
        let is_empty = backlog.is_some_and(|(_, high)| high < PLACE);
        let is_always_empty = self.none_waits_at_losses(rate)
            || self
                .backlogs_at_losses(rate)
                .and_then(|mut backlogs| quantile(&mut backlogs, 0.9))
                .is_some_and(|high| high < PLACE);
        match queued + unchanged {
            _ if is_always_empty => Some(LossSpacing::Unchanged),
            _ if is_full && across.is_some() => Some(LossSpacing::Queued(line)),
            0..LEAST_GAPS if is_empty && queued <= unchanged => Some(LossSpacing::Unchanged),
            0..LEAST_GAPS => steady
                .filter(|_| queued >= unchanged)
                .map(LossSpacing::Queued),
            _ if share >= QUEUED => Some(LossSpacing::Queued(line)),
            // Over several packets' time a bucket may have begun to drop only at the end of it.
            _ if share <= UNCHANGED
                && self.shortest_useful_gap(line) * line < 2.0 * self.packet =>
            {
                Some(LossSpacing::Unchanged)
            }
            _ => None,
        }
    }

    /// Tells whether packets next to losses have waited for less than one other packet; for
    /// captures behind the bottleneck, where waits are known from the sender's timestamps.
    fn none_waits_at_losses(&self, rate: f64) -> bool {
        /// Least number of loss episodes for a diagnosis.
        const LEAST_EPISODES: usize = 6;
        /// Greatest error of a wait, in packets' time.
        const KNOWN_TO: f64 = 0.4;
        if !self.is_behind || self.noise * rate > KNOWN_TO * self.packet {
            return false;
        }
        let mut waits = self.waits_at_losses();
        waits.len() >= LEAST_EPISODES
            && quantile(&mut waits, 0.75).is_some_and(|wait| wait * rate < PLACE * self.packet)
    }

    /// Backlog at each loss, in packets' time: the remaining wait of the last packet that passed
    /// before the lost one was sent. It equals the places of the queue, less the part of a packet
    /// that is on the line. `None` where too few backlogs are known, or not exactly enough.
    pub(super) fn backlogs_at_losses(&self, rate: f64) -> Option<Vec<f64>> {
        /// Least number of losses for a diagnosis.
        const LEAST_KNOWN: usize = 8;
        /// Greatest error of a wait, in packets' time.
        const KNOWN_TO: f64 = 0.3;
        if self.is_behind || self.noise * rate > KNOWN_TO * self.packet {
            return None;
        }
        let departures = self.departures(&self.passages);
        let mut last: Option<f64> = None;
        let mut backlogs = Vec::new();
        for (passage, left) in self.passages.iter().zip(departures) {
            match passage.fate {
                PacketFate::Lost => {
                    backlogs.extend(last.map(|left| (left - passage.sent) * rate / self.packet))
                }
                PacketFate::Passed(_) => last = left,
            }
        }
        (backlogs.len() >= LEAST_KNOWN).then_some(backlogs)
    }

    /// Greatest difference of two equal gaps, as a share of their length.
    fn same(&self) -> f64 {
        match self.is_behind {
            true => SAME_BEHIND,
            false => SAME_BEFORE,
        }
    }

    /// Shortest gap that says anything about a line, in seconds.
    fn shortest_useful_gap(&self, line: f64) -> f64 {
        match self.is_behind {
            true if self.packet / line < TOLD_APART => TOLD_APART / SAME_BEHIND,
            true => 0.0,
            false => self.noise / SAME_BEFORE,
        }
    }

    /// Numbers of gaps that match a line, and of those that match the sender; a gap that may be
    /// either does not count.
    fn votes(&self, gaps: &[PacketGap], line: f64) -> (usize, usize) {
        let (mut queued, mut unchanged) = (0, 0);
        for gap in gaps {
            let (left, sent) = (gap.left * line / gap.bytes, gap.sent * line / gap.bytes);
            let same = self.same();
            // Behind the bottleneck stamps tell when a packet was sent.
            let same_sent = f64::max(same, 2.0 * self.noise * line / gap.bytes);
            let is_lines = (left - 1.0).abs() < same;
            let is_told = (sent - 1.0).abs() > 2.0 * same_sent;
            let is_senders = (left - sent).abs() < same_sent;
            match (is_lines, is_told) {
                (true, true) => queued += usize::from(!is_senders),
                (true, false) => queued += usize::from(self.is_behind),
                // A line lets nothing leave sooner. What leaves later was sent later, and tells neither.
                (false, true) if is_senders || self.is_behind => {
                    unchanged += usize::from(left < 1.0 - same);
                }
                (false, _) => unchanged += usize::from(self.is_behind && left < 1.0 - same),
            }
        }
        (queued, unchanged)
    }
}

/// Time from the last packet that passed before losses to the next one, in seconds per byte. A
/// random loss leaves a gap in a queue as well, so that the shorter times count; behind the
/// bottleneck, where other traffic may have come right before or behind a hole, the usual time
/// counts.
pub(super) fn across_losses(
    passages: &[PacketPassage],
    departures: &[Option<f64>],
    is_behind: bool,
) -> Option<f64> {
    let fraction = if is_behind { 0.5 } else { 0.25 };
    quantile(&mut gaps_across_losses(passages, departures), fraction)
}

/// Rate at which packets leave between losses, if it is one rate, as from a queue. Behind a bucket
/// they leave as they were sent, when there are tokens again. `None` where gaps are too short to
/// tell.
fn steady_across_losses(passages: &[PacketPassage], departures: &[Option<f64>]) -> Option<f64> {
    /// Least number of gaps for a diagnosis, the share that must be equal, and the tolerance.
    const LEAST: usize = 20;
    const NEARLY_ALL: f64 = 0.97;
    const STEADY: f64 = 0.01;
    let mut gaps = gaps_across_losses(passages, departures);
    let usual = quantile(&mut gaps, 0.5)?;
    let is_same = |gap: &&f64| (**gap / usual - 1.0).abs() < STEADY;
    let same = gaps.iter().filter(is_same).count();
    let mut sizes: Vec<f64> = passages.iter().map(|passage| passage.bytes).collect();
    let is_told = STEADY * usual * quantile(&mut sizes, 0.5)? > TOLD_APART;
    (is_told && gaps.len() >= LEAST && same as f64 >= NEARLY_ALL * gaps.len() as f64)
        .then_some(1.0 / usual)
}

fn gaps_across_losses(passages: &[PacketPassage], departures: &[Option<f64>]) -> Vec<f64> {
    let mut gaps = Vec::new();
    let (mut last, mut was_lost) = (None, false);
    for (passage, left) in passages.iter().zip(departures) {
        let is_lost = passage.fate == PacketFate::Lost;
        if !is_lost {
            if let (true, Some(last), Some(left)) = (was_lost, last, left) {
                gaps.push((left - last) / passage.bytes);
            }
            last = *left;
        }
        was_lost = is_lost;
    }
    gaps
}

/// Gaps right before losses that span at least this many bytes.
fn before_losses(
    passages: &[PacketPassage],
    departures: &[Option<f64>],
    least: f64,
) -> Vec<PacketGap> {
    /// Packets before a loss within which two known departures are looked for.
    const NEAR: usize = 64;
    let mut gaps = Vec::new();
    let mut was_lost = false;
    for (index, passage) in passages.iter().enumerate() {
        let is_lost = passage.fate == PacketFate::Lost;
        if is_lost && !was_lost {
            let near = index.saturating_sub(NEAR)..index;
            gaps.extend(last_gap(&passages[near.clone()], &departures[near], least));
        }
        was_lost = is_lost;
    }
    gaps
}

/// Gap between the last two packets with known departures, at least this many bytes apart, with no
/// loss among them.
fn last_gap(
    passages: &[PacketPassage],
    departures: &[Option<f64>],
    least: f64,
) -> Option<PacketGap> {
    let mut later: Option<(f64, f64)> = None;
    let mut bytes = 0.0;
    for (passage, left) in passages.iter().zip(departures).rev() {
        if passage.fate == PacketFate::Lost {
            return None;
        }
        match (later, left) {
            (Some((later_left, later_sent)), Some(left)) if bytes >= least => {
                return Some(PacketGap {
                    bytes,
                    left: later_left - left,
                    sent: later_sent - passage.sent,
                });
            }
            (None, Some(left)) => {
                later = Some((*left, passage.sent));
                bytes = passage.bytes;
            }
            (Some(_), _) => bytes += passage.bytes,
            (None, None) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::DiagnosisCause;
    use super::super::super::passage::{CapturePlace, CapturedDirections, HostStream, WindowLimit};
    use super::super::judge;
    use super::*;

    const RATE: f64 = 1e6;
    const PACKET: f64 = 1_500.0;

    /// Flights of a hundred packets at the rate `line` to a bucket of 30 kB, behind which so many
    /// packets have room to wait; captured before the line, as the sender hands it its packets at
    /// once, or behind the bucket.
    fn stream(room: f64, line: f64, place: CapturePlace) -> HostStream {
        let (mut tokens, mut last, mut flight) = (30_000.0, 0.0, 0.0);
        let mut passages = Vec::new();
        for index in 0..4_000 {
            if index % 100 == 0 {
                flight += 0.26 + 0.003 * f64::from(index / 100 % 7);
            }
            let at = flight + f64::from(index % 100) * PACKET / line;
            tokens = f64::min(tokens + RATE * (at - last), 30_000.0);
            last = at;
            let waits = f64::max(0.0, PACKET - tokens) / RATE;
            // Room for one that goes on at once, and for so many that wait.
            let is_lost = waits * RATE > room * PACKET;
            if !is_lost {
                tokens -= PACKET;
            }
            let fate = |since: f64| match is_lost {
                true => PacketFate::Lost,
                false => PacketFate::Passed(Some(at + waits - since)),
            };
            passages.push(match place {
                CapturePlace::Receiver => PacketPassage {
                    sent: flight,
                    seen: at + waits,
                    bytes: PACKET,
                    fate: fate(flight),
                },
                CapturePlace::Sender | CapturePlace::Middle => PacketPassage {
                    sent: at,
                    seen: at,
                    bytes: PACKET,
                    fate: fate(at),
                },
            });
        }
        // A hole shows behind what came before it.
        for index in 1..passages.len() {
            if passages[index].fate == PacketFate::Lost {
                passages[index].seen = passages[index - 1].seen;
            }
        }
        HostStream {
            source: "192.0.2.1".parse().expect("an address"),
            destination: "192.0.2.2".parse().expect("an address"),
            connections: 1,
            begun_before: 0,
            payload_bytes: 0,
            ways: CapturedDirections::Both,
            left_out: 0,
            place,
            passages,
            least_rtt: Some(0.05),
            window: WindowLimit::default(),
        }
    }

    #[test]
    fn queued_packets_leave_at_rate_policed_as_sent() {
        for place in [CapturePlace::Sender, CapturePlace::Receiver] {
            for line in [8e6, 20e6] {
                let queued = PassageObservation::of(&stream(3.0, line, place)).spacing(0.9 * RATE);
                let Some(LossSpacing::Queued(rate)) = queued else {
                    panic!("{place:?} {line}: {queued:?}");
                };
                assert!((rate / RATE - 1.0).abs() < 0.03, "{place:?} {line}: {rate}");
                let policed = PassageObservation::of(&stream(0.0, line, place)).spacing(0.9 * RATE);
                assert_eq!(policed, Some(LossSpacing::Unchanged), "{place:?} {line}");
            }
        }
    }

    #[test]
    fn two_waiting_places_police_and_three_shape() {
        let named = |room: f64| -> Vec<DiagnosisCause> {
            let found = judge(&stream(room, 10e6, CapturePlace::Sender));
            found.into_iter().map(|finding| finding.cause).collect()
        };
        assert_eq!(named(2.0), [DiagnosisCause::Policer]);
        assert!(
            named(3.0).contains(&DiagnosisCause::Shaper),
            "{:?}",
            named(3.0)
        );
        assert!(
            !named(3.0).contains(&DiagnosisCause::Policer),
            "{:?}",
            named(3.0)
        );
    }
}
