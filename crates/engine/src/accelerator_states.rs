//! The shared state of each accelerator: the value that this engine keeps for all of its flows.
//!
//! The engine passes on the requests of a state and counts the memory that it holds. It asks the
//! state to shrink where the state exceeds its allowance, or where flows need the memory.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use accelerate::registry::{AcceleratorEntry, AcceleratorRegistry, PASSTHROUGH};
use accelerate::shared::{
    DiskTrouble, FileCompletion, FileRequest, HalfContext, SharedInput, SharedOutput, SharedState,
    StartContext, StateKey,
};
use accelerate::{AcceleratorHalf, WanEnd};
use reduce::DictionaryKey;
use vocab::{SeededRandom, Time};

use crate::report::AcceleratorStatus;

/// The first of the streams of chance that shared states draw from, one for each accelerator's number; flows
/// have stream 1.
const FIRST_STREAM: u64 = 1_000;

/// The share of the node's flow memory that all shared states together may hold, in per cent.
/// Shared states save round trips, but flows cannot continue without memory.
const MEMORY_PERCENT: usize = 25;

/// The limit of outstanding file requests of one accelerator. Further ones wait in the accelerator,
/// so that a slow disk does not fill the queue before it; a disk that takes 1 ms for each serves
/// 1,000 a second with fewer.
const FILE_REQUESTS_MAX: usize = 64;

/// The shared states of all accelerators, by the accelerator's number.
pub(crate) struct AcceleratorStates {
    kept: BTreeMap<u8, StateSlot>,
    seed: u64,
    /// Key from which the keys of the accelerators' files are derived.
    key: Option<DictionaryKey>,
    /// Bytes that all may hold together.
    memory_max: usize,
    /// The engine has stopped; remaining writes are put out at once.
    is_stopped: bool,
}

/// One shared state.
struct StateSlot {
    entry: &'static AcceleratorEntry,
    state: Box<dyn SharedState>,
    /// Requests for files that have not ended, and the bytes that each holds.
    under_way: BTreeMap<u64, usize>,
    /// Those bytes.
    bytes_under_way: usize,
}

/// Something that a shared state wants done.
#[derive(Debug)]
pub(crate) enum StateOutput {
    /// A request for a file of this accelerator.
    File(&'static AcceleratorEntry, FileRequest),
    /// This accelerator has trouble with the disk.
    DiskTrouble(&'static AcceleratorEntry, DiskTrouble),
    /// The half of this flow is to be woken.
    Wake(u64),
    /// A purge has ended.
    Purged {
        id: u64,
        result: Result<accelerate::shared::PurgeCount, String>,
    },
}

impl AcceleratorStates {
    /// Starts the states of a registry. `memory` is the memory that the node may hold for its
    /// flows, `key` seals the dictionary.
    pub(crate) fn new(
        now: Time,
        registry: &AcceleratorRegistry,
        memory: usize,
        seed: u64,
        key: Option<DictionaryKey>,
    ) -> Self {
        let mut started = Self {
            kept: BTreeMap::new(),
            seed,
            key,
            memory_max: 0,
            is_stopped: false,
        };
        started.configure(now, registry, memory);
        started
    }

    /// Passes the settings to each state, and starts the new ones.
    pub(crate) fn configure(&mut self, now: Time, registry: &AcceleratorRegistry, memory: usize) {
        self.memory_max = memory / 100 * MEMORY_PERCENT;
        for registered in registry.iter() {
            let entry = registered.entry;
            match self.kept.get_mut(&entry.number) {
                Some(kept) => kept.state.configure(&registered.settings),
                None => {
                    let stream = FIRST_STREAM + u64::from(entry.number);
                    let mut state = registered.settings.start(StartContext {
                        memory_max: self.memory_max,
                        random: SeededRandom::for_stream(self.seed, stream),
                        key: state_key(self.key.as_ref(), entry),
                    });
                    state.handle(now, SharedInput::Start);
                    let kept = StateSlot {
                        entry,
                        state,
                        under_way: BTreeMap::new(),
                        bytes_under_way: 0,
                    };
                    self.kept.insert(entry.number, kept);
                }
            }
        }
        let carried = self.kept.values().filter_map(|kept| kept.state.carried());
        let carried: Vec<_> = carried.collect();
        for kept in self.kept.values_mut() {
            kept.state.carry(&carried);
        }
    }

    /// What each that keeps an account has done, in the order of their numbers.
    pub(crate) fn reports(&self) -> Vec<AcceleratorStatus> {
        let reports = self.kept.values().filter_map(|kept| {
            let report = kept.state.report()?;
            Some(AcceleratorStatus::of(kept.entry.name, report))
        });
        reports.collect()
    }

    /// Tells all states that the dictionary was emptied; `key` is its new key, if there is one.
    pub(crate) fn content_cleared(&mut self, now: Time, key: Option<DictionaryKey>) {
        let is_new = key.is_some();
        self.key = key.or_else(|| self.key.take());
        for kept in self.kept.values_mut() {
            let key = state_key(self.key.as_ref().filter(|_| is_new), kept.entry);
            kept.state.handle(now, SharedInput::ContentCleared { key });
        }
    }

    /// Passes the calendar time to all states.
    pub(crate) fn set_calendar(&mut self, now: Time, since_1970: Duration) {
        for kept in self.kept.values_mut() {
            kept.state.set_calendar(now, since_1970);
        }
    }

    /// The accelerator that has learnt that it serves flows to this server's address.
    pub(crate) fn serving(
        &mut self,
        now: Time,
        server: SocketAddr,
    ) -> Option<&'static AcceleratorEntry> {
        let mut kept = self.kept.values_mut();
        let kept = kept.find_map(|kept| kept.state.serves(now, server).then_some(kept.entry));
        kept.filter(|entry| entry.number != PASSTHROUGH)
    }

    /// Builds a half for a flow.
    pub(crate) fn build(
        &mut self,
        entry: &AcceleratorEntry,
        half: WanEnd,
        context: HalfContext,
    ) -> Box<dyn AcceleratorHalf> {
        let kept = self.kept.get_mut(&entry.number);
        let kept = kept.expect("flows are given accelerators of the registry");
        kept.state.build(half, context)
    }

    /// The next thing that a state wants done.
    pub(crate) fn poll_output(&mut self) -> Option<StateOutput> {
        let requests_max = match self.is_stopped {
            true => usize::MAX,
            false => FILE_REQUESTS_MAX,
        };
        let mut kept = self.kept.values_mut();
        kept.find_map(|kept| kept.poll_output(requests_max))
    }

    /// A request for a file of this accelerator has ended.
    pub(crate) fn file_completed(
        &mut self,
        now: Time,
        entry: &AcceleratorEntry,
        completion: FileCompletion,
    ) {
        if let Some(kept) = self.kept.get_mut(&entry.number)
            && let Some(bytes) = kept.under_way.remove(&completion.id)
        {
            kept.bytes_under_way -= bytes;
            kept.state.handle(now, SharedInput::File(completion));
        }
    }

    /// Makes the accelerator of this name remove the content stored under names that begin with
    /// `prefix`.
    ///
    /// # Errors
    /// When there is no such accelerator, or it keeps nothing.
    pub(crate) fn purge(
        &mut self,
        now: Time,
        id: u64,
        name: &str,
        prefix: String,
    ) -> Result<(), String> {
        let keeps = |kept: &&mut StateSlot| kept.state.keeps_content();
        let found = self
            .kept
            .values_mut()
            .filter(|kept| kept.entry.name == name);
        if let Some(kept) = found.into_iter().find(keeps) {
            kept.state.handle(now, SharedInput::Purge { id, prefix });
            return Ok(());
        }
        let keeping = self.kept.values().filter(|kept| kept.state.keeps_content());
        let keeping: Vec<&str> = keeping.map(|kept| kept.entry.name).collect();
        Err(match keeping.is_empty() {
            true => {
                format!(
                    "no accelerator of this node stores content, so `{name}` has no content to remove"
                )
            }
            false => format!(
                "the accelerator `{name}` stores no content on this node; accelerators that do: {}",
                keeping.join(", ")
            ),
        })
    }

    /// A flow has ended. Its halves may have used the states of its accelerator, and of a protocol that
    /// it carried.
    pub(crate) fn flow_ended(&mut self, now: Time, flow: u64) {
        for kept in self.kept.values_mut() {
            kept.state.handle(now, SharedInput::FlowEnded(flow));
        }
    }

    /// The time at which [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let states = self.kept.values();
        states.filter_map(|kept| kept.state.poll_timeout()).min()
    }

