//! Byte pipe, reliable and ordered, in one direction: a model of TLS over TCP as the node uses it.
//!
//! Bytes are cut into segments and sent through an [`emulate::Direction`] without loss. So they
//! take the time that they would on the line, headers included. A small write is a segment of its
//! own. [`BytePipe::writable`] is the room in the socket's send buffer. It stays constant until
//! bytes have left for the line, and so gives back-pressure.
//!
//! In an outage ([`BytePipe::set_blocked`]) the pipe holds everything. Afterwards the data in
//! flight arrives at once and the rest follows at the line's rate. TCP would first wait for its
//! retransmission timer. A dead pipe ([`BytePipe::kill`]) loses its content, like a connection that
//! is reset.

use std::time::Duration;

use bytes::Bytes;
use emulate::{DirectionConfig, EnqueueOutcome, LineConfig, LinkDirection, PacketDelivery};
use vocab::{Bitrate, ByteCount, Time};

use crate::schedule::earliest;

/// The bytes in a full segment: 1500 without the IPv4 and TCP headers with timestamps.
pub const SEGMENT_BYTES: usize = 1_448;

/// Size of the IP and TCP headers.
const HEADER: ByteCount = ByteCount::new(52);

/// Properties of a pipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PipeConfig {
    /// Rate of the line, IP headers included.
    pub rate: Bitrate,
    /// One way.
    pub delay: Duration,
    /// The send buffer: bytes written that have not yet left for the line.
    pub capacity: ByteCount,
}

impl Default for PipeConfig {
    /// The link of the demonstration, 10 Mbit/s and 15 ms, and a send buffer of 64 KiB.
    fn default() -> Self {
        Self {
            rate: Bitrate::from_bits_per_second(10_000_000),
            delay: Duration::from_millis(15),
            capacity: ByteCount::kibibytes(64),
        }
    }
}

/// One direction of a byte pipe.
#[derive(Debug)]
pub struct BytePipe {
    direction: LinkDirection,
    config: PipeConfig,
    state: PipeState,
    /// The latest moment that any caller named.
    now: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PipeState {
    Open,
    Blocked,
    Dead,
}

impl BytePipe {
    /// An empty pipe.
    #[must_use]
    pub fn new(config: PipeConfig) -> Self {
        // Nothing in it is left to chance.
        Self {
            direction: LinkDirection::new(direction_config(&config, config.rate), SEED),
            config,
            state: PipeState::Open,
            now: Time::ZERO,
        }
    }

    /// Returns the free bytes of the send buffer.
    pub fn writable(&mut self, now: Time) -> usize {
        self.now = self.now.max(now);
        if self.state == PipeState::Dead {
            return 0;
        }
        let unsent = self.direction.queued(self.now).bytes;
        self.config
            .capacity
            .as_usize()
            .saturating_sub(unsent as usize)
    }

    /// Writes bytes. More than [`BytePipe::writable`] are taken too: a write is never cut short.
    /// A dead pipe swallows them.
    ///
    /// # Panics
    /// When the pipe holds half a gigabyte: the test does not heed its back-pressure.
    pub fn send(&mut self, now: Time, mut bytes: Bytes) {
        self.now = self.now.max(now);
        if self.state == PipeState::Dead {
            return;
        }
        while !bytes.is_empty() {
            let segment = bytes.split_to(bytes.len().min(SEGMENT_BYTES));
            let fate = self.direction.handle(self.now, segment);
            assert_eq!(fate, EnqueueOutcome::Queued, "a byte pipe was overfilled");
        }
    }

    /// Takes out the next bytes that have arrived by `now`: a segment at most.
    pub fn poll(&mut self, now: Time) -> Option<Bytes> {
        self.now = self.now.max(now);
        match self.state {
            PipeState::Open => {
                let PacketDelivery { packet, .. } = self.direction.poll_output(self.now)?;
                Some(packet)
            }
            PipeState::Blocked | PipeState::Dead => None,
        }
    }

