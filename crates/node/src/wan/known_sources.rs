//! Addresses that a peer has connected from, or is dialled at. Handshakes from them are preferred
//! to those of strangers when places are scarce.
//!
//! An address proves nothing: a host at such an address must still show a pinned key.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use engine::source_of;

use crate::places::SourceStanding;

/// Addresses kept; beyond it the one that was not seen for longest is forgotten. A hub with a
/// hundred branches behind changing addresses sees some hundred in a week.
const KNOWN_MAX: usize = 1_024;

/// See the module documentation; clones share their knowledge.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownSources {
    seen: Arc<Mutex<BTreeMap<IpAddr, Instant>>>,
}

impl KnownSources {
    /// A peer was met there, or is going to be.
    pub(crate) fn note(&self, address: IpAddr) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(source_of(address), Instant::now());
        if seen.len() > KNOWN_MAX {
            let oldest = seen.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(source, _)| *source) {
                seen.remove(&oldest);
            }
        }
    }

    /// Returns whether a peer is known to come from this address.
    pub(crate) fn standing(&self, address: IpAddr) -> SourceStanding {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.contains_key(&source_of(address)) {
            true => SourceStanding::Known,
            false => SourceStanding::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_seen_last_are_known() {
        let known = KnownSources::default();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        for number in 0..=KNOWN_MAX as u32 {
            known.note(address(number));
        }
        assert_eq!(known.standing(address(0)), SourceStanding::Unknown);
        assert_eq!(known.standing(address(1)), SourceStanding::Known);
        assert_eq!(
            known.standing(address(KNOWN_MAX as u32)),
            SourceStanding::Known
        );
    }
}
