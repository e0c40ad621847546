//! A far half that has several connections to the server, and sends without being asked.
//!
//! ```text
//!  FAN n        asks the server "part 1" … "part n" on a connection each, and sends the answers in that order
//!  HOLD n       opens n connections and leaves them open
//!  FILL         writes to connection 100 as much as may wait there
//!  SPILL        writes one byte more to it
//!  DRINK        opens connection 101, takes what the server sends for a while, and pauses
//!  DRAIN        lets connection 101 be read again
//!  DROP         resets connections 100 and 101, and those that HOLD opened
//!  other lines  the flow's own connection's
//! ```
//! It says "welcome" before its client has said anything, and "late" a second after its client has ended its
//! stream. Its near half passes everything.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::passthrough::Passthrough;
use crate::registry::AcceleratorEntry;
use crate::settings::AcceleratorSettings;
use crate::shared::{SharedState, StartContext, UnsharedState};
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ServerCommand, ServerConnection,
    ServerEvent, ServerFailure, WanEnd,
};
use bytes::Bytes;
use vocab::{FlowSegment, Time};

use super::{LineBuffer, after};

/// The port of its servers.
pub const PORT: u16 = 7_002;
/// The number of bytes that DRINK takes before it pauses.
pub const DRUNK: usize = 100_000;

const FILLED: ServerConnection = ServerConnection(100);
const DRUNK_FROM: ServerConnection = ServerConnection(101);
const LATER: Duration = Duration::from_secs(1);

/// The accelerator in a registry.
pub static ENTRY: AcceleratorEntry = entry(&[PORT]);

/// The same for servers on other ports.
#[must_use]
pub const fn entry(ports: &'static [u16]) -> AcceleratorEntry {
    AcceleratorEntry {
        number: 202,
        name: "fan-test",
        ports,
        detection: None,
        parse: |_| Ok(Arc::new(TestFanSettings)),
        moved_keys: &[],
        uses_delegated: false,
        switch_on: None,
        explain: |_, _| None,
    }
}

#[derive(Clone, Copy, Debug)]
struct TestFanSettings;

impl AcceleratorSettings for TestFanSettings {
    fn is_on(&self) -> bool {
        true
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn start(&self, _: StartContext) -> Box<dyn SharedState> {
        Box::new(UnsharedState::new(*self, |_, half, _| match half {
            WanEnd::Near => Box::new(Passthrough::new(half)),
            WanEnd::Far => Box::new(TestFanFarHalf::default()),
        }))
    }
}

#[derive(Default)]
struct TestFanFarHalf {
    lines: LineBuffer,
    outputs: VecDeque<AcceleratorOutput>,
    /// Answers of connections that FAN opened, by number; whole ones are marked.
    parts: BTreeMap<u8, (Vec<u8>, bool)>,
    /// The requested ones that are not sent yet.
    asked: VecDeque<u8>,
    held: Vec<u8>,
    /// The bytes that connection 100 has not taken.
    untaken: usize,
    drunk: usize,
    pushes_at: Option<Time>,
}

impl TestFanFarHalf {
    fn say(&mut self, text: impl Into<Bytes>) {
        let segment = FlowSegment::payload(text.into());
        self.outputs.push_back(AcceleratorOutput::ToWan(segment));
    }

    fn command(&mut self, connection: ServerConnection, command: ServerCommand) {
        self.outputs
            .push_back(AcceleratorOutput::Server(connection, command));
    }

