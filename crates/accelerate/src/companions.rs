//! Flows between the same client and server.
//!
//! A client may have several connections to a server, and be promised things that hold for all of them: what a
//! half does under such a promise another connection can undo, and its half would not hear of it. So a half that
//! does anything of the kind says between whom its flow is, and does it only while it is alone there.
//!
//! ```text
//!   one says Between ──► Alone                        another goes ──► Alone
//!   another says so  ──► Beside, to the first; it stops, and says GivenBack ──► Beside, to the other
//! ```
//! The engine keeps one of these for all of its flows, and hands the words on. Flows that go another way, past
//! the node, it cannot know.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::Input;

/// What a client and a server call themselves, in whatever form their protocol has for it: flows that say the
/// same are between the same two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends(pub [u8; 32]);

/// Where a flow stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It has said between whom it is, and waits to hear more.
    Waits,
    Alone,
    /// It was told that it is not alone any more, and has not stopped yet.
    Stopping,
    Beside,
}

/// See the head of this file. Flows are known by a number of the engine's.
#[derive(Debug, Default)]
pub struct Companions {
    flows: HashMap<u64, Ends>,
    between: HashMap<Ends, BTreeMap<u64, Place>>,
    told: VecDeque<(u64, Input)>,
}

impl Companions {
    /// A flow says between whom it is; it does so once.
    pub fn between(&mut self, flow: u64, ends: Ends) {
        if self.flows.insert(flow, ends).is_none() {
            let places = self.between.entry(ends).or_default();
            places.insert(flow, Place::Waits);
            self.settle(ends);
        }
    }

    /// A flow does nothing any more for which it would have to be alone.
    pub fn given_back(&mut self, flow: u64) {
        if let Some(ends) = self.flows.get(&flow).copied() {
            let place = self.between.get_mut(&ends).and_then(|of| of.get_mut(&flow));
            if let Some(place) = place.filter(|place| **place == Place::Stopping) {
                *place = Place::Beside;
                self.settle(ends);
            }
        }
    }

    /// A flow is over.
    pub fn ended(&mut self, flow: u64) {
        let Some(ends) = self.flows.remove(&flow) else {
            return;
        };
        if let Some(places) = self.between.get_mut(&ends) {
            places.remove(&flow);
            match places.is_empty() {
                true => drop(self.between.remove(&ends)),
                false => self.settle(ends),
            }
        }
    }

    /// What to tell which flow next: [`Input::Alone`] or [`Input::Beside`].
    pub fn poll_told(&mut self) -> Option<(u64, Input)> {
        self.told.pop_front()
    }

    fn settle(&mut self, ends: Ends) {
        let Some(places) = self.between.get_mut(&ends) else {
            return;
        };
        let is_one = places.len() == 1;
        for (flow, place) in &mut *places {
            match (*place, is_one) {
                (Place::Waits | Place::Beside, true) => {
                    *place = Place::Alone;
                    self.told.push_back((*flow, Input::Alone));
                }
                (Place::Alone, false) => {
                    *place = Place::Stopping;
                    self.told.push_back((*flow, Input::Beside));
                }
                (Place::Alone | Place::Stopping, _) | (Place::Waits | Place::Beside, false) => {}
            }
        }
        if is_one || places.values().any(|place| *place == Place::Stopping) {
            return;
        }
        for (flow, place) in places {
            if *place == Place::Waits {
                *place = Place::Beside;
                self.told.push_back((*flow, Input::Beside));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: Ends = Ends([1; 32]);

    fn told(companions: &mut Companions) -> Vec<(u64, Input)> {
        std::iter::from_fn(|| companions.poll_told()).collect()
    }

    #[test]
    fn the_first_is_alone_and_stops_before_another_goes_on() {
        let mut companions = Companions::default();
        companions.between(1, ENDS);
        assert_eq!(told(&mut companions), [(1, Input::Alone)]);
        // Between others is something else.
        companions.between(9, Ends([2; 32]));
        assert_eq!(told(&mut companions), [(9, Input::Alone)]);
        companions.between(2, ENDS);
        companions.between(3, ENDS);
        assert_eq!(told(&mut companions), [(1, Input::Beside)]);
        companions.given_back(9);
        companions.given_back(2);
        assert!(told(&mut companions).is_empty());
        companions.given_back(1);
        let both = [(2, Input::Beside), (3, Input::Beside)];
        assert_eq!(told(&mut companions), both);
        companions.between(4, ENDS);
        assert_eq!(told(&mut companions), [(4, Input::Beside)]);
    }

    #[test]
    fn who_stays_behind_is_alone_again() {
        let mut companions = Companions::default();
        for flow in 1..=3 {
            companions.between(flow, ENDS);
        }
        companions.ended(2);
        told(&mut companions);
        // The one that was to stop goes without a word.
        companions.ended(1);
        assert_eq!(told(&mut companions), [(3, Input::Alone)]);
        companions.between(4, ENDS);
        assert_eq!(told(&mut companions), [(3, Input::Beside)]);
        companions.ended(4);
        assert!(told(&mut companions).is_empty());
        companions.given_back(3);
        assert_eq!(told(&mut companions), [(3, Input::Alone)]);
        companions.ended(3);
        assert!(companions.flows.is_empty() && companions.between.is_empty());
    }
}
