//! Verdict on the shares of two flows: whether each got its part, and if not, which flow took it
//! and how.
//!
//! A rival that leaves CUBIC no more than it leaves us, in the very queue and with nothing of ours
//! there, breaks the bar by itself. Where it leaves CUBIC its part, it is our flow that gives way.

use std::ops::RangeInclusive;

use serde::Serialize;

use super::report::SessionReport;
use super::shares::{FROM, QueueShares, RivalController};

/// Fair range of each flow's share.
const FAIR: RangeInclusive<f64> = 0.35..=0.65;

/// Verdict on one rival and queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FairnessVerdict {
    /// The rival.
    pub rival: &'static str,
    /// The queue.
    pub queue_bdp: f64,
    /// True if each got 35 to 65 %.
    pub is_fair: bool,
    /// Why, in one sentence.
    pub why: String,
}

impl SessionReport {
    /// A verdict for each rival and queue.
    #[must_use]
    pub fn verdicts(&self) -> Vec<FairnessVerdict> {
        let shares = self.shares.iter();
        shares.map(|shares| self.verdict(shares)).collect()
    }

    fn verdict(&self, shares: &QueueShares) -> FairnessVerdict {
        let is_fair = FAIR.contains(&shares.share);
        let (rival, share) = (shares.rival, percent(shares.share));
        let is_bbr = rival != RivalController::Cubic.name();
        let reference = self.cubic_beside_bbr(shares.queue_bdp);
        let why = if is_fair {
            format!("each side gets its part: ours is {share}")
        } else if shares.share > *FAIR.end() {
            format!("ours takes {share}: {}", evidence(shares))
        } else {
            match reference.filter(|_| is_bbr) {
                Some(cubic) if cubic < *FAIR.start() => format!(
                    "the rival breaks it: in the same queue it leaves CUBIC {} and us {share}: {}",
                    percent(cubic),
                    evidence(shares)
                ),
                Some(cubic) => format!(
                    "ours gives way: the rival leaves CUBIC {} and us {share}: {}",
                    percent(cubic),
                    evidence(shares)
                ),
                None => format!("ours gives way, and gets {share}: {}", evidence(shares)),
            }
        };
        FairnessVerdict {
            rival,
            queue_bdp: shares.queue_bdp,
            is_fair,
            why,
        }
    }
}

/// Evidence from the series of the run whose share is nearest to the median.
fn evidence(shares: &QueueShares) -> String {
    let distance = |share: &f64| (share - shares.share).abs();
    let runs = shares.shares.iter().zip(&shares.runs);
    let Some((_, run)) = runs.min_by(|a, b| distance(a.0).total_cmp(&distance(b.0))) else {
        return "no series".to_owned();
    };
    let [ours, theirs] = [0, 1].map(|flow| {
        let window = run.median_of(FROM, flow, |step| step.window_packets as f64);
        let lost = run.lost(FROM, flow);
        format!("{window:.0} packets of window, {lost} lost")
    });
    let queueing = run.median_of(FROM, 0, |step| (step.rtt_ms - step.rtt_min_ms).max(0.0));
    format!("rival {theirs}; ours {ours}; {queueing:.0} ms of queue (medians)")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::series::{FlowPair, FlowStep};
    use super::*;

    fn shares(rival: &'static str, ours: u64, window: u64) -> QueueShares {
        let mut run = FlowPair::default();
        run.bytes = [ours, 100 - ours];
        for second in 1..=80 {
            let flows = [10, window].map(|window_packets| FlowStep {
                window_packets,
                lost_packets: second,
                rtt_ms: 180.0,
                rtt_min_ms: 100.0,
                ..FlowStep::default()
            });
            run.add(Duration::from_secs(second), [0, 0], 0, flows);
        }
        QueueShares::of(rival, 1.0, vec![run])
    }

    fn verdict(ours: QueueShares, references: Vec<QueueShares>) -> FairnessVerdict {
        let report = SessionReport {
            shares: vec![ours],
            references,
            ..SessionReport::default()
        };
        report.verdicts().remove(0)
    }

    #[test]
    fn a_rival_that_starves_cubic_too_breaks_it() {
        let reference = shares("bbr", 9, 0);
        let verdict = verdict(shares("bbr", 20, 370), vec![reference]);
        assert!(!verdict.is_fair);
        let why = "the rival breaks it: in the same queue it leaves CUBIC 9.0 % and us 20.0 %: \
                   rival 370 packets of window, 59 lost; ours 10 packets of window, 59 lost; \
                   80 ms of queue (medians)";
        assert_eq!(verdict.why, why);
    }

    #[test]
    fn rival_that_leaves_cubic_its_share_passes() {
        let given = verdict(shares("bbr", 20, 370), vec![shares("bbr", 60, 0)]);
        assert!(
            given
                .why
                .starts_with("ours gives way: the rival leaves CUBIC 60.0 %")
        );
        let unknown = verdict(shares("bbr", 20, 370), vec![]);
        assert!(unknown.why.starts_with("ours gives way, and gets 20.0 %"));
        let cubic = verdict(shares("cubic", 20, 370), vec![shares("bbr", 9, 0)]);
        assert!(
            cubic.why.starts_with("ours gives way, and gets"),
            "BBR is no excuse"
        );
    }

    #[test]
    fn share_outside_its_bounds_needs_an_excuse() {
        assert!(verdict(shares("cubic", 35, 0), vec![]).is_fair);
        let greedy = verdict(shares("cubic", 80, 30), vec![]);
        assert!(!greedy.is_fair && greedy.why.starts_with("ours takes 80.0 %: rival 30"));
    }
}
