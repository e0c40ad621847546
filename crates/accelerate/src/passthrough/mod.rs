//! The accelerator that does nothing: every byte is payload and passes as it came.
//!
//! It saves nothing by itself; reduction and transport work around it. It serves every flow without
//! an accelerator of its own, and it is the template for a new one: a state machine with its states
//! written out, outputs in a queue, and `LetGo` where it no longer understands the protocol (here
//! never).
//!
//! ```text
//!            Start                LanFinished            WanFinished
//!   Waiting ───────► Passing ──► (FinishWan put out)    (FinishLan put out)
//! ```
//! The two directions end separately, as in TCP (RFC 9293 §3.6, Closing a Connection).

use std::collections::VecDeque;

use std::sync::Arc;

use vocab::{FlowSegment, SegmentKind, Time};

use crate::registry::{AcceleratorEntry, PASSTHROUGH};
use crate::settings::{AcceleratorSettings, TableReader};
use crate::shared::{SharedState, StartContext, UnsharedState};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, WanEnd};

/// The accelerator in the registry.
pub static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: PASSTHROUGH,
    name: "passthrough",
    ports: &[],
    detection: None,
    parse: |table| {
        TableReader::new(table).finish()?;
        Ok(Arc::new(PassthroughSettings))
    },
    moved_keys: &[],
    uses_delegated: false,
    switch_on: None,
    explain: |_, _| None,
};

/// The settings of the passthrough accelerator, which are empty.
#[derive(Clone, Copy, Debug)]
struct PassthroughSettings;

impl AcceleratorSettings for PassthroughSettings {
    fn is_on(&self) -> bool {
        true
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(UnsharedState::new(*self, |_, half, _| {
            Box::new(Passthrough::new(half))
        }))
    }
}

/// Both halves: they differ only in the side that opens the server's connection.
#[derive(Debug)]
pub struct Passthrough {
    half: WanEnd,
    outputs: VecDeque<AcceleratorOutput>,
}

impl Passthrough {
    /// A half that has not started.
    #[must_use]
    pub fn new(half: WanEnd) -> Self {
        Self {
            half,
            outputs: VecDeque::new(),
        }
    }
}

impl AcceleratorHalf for Passthrough {
    fn handle(&mut self, _now: Time, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Start => match self.half {
                WanEnd::Near => {}
                WanEnd::Far => self.outputs.push_back(AcceleratorOutput::OpenServer),
            },
            AcceleratorInput::Lan(bytes) => self
                .outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(bytes))),
            AcceleratorInput::LanFinished => self.outputs.push_back(AcceleratorOutput::FinishWan),
            AcceleratorInput::Wan(segment) => match segment.kind {
                SegmentKind::Payload | SegmentKind::Control => {
                    self.outputs
                        .push_back(AcceleratorOutput::ToLan(segment.bytes));
                }
                // This half never sends a frame and so has no meaning for one.
                SegmentKind::Frame => {}
            },
            AcceleratorInput::WanFinished => self.outputs.push_back(AcceleratorOutput::FinishLan),
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Timeout
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }
}

#[cfg(test)]
mod tests;
