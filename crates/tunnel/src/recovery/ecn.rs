//! Validation of ECN: whether the path carries congestion marks (RFC 9000 §13.4.2, App. A.4).
//!
//! ```text
//!          10 packets sent          counts agree
//!  Testing ───────────────► Unknown ────────────► Capable
//!     │ counts agree            │ counts contradict   │ counts contradict
//!     └────────► Capable        └──────► Failed ◄─────┘
//! ```
//!
//! Packets are marked ECT(0) while testing and once the path is known to carry the mark. A path
//! that drops or rewrites the mark fails permanently: each path is tested once. Without marks,
//! losses and round-trip times still signal congestion.

use crate::packet::EcnCounts;

/// Packets that are marked before anything is known (RFC 9000 App. A.4).
const TESTED: u64 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EcnState {
    Testing,
    Unknown,
    Capable,
    Failed,
}

/// The state of validation, and the peer's last counts.
#[derive(Clone, Debug)]
pub(super) struct EcnValidation {
    state: EcnState,
    sent: u64,
    counts: EcnCounts,
}

impl EcnValidation {
    pub(super) fn new() -> Self {
        Self {
            state: EcnState::Testing,
            sent: 0,
            counts: EcnCounts::default(),
        }
    }

    /// Returns `true` if the next packet is to be marked ECT(0).
    pub(super) fn wanted(&self) -> bool {
        matches!(self.state, EcnState::Testing | EcnState::Capable)
    }

    /// Returns `true` if marks were tested and do not get through.
    pub(super) fn failed(&self) -> bool {
        self.state == EcnState::Failed
    }

    /// Takes note of a packet that went out marked.
    pub(super) fn sent(&mut self) {
        self.sent += 1;
        if self.state == EcnState::Testing && self.sent >= TESTED {
            self.state = EcnState::Unknown;
        }
    }

    /// Checks the counts of an acknowledgement that tells of a larger number than any before, and
    /// of `newly_acked` marked packets; says how many more packets were marked "congestion
    /// experienced".
    pub(super) fn acknowledged(&mut self, newly_acked: u64, counts: Option<EcnCounts>) -> u64 {
        if self.state == EcnState::Failed {
            return 0;
        }
        let Some(counts) = counts else {
            // RFC 9000 §13.4.2.1: marked packets were acknowledged and no counts came with that.
            if newly_acked > 0 {
                self.state = EcnState::Failed;
            }
            return 0;
        };
        let before = std::mem::replace(&mut self.counts, counts);
        let (Some(ect0), Some(ce)) = (
            counts.ect0.checked_sub(before.ect0),
            counts.ce.checked_sub(before.ce),
        ) else {
            self.state = EcnState::Failed;
            return 0;
        };
        let marked = ect0.saturating_add(ce);
        let in_all = counts.ect0.saturating_add(counts.ce);
        if marked < newly_acked || in_all > self.sent || counts.ect1 > 0 {
            self.state = EcnState::Failed;
            return 0;
        }
        if marked > 0 {
            self.state = EcnState::Capable;
        }
        ce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ect0: u64, ce: u64) -> Option<EcnCounts> {
        Some(EcnCounts { ect0, ect1: 0, ce })
    }

    fn sent(packets: u64) -> EcnValidation {
        let mut marks = EcnValidation::new();
        for _ in 0..packets {
            marks.sent();
        }
        marks
    }

    /// RFC 9000 App. A.4: ten packets, then silence until the peer has counted some.
    #[test]
    fn marking_pauses_until_the_path_is_known() {
        let mut marks = sent(9);
        assert!(marks.wanted());
        marks.sent();
        assert!(!marks.wanted() && !marks.failed());
        assert_eq!(marks.acknowledged(4, counts(3, 1)), 1);
        assert!(marks.wanted());
        assert_eq!(marks.acknowledged(6, counts(8, 2)), 1);
        assert!(marks.wanted());
    }

    /// RFC 9000 §13.4.2.1: each way in which counts show that marks do not get through.
    #[test]
    fn counts_that_contradict_end_it() {
        let no_counts = None;
        let too_few = counts(3, 0);
        let more_than_sent = counts(11, 0);
        let rewritten = Some(EcnCounts {
            ect0: 4,
            ect1: 1,
            ce: 0,
        });
        let without_end = counts(u64::MAX, u64::MAX);
        for bad in [no_counts, too_few, more_than_sent, rewritten, without_end] {
            let mut marks = sent(10);
            assert_eq!(marks.acknowledged(4, bad), 0);
            assert!(marks.failed() && !marks.wanted(), "{bad:?}");
            assert_eq!(marks.acknowledged(4, counts(8, 2)), 0);
        }
        let mut marks = sent(10);
        marks.acknowledged(4, counts(4, 0));
        marks.acknowledged(0, counts(3, 1));
        assert!(marks.failed(), "a count went down");
    }

    #[test]
    fn peer_without_ecn_fails_only_marked_packets() {
        let mut marks = EcnValidation::new();
        assert_eq!(marks.acknowledged(0, None), 0);
        assert!(marks.wanted());
    }
}
