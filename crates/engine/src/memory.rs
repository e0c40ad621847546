//! How the node's memory is divided among its flows.
//!
//! ```text
//!  limit of memory                                        hard limit
//!  │◄──────── held ────────►│◄──────── free ────────►│        │
//!                             a flow's share falls with         flows that hold most are
//!                             what is free, and faster          reset beyond it
//! ```
//!
//! Everything that is held for a peer counts: what flows keep, and what the sessions keep for them.
//! A flow whose host has stopped holds its share at most, so many of them leave memory to the others
//! (the dynamic thresholds of Choudhury and Hahne, 1998). A share bounds what a flow takes on, and a
//! record that it takes on may be longer; flows of an honest peer stay below the limit by that. A
//! hostile peer can make records and messages that cost more than they seem to, so there is an end:
//! at the hard limit the flows that hold most are reset.

/// Memory that a flow may hold however little is free: a page for its host. What it takes on when it
/// holds nothing may be more, a record.
const LEAST_SHARE: usize = 4 * 1024;
/// A flow's share of the memory while all of it is free is one part in so many: with the default of
/// 256 MiB that is 16 MiB, twice what an encoder keeps of a flow.
const SHARES: u128 = 16;
/// The hard limit, in per cent of the limit.
const HARD_LIMIT_PERCENT: usize = 125;

/// What the node holds, and what it may hold, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryBudget {
    pub(crate) limit: usize,
    pub(crate) held: usize,
}

impl MemoryBudget {
    /// What one flow may hold at each of its stages: the square of what is free, in parts of the
    /// limit, and the cube below a quarter of it.
    pub(crate) fn share(self) -> usize {
        let limit = self.limit.max(1) as u128;
        let free = self.limit.saturating_sub(self.held) as u128;
        let mut share = free * free / (SHARES * limit);
        if free < limit / 4 {
            share = share * 4 * free / limit;
        }
        usize::try_from(share)
            .unwrap_or(usize::MAX)
            .max(LEAST_SHARE)
    }

    /// What is free beyond half the limit: for whoever comes.
    pub(crate) fn spare(self) -> usize {
        self.limit.saturating_sub(self.held + self.limit / 2)
    }

    /// Bytes beyond the limit.
    pub(crate) fn beyond_limit(self) -> usize {
        self.held.saturating_sub(self.limit)
    }

    /// Bytes beyond the hard limit.
    pub(crate) fn excess(self) -> usize {
        let hard = self.limit as u128 * HARD_LIMIT_PERCENT as u128 / 100;
        self.held
            .saturating_sub(usize::try_from(hard).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_hold_their_share_leave_memory_to_others() {
        let limit = 256 << 20;
        for flows in [10, 100, 1_000, 4_000] {
            let mut held = 0;
            for _ in 0..flows {
                held += MemoryBudget { limit, held }.share().min(512 << 10);
            }
            assert!(held < limit, "{flows} flows hold {held}");
        }
    }

    #[test]
    fn there_is_an_excess_beyond_the_hard_limit_only() {
        let budget = |held| MemoryBudget { limit: 1_000, held };
        assert_eq!(budget(1_250).excess(), 0);
        assert_eq!(budget(1_300).excess(), 50);
        assert_eq!(budget(1_300).share(), LEAST_SHARE);
    }
}
