//! Backoff from runs of packets that the kernel refuses.
//!
//! ```text
//!   runs ── refused, so many in a row ──► alone, so many packets ──► runs again
//! ```
//! A kernel may refuse every run, or every run of one kind, although it claims to accept them; or a
//! single run because of its content. Packets of a refused run are sent one by one at once. Only if
//! several runs in a row are refused is trying wasteful, and even then it is stopped only for a
//! while.

/// Runs refused one after the other before none is tried for a while.
const IN_A_ROW_MAX: u32 = 16;

/// Packets that go alone then: some hundred refused runs in a million packets cost nothing.
const ALONE_PACKETS: u32 = 10_000;

/// Counters of refused runs so far.
#[derive(Debug, Default)]
pub struct RunRefusals {
    in_a_row: u32,
    alone: u32,
    total: u64,
}

impl RunRefusals {
    /// Returns `true` if the next packet has to be sent alone. Call it once for each packet.
    pub fn keep_alone(&mut self) -> bool {
        let alone = self.alone > 0;
        self.alone = self.alone.saturating_sub(1);
        alone
    }

    /// Takes in that a run was taken.
    pub fn taken(&mut self) {
        self.in_a_row = 0;
    }

    /// Takes in that a run was refused.
    pub fn refused(&mut self) {
        self.total += 1;
        self.in_a_row += 1;
        if self.in_a_row == IN_A_ROW_MAX {
            self.in_a_row = 0;
            self.alone = ALONE_PACKETS;
        }
    }

    /// Returns the number of refused runs since the start.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of packets that may be part of a run, out of `packets`.
    fn tried(refusals: &mut RunRefusals, packets: u32) -> u32 {
        (0..packets).filter(|_| !refusals.keep_alone()).count() as u32
    }

    #[test]
    fn one_refused_run_keeps_no_other_back() {
        let mut refusals = RunRefusals::default();
        for _ in 0..1_000 {
            for _ in 1..IN_A_ROW_MAX {
                refusals.refused();
            }
            refusals.taken();
            assert_eq!(tried(&mut refusals, 10), 10);
        }
        assert_eq!(refusals.total(), 15_000);
    }

    #[test]
    fn repeated_refusals_pause_runs_temporarily() {
        let mut refusals = RunRefusals::default();
        for _ in 0..3 {
            for _ in 0..IN_A_ROW_MAX {
                assert_eq!(tried(&mut refusals, 1), 1);
                refusals.refused();
            }
            assert_eq!(tried(&mut refusals, ALONE_PACKETS), 0);
        }
        refusals.taken();
        assert_eq!(tried(&mut refusals, 1_000), 1_000);
        assert_eq!(refusals.total(), 48);
    }
}
