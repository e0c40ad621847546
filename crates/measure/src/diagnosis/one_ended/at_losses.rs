//! Evidence from the packets right before and around losses: it shows whether they wait at the
//! dropping hop.
//!
//! The strongest evidence decides: waits at exactly the rate of the bucket, then the spacing of the
//! packets that leave before a loss, then the closest gaps there, and only then the length of the
//! waits, which may be for a line before it.

use super::super::passage::{PacketFate, PacketPassage};
use super::super::statistics::quantile;
use super::spacing::LossSpacing;
use super::{
    EXPLAINED, FASTER_LINE, LEAST_LOSSES, LossExplanation, PassageObservation, QUEUE_PACKETS,
    SAME_RATE,
};

/// Least share of the deficit at losses that waits, where the departure rate is unknown.
const WAITING_SHARE: f64 = 0.12;
/// The wait, in packets at the rate, beyond which there is a queue. The shortest has three packets.
pub(super) const TOP_WAIT_PACKETS: f64 = 0.8;
/// ... and below which there is no wait.
const NO_WAIT_PACKETS: f64 = 0.3;
/// Least number of packets before a loss that a queue needs.
const NO_QUEUE_PACKETS: f64 = 0.5;
/// ... and up to which that is the better evidence.
const SHORT_QUEUE_PACKETS: f64 = 6.0;
/// The share of packets right before a loss that come closer than the rate allows, beyond which nothing
/// waits for it.
const BUNCHED: f64 = 0.25;
/// ... and beyond which no queue is full, whatever else is seen.
const MOST_BUNCHED: f64 = 0.35;
/// Youden's J of a bucket's losses where the room that each packet found is known.
const EXPLAINED_BY_FAR: f64 = 0.9;

/// Evidence at the losses that a bucket explains.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossEvidence {
    /// Spacing of the packets right before losses.
    pub(super) spacing: Option<LossSpacing>,
    /// Set if packets that wait leave no faster than the bucket allows.
    pub(super) leaves_at_rate: bool,
    /// Set if packets wait at the dropping hop.
    pub(super) waits: bool,
    /// The share of packets right before that come closer upon each other than the rate allows.
    bunched: Option<f64>,
    /// The usual wait, in packets, of those that find hardly any room, where that is known.
    top_wait: Option<f64>,
    /// Set if the wait for a single packet would be visible.
    is_seen: bool,
}

impl LossEvidence {
    /// Tells whether packets visibly do not wait at the dropping hop, which drops at a deficit of
    /// so many packets.
    pub(super) fn shows_no_wait(&self, deficit_packets: f64) -> bool {
        match (self.top_wait, self.bunched) {
            _ if self.spacing == Some(LossSpacing::Unchanged) => true,
            (_, Some(bunched)) => bunched >= BUNCHED,
            // No queue is as short as that.
            (Some(packets), None) => {
                self.is_seen && packets < NO_WAIT_PACKETS && deficit_packets < NO_QUEUE_PACKETS
            }
            (None, None) => false,
        }
    }
}

