//! Decides from counters and probes whether this machine's packet filter passes intercepted
//! connections.
//!
//! ```text
//!   counters ──► FirewallWatch ── blocked ──► Withdrawals ──► probe, withdraw, restore
//!                     ▲                            │ ▲
//!                     └────────── forget ──────────┘ └── findings of probes
//! ```
//!
//! It reads no clock and does no I/O: [`super::manager`] reads the counters every [`LOOK`], sends
//! the probes and changes the rules. The time from the first dropped connection to the decision is
//! at most one reading interval, the 2 s of the watch, and the duration of a probe. So new
//! connections work directly within 5 s.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use super::counters::PacketCounts;
use super::firewall_watch::{AddressFamily, FirewallWatch, PacketDirection};
use super::probe::ProbeFinding;
use super::withdrawal::{FamilyWithdrawals, WithdrawalDecision};

/// The interval between readings of the counters: a quarter of the wait of [`FirewallWatch`].
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct FirewallGuard {
    watch: FirewallWatch,
    withdrawals: FamilyWithdrawals,
    probe: GuardProbe,
}

/// The last requested probe.
#[derive(Clone, Copy, Debug, Default)]
enum GuardProbe {
    #[default]
    None,
    UnderWay,
    /// It began before an operator may have cured the fault.
    Outdated,
}

/// The conclusions from one reading of the counters.
#[derive(Debug, Default)]
pub(super) struct GuardFindings {
    /// The decisions about interception; empty where there is none.
    pub(super) decisions: Vec<(AddressFamily, WithdrawalDecision)>,
    /// Ways of connections that this node opens with a client's address, on which nothing passes.
    pub(super) blocked_opens: Vec<(AddressFamily, PacketDirection)>,
    /// Ways on which something has passed since the last look.
    pub(super) passing: Vec<(AddressFamily, PacketDirection)>,
    /// Ways on which nothing has passed for less than the time after which they count as blocked.
    pub(super) suspected: Vec<(AddressFamily, PacketDirection)>,
}

impl FirewallGuard {
    /// Takes the counters, and the time.
    pub(super) fn look(&mut self, now: Instant, counts: &PacketCounts) -> GuardFindings {
        let observation = self.watch.observe(now, counts);
        let mut looked = GuardFindings {
            passing: observation.passing,
            suspected: observation.suspected,
            ..GuardFindings::default()
        };
        for (family, way) in observation.blocked {
            match way {
                PacketDirection::ClientToNode | PacketDirection::NodeToClient => {
                    let decision = self.withdrawals.blocked(now, family, way);
                    self.decided(family, decision, &mut looked.decisions);
                }
                PacketDirection::NodeToServer | PacketDirection::ServerToNode => {
                    self.watch.forget(family, way);
                    looked.blocked_opens.push((family, way));
                }
            }
        }
        for family in AddressFamily::ALL {
            let decision = self.withdrawals.tick(now, family);
            self.decided(family, decision, &mut looked.decisions);
        }
        looked
    }

    /// Handles the result of a requested probe; only one probe runs at a time. It is for both
    /// families.
    pub(super) fn probed(
        &mut self,
        now: Instant,
        findings: &io::Result<Vec<ProbeFinding>>,
    ) -> Vec<(AddressFamily, WithdrawalDecision)> {
        let mut decisions = Vec::new();
        let probe = std::mem::take(&mut self.probe);
        for family in AddressFamily::ALL {
            let decision = match probe {
                GuardProbe::Outdated => self.withdrawals.probed_before(now, family, findings),
                GuardProbe::None | GuardProbe::UnderWay => {
                    self.withdrawals.probed(now, family, findings)
                }
            };
            self.decided(family, decision, &mut decisions);
        }
        decisions
    }

    /// Records that the operator may have cured the cause. A probe in progress cannot show that.
    pub(super) fn try_now(&mut self, now: Instant) {
        if let GuardProbe::UnderWay = self.probe {
            self.probe = GuardProbe::Outdated;
        }
        self.withdrawals.try_now(now);
    }

    /// The way on which a family is blocked, while it is withdrawn for that.
    pub(super) fn withdrawn(&self, family: AddressFamily) -> Option<PacketDirection> {
        self.withdrawals.withdrawn(family)
    }

    fn decided(
        &mut self,
        family: AddressFamily,
        decision: WithdrawalDecision,
        decisions: &mut Vec<(AddressFamily, WithdrawalDecision)>,
    ) {
        let settled: &[PacketDirection] = match &decision {
            WithdrawalDecision::Nothing => return,
            WithdrawalDecision::Probe => {
                if let GuardProbe::None = self.probe {
                    self.probe = GuardProbe::UnderWay;
                }
                &[]
            }
            WithdrawalDecision::Withdraw(way) | WithdrawalDecision::Partial(way) => {
                std::slice::from_ref(way)
            }
            WithdrawalDecision::Restore => {
                &[PacketDirection::ClientToNode, PacketDirection::NodeToClient]
            }
        };
        for way in settled {
            self.watch.forget(family, *way);
        }
        decisions.push((family, decision));
    }
}

#[cfg(test)]
mod tests;
