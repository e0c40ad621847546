//! A policer by its edge: its rate, its losses among others by chance, and theirs beside its own.

use std::borrow::Cow;

use vocab::Probability;

use super::super::bucket::{Account, best_account, deficits, goodput};
use super::super::edge::{Edge, at_rate, edge};
use super::super::finding::{Cause, Finding, Parameters};
use super::super::passage::{Fate, Passage};
use super::super::statistics::confidence;
use super::super::two_ended::{bitrate, bytes};
use super::{
    ARRIVALS_EXPLAIN, Bucket, EXPLAINS_MORE, FAR_SHARE, LEAST_LOSSES, POLICED_PACKETS, Seen,
    TOP_WAIT_PACKETS,
};

impl Seen {
    /// Passages by when they were captured: behind what drops, when they arrived.
    fn arrivals(&self) -> Vec<Passage> {
        let arrived = |passage: &Passage| Passage {
            sent: passage.seen,
            ..*passage
        };
        let mut arrived: Vec<Passage> = self.passages.iter().map(arrived).collect();
        arrived.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        arrived
    }

    /// The passages as the bucket saw them.
    fn at_bucket(&self) -> Cow<'_, [Passage]> {
        match self.is_behind {
            true => Cow::Owned(self.arrivals()),
            false => Cow::Borrowed(&self.passages),
        }
    }

    /// The bucket whose edge tells the losses best, and how much its evidence exceeds that of the edge at
    /// another rate.
    pub(super) fn edge(&self, other: f64) -> Option<(Edge, f64)> {
        let passages = &*self.at_bucket();
        let known = match self.is_behind {
            true => Vec::new(),
            false => [self.line, self.line_rate].into_iter().flatten().collect(),
        };
        let best = edge(
            passages,
            goodput(passages)?,
            !self.is_behind,
            &known,
            self.packet,
        )?;
        let at_other = at_rate(passages, other, best.line, self.packet, 0.0002);
        let more = best.evidence - at_other.map_or(0.0, |edge| edge.evidence);
        Some((best, more))
    }

    /// Behind a policer the arrivals themselves tell its losses, to the packet; behind a queue they are
    /// as even when it is full as when it is not.
    pub(super) fn policed_arrivals(&self) -> Option<Bucket> {
        if !self.is_behind || self.lost < LEAST_LOSSES {
            return None;
        }
        let arrived = self.arrivals();
        let scale = (self.rtt, self.packet);
        let search =
            |account: &dyn Fn(f64) -> Account| best_account(&arrived, None, 0, scale, account);
        let from_start = search(&|rate| Account::from_start(&arrived, rate, None))?;
        let account = search(&|rate| Account::followed(&arrived, rate, None, scale.1))
            .filter(|better| better.explained > from_start.explained + EXPLAINS_MORE)
            .unwrap_or(from_start);
        let is_bucket =
            account.explained > ARRIVALS_EXPLAIN && account.deficit > POLICED_PACKETS * self.packet;
        is_bucket.then_some(Bucket {
            rate: account.rate,
            explained: account.explained,
            deficit: account.deficit,
            wait: 0.0,
            at_top: 0.0,
            top_wait: None,
        })
    }

    /// Whether an edge tells the bucket's rate better than the account of all losses: nearly all that come there
    /// are lost, and those are most of the losses, or its evidence is much more.
    pub(super) fn is_sharp(&self, edge: &Edge, more: f64) -> bool {
        let (lost, all) = (edge.lost as f64, self.lost as f64);
        lost >= 0.75 * (edge.lost + edge.passed) as f64
            && (lost >= 0.75 * all || (lost >= 0.3 * all && more >= 50.0))
    }

    /// A policer whose own losses chance outnumbers: no deficit tells most losses, but an edge tells some.
    pub(super) fn policer_among_chance(&self, other: f64) -> Vec<Finding> {
        /// Losses and nats below which nothing is said; a search among some ten thousand edges finds
        /// fifteen nats in chance alone.
        const LEAST_LOSSES: usize = 8;
        const LEAST_EVIDENCE: f64 = 30.0;
        let found = self.edge(other).map(|(edge, _)| edge);
        let Some(edge) = found
            .filter(|edge| edge.lost >= LEAST_LOSSES && edge.evidence >= LEAST_EVIDENCE)
            .filter(|edge| edge.full > POLICED_PACKETS * self.packet)
        else {
            return Vec::new();
        };
        let account = Account {
            rate: edge.rate,
            explained: 0.0,
            deficit: edge.full,
            rooms: deficits(&self.passages, edge.rate, edge.line)
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
        let evidence = format!(
            "{} of {} losses come where a bucket of {} has no room for a packet, where {} passed",
            edge.lost,
            self.lost,
            bitrate(edge.rate),
            edge.passed
        );
        let sure = confidence(edge.evidence / LEAST_EVIDENCE).min(0.9);
        let policer = Finding::new(Cause::Policer, sure, evidence).with(Parameters {
            rate: Some(bitrate(edge.rate)),
            burst: Some(bytes(edge.full + 0.5 * self.packet)),
            ..Parameters::default()
        });
        let mut findings = vec![policer];
        findings.extend(self.random_loss_beside(edge.lost));
        findings
    }

    /// Losses beside a policer that come while its bucket is half full or more: by chance.
    pub(super) fn chance_far_from(&self, edge: &Edge) -> Option<Finding> {
        /// Losses, and the share of what finds so much room, below which an error of the level may be why.
        const LEAST_LOSSES: usize = 20;
        const LEAST_LOSS: f64 = 0.003;
        let passages = &*self.at_bucket();
        let found = deficits(passages, edge.rate, edge.line);
        let far = passages.iter().zip(found);
        let far = far.filter(|(_, deficit)| *deficit < FAR_SHARE * edge.full);
        let (mut lost, mut all) = (0, 0);
        for (passage, _) in far {
            all += 1;
            lost += usize::from(passage.fate == Fate::Lost);
        }
        let loss = lost as f64 / f64::from(all);
        (lost >= LEAST_LOSSES && loss > LEAST_LOSS).then(|| {
            let evidence = format!(
                "{lost} of {all} packets were lost that found half a bucket's room or more"
            );
            let sure = confidence(lost as f64 / LEAST_LOSSES as f64).min(0.9);
            Finding::new(Cause::RandomLoss, sure, evidence).with(Parameters {
                loss: Probability::from_fraction(loss),
                ..Parameters::default()
            })
        })
    }
}
