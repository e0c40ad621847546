//! A near half that answers without the far node.
//!
//! ```text
//!  LOCAL word   answered here: "local word"
//!  PART word    answered by a part, and the rest is the server's
//!  FAR word     the server's
//!  CLAIM        claims a key that all flows share, and tells what comes of it
//!  other bytes  let go
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::claims::ClaimKey;
use crate::passthrough::Passthrough;
use crate::registry::AcceleratorEntry;
use crate::settings::AcceleratorSettings;
use crate::shared::{SharedState, StartContext, UnsharedState};
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, FlowOpening, LettingGo, ReasonCode,
    WanEnd,
};
use bytes::Bytes;
use vocab::{FlowSegment, Time};

use super::{LineBuffer, after};

/// The port of its servers.
pub const PORT: u16 = 7_001;
/// A client that is silent for so long may wait for its server to speak.
pub const SPEAKS_FIRST: Duration = Duration::from_secs(1);

/// The accelerator in a registry.
pub static ENTRY: AcceleratorEntry = AcceleratorEntry {
    number: 201,
    name: "cache-test",
    ports: &[PORT],
    detection: None,
    parse: |_| Ok(Arc::new(TestCacheSettings)),
    moved_keys: &[],
    uses_delegated: false,
    switch_on: None,
    explain: |_, _| None,
};

#[derive(Clone, Copy, Debug)]
struct TestCacheSettings;

impl AcceleratorSettings for TestCacheSettings {
    fn is_on(&self) -> bool {
        true
    }

    fn opening(&self) -> FlowOpening {
        FlowOpening::ByNearHalf
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(UnsharedState::new(*self, |_, half, _| match half {
            WanEnd::Near => Box::new(TestCacheNearHalf::default()),
            WanEnd::Far => Box::new(Passthrough::new(half)),
        }))
    }
}

#[derive(Default)]
struct TestCacheNearHalf {
    lines: LineBuffer,
    outputs: VecDeque<AcceleratorOutput>,
    opens_at: Option<Time>,
    answered: u64,
    asked_far: bool,
}

impl TestCacheNearHalf {
    fn line(&mut self, line: Bytes) -> bool {
        if let Some(word) = after(&line, "LOCAL ") {
            let answer = format!("local {word}\n");
            self.outputs
                .push_back(AcceleratorOutput::ToLan(answer.into()));
            self.outputs
                .push_back(AcceleratorOutput::AnsweredHere(line.len()));
            self.answered += 1;
        } else if let Some(word) = after(&line, "PART ") {
            let part = format!("part {word} ");
            self.outputs
                .push_back(AcceleratorOutput::ToLan(part.into()));
            self.ask_far(line);
        } else if after(&line, "FAR ").is_some() {
            self.ask_far(line);
        } else if after(&line, "CLAIM").is_some() {
            let claim = AcceleratorOutput::Claim(ClaimKey([7; 32]));
            self.outputs.push_back(claim);
            self.outputs
                .push_back(AcceleratorOutput::AnsweredHere(line.len()));
        } else {
            self.outputs
                .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(line)));
            return false;
        }
        true
    }

    fn ask_far(&mut self, bytes: Bytes) {
        self.asked_far = true;
        self.outputs
            .push_back(AcceleratorOutput::ToWan(FlowSegment::payload(bytes)));
    }

    fn let_go(&mut self) {
        let rest = self.lines.rest();
        if !rest.is_empty() {
            self.ask_far(rest);
        }
        let reason = ReasonCode::UNSUPPORTED;
        self.outputs
            .push_back(AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }));
    }

    fn tell(&mut self, text: &'static str) {
        let text = Bytes::from_static(text.as_bytes());
        self.outputs.push_back(AcceleratorOutput::ToLan(text));
    }
}

impl AcceleratorHalf for TestCacheNearHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Start => self.opens_at = Some(now + SPEAKS_FIRST),
            AcceleratorInput::Lan(bytes) => {
                self.opens_at = None;
                self.lines.push(&bytes);
                while let Some(line) = self.lines.next() {
                    if !self.line(line) {
                        return self.let_go();
                    }
                }
            }
            AcceleratorInput::LanFinished => {
                let rest = self.lines.rest();
                if !rest.is_empty() {
                    self.ask_far(rest);
                }
                self.outputs.push_back(AcceleratorOutput::FinishWan);
                if !self.asked_far {
                    self.outputs.push_back(AcceleratorOutput::FinishLan);
                }
            }
            AcceleratorInput::Wan(segment) => self
                .outputs
                .push_back(AcceleratorOutput::ToLan(segment.bytes)),
            AcceleratorInput::WanFinished => self.outputs.push_back(AcceleratorOutput::FinishLan),
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => {}
            AcceleratorInput::Timeout => {
                self.opens_at = None;
                self.outputs.push_back(AcceleratorOutput::OpenFlow);
            }
            AcceleratorInput::ClaimGranted => self.tell("granted\n"),
            AcceleratorInput::ClaimRevoked => {
                self.outputs.push_back(AcceleratorOutput::ClaimReleased)
            }
            AcceleratorInput::ClaimDenied => self.tell("denied\n"),
            AcceleratorInput::Server(..) => panic!("a near half has no connections to the server"),
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.opens_at
    }

    fn buffered(&self) -> usize {
        self.lines.0.len()
    }

    fn answered(&self) -> u64 {
        self.answered
    }
}
