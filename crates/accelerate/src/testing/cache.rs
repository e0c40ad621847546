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
use crate::registry::Entry;
use crate::settings::AcceleratorSettings;
use crate::shared::{SharedState, StartContext, Unshared};
use crate::{Accelerator, Half, Input, LettingGo, Opening, Output, ReasonCode};
use bytes::Bytes;
use vocab::{Segment, Time};

use super::{Lines, after};

/// The port of its servers.
pub const PORT: u16 = 7_001;
/// A client that is silent for so long may wait for its server to speak.
pub const SPEAKS_FIRST: Duration = Duration::from_secs(1);

/// The accelerator in a registry.
pub static ENTRY: Entry = Entry {
    number: 201,
    name: "cache-test",
    ports: &[PORT],
    detection: None,
    parse: |_| Ok(Arc::new(Settings)),
    moved_keys: &[],
    uses_delegated: false,
    switch_on: None,
    explain: |_, _| None,
};

#[derive(Clone, Copy, Debug)]
struct Settings;

impl AcceleratorSettings for Settings {
    fn is_on(&self) -> bool {
        true
    }

    fn opening(&self) -> Opening {
        Opening::ByNearHalf
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(Unshared::new(*self, |_, half, _| match half {
            Half::Near => Box::new(Near::default()),
            Half::Far => Box::new(Passthrough::new(half)),
        }))
    }
}

#[derive(Default)]
struct Near {
    lines: Lines,
    outputs: VecDeque<Output>,
    opens_at: Option<Time>,
    answered: u64,
    asked_far: bool,
}

impl Near {
    fn line(&mut self, line: Bytes) -> bool {
        if let Some(word) = after(&line, "LOCAL ") {
            let answer = format!("local {word}\n");
            self.outputs.push_back(Output::ToLan(answer.into()));
            self.outputs.push_back(Output::AnsweredHere(line.len()));
            self.answered += 1;
        } else if let Some(word) = after(&line, "PART ") {
            let part = format!("part {word} ");
            self.outputs.push_back(Output::ToLan(part.into()));
            self.ask_far(line);
        } else if after(&line, "FAR ").is_some() {
            self.ask_far(line);
        } else if after(&line, "CLAIM").is_some() {
            let claim = Output::Claim(ClaimKey([7; 32]));
            self.outputs.push_back(claim);
            self.outputs.push_back(Output::AnsweredHere(line.len()));
        } else {
            self.outputs
                .push_back(Output::ToWan(Segment::payload(line)));
            return false;
        }
        true
    }

    fn ask_far(&mut self, bytes: Bytes) {
        self.asked_far = true;
        self.outputs
            .push_back(Output::ToWan(Segment::payload(bytes)));
    }

    fn let_go(&mut self) {
        let rest = self.lines.rest();
        if !rest.is_empty() {
            self.ask_far(rest);
        }
        let reason = ReasonCode::UNSUPPORTED;
        self.outputs
            .push_back(Output::LettingGo(LettingGo::LetGo { reason }));
    }

    fn tell(&mut self, text: &'static str) {
        let text = Bytes::from_static(text.as_bytes());
        self.outputs.push_back(Output::ToLan(text));
    }
}

impl Accelerator for Near {
    fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Start => self.opens_at = Some(now + SPEAKS_FIRST),
            Input::Lan(bytes) => {
                self.opens_at = None;
                self.lines.push(&bytes);
                while let Some(line) = self.lines.next() {
                    if !self.line(line) {
                        return self.let_go();
                    }
                }
            }
            Input::LanFinished => {
                let rest = self.lines.rest();
                if !rest.is_empty() {
                    self.ask_far(rest);
                }
                self.outputs.push_back(Output::FinishWan);
                if !self.asked_far {
                    self.outputs.push_back(Output::FinishLan);
                }
            }
            Input::Wan(segment) => self.outputs.push_back(Output::ToLan(segment.bytes)),
            Input::WanFinished => self.outputs.push_back(Output::FinishLan),
            Input::WanSilent(_) | Input::Content(_) | Input::Woken => {}
            Input::Timeout => {
                self.opens_at = None;
                self.outputs.push_back(Output::OpenFlow);
            }
            Input::ClaimGranted => self.tell("granted\n"),
            Input::ClaimRevoked => self.outputs.push_back(Output::ClaimReleased),
            Input::ClaimDenied => self.tell("denied\n"),
            Input::Server(..) => panic!("a near half has no connections to the server"),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
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