    /// Returns the time at which bytes arrive or more room to write is available.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.state {
            PipeState::Open => earliest([self.direction.poll_timeout(), self.direction.room_at()]),
            PipeState::Blocked | PipeState::Dead => None,
        }
    }

    /// Begins or ends an outage, as of the latest moment that this pipe was told.
    pub fn set_blocked(&mut self, blocked: bool) {
        let (state, rate) = match (self.state, blocked) {
            (PipeState::Dead, _) => return,
            (_, true) => (PipeState::Blocked, Bitrate::default()),
            (_, false) => (PipeState::Open, self.config.rate),
        };
        self.state = state;
        self.direction
            .set_config(self.now, direction_config(&self.config, rate));
    }

    /// Ends the pipe permanently: its content is lost and nothing comes out any more.
    pub fn kill(&mut self) {
        self.state = PipeState::Dead;
    }

    /// Returns `true` if [`BytePipe::kill`] was called.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state == PipeState::Dead
    }
}

/// Seed of the line; a pipe uses no random numbers.
const SEED: u64 = 0;

fn direction_config(config: &PipeConfig, rate: Bitrate) -> DirectionConfig {
    DirectionConfig {
        line: LineConfig::Rate(rate),
        delay: config.delay,
        // The send buffer bounds what is written, not the network's queue.
        queue: ByteCount::new(u64::MAX).into(),
        overhead: HEADER,
        ..DirectionConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time::from_epoch(Duration::from_millis(milliseconds))
    }

    fn drain(pipe: &mut BytePipe, now: Time) -> Vec<u8> {
        std::iter::from_fn(|| pipe.poll(now)).flatten().collect()
    }

    #[test]
    fn bytes_arrive_in_order_at_the_line_rate() {
        let mut pipe = BytePipe::new(PipeConfig::default());
        let sent: Vec<u8> = (0..100 * SEGMENT_BYTES).map(|byte| byte as u8).collect();
        pipe.send(Time::ZERO, Bytes::from(sent.clone()));
        // 100 packets of 1500 bytes take 120 ms at 10 Mbit/s, and 15 ms on their way.
        let before = Time::from_nanos(134_999_999);
        let mut received = drain(&mut pipe, before);
        assert_eq!(received.len(), 99 * SEGMENT_BYTES);
        assert_eq!(pipe.poll_timeout(), Some(at(135)));
        received.extend(drain(&mut pipe, at(135)));
        assert_eq!(received, sent);
    }

    #[test]
    fn room_returns_when_bytes_leave() {
        let mut pipe = BytePipe::new(PipeConfig::default());
        assert_eq!(pipe.writable(Time::ZERO), 65_536);
        pipe.send(Time::ZERO, Bytes::from(vec![0; 65_536]));
        assert_eq!(pipe.writable(Time::ZERO), 0);
        assert_eq!(pipe.poll_timeout(), Some(Time::from_nanos(1_200_000)));
        assert_eq!(pipe.writable(Time::from_nanos(1_200_000)), SEGMENT_BYTES);
    }

    #[test]
    fn an_outage_delays_and_loses_nothing() {
        let mut pipe = BytePipe::new(PipeConfig::default());
        pipe.send(Time::ZERO, Bytes::from(vec![7; 20 * SEGMENT_BYTES]));
        let mut received = drain(&mut pipe, at(20)).len();
        pipe.set_blocked(true);
        assert_eq!(pipe.poll_timeout(), None);
        assert!(pipe.poll(at(30_000)).is_none());
        pipe.set_blocked(false);
        received += drain(&mut pipe, at(30_000)).len();
        assert!(received < 20 * SEGMENT_BYTES);
        received += drain(&mut pipe, at(30_030)).len();
        assert_eq!(received, 20 * SEGMENT_BYTES);
    }

    #[test]
    fn a_dead_pipe_gives_nothing_and_takes_anything() {
        let mut pipe = BytePipe::new(PipeConfig::default());
        pipe.send(Time::ZERO, Bytes::from_static(b"lost"));
        pipe.kill();
        pipe.set_blocked(false);
        pipe.send(at(1), Bytes::from_static(b"swallowed"));
        assert!(pipe.is_dead());
        assert_eq!(pipe.writable(at(1)), 0);
        assert!(pipe.poll(Time::NEVER).is_none());
    }
}
