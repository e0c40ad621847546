//! State of an accelerator that all flows of one engine share.
//!
//! An engine starts one [`SharedState`] of each accelerator from its settings and lets it build the
//! halves of every flow. A half gets a handle of the accelerator's own (an [`SharedHandle`]) to the
//! shared value; the engine knows neither the handle nor its type. An accelerator whose flows share
//! nothing uses [`UnsharedState`].
//!
//! ```text
//!   half of flow 7 ─┐                       ┌─► Wake(9): the engine gives the half Input::Woken
//!   half of flow 9 ─┼─► the accelerator's ──┼─► File(request) ──► disk ──► Input: File(completion)
//!     operator ─────┘    shared value       └─► Purged
//! ```
//! The state keeps the contract of a core: [`SharedState::handle`], then [`SharedState::poll_output`]
//! until `None`. The engine also drains it after every turn of a flow, since a half may have changed it.
//!
//! Files are in a directory of the accelerator's own. Requests are executed in the order of output.
//! Data written before a completed sync survives a crash. Of later data any part may survive, and a
//! record may be incomplete.

mod files;
pub mod memory_files;
mod report;
mod sealed_log;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use vocab::{SeededRandom, Time};

use crate::credentials::DelegatedKeys;
use crate::settings::AcceleratorSettings;
use crate::{AcceleratorHalf, CarriedProtocol, WanEnd};

pub use files::{
    FILE_NAME_MAX, FileAnswer, FileCompletion, FileFault, FileListing, FileName, FileOperation,
    FileRequest, LISTED_MAX, READ_MAX,
};
pub use report::{AcceleratorReport, REPORTED_SERVERS_MAX, ServerReport};
pub use sealed_log::{Damage, LogEvent, SealedLog, StateKey};

/// Limits and chance that the engine hands to a shared state as it starts.
#[derive(Debug)]
pub struct StartContext {
    /// Bytes of memory that the state may hold. The engine has it shrink where it holds more, or where
    /// flows need the memory.
    pub memory_max: usize,
    /// Chance that no other accelerator has.
    pub random: SeededRandom,
    /// What seals files of this accelerator; `None` where the node keeps no content on disk, so that an index of
    /// content is of no use there.
    pub key: Option<StateKey>,
}

/// The flow for which a half is built, and the keys it may use.
#[derive(Debug)]
pub struct HalfContext {
    /// The engine's number of the flow. [`SharedOutput::Wake`] names it.
    pub flow: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
    /// The keys that the operator has delegated to this node.
    pub delegated: DelegatedKeys,
    /// Bytes in flight that fill the path to the other node without a queue, by the last measurement of this node's
    /// own packets; 0 before the first.
    pub path_bytes: u64,
    /// Chance that no other flow has.
    pub random: SeededRandom,
}

/// An event that the engine reports to a shared state.
#[derive(Clone, Debug)]
pub enum SharedInput {
    /// The engine begins. The first input; files of an earlier run can be read from here on.
    Start,
    /// A request for a file has ended.
    File(FileCompletion),
    /// The time of [`SharedState::poll_timeout`] has come.
    Timeout,
    /// This flow is gone. Its half makes no more calls, and waking it has no effect.
    FlowEnded(u64),
    /// Hold no more than this many bytes of memory from here on, as far as that can be done at once.
    Shrink {
        /// Bytes, as [`SharedState::buffered`] counts them.
        to: usize,
    },
    /// An operator removes content. [`SharedOutput::Purged`] with the same id follows, once the
    /// removed content cannot return after a crash.
    Purge {
        /// The engine's number of the request.
        id: u64,
        /// The beginning of the names to remove; all entries are removed if it is empty.
        prefix: String,
    },
    /// All content was removed from the node's dictionary; earlier handles are useless.
    ContentCleared {
        /// The key that seals files from here on, if it is a new one.
        key: Option<StateKey>,
    },
    /// The engine stops. Valuable state is put out to be written; there is no further input.
    Stop,
}

/// An action that a shared state requests from the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedOutput {
    /// Do this with a file; [`SharedInput::File`] with its id follows.
    File(FileRequest),
    /// Give the half of this flow [`AcceleratorInput::Woken`](crate::AcceleratorInput::Woken). Nothing happens if the flow has ended.
    Wake(u64),
    /// Tell the operator about the disk.
    DiskTrouble(DiskTrouble),
    /// An operator's request has ended.
    Purged {
        /// The number of the request.
        id: u64,
        /// The count of removed entries, or the cause for which none was removed.
        result: Result<PurgeCount, String>,
    },
}

