//! Control connection of one end: messages out of bytes, keep-alives, and the detection of a lost
//! peer.
//!
//! While a stream is measured the connection is silent, because its packets, and the other end's
//! acknowledgements, would share the stream's bottleneck: at 512 kbit/s they were a quarter to half
//! a percent of it; and where most of the offered load is dropped, so are they, until the other end
//! seems lost. The stream's own packets are then the sender's sign of life, and an empty one
//! against the stream, every [`ALIVE_EVERY`], is the receiver's.

use std::time::Duration;

use vocab::Time;

use crate::wire::{ControlMessage, DatagramHeader, DatagramKind, WireError, next_frame};

/// Interval of each end's keep-alive messages.
pub const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// Time without a message after which an end stops sending: several retransmissions of a message on
/// a full link, and a short time for a link to be flooded.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Incoming half of a control connection, and its two clocks.
#[derive(Debug)]
pub(super) struct ControlChannel {
    /// Bytes of a message that is not complete.
    incoming: Vec<u8>,
    /// Time at which the other end was last heard, over TCP or by a stream's packet.
    heard: Time,
    /// Time of the last own keep-alive; [`None`] before the first.
    said: Option<Time>,
}

impl ControlChannel {
    pub(super) fn new(now: Time) -> Self {
        Self {
            incoming: Vec::new(),
            heard: now,
            said: None,
        }
    }

    /// Takes in bytes of the other end.
    pub(super) fn handle(&mut self, now: Time, bytes: &[u8]) {
        self.heard = now;
        self.incoming.extend_from_slice(bytes);
    }

    /// The next whole message.
    pub(super) fn next_message(&mut self) -> Result<Option<ControlMessage>, WireError> {
        let Some((message, length)) = next_frame(&self.incoming)? else {
            return Ok(None);
        };
        self.incoming.drain(..length);
        Ok(Some(message))
    }

    /// Takes note of a packet of a stream.
    pub(super) fn note_activity(&mut self, now: Time) {
        self.heard = self.heard.max(now);
    }

    pub(super) fn is_silent(&self, now: Time) -> bool {
        now >= self.silent_at()
    }

    /// Time at which the other end counts as lost.
    pub(super) fn silent_at(&self) -> Time {
        self.heard + SILENCE_MAX
    }

    /// Time of the next keep-alive.
    pub(super) fn alive_at(&self) -> Time {
        self.said.map_or(Time::ZERO, |said| said + ALIVE_EVERY)
    }

    /// Tells whether a keep-alive is due, and takes note that it is sent.
    pub(super) fn takes_keep_alive(&mut self, now: Time) -> bool {
        let is_due = now >= self.alive_at();
        if is_due {
            self.said = Some(now);
        }
        is_due
    }
}

/// An empty packet against the direction of a stream as a keep-alive; it is not answered.
pub(super) fn stream_keep_alive(session: u64, order: u32) -> DatagramHeader {
    DatagramHeader {
        kind: DatagramKind::Data,
        session,
        order,
        number: 0,
        stamp: 0,
        extra: 0,
    }
}
