//! The withdrawal of interception of a family whose packets this machine's filter drops, and its
//! next trial.
//!
//! ```text
//!   Intercepting ── blocked ──► Confirming ── probe passes ──► Intercepting (some hosts are dropped)
//!        ▲                          │ probe is lost, cannot be sent, or takes too long
//!        │                          ▼
//!        └──── probe passes ──── Withdrawn { until }: a probe at `until`, then twice as long
//! ```
//!
//! It decides and does no I/O itself: [`super::guard`] reports the observations to it.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use super::firewall_watch::{AddressFamily, PacketDirection};
use super::probe::{ProbeFinding, ProbeOutcome};

/// The pause before the first new trial: an operator who has just cured the packet filter waits no
/// longer.
const PAUSE_MIN: Duration = Duration::from_secs(10);
/// The longest pause: a trial by probe costs some system calls and no connection.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// The longest wait for a probe that confirms a suspicion: its SYNs take half a second when they
/// are lost, and its preparation less. Clients wait meanwhile.
const PROBE_MAX: Duration = Duration::from_millis(1_500);
/// The pause where no probe can be sent, and a trial costs a client a repeated SYN.
const PAUSE_UNPROBED: Duration = Duration::from_secs(60);
/// The time within which a family that is blocked again continues with its longer pause.
const RELAPSE_WITHIN: Duration = Duration::from_secs(600);

/// One family.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum WithdrawalState {
    #[default]
    Intercepting,
    Confirming {
        way: PacketDirection,
        until: Instant,
    },
    Withdrawn {
        way: PacketDirection,
        until: Instant,
    },
}

/// The action to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithdrawalDecision {
    Nothing,
    /// Send a probe and report its result.
    Probe,
    /// Take the family out of the rules.
    Withdraw(PacketDirection),
    /// Put it into them again.
    Restore,
    /// The rules of this machine drop some connections and not all.
    Partial(PacketDirection),
}

#[derive(Clone, Copy, Debug, Default)]
struct FamilySlot {
    state: WithdrawalState,
    pause: Option<Duration>,
    restored: Option<Instant>,
}

/// Both families.
#[derive(Debug, Default)]
pub(super) struct FamilyWithdrawals {
    slots: [FamilySlot; 2],
}

impl FamilyWithdrawals {
    fn slot(&mut self, family: AddressFamily) -> &mut FamilySlot {
        match family {
            AddressFamily::Ipv4 => &mut self.slots[0],
            AddressFamily::Ipv6 => &mut self.slots[1],
        }
    }

    /// The way on which a family is blocked, while it is withdrawn for that.
    pub(super) fn withdrawn(&self, family: AddressFamily) -> Option<PacketDirection> {
        let slot = match family {
            AddressFamily::Ipv4 => &self.slots[0],
            AddressFamily::Ipv6 => &self.slots[1],
        };
        match slot.state {
            WithdrawalState::Withdrawn { way, .. } => Some(way),
            WithdrawalState::Intercepting | WithdrawalState::Confirming { .. } => None,
        }
    }

    /// Records that nothing passes, by the counters.
    pub(super) fn blocked(
        &mut self,
        now: Instant,
        family: AddressFamily,
        way: PacketDirection,
    ) -> WithdrawalDecision {
        let slot = self.slot(family);
        match slot.state {
            WithdrawalState::Intercepting => {
                let until = now + PROBE_MAX;
                slot.state = WithdrawalState::Confirming { way, until };
                WithdrawalDecision::Probe
            }
            WithdrawalState::Confirming { .. } | WithdrawalState::Withdrawn { .. } => {
                WithdrawalDecision::Nothing
            }
        }
    }

    /// Returns the action when it is time to try again, or when a probe takes too long.
    pub(super) fn tick(&mut self, now: Instant, family: AddressFamily) -> WithdrawalDecision {
        let slot = self.slot(family);
        match slot.state {
            WithdrawalState::Withdrawn { until, .. } if until <= now => WithdrawalDecision::Probe,
            WithdrawalState::Confirming { way, until } if until <= now => {
                slot.confirmed(now, way, None)
            }
            WithdrawalState::Withdrawn { .. }
            | WithdrawalState::Intercepting
            | WithdrawalState::Confirming { .. } => WithdrawalDecision::Nothing,
        }
    }