/// A trouble with the disk that an operator has to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskTrouble {
    /// The disk failed, or is full; the accelerator goes on without it, and tries again later.
    Failed(FileFault),
    /// A part of what an earlier run has written was not used.
    Damaged {
        /// Whole files.
        files: u64,
        /// Records of others.
        records: u64,
    },
}

/// The count of entries and bytes that a purge removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PurgeCount {
    /// Entries.
    pub entries: u64,
    /// Bytes of content in them.
    pub bytes: u64,
}

/// The state of an accelerator that all flows of one engine share.
pub trait SharedState: Send {
    /// Takes other settings of the same accelerator, which apply to flows that begin from here on.
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>);

    /// Takes the calendar time at this moment of the engine's clock. It is called after the start
    /// and repeatedly, since the calendar can be set.
    fn set_calendar(&mut self, now: Time, since_1970: Duration) {
        let _ = (now, since_1970);
    }

    /// Builds one half for one flow.
    fn build(&mut self, half: WanEnd, context: HalfContext) -> Box<dyn AcceleratorHalf>;

    /// True if the accelerator serves flows to this server's address, because a protocol of its own
    /// has named the port there. The engine asks for each client whose port has no accelerator.
    fn serves(&mut self, now: Time, server: SocketAddr) -> bool {
        let _ = (now, server);
        false
    }

    /// The protocol of this accelerator that others can carry; `None` if it has none, or is switched
    /// off. The engine asks after each change of the settings.
    fn carried(&self) -> Option<Arc<dyn CarriedProtocol>> {
        None
    }

    /// Takes the protocols that flows of this accelerator may carry, for flows that begin from here on.
    fn carry(&mut self, protocols: &[Arc<dyn CarriedProtocol>]) {
        let _ = protocols;
    }

    /// Handles an event.
    fn handle(&mut self, now: Time, input: SharedInput) {
        let _ = (now, input);
    }

    /// Returns the next action, or `None` when there is none until the next input to this state or
    /// to a half.
    fn poll_output(&mut self) -> Option<SharedOutput> {
        None
    }

    /// The time at which the state wants [`SharedInput::Timeout`].
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// The bytes that the state holds in memory, for the node's account. It is called after every
    /// turn, so the state keeps a count.
    fn buffered(&self) -> usize {
        0
    }

    /// What was done for all flows since the start, for the operator; `None` if the accelerator keeps no account.
    fn report(&self) -> Option<AcceleratorReport> {
        None
    }

    /// True if an operator can purge content of this state. A state that has some answers every
    /// [`SharedInput::Purge`]; others get none.
    fn keeps_content(&self) -> bool {
        false
    }
}

/// A function that builds a half of an accelerator whose flows share nothing.
pub type BuildHalf<S> = fn(&S, WanEnd, HalfContext) -> Box<dyn AcceleratorHalf>;

/// The shared state of an accelerator whose flows share nothing: its settings.
pub struct UnsharedState<S> {
    settings: S,
    build: BuildHalf<S>,
}

impl<S: AcceleratorSettings + Clone> UnsharedState<S> {
    /// Builds halves by `build`, with these settings.
    pub fn new(settings: S, build: BuildHalf<S>) -> Self {
        Self { settings, build }
    }
}

impl<S: AcceleratorSettings + Clone> SharedState for UnsharedState<S> {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        self.settings = settings.expect::<S>().clone();
    }

    fn build(&mut self, half: WanEnd, context: HalfContext) -> Box<dyn AcceleratorHalf> {
        (self.build)(&self.settings, half, context)
    }
}

/// A handle on a value that the halves of an accelerator share with its [`SharedState`].
///
/// Each half of a flow owns one. Halves have to be `Send`, since an engine may be moved to another thread, and all
/// of one engine run on the same thread, so the lock is never waited for.
#[derive(Debug)]
pub struct SharedHandle<T>(
    #[expect(clippy::disallowed_types, reason = "see above")] Arc<std::sync::Mutex<T>>,
);

impl<T> SharedHandle<T> {
    /// Puts the value where handles can reach it.
    #[must_use]
    pub fn new(value: T) -> Self {
        #[expect(clippy::disallowed_types, reason = "see above")]
        Self(Arc::new(std::sync::Mutex::new(value)))
    }

    /// Works on the value. `work` uses no handle on the same value.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // A panic of another half ends the process; what it left is not looked at.
        let mut value = self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        work(&mut value)
    }
}

impl<T> Clone for SharedHandle<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
