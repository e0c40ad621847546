//! Detection of a policer by its edge: its rate, its losses among random ones, and random losses
//! beside its own.

use vocab::Probability;

use super::super::bucket::{BucketFit, best_account, deficits, goodput};
use super::super::edge::{BucketEdge, edge};
use super::super::finding::{CauseParameters, DiagnosisCause, DiagnosisFinding};
use super::super::passage::{HostStream, PacketFate, PacketPassage, waits};
use super::super::statistics::{confidence, quantile};
use super::super::two_ended::{bitrate, bytes};
use super::at_losses::TOP_WAIT_PACKETS;
use super::spacing::LossSpacing;
use super::{
    ARRIVALS_EXPLAIN, EXPLAINS_MORE, FAR_SHARE, FULL_EXPLAINS, LEAST_LOSSES, LossExplanation,
    POLICED_PACKETS, PassageObservation,
};

impl PassageObservation {
    /// Passages by capture time: behind the dropping hop, by arrival.
    pub(super) fn arrivals(&self) -> Vec<PacketPassage> {
        let arrived = |index: usize| PacketPassage {
            sent: self.passages[index].seen,
            ..self.passages[index]
        };
        self.order_at_bucket().into_iter().map(arrived).collect()
    }

    /// Indices of passages in the order in which they reached the dropping hop.
    fn order_at_bucket(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.passages.len()).collect();
        if self.is_behind {
            order.sort_by(|a, b| self.passages[*a].seen.total_cmp(&self.passages[*b].seen));
        }
        order
    }

    /// Passages with only those losses that occur at an edge: random losses say nothing about a
    /// queue.
    fn losses_at(&self, edge: &BucketEdge) -> Self {
        let deficits = deficits(&self.at_bucket(), edge.rate, None);
        let mut is_left_out = vec![false; self.passages.len()];
        for (place, deficit) in self.order_at_bucket().into_iter().zip(deficits) {
            is_left_out[place] =
                self.passages[place].fate == PacketFate::Lost && !edge.holds(deficit, self.packet);
        }
        self.without(is_left_out)
    }

    /// The same without some of the passages.
    pub(super) fn without(&self, is_left_out: Vec<bool>) -> Self {
        let mut left_out = is_left_out.into_iter();
        let mut seen = self.clone();
        seen.passages
            .retain(|_| !left_out.next().unwrap_or_default());
        let is_lost = |passage: &&PacketPassage| passage.fate == PacketFate::Lost;
        seen.lost = seen.passages.iter().filter(is_lost).count();
        seen.waits = waits(&seen.passages);
        seen
    }

    /// Passages as a bucket without a queue saw them: they waited for a line before it. A lost
    /// packet, or one without a known time, counts as coming right behind the one before.
    fn at_bucket(&self) -> Vec<PacketPassage> {
        if self.is_behind {
            return self.arrivals();
        }
        let mut last = f64::NEG_INFINITY;
        let reached = self.passages.iter().zip(self.departures(&self.passages));
        let reached = reached.map(|(passage, left)| {
            last = last.max(left.unwrap_or(passage.sent));
            PacketPassage {
                sent: last,
                ..*passage
            }
        });
        reached.collect()
    }

    /// Bucket whose edge explains the losses best; `likely` is a rate that it may have.
    fn edge(&self, likely: f64) -> Option<BucketEdge> {
        /// Least share of the traffic between losses that remains when bursts are left out.
        const LEAST_SHARE: f64 = 1.0 / 16.0;
        let passages = self.at_bucket();
        let passed = goodput(&passages)?;
        // Where losses by chance come early, a bucket's burst is among what passes between them.
        let quarter = (passages.len() / 4).max(1);
        let quarters = passages.chunks(quarter).filter_map(goodput);
        let least = quarters.fold(passed, f64::min);
        let least = least.max(LEAST_SHARE * passed);
        edge(&passages, least..passed, likely, self.packet)
    }

    /// Fit of a bucket to the passages as they reach it or leave it: behind a bucket, the arrivals
    /// themselves show its losses, to the packet.
    fn at_bucket_explained(&self) -> Option<BucketFit> {
        if self.lost < LEAST_LOSSES {
            return None;
        }
        let reached = self.at_bucket();
        let scale = (self.rtt, self.packet);
        let search =
            |account: &dyn Fn(f64) -> BucketFit| best_account(&reached, None, 0, scale, account);
        let from_start = search(&|rate| BucketFit::from_start(&reached, rate, None))?;
        let followed = search(&|rate| BucketFit::followed(&reached, rate, None, scale.1));
        let account = followed
            .filter(|better| better.explained > from_start.explained + EXPLAINS_MORE)
            .unwrap_or(from_start);
        (account.deficit > POLICED_PACKETS * self.packet).then_some(account)
    }

    /// Policer whose losses follow from the times at which packets reach it.
    pub(super) fn policed_at_bucket(&self) -> Option<LossExplanation> {
        let account = self
            .at_bucket_explained()
            .filter(|account| account.explained > ARRIVALS_EXPLAIN)?;
        Some(LossExplanation {
            rate: account.rate,
            explained: account.explained,
            deficit: account.deficit,
            wait: 0.0,
            at_top: 0.0,
            top_wait: None,
        })
    }

    /// Tells whether at most two packets may wait behind the shaper's tokens, which makes it a
    /// policer, as between two ends.
    pub(super) fn polices(
        &self,
        shaper: Option<&DiagnosisFinding>,
        explained: f64,
        stream: &HostStream,
    ) -> Option<DiagnosisFinding> {
        /// A queue of two places has less when it drops, one of three more. Hosts only add to it.
        const LAST_PLACE: f64 = 1.95;
        /// ... and neither has as little: then others were lost while nothing waited.
        const NO_PLACE: f64 = 0.5;
        /// ... by at most this much in nearly all cases; behind a longer queue, losses at less are
        /// random.
        const MOST: f64 = 2.4;
        let parameters = shaper?.parameters;
        let (rate, burst) = parameters.rate.zip(parameters.burst)?;
        // Where packets waited already when the capture began, nothing tells for how long.
        if self.is_behind || stream.begun_before > 0 || explained < FULL_EXPLAINS {
            return None;
        }
        let mut backlogs = self.backlogs_at_losses(rate.bits_per_second() as f64 / 8.0)?;
        let (low, high) = quantile(&mut backlogs, 0.25).zip(quantile(&mut backlogs, 0.9))?;
        (low > NO_PLACE && low < LAST_PLACE && high < MOST).then(|| {
            let evidence = format!(
                "{} losses come while {low:.1} to {high:.1} packets wait, after {} bytes beyond {rate} had passed; \
                 that tells {:.0} % of them from what passed",
                self.lost,
                burst.bytes(),
                explained * 100.0
            );
            let sure = confidence(explained / FULL_EXPLAINS);
            DiagnosisFinding::new(DiagnosisCause::Policer, sure, evidence).with(CauseParameters {
                rate: Some(rate),
                burst: Some(burst),
                ..CauseParameters::default()
            })
        })
    }

    /// Rate of a shaper's bucket from the arrivals behind it: nearly all losses occur while its
    /// tokens are spent.
    pub(super) fn shaped_at(&self) -> Option<f64> {
        const NEARLY_ALL: f64 = 0.97;
        if !self.is_behind {
            return None;
        }
        let account = self.at_bucket_explained()?;
        (account.explained > NEARLY_ALL).then_some(account.rate)
    }

    /// Edge that determines a policer's rate: no other rate has as much evidence, and many losses
    /// occur there. Few losses, or flights that are all alike, do not determine the rate.
    pub(super) fn distinct_edge(&self, likely: f64) -> Option<BucketEdge> {
        const MANY: f64 = 0.2;
        self.edge(likely)
            .filter(|edge| edge.is_only && edge.lost as f64 >= MANY * self.lost as f64)
    }

    /// Findings on a bucket whose losses are outnumbered by random ones: no deficit explains most
    /// losses, but an edge explains some.
    pub(super) fn bucket_among_random_loss(&self, likely: f64) -> Vec<DiagnosisFinding> {
        /// Least number of losses and nats for a finding; a search among some ten thousand edges
        /// finds fifteen nats in random losses alone.
        const LEAST_LOSSES: usize = 8;
        const LEAST_EVIDENCE: f64 = 30.0;
        let Some(edge) = self
            .edge(likely)
            .filter(|edge| edge.lost >= LEAST_LOSSES && edge.evidence >= LEAST_EVIDENCE)
            .filter(|edge| edge.full > POLICED_PACKETS * self.packet)
        else {
            return Vec::new();
        };
        let chance = self.random_loss_beside(edge.lost);
        if let Some(LossSpacing::Queued(rate)) = self.losses_at(&edge).spacing(edge.rate) {
            let shaper = self.shaper(rate);
            return match shaper {
                Some(shaper) => [shaper].into_iter().chain(chance).collect(),
                None => Vec::new(),
            };
        }
        let account = BucketFit {
            rate: edge.rate,
            explained: 0.0,
            deficit: edge.full,
            rooms: deficits(&self.at_bucket(), edge.rate, None)
                .into_iter()
                .map(|deficit| edge.full - deficit)
                .collect(),
            served: None,
        };
        let most_waits = TOP_WAIT_PACKETS + 2.0 * self.noise * edge.rate / self.packet;
        let waits = self.top_wait(&account);
        if waits.is_some_and(|packets| packets > most_waits) {
            return Vec::new();
        }
        let rate = Some(bitrate(edge.rate)).filter(|_| edge.is_only);
        let bucket = match rate {
            Some(rate) => format!("a bucket of {rate}"),
            None => "a bucket, whose rate they do not tell,".to_owned(),
        };
        let evidence = format!(
            "{} of {} losses come where {bucket} has no room for a packet, where {} passed",
            edge.lost, self.lost, edge.passed
        );
        let sure = confidence(edge.evidence / LEAST_EVIDENCE).min(0.9);
        let policer =
            DiagnosisFinding::new(DiagnosisCause::Policer, sure, evidence).with(CauseParameters {
                rate,
                burst: Some(bytes(edge.full + 0.5 * self.packet)),
                ..CauseParameters::default()
            });
        [policer].into_iter().chain(chance).collect()
    }

    /// Finding on random losses beside a policer: those that occur while its bucket is at least
    /// half full.
    pub(super) fn random_loss_far_from(&self, edge: &BucketEdge) -> Option<DiagnosisFinding> {
        /// Least number of such losses, and least share among packets with so much room, that an
        /// error of the level does not explain.
        const LEAST_LOSSES: usize = 20;
        const LEAST_LOSS: f64 = 0.003;
        let passages = self.at_bucket();
        let found = deficits(&passages, edge.rate, None);
        let far = passages.iter().zip(found);
        let far = far.filter(|(_, deficit)| *deficit < FAR_SHARE * edge.full);
        let (mut lost, mut all) = (0, 0);
        for (passage, _) in far {
            all += 1;
            lost += usize::from(passage.fate == PacketFate::Lost);
        }
        let loss = lost as f64 / f64::from(all);
        (lost >= LEAST_LOSSES && loss > LEAST_LOSS).then(|| {
            let evidence = format!(
                "{lost} of {all} packets were lost that found half a bucket's room or more"
            );
            let sure = confidence(lost as f64 / LEAST_LOSSES as f64).min(0.9);
            DiagnosisFinding::new(DiagnosisCause::RandomLoss, sure, evidence).with(
                CauseParameters {
                    loss: Probability::from_fraction(loss),
                    ..CauseParameters::default()
                },
            )
        })
    }
}