impl PassageObservation {
    pub(super) fn at_losses(&self, bucket: &LossExplanation) -> LossEvidence {
        let waiting = bucket.rate * bucket.wait;
        // What waits before a policer waits for a faster line, and leaves at its rate.
        let leaves_at_rate = match self.waiting_rate {
            Some(rate) => rate < FASTER_LINE * bucket.rate,
            None => waiting > WAITING_SHARE * bucket.deficit,
        };
        let top_wait = bucket.top_wait.filter(|_| bucket.explained > EXPLAINED);
        // Acknowledgements that come close upon each other wait as well.
        let most_waits = TOP_WAIT_PACKETS + 2.0 * self.noise * bucket.rate / self.packet;
        let waits_long = waiting > QUEUE_PACKETS * self.packet + 2.0 * self.noise * bucket.rate
            && leaves_at_rate;
        // What is lost by chance tells nothing of a queue.
        let own = self.without(self.is_random.clone());
        let own = match own.lost {
            0..LEAST_LOSSES => self.clone(),
            _ => own,
        };
        let bunched = own.bunched(bucket.rate);
        // The least queue holds three packets: where one packet's time shows, so would waiting for them.
        let is_seen = self.packet / bucket.rate > 4.0 * self.noise;
        let hardly_waits = is_seen
            && bucket.explained > EXPLAINED_BY_FAR
            && top_wait.is_some_and(|packets| packets < NO_WAIT_PACKETS);
        let is_bunched = bunched.is_some_and(|bunched| bunched > MOST_BUNCHED);
        let spacing = match own.spacing(bucket.rate) {
            // What leaves at the rate right before losses may have been sent so, for acknowledgements came so.
            Some(LossSpacing::Queued(_)) if hardly_waits || is_bunched => {
                Some(LossSpacing::Unchanged)
            }
            spacing => spacing,
        };
        // What waits where there is hardly any room, and leaves at the very rate that tells the losses, waits for
        // what drops: a line before it is another.
        let is_its_queue = self.waiting_rate.is_some_and(|rate| {
            (rate / bucket.rate - 1.0).abs() < SAME_RATE
                && top_wait.is_some_and(|packets| packets > most_waits.max(1.0))
        });
        let waits = match (top_wait, bunched) {
            _ if is_its_queue => true,
            _ if spacing.is_some() => spacing != Some(LossSpacing::Unchanged),
            (_, Some(bunched)) => bunched < BUNCHED,
            // Where it is known what packets wait for before they reach what drops.
            (Some(packets), None) if self.early_line.is_some() => {
                packets > most_waits || (waits_long && bucket.at_top > 0.5)
            }
            // A queue too short for the losses' neighbours to show it.
            (Some(packets), None) if packets < SHORT_QUEUE_PACKETS => {
                waits_long || packets > most_waits
            }
            _ => waits_long,
        };
        LossEvidence {
            spacing,
            leaves_at_rate,
            waits,
            bunched,
            top_wait,
            is_seen,
        }
    }

    /// Share of packets right before a loss that came closer together than the rate allows, for a
    /// capture behind the bottleneck. A nearly full queue lets none do that; a nearly empty policer
    /// passes them as they were sent. `None` where too few are known, or where a capture cannot
    /// resolve such times.
    fn bunched(&self, rate: f64) -> Option<f64> {
        /// Least number of gaps for a diagnosis.
        const LEAST_GAPS: usize = 6;
        /// Packets right before a loss: the shortest queue holds three.
        const BEFORE: usize = 3;
        /// Share of the rate's own gap below which packets count as closer.
        const CLOSER: f64 = 0.8;
        /// ... and so close that few of them will do, if there are no others.
        const CLOSEST: f64 = 0.4;
        /// Time resolution of a capture: a network card delivers packets within some tens of
        /// microseconds as one.
        const TOLD_APART: f64 = 60e-6;
        let waiting_rate = self.waiting_rate.filter(|line| *line < FASTER_LINE * rate);
        let rate = waiting_rate.unwrap_or(rate);
        if !self.is_behind || self.packet / rate < TOLD_APART {
            return None;
        }
        let mut seen: Vec<&PacketPassage> = self.passages.iter().collect();
        seen.sort_by(|a, b| a.seen.total_cmp(&b.seen));
        let (mut all, mut close, mut closest) = (0, 0, 0);
        let mut last = f64::NEG_INFINITY;
        let mut passed: Vec<&PacketPassage> = Vec::new();
        for passage in seen {
            if passage.fate != PacketFate::Lost {
                passed.push(passage);
                continue;
            }
            if passage.seen - last > self.rtt.max(0.001) {
                let before = &passed[passed.len().saturating_sub(BEFORE)..];
                for pair in before.windows(2) {
                    all += 1;
                    let gap = pair[1].seen - pair[0].seen;
                    close += usize::from(gap * rate < CLOSER * pair[1].bytes);
                    closest += usize::from(gap * rate < CLOSEST * pair[1].bytes);
                }
            }
            last = passage.seen;
        }
        let is_known = all >= LEAST_GAPS || (all >= 2 && closest == all);
        is_known.then(|| close as f64 / all as f64)
    }

    /// The usual wait around the losses of each episode: losses within a round trip are one.
    pub(super) fn waits_at_losses(&self) -> Vec<f64> {
        let mut episodes: Vec<f64> = Vec::new();
        let mut episode: Vec<f64> = Vec::new();
        let mut last = f64::NEG_INFINITY;
        for (passage, wait) in self.passages.iter().zip(&self.waits) {
            let (PacketFate::Lost, Some(wait)) = (passage.fate, wait) else {
                continue;
            };
            if passage.sent - last > self.rtt.max(0.001) {
                episodes.extend(quantile(&mut episode, 0.5));
                episode.clear();
            }
            last = passage.sent;
            episode.push(*wait);
        }
        episodes.extend(quantile(&mut episode, 0.5));
        episodes
    }
}
