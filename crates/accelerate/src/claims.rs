//! Exclusive claims: at most one flow at a time holds a claim on one key.
//!
//! A client may have several connections to a server, and a promise of the server (an oplock, a
//! lease) may hold for all of them. Another connection can break such a promise, and the half that
//! relies on it would not notice. Such a half claims a key that names the client and the server,
//! and relies on the promise only while it holds the claim.
//!
//! ```text
//!   first flow:   Claim ──► ClaimGranted
//!   second flow:  Claim ──► ClaimRevoked, to the first; it stops and says ClaimReleased
//!                       ──► ClaimDenied, to the second, which goes on without it
//!   all but one of them end ──► ClaimGranted, to the one that is left
//! ```
//! A key that two flows claim is held by neither. The engine keeps one [`ClaimTable`] for all of
//! its flows and passes the decisions on. It does not know the flows that bypass the node.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::AcceleratorInput;

/// The key of a claim: a digest that a protocol derives from the claim's subject. Flows that claim
/// the same key compete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey(pub [u8; 32]);

/// The state of one flow's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimState {
    /// It was made and is not decided yet.
    Pending,
    Granted,
    /// The flow was asked to release it and has not done so yet.
    Revoked,
    /// Another flow claims the same key.
    Denied,
}

/// The table of claims of all flows of an engine. Flows are known by the engine's numbers.
#[derive(Debug, Default)]
pub struct ClaimTable {
    keys: BTreeMap<u64, ClaimKey>,
    states: BTreeMap<ClaimKey, BTreeMap<u64, ClaimState>>,
    decisions: VecDeque<(u64, AcceleratorInput)>,
}

impl ClaimTable {
    /// Takes a flow's claim. A flow makes one claim; further ones change nothing.
    pub fn claim(&mut self, flow: u64, key: ClaimKey) {
        if let Entry::Vacant(vacant) = self.keys.entry(flow) {
            vacant.insert(key);
            let states = self.states.entry(key).or_default();
            states.insert(flow, ClaimState::Pending);
            self.decide(key);
        }
    }

    /// Records that a flow no longer relies on its claim.
    pub fn released(&mut self, flow: u64) {
        if let Some(key) = self.keys.get(&flow).copied() {
            let state = self.states.get_mut(&key).and_then(|of| of.get_mut(&flow));
            if let Some(state) = state.filter(|state| **state == ClaimState::Revoked) {
                *state = ClaimState::Denied;
                self.decide(key);
            }
        }
    }

    /// Forgets a flow that has ended.
    pub fn ended(&mut self, flow: u64) {
        let Some(key) = self.keys.remove(&flow) else {
            return;
        };
        if let Some(states) = self.states.get_mut(&key) {
            states.remove(&flow);
            match states.is_empty() {
                true => drop(self.states.remove(&key)),
                false => self.decide(key),
            }
        }
    }

    /// Returns the next decision and the flow that it is for: [`AcceleratorInput::ClaimGranted`],
    /// [`AcceleratorInput::ClaimRevoked`] or [`AcceleratorInput::ClaimDenied`].
    pub fn poll_decision(&mut self) -> Option<(u64, AcceleratorInput)> {
        self.decisions.pop_front()
    }

    fn decide(&mut self, key: ClaimKey) {
        let Some(states) = self.states.get_mut(&key) else {
            return;
        };
        let is_only_one = states.len() == 1;
        for (flow, state) in &mut *states {
            match (*state, is_only_one) {
                (ClaimState::Pending | ClaimState::Denied, true) => {
                    *state = ClaimState::Granted;
                    self.decisions
                        .push_back((*flow, AcceleratorInput::ClaimGranted));
                }
                (ClaimState::Granted, false) => {
                    *state = ClaimState::Revoked;
                    self.decisions
                        .push_back((*flow, AcceleratorInput::ClaimRevoked));
                }
                (ClaimState::Granted | ClaimState::Revoked, _)
                | (ClaimState::Pending | ClaimState::Denied, false) => {}
            }
        }
        if is_only_one || states.values().any(|state| *state == ClaimState::Revoked) {
            return;
        }
        for (flow, state) in states {
            if *state == ClaimState::Pending {
                *state = ClaimState::Denied;
                self.decisions
                    .push_back((*flow, AcceleratorInput::ClaimDenied));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ClaimKey = ClaimKey([1; 32]);

    fn decisions(claims: &mut ClaimTable) -> Vec<(u64, AcceleratorInput)> {
        std::iter::from_fn(|| claims.poll_decision()).collect()
    }

    #[test]
    fn holder_releases_before_others_are_denied() {
        let mut claims = ClaimTable::default();
        claims.claim(1, KEY);
        assert_eq!(
            decisions(&mut claims),
            [(1, AcceleratorInput::ClaimGranted)]
        );
        // Another key is another claim.
        claims.claim(9, ClaimKey([2; 32]));
        assert_eq!(
            decisions(&mut claims),
            [(9, AcceleratorInput::ClaimGranted)]
        );
        claims.claim(2, KEY);
        claims.claim(3, KEY);
        assert_eq!(
            decisions(&mut claims),
            [(1, AcceleratorInput::ClaimRevoked)]
        );
        claims.released(9);
        claims.released(2);
        assert!(decisions(&mut claims).is_empty());
        claims.released(1);
        let both = [
            (2, AcceleratorInput::ClaimDenied),
            (3, AcceleratorInput::ClaimDenied),
        ];
        assert_eq!(decisions(&mut claims), both);
        claims.claim(4, KEY);
        assert_eq!(decisions(&mut claims), [(4, AcceleratorInput::ClaimDenied)]);
    }

    #[test]
    fn last_flow_is_granted_the_claim() {
        let mut claims = ClaimTable::default();
        for flow in 1..=3 {
            claims.claim(flow, KEY);
        }
        claims.ended(2);
        decisions(&mut claims);
        // The holder ends without releasing its claim.
        claims.ended(1);
        assert_eq!(
            decisions(&mut claims),
            [(3, AcceleratorInput::ClaimGranted)]
        );
        claims.claim(4, KEY);
        assert_eq!(
            decisions(&mut claims),
            [(3, AcceleratorInput::ClaimRevoked)]
        );
        claims.ended(4);
        assert!(decisions(&mut claims).is_empty());
        claims.released(3);
        assert_eq!(
            decisions(&mut claims),
            [(3, AcceleratorInput::ClaimGranted)]
        );
        claims.ended(3);
        assert!(claims.keys.is_empty() && claims.states.is_empty());
    }
}
