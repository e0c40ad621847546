//! Ping and Pong, a sign of life and a round-trip time; GoAway.

use vocab::{ByteReader, ByteWriter};

use crate::SessionError;

/// A question for a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingFrame {
    /// The sender's clock in microseconds, wrapped at 2^32; means nothing to the receiver.
    pub stamp_us: u32,
}

/// The answer, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PongFrame {
    /// The ping's own stamp.
    pub stamp_us: u32,
}

/// The sender opens no more flows and accepts none; open flows continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoAway;

impl PingFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let stamp_us = reader.u32()?;
        Ok(Self { stamp_us })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        out.u32(self.stamp_us);
    }
}

impl PongFrame {
    pub(super) fn parse(reader: &mut ByteReader<'_>) -> Result<Self, SessionError> {
        let stamp_us = reader.u32()?;
        Ok(Self { stamp_us })
    }

    pub(super) fn emit(self, out: &mut ByteWriter) {
        out.u32(self.stamp_us);
    }
}