    /// The operator may have cured the cause.
    pub(super) fn try_now(&mut self, now: Instant) {
        for slot in &mut self.slots {
            if let WithdrawalState::Withdrawn { until, .. } = &mut slot.state {
                *until = now;
                slot.pause = None;
            }
        }
    }

    /// Records the result of a probe that began before [`Self::try_now`]. A drop that this probe
    /// found does not end the wait for the next probe.
    pub(super) fn probed_before(
        &mut self,
        now: Instant,
        family: AddressFamily,
        findings: &io::Result<Vec<ProbeFinding>>,
    ) -> WithdrawalDecision {
        let passed = findings.as_ref().ok().and_then(|all| passed(family, all));
        match (self.slot(family).state, passed) {
            (WithdrawalState::Withdrawn { .. }, Some(false) | None) => WithdrawalDecision::Nothing,
            _ => self.probed(now, family, findings),
        }
    }

    /// Records the result of a probe.
    pub(super) fn probed(
        &mut self,
        now: Instant,
        family: AddressFamily,
        findings: &io::Result<Vec<ProbeFinding>>,
    ) -> WithdrawalDecision {
        let passed = findings.as_ref().ok().and_then(|all| passed(family, all));
        let slot = self.slot(family);
        match (slot.state, passed) {
            (WithdrawalState::Intercepting, _) => WithdrawalDecision::Nothing,
            (WithdrawalState::Confirming { way, .. }, Some(true)) => {
                slot.state = WithdrawalState::Intercepting;
                WithdrawalDecision::Partial(way)
            }
            (WithdrawalState::Confirming { way, .. }, Some(false) | None) => {
                slot.confirmed(now, way, passed)
            }
            (WithdrawalState::Withdrawn { until, .. }, Some(false) | None) if now < until => {
                WithdrawalDecision::Nothing
            }
            (WithdrawalState::Withdrawn { way, .. }, Some(false)) => {
                let pause = slot
                    .pause
                    .map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX));
                slot.withdraw(now, way, pause);
                WithdrawalDecision::Nothing
            }
            // Where there is no probe, connections are the trial: a SYN that is dropped passes by
            // when it is repeated.
            (WithdrawalState::Withdrawn { .. }, Some(true) | None) => {
                slot.state = WithdrawalState::Intercepting;
                slot.restored = Some(now);
                WithdrawalDecision::Restore
            }
        }
    }
}

impl FamilySlot {
    /// Records that no probe passed: one was lost, or there was none.
    fn confirmed(
        &mut self,
        now: Instant,
        way: PacketDirection,
        passed: Option<bool>,
    ) -> WithdrawalDecision {
        let relapsed = self
            .restored
            .is_some_and(|then| now.duration_since(then) < RELAPSE_WITHIN);
        let first = match passed {
            Some(_) => PAUSE_MIN,
            None => PAUSE_UNPROBED,
        };
        let pause = match self.pause {
            Some(pause) if relapsed => (pause * 2).clamp(first, PAUSE_MAX),
            Some(_) | None => first,
        };
        self.withdraw(now, way, pause);
        WithdrawalDecision::Withdraw(way)
    }

    fn withdraw(&mut self, now: Instant, way: PacketDirection, pause: Duration) {
        self.pause = Some(pause);
        self.state = WithdrawalState::Withdrawn {
            way,
            until: now + pause,
        };
    }
}

