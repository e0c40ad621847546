//! Memory that the dictionary lends to flows: chunks that were referred to and may be requested.
//!
//! An encoder keeps sent bytes for repairs until the peer has acknowledged them. The dictionary has
//! the bytes of a chunk that was referred to as a whole, so the flow keeps those and not the ones
//! from the host. The total for all flows is limited, and counted in the dictionary's memory: a
//! lent chunk stays in memory even when it would be evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Account of the memory that is lent.
#[derive(Debug, Default)]
pub(super) struct LoanAccount {
    lent: Arc<AtomicUsize>,
}

/// Loan of the dictionary's memory, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryLoan {
    lent: Arc<AtomicUsize>,
    bytes: usize,
}

impl LoanAccount {
    /// Bytes that are lent.
    pub(super) fn used(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// Lends `bytes` bytes, if at most `most` are lent afterwards.
    pub(super) fn lend(&self, bytes: usize, most: usize) -> Option<MemoryLoan> {
        // A dictionary has one owner: nobody else adds meanwhile.
        (self.used() + bytes <= most).then(|| {
            self.lent.fetch_add(bytes, Ordering::Relaxed);
            MemoryLoan {
                lent: Arc::clone(&self.lent),
                bytes,
            }
        })
    }
}

impl Drop for MemoryLoan {
    fn drop(&mut self) {
        self.lent.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_memory_can_be_lent_again() {
        let lending = LoanAccount::default();
        let most = 100;
        let first = lending.lend(60, most);
        assert!(first.is_some() && lending.lend(41, most).is_none());
        let second = lending.lend(40, most);
        assert_eq!((second.is_some(), lending.used()), (true, 100));
        drop(first);
        assert_eq!(lending.used(), 40);
        assert!(lending.lend(60, most).is_some());
    }
}
