//! One direction of a link: reliable and in order, at the line's rate and delay.

use std::time::Duration;

use bytes::Bytes;
use emulate::{DirectionConfig, LineConfig, LinkDirection};
use vocab::{Bitrate, ByteCount, Time};

/// A full TCP segment, and its headers.
const SEGMENT: usize = 1_448;
const HEADERS: ByteCount = ByteCount::new(52);

/// Size of the sender's socket buffer. It refuses more when full and accepts again when this much
/// is free, as in a kernel; otherwise a writer would write a few bytes at a time.
const BUFFER: u64 = 64 << 10;
const LEAST_ROOM: u64 = BUFFER / 3;

/// Bytes on their way.
#[derive(Debug)]
pub(super) struct EmulatedPipe {
    direction: LinkDirection,
}

impl EmulatedPipe {
    pub(super) fn new(rate: Bitrate, delay: Duration) -> Self {
        let config = DirectionConfig {
            line: LineConfig::Rate(rate),
            delay,
            // The socket's buffer is the limit.
            queue: ByteCount::mebibytes(64).into(),
            overhead: HEADERS,
            ..DirectionConfig::default()
        };
        Self {
            direction: LinkDirection::new(config, 0),
        }
    }

    /// Number of bytes that may be written now.
    pub(super) fn room(&mut self, now: Time) -> usize {
        let queued = self.direction.queued(now).bytes;
        let room = BUFFER.saturating_sub(queued);
        if room < LEAST_ROOM { 0 } else { room as usize }
    }

    pub(super) fn send(&mut self, now: Time, mut bytes: Bytes) {
        while !bytes.is_empty() {
            let segment = bytes.split_to(bytes.len().min(SEGMENT));
            self.direction.handle(now, segment);
        }
    }

    pub(super) fn poll(&mut self, now: Time) -> Option<Bytes> {
        Some(self.direction.poll_output(now)?.packet)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match (self.direction.poll_timeout(), self.direction.room_at()) {
            (Some(arrival), Some(room)) => Some(arrival.min(room)),
            (one, other) => one.or(other),
        }
    }
}