    /// Calls the states whose timers are due.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        for kept in self.kept.values_mut() {
            if kept.state.poll_timeout().is_some_and(|at| at <= now) {
                kept.state.handle(now, SharedInput::Timeout);
            }
        }
    }

    /// The engine stops.
    pub(crate) fn stop(&mut self, now: Time) {
        self.is_stopped = true;
        for kept in self.kept.values_mut() {
            kept.state.handle(now, SharedInput::Stop);
        }
    }

    /// The bytes that the states hold, outstanding requests included.
    pub(crate) fn held(&self) -> usize {
        let held = |kept: &StateSlot| kept.state.buffered() + kept.bytes_under_way;
        self.kept.values().map(held).sum()
    }

    /// Makes the largest states shrink, by the bytes that all hold beyond their allowance and by
    /// `more` bytes.
    pub(crate) fn shrink(&mut self, now: Time, more: usize) {
        let beyond = self.held().saturating_sub(self.memory_max);
        let mut excess = beyond.max(more);
        if excess == 0 {
            return;
        }
        let mut states: Vec<&mut StateSlot> = self.kept.values_mut().collect();
        states.sort_by_key(|kept| std::cmp::Reverse(kept.state.buffered()));
        for kept in states {
            let held = kept.state.buffered();
            if excess == 0 || held == 0 {
                return;
            }
            let to = held.saturating_sub(excess);
            kept.state.handle(now, SharedInput::Shrink { to });
            excess = excess.saturating_sub(held.saturating_sub(kept.state.buffered()));
        }
    }
}

impl StateSlot {
    fn poll_output(&mut self, requests_max: usize) -> Option<StateOutput> {
        if self.under_way.len() >= requests_max {
            return None;
        }
        Some(match self.state.poll_output()? {
            SharedOutput::File(request) => {
                let bytes = request.operation.held();
                let known = self.under_way.insert(request.id, bytes);
                assert!(
                    known.is_none(),
                    "the id of a request is used once at a time"
                );
                self.bytes_under_way += bytes;
                StateOutput::File(self.entry, request)
            }
            SharedOutput::DiskTrouble(trouble) => StateOutput::DiskTrouble(self.entry, trouble),
            SharedOutput::Wake(flow) => StateOutput::Wake(flow),
            SharedOutput::Purged { id, result } => StateOutput::Purged { id, result },
        })
    }
}

/// The key for the files of one accelerator.
fn state_key(key: Option<&DictionaryKey>, entry: &AcceleratorEntry) -> Option<StateKey> {
    key.map(|key| StateKey::new(key.for_accelerator(entry.number)))
}
