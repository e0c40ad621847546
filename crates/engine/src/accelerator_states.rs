//! The shared state of each accelerator: what this engine keeps of it for all of its flows.

use std::collections::BTreeMap;
use std::time::Duration;

use accelerate::registry::{Entry, Registry};
use accelerate::shared::{HalfContext, SharedState, StartContext};
use accelerate::{Accelerator, Half};
use vocab::{Random, Time};

/// The first of the streams of chance that shared states draw from, one for each accelerator's number; flows
/// have stream 1.
const FIRST_STREAM: u64 = 1_000;

/// The shared states of all accelerators, by the accelerator's number.
pub(crate) struct AcceleratorStates {
    states: BTreeMap<u8, Box<dyn SharedState>>,
    seed: u64,
}

impl AcceleratorStates {
    /// Starts those of a registry.
    pub(crate) fn new(registry: &Registry, seed: u64) -> Self {
        let mut started = Self {
            states: BTreeMap::new(),
            seed,
        };
        started.configure(registry);
        started
    }

    /// Gives each its settings, and starts those that are new.
    pub(crate) fn configure(&mut self, registry: &Registry) {
        for registered in registry.iter() {
            let number = registered.entry.number;
            match self.states.get_mut(&number) {
                Some(state) => state.configure(&registered.settings),
                None => {
                    let stream = FIRST_STREAM + u64::from(number);
                    let chance = Random::for_stream(self.seed, stream);
                    let state = registered.settings.start(StartContext { chance });
                    self.states.insert(number, state);
                }
            }
        }
    }

    /// Tells all of them the time on the calendar.
    pub(crate) fn set_calendar(&mut self, now: Time, since_1970: Duration) {
        for state in self.states.values_mut() {
            state.set_calendar(now, since_1970);
        }
    }

    /// Builds a half for a flow.
    pub(crate) fn build(
        &mut self,
        entry: &Entry,
        half: Half,
        context: HalfContext,
    ) -> Box<dyn Accelerator> {
        let state = self.states.get_mut(&entry.number);
        let state = state.expect("flows are given accelerators of the registry");
        state.build(half, context)
    }
}
