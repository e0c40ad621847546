//! Memory that the dictionary lends to flows: chunks that were referred to and may be asked for.
//!
//! An encoder keeps what it has sent until the peer has acknowledged it, for repairs. Of a chunk that
//! was referred to as a whole the dictionary has the bytes anyway, so the flow holds on to those and not
//! to the ones that came from the host. How much is lent to all flows together is limited, and counted
//! in the dictionary's memory: a chunk that is lent stays in memory even when its turn comes to go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is lent.
#[derive(Debug, Default)]
pub(super) struct LoanAccount {
    lent: Arc<AtomicUsize>,
}

/// So many bytes of the dictionary's memory; given back when it is dropped.
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

    /// Lends so many bytes, if there are then no more than `most` lent.
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
    fn what_is_given_back_can_be_lent_again() {
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