/// Returns true if all SYNs of a family passed; `None` when none was sent.
fn passed(family: AddressFamily, findings: &[ProbeFinding]) -> Option<bool> {
    let mut of_family = findings
        .iter()
        .filter(|finding| finding.server.is_ipv4() == (family == AddressFamily::Ipv4))
        .peekable();
    of_family.peek()?;
    Some(of_family.all(|finding| finding.outcome == ProbeOutcome::Passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNS: PacketDirection = PacketDirection::ClientToNode;
    const V4: AddressFamily = AddressFamily::Ipv4;

    fn findings(outcome: ProbeOutcome) -> io::Result<Vec<ProbeFinding>> {
        Ok(vec![ProbeFinding {
            interface: "lan0".to_owned(),
            client: "198.18.1.254".parse().unwrap(),
            server: "198.18.2.1:445".parse().unwrap(),
            outcome,
        }])
    }

    fn no_probe() -> io::Result<Vec<ProbeFinding>> {
        Err(io::Error::other("tc is not installed"))
    }

    #[test]
    fn lost_probe_withdraws_and_passed_probe_restores() {
        let mut withdrawals = FamilyWithdrawals::default();
        let start = Instant::now();
        assert_eq!(
            withdrawals.blocked(start, V4, SYNS),
            WithdrawalDecision::Probe
        );
        assert_eq!(
            withdrawals.blocked(start, V4, SYNS),
            WithdrawalDecision::Nothing
        );
        let lost = findings(ProbeOutcome::Lost(SYNS));
        assert_eq!(
            withdrawals.probed(start, V4, &lost),
            WithdrawalDecision::Withdraw(SYNS)
        );
        assert_eq!(withdrawals.withdrawn(V4), Some(SYNS));
        assert_eq!(withdrawals.withdrawn(AddressFamily::Ipv6), None);
        assert_eq!(withdrawals.tick(start, V4), WithdrawalDecision::Nothing);
        let trial = start + PAUSE_MIN;
        assert_eq!(withdrawals.tick(trial, V4), WithdrawalDecision::Probe);
        let passed = findings(ProbeOutcome::Passed);
        assert_eq!(
            withdrawals.probed(trial, V4, &passed),
            WithdrawalDecision::Restore
        );
        assert_eq!(withdrawals.withdrawn(V4), None);
    }

    #[test]
    fn pauses_double_and_reload_retries_at_once() {
        let mut withdrawals = FamilyWithdrawals::default();
        let mut now = Instant::now();
        let lost = findings(ProbeOutcome::Lost(SYNS));
        withdrawals.blocked(now, V4, SYNS);
        withdrawals.probed(now, V4, &lost);
        let mut pause = PAUSE_MIN;
        for _ in 0..10 {
            now += pause - Duration::from_millis(1);
            assert_eq!(withdrawals.tick(now, V4), WithdrawalDecision::Nothing);
            now += Duration::from_millis(1);
            assert_eq!(withdrawals.tick(now, V4), WithdrawalDecision::Probe);
            withdrawals.probed(now, V4, &lost);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        withdrawals.try_now(now);
        assert_eq!(withdrawals.tick(now, V4), WithdrawalDecision::Probe);
    }

    #[test]
    fn rules_that_drop_some_hosts_withdraw_nothing() {
        let mut withdrawals = FamilyWithdrawals::default();
        let now = Instant::now();
        withdrawals.blocked(now, V4, SYNS);
        let passed = findings(ProbeOutcome::Passed);
        assert_eq!(
            withdrawals.probed(now, V4, &passed),
            WithdrawalDecision::Partial(SYNS)
        );
        assert_eq!(withdrawals.withdrawn(V4), None);
    }

    #[test]
    fn relapse_without_probe_waits_longer() {
        let mut withdrawals = FamilyWithdrawals::default();
        let mut now = Instant::now();
        withdrawals.blocked(now, V4, SYNS);
        withdrawals.probed(now, V4, &no_probe());
        now += PAUSE_UNPROBED;
        assert_eq!(withdrawals.tick(now, V4), WithdrawalDecision::Probe);
        assert_eq!(
            withdrawals.probed(now, V4, &no_probe()),
            WithdrawalDecision::Restore
        );
        withdrawals.blocked(now, V4, SYNS);
        withdrawals.probed(now, V4, &no_probe());
        now += PAUSE_UNPROBED * 2 - Duration::from_millis(1);
        assert_eq!(withdrawals.tick(now, V4), WithdrawalDecision::Nothing);
        now += Duration::from_millis(1);
        assert_eq!(withdrawals.tick(now, V4), WithdrawalDecision::Probe);
    }
}
