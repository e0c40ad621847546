//! Further connections to the origin of the HTTP halves inside TLS, each with TLS of its own.
//!
//! ```text
//!  half inside ──ServerCommand──► FurtherStreams ──ServerCommand, encrypted──► engine
//!  half inside ◄──ServerEvent──── FurtherStreams ◄──ServerEvent, encrypted──── engine
//! ```
//! For the half, a connection is open when the origin's certificate is verified.

use std::collections::{BTreeMap, VecDeque};

use super::far::STREAM_OVERHEAD;
use super::origin::{OriginFault, OriginStream};
use crate::{ServerCommand, ServerConnection, ServerEvent, ServerFailure};

/// The connections that stand, and what is to be done.
#[derive(Default)]
pub(super) struct FurtherStreams {
    streams: BTreeMap<ServerConnection, FurtherStream>,
    outputs: VecDeque<FurtherOutput>,
}

/// Something for the engine, or for the half inside.
pub(super) enum FurtherOutput {
    Command(ServerConnection, ServerCommand),
    Event(ServerConnection, ServerEvent),
}

struct FurtherStream {
    stream: OriginStream,
    /// Bytes of the half inside that it has not been told of, and bytes on the wire that carry them.
    plain: usize,
    wire: usize,
}

impl FurtherStreams {
    /// The next thing to pass on.
    pub(super) fn poll_output(&mut self) -> Option<FurtherOutput> {
        self.outputs.pop_front()
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        self.streams.len() * STREAM_OVERHEAD
    }

    /// The half inside wants something of a connection.
    pub(super) fn command(
        &mut self,
        which: ServerConnection,
        command: ServerCommand,
        open_stream: impl FnOnce() -> Result<OriginStream, OriginFault>,
    ) {
        match command {
            ServerCommand::Open => match open_stream() {
                Ok(stream) => {
                    let one = FurtherStream {
                        stream,
                        plain: 0,
                        wire: 0,
                    };
                    self.streams.insert(which, one);
                    self.put_command(which, ServerCommand::Open);
                }
                Err(_) => {
                    let failure = ServerFailure::Refused;
                    self.put_event(which, ServerEvent::ConnectFailed(failure));
                }
            },
            ServerCommand::Write(bytes) => {
                if let Some(one) = self.streams.get_mut(&which) {
                    one.plain += bytes.len();
                    one.stream.send(&bytes);
                    self.flush(which);
                }
            }
            ServerCommand::Finish => {
                if let Some(one) = self.streams.get_mut(&which) {
                    one.stream.finish();
                    self.flush(which);
                    self.put_command(which, ServerCommand::Finish);
                }
            }
            ServerCommand::Reset => {
                self.streams.remove(&which);
                self.put_command(which, ServerCommand::Reset);
            }
            ServerCommand::PauseReading | ServerCommand::ResumeReading => {
                self.put_command(which, command);
            }
        }
    }

    /// Takes what happened to a connection.
    pub(super) fn event(&mut self, which: ServerConnection, event: ServerEvent) {
        let Some(one) = self.streams.get_mut(&which) else {
            return;
        };
        match event {
            // It is open for the half inside when the certificate is verified.
            ServerEvent::Connected => self.flush(which),
            ServerEvent::Received(bytes) => {
                let received = one.stream.receive(&bytes);
                let was_verified = one.stream.is_verified() && !received.is_verified_now;
                if received.is_verified_now {
                    self.put_event(which, ServerEvent::Connected);
                }
                if !received.plain.is_empty() {
                    self.put_event(which, ServerEvent::Received(received.plain));
                }
                if received.fault.is_some() {
                    self.streams.remove(&which);
                    self.put_command(which, ServerCommand::Reset);
                    let failed = match was_verified {
                        true => ServerEvent::Failed,
                        false => ServerEvent::ConnectFailed(ServerFailure::Refused),
                    };
                    return self.put_event(which, failed);
                }
                self.flush(which);
                if received.is_finished {
                    self.put_event(which, ServerEvent::Finished);
                }
            }
            ServerEvent::Taken(bytes) => {
                one.wire = one.wire.saturating_sub(bytes);
                let taken = match one.wire {
                    0 => one.plain,
                    _ => bytes.min(one.plain),
                };
                one.plain -= taken;
                if taken > 0 {
                    self.put_event(which, ServerEvent::Taken(taken));
                }
            }
            ServerEvent::Finished => self.put_event(which, ServerEvent::Finished),
            ServerEvent::ConnectFailed(_) | ServerEvent::Closed | ServerEvent::Failed => {
                let was_verified = one.stream.is_verified();
                self.streams.remove(&which);
                let event = match (was_verified, event) {
                    (false, ServerEvent::Closed | ServerEvent::Failed) => {
                        ServerEvent::ConnectFailed(ServerFailure::Refused)
                    }
                    (_, event) => event,
                };
                self.put_event(which, event);
            }
        }
    }

    fn flush(&mut self, which: ServerConnection) {
        let Some(one) = self.streams.get_mut(&which) else {
            return;
        };
        let output = one.stream.take_output();
        if !output.is_empty() {
            one.wire += output.len();
            self.put_command(which, ServerCommand::Write(output));
        }
    }

    fn put_command(&mut self, which: ServerConnection, command: ServerCommand) {
        let output = FurtherOutput::Command(which, command);
        self.outputs.push_back(output);
    }

    fn put_event(&mut self, which: ServerConnection, event: ServerEvent) {
        self.outputs.push_back(FurtherOutput::Event(which, event));
    }
}
