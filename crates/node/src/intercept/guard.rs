//! Decides from counters and probes whether this machine's packet filter lets through what is intercepted.
//!
//! ```text
//!   counters ──► FirewallWatch ── blocked ──► Withdrawals ──► probe, withdraw, restore
//!                     ▲                            │ ▲
//!                     └────────── forget ──────────┘ └── findings of probes
//! ```
//!
//! It reads no clock and does nothing: [`super::manager`] looks at the counters every [`LOOK`], sends the probes and
//! changes the rules. From the first connection that is dropped to the decision pass at most: a look, the 2 s that the
//! watch waits, and the time that a probe may take. So new connections work directly within 5 s.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use super::counters::Counts;
use super::firewall_watch::{Family, FirewallWatch, Way};
use super::probe::Finding;
use super::withdrawal::{Decision, Withdrawals};

/// How often the counters are looked at: a quarter of what [`FirewallWatch`] waits.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct FirewallGuard {
    watch: FirewallWatch,
    withdrawals: Withdrawals,
    probe: Probe,
}

/// The probe that was asked for last.
#[derive(Clone, Copy, Debug, Default)]
enum Probe {
    #[default]
    None,
    UnderWay,
    /// It began before an operator may have cured what it finds.
    Outdated,
}

/// What follows from a look at the counters.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// What is to be done about interception; nothing where there is no decision.
    pub(super) decisions: Vec<(Family, Decision)>,
    /// Ways of connections that this node opens with a client's address, on which nothing passes.
    pub(super) blocked_opens: Vec<(Family, Way)>,
    /// Ways on which something has passed since the last look.
    pub(super) passing: Vec<(Family, Way)>,
    /// Ways on which nothing has passed for less than the time after which they count as blocked.
    pub(super) suspected: Vec<(Family, Way)>,
}

impl FirewallGuard {
    /// Takes the counters, and the time.
    pub(super) fn look(&mut self, now: Instant, counts: &Counts) -> Looked {
        let observation = self.watch.observe(now, counts);
        let mut looked = Looked {
            passing: observation.passing,
            suspected: observation.suspected,
            ..Looked::default()
        };
        for (family, way) in observation.blocked {
            match way {
                Way::ClientToNode | Way::NodeToClient => {
                    let decision = self.withdrawals.blocked(now, family, way);
                    self.decided(family, decision, &mut looked.decisions);
                }
                Way::NodeToServer | Way::ServerToNode => {
                    self.watch.forget(family, way);
                    looked.blocked_opens.push((family, way));
                }
            }
        }
        for family in Family::ALL {
            let decision = self.withdrawals.tick(now, family);
            self.decided(family, decision, &mut looked.decisions);
        }
        looked
    }

    /// Takes what the probe found that was asked for; while one is under way, no other is sent. It is for both
    /// families, whichever asked for it.
    pub(super) fn probed(
        &mut self,
        now: Instant,
        findings: &io::Result<Vec<Finding>>,
    ) -> Vec<(Family, Decision)> {
        let mut decisions = Vec::new();
        let probe = std::mem::take(&mut self.probe);
        for family in Family::ALL {
            let decision = match probe {
                Probe::Outdated => self.withdrawals.probed_before(now, family, findings),
                Probe::None | Probe::UnderWay => self.withdrawals.probed(now, family, findings),
            };
            self.decided(family, decision, &mut decisions);
        }
        decisions
    }

    /// The operator may have cured the cause. A probe that is under way says nothing of that.
    pub(super) fn try_now(&mut self, now: Instant) {
        if let Probe::UnderWay = self.probe {
            self.probe = Probe::Outdated;
        }
        self.withdrawals.try_now(now);
    }

    /// The way on which a family is blocked, while it is withdrawn for that.
    pub(super) fn withdrawn(&self, family: Family) -> Option<Way> {
        self.withdrawals.withdrawn(family)
    }

    fn decided(
        &mut self,
        family: Family,
        decision: Decision,
        decisions: &mut Vec<(Family, Decision)>,
    ) {
        let settled: &[Way] = match &decision {
            Decision::Nothing => return,
            Decision::Probe => {
                if let Probe::None = self.probe {
                    self.probe = Probe::UnderWay;
                }
                &[]
            }
            Decision::Withdraw(way) | Decision::Partial(way) => std::slice::from_ref(way),
            Decision::Restore => &[Way::ClientToNode, Way::NodeToClient],
        };
        for way in settled {
            self.watch.forget(family, *way);
        }
        decisions.push((family, decision));
    }
}

#[cfg(test)]
mod tests;
