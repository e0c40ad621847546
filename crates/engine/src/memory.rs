//! The division of the node's memory among its flows.
//!
//! ```text
//!  limit of memory                                        hard limit
//!  │◄──────── held ────────►│◄──────── free ────────►│        │
//!                             a flow's share falls with         flows that hold most are
//!                             what is free, and faster          reset beyond it
//! ```
//!
//! All memory that is held for a peer counts: that of the flows, and that of the sessions for them.
//! A flow whose host has stopped holds at most its share, so many stopped flows leave memory to the
//! others (the dynamic thresholds of Choudhury and Hahne, 1998). A share bounds the bytes that a
//! flow accepts, and one accepted record may exceed it; flows of an honest peer stay below the
//! limit. A hostile peer can make records and messages that cost more than their size suggests. At
//! the hard limit the flows that hold most are therefore reset.

/// The memory that a flow may always hold: a page for its host. A flow that holds nothing may
/// accept more, one record.
const LEAST_SHARE: usize = 4 * 1024;
/// The divisor for a flow's share of the memory while all of it is free: with the default of 256
/// MiB the share is 16 MiB, twice the memory that an encoder keeps for a flow.
const SHARES: u128 = 16;
/// The hard limit, in per cent of the limit.
const HARD_LIMIT_PERCENT: usize = 125;

/// The memory that the node holds, and its limit, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryBudget {
    pub(crate) limit: usize,
    pub(crate) held: usize,
}

impl MemoryBudget {
    /// The memory that one flow may hold at each of its stages: the square of the free part of the
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

    /// The free memory beyond half of the limit, which any flow may use.
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
    fn flows_at_their_share_leave_memory_to_others() {
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
    fn excess_exists_only_beyond_the_hard_limit() {
        let budget = |held| MemoryBudget { limit: 1_000, held };
        assert_eq!(budget(1_250).excess(), 0);
        assert_eq!(budget(1_300).excess(), 50);
        assert_eq!(budget(1_300).share(), LEAST_SHARE);
    }
}
