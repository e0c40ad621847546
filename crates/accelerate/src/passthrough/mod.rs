//! The accelerator that does nothing: every byte is payload and passes as it came.
//!
//! It saves nothing by itself; reduction and transport do their part around it. It serves every
//! flow that has no accelerator of its own, and it is the one to copy for a new one: a machine
//! with its states written out, outputs in a queue, `LetGo` where it stops understanding (which
//! here is never).
//!
//! ```text
//!            Start                LanFinished            WanFinished
//!   Waiting ───────► Passing ──► (FinishWan put out)    (FinishLan put out)
//! ```
//! The two directions end apart, as TCP's do (RFC 9293 §3.6, Closing a Connection).

use std::collections::VecDeque;

use std::sync::Arc;

use vocab::{Segment, SegmentKind, Time};

use crate::registry::{Entry, PASSTHROUGH};
use crate::settings::{AcceleratorSettings, TableReader};
use crate::shared::{SharedState, StartContext, Unshared};
use crate::{Accelerator, Half, Input, Output};

/// The accelerator in the registry.
pub static ENTRY: Entry = Entry {
    number: PASSTHROUGH,
    name: "passthrough",
    ports: &[],
    detection: None,
    parse: |table| {
        TableReader::new(table).finish()?;
        Ok(Arc::new(Settings))
    },
    moved_keys: &[],
    uses_delegated: false,
    switch_on: None,
    explain: |_, _| None,
};

/// There is nothing to set.
#[derive(Clone, Copy, Debug)]
struct Settings;

impl AcceleratorSettings for Settings {
    fn is_on(&self) -> bool {
        true
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(Unshared::new(*self, |_, half, _| {
            Box::new(Passthrough::new(half))
        }))
    }
}

/// Both halves: they differ only in who opens the server's connection.
#[derive(Debug)]
pub struct Passthrough {
    half: Half,
    outputs: VecDeque<Output>,
}

impl Passthrough {
    /// A half that has not started.
    #[must_use]
    pub fn new(half: Half) -> Self {
        Self {
            half,
            outputs: VecDeque::new(),
        }
    }
}

impl Accelerator for Passthrough {
    fn handle(&mut self, _now: Time, input: Input) {
        match input {
            Input::Start => match self.half {
                Half::Near => {}
                Half::Far => self.outputs.push_back(Output::OpenServer),
            },
            Input::Lan(bytes) => self
                .outputs
                .push_back(Output::ToWan(Segment::payload(bytes))),
            Input::LanFinished => self.outputs.push_back(Output::FinishWan),
            Input::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => {
                    self.outputs.push_back(Output::ToLan(segment.bytes));
                }
                // This half never sends a frame and so has no meaning for one.
                SegmentKind::Frame => {}
            },
            Input::WanFinished => self.outputs.push_back(Output::FinishLan),
            Input::WanSilent(_)
            | Input::Timeout
            | Input::Server(..)
            | Input::ClaimGranted
            | Input::ClaimRevoked
            | Input::ClaimDenied
            | Input::Content(_)
            | Input::Woken => {}
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}

#[cfg(test)]
mod tests;