    fn line(&mut self, line: Bytes) {
        if let Some(count) = after(&line, "FAN ") {
            for number in 1..=count.parse().unwrap() {
                let connection = ServerConnection(number);
                self.asked.push_back(number);
                self.parts.insert(number, (Vec::new(), false));
                self.command(connection, ServerCommand::Open);
                let question = format!("part {number}\n");
                self.command(connection, ServerCommand::Write(question.into()));
                self.command(connection, ServerCommand::Finish);
            }
        } else if let Some(count) = after(&line, "HOLD ") {
            for number in 1..=count.parse().unwrap() {
                self.held.push(number);
                self.command(ServerConnection(number), ServerCommand::Open);
            }
        } else if after(&line, "FILL").is_some() {
            self.command(FILLED, ServerCommand::Open);
            self.untaken = ServerConnection::UNTAKEN_MAX;
            let bytes = Bytes::from(vec![b'f'; ServerConnection::UNTAKEN_MAX]);
            self.command(FILLED, ServerCommand::Write(bytes));
        } else if after(&line, "SPILL").is_some() {
            let bytes = Bytes::from_static(b"x");
            self.command(FILLED, ServerCommand::Write(bytes));
        } else if after(&line, "DRINK").is_some() {
            self.command(DRUNK_FROM, ServerCommand::Open);
        } else if after(&line, "DRAIN").is_some() {
            self.command(DRUNK_FROM, ServerCommand::ResumeReading);
        } else if after(&line, "DROP").is_some() {
            self.command(FILLED, ServerCommand::Reset);
            self.command(DRUNK_FROM, ServerCommand::Reset);
            for number in std::mem::take(&mut self.held) {
                self.command(ServerConnection(number), ServerCommand::Reset);
            }
        } else {
            self.outputs.push_back(AcceleratorOutput::ToLan(line));
        }
    }

    fn event(&mut self, connection: ServerConnection, event: ServerEvent) {
        match (connection, event) {
            (FILLED, ServerEvent::Taken(bytes)) => {
                self.untaken -= bytes;
                if self.untaken == 0 {
                    self.say("all taken\n");
                }
            }
            (FILLED, ServerEvent::Failed) => self.say("spilled\n"),
            (DRUNK_FROM, ServerEvent::Received(bytes)) => {
                let before = self.drunk;
                self.drunk += bytes.len();
                if before < DRUNK && self.drunk >= DRUNK {
                    self.command(DRUNK_FROM, ServerCommand::PauseReading);
                    self.say("paused\n");
                }
                let most = DRUNK + 10 * ServerConnection::READ_AHEAD;
                if before < most && self.drunk >= most {
                    self.command(DRUNK_FROM, ServerCommand::Reset);
                    self.say("drank enough\n");
                }
            }
            (FILLED | DRUNK_FROM, _) => {}
            (ServerConnection(number), ServerEvent::ConnectFailed(failure))
                if self.held.contains(&number) =>
            {
                self.held.retain(|held| *held != number);
                self.say(format!("{failure:?}\n"));
            }
            (ServerConnection(number), event) => self.part(number, event),
        }
    }

    fn part(&mut self, number: u8, event: ServerEvent) {
        let Some((part, is_whole)) = self.parts.get_mut(&number) else {
            return;
        };
        match event {
            ServerEvent::Received(bytes) => part.extend_from_slice(&bytes),
            ServerEvent::Connected | ServerEvent::Taken(_) | ServerEvent::Finished => {}
            ServerEvent::Closed => *is_whole = true,
            ServerEvent::Failed => {
                part.extend_from_slice(b"[reset]\n");
                *is_whole = true;
            }
            ServerEvent::ConnectFailed(failure) => {
                let text = match failure {
                    ServerFailure::Refused => "[refused]\n",
                    ServerFailure::TimedOut => "[timed out]\n",
                    ServerFailure::Limit => "[limit]\n",
                    ServerFailure::Unreachable => "[unreachable]\n",
                };
                part.extend_from_slice(text.as_bytes());
                *is_whole = true;
            }
        }
        while let Some(first) = self.asked.front().copied()
            && self.parts[&first].1
        {
            self.asked.pop_front();
            if let Some((part, _)) = self.parts.remove(&first) {
                self.say(part);
            }
        }
    }
}

impl AcceleratorHalf for TestFanFarHalf {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        match input {
            AcceleratorInput::Start => {
                self.outputs.push_back(AcceleratorOutput::OpenServer);
                self.say("welcome\n");
            }
            AcceleratorInput::Lan(bytes) => self.say(bytes),
            AcceleratorInput::LanFinished => {}
            AcceleratorInput::Wan(segment) => {
                self.lines.push(&segment.bytes);
                while let Some(line) = self.lines.next() {
                    self.line(line);
                }
            }
            AcceleratorInput::WanFinished => self.pushes_at = Some(now + LATER),
            AcceleratorInput::Timeout => {
                self.pushes_at = None;
                self.say("late\n");
                self.outputs.push_back(AcceleratorOutput::FinishLan);
                self.outputs.push_back(AcceleratorOutput::FinishWan);
            }
            AcceleratorInput::Server(connection, event) => self.event(connection, event),
            AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied => {}
        }
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.pushes_at
    }
}
