//! Scripts of the hosts at both ends of a flow.

use std::time::Duration;

use bytes::Bytes;
use tunnel::Session;
use vocab::{FlowId, Time};

/// A flow's script. The near host opens it; both ends run the same script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowScript {
    /// The far host sends this many bytes, or without an end.
    Download(Option<u64>),
    /// The near host sends.
    Upload(Option<u64>),
    /// The near host asks in some bytes and waits for the answer in some, again and again.
    Exchanges {
        /// Bytes of each question.
        question: u64,
        /// Bytes of each answer.
        answer: u64,
        /// Number of exchanges.
        count: usize,
    },
}

/// A flow of a simulation, and its state.
#[derive(Clone, Debug)]
pub struct FlowTransfer {
    /// Script of its hosts.
    pub work: FlowScript,
    /// Time at which the near host opened it.
    pub opened_at: Time,
    /// Time at which it had ended on both sides.
    pub closed_at: Option<Time>,
    /// True if it ended early.
    pub was_reset: bool,
    /// Duration of each exchange.
    pub exchanges: Vec<Duration>,
    /// The longest time in which nothing came to either host while the flow was open.
    pub longest_stall: Duration,
    ends: [HostEnd; 2],
    asked_at: Time,
    progressed_at: Time,
}

/// One host's side.
#[derive(Clone, Copy, Debug, Default)]
struct HostEnd {
    written: u64,
    finished: bool,
    read: u64,
    first_byte_at: Option<Time>,
    saw_end: bool,
}

const NEAR: usize = 0;
const FAR: usize = 1;

/// Size of one write of a host.
const PIECE: usize = 16 << 10;

/// Period of the bytes that hosts write; it makes a byte in the wrong place visible.
const PERIOD: usize = 65_521;

impl FlowTransfer {
    pub(super) fn new(now: Time, work: FlowScript) -> Self {
        Self {
            work,
            opened_at: now,
            closed_at: None,
            was_reset: false,
            exchanges: Vec::new(),
            longest_stall: Duration::ZERO,
            ends: [HostEnd::default(); 2],
            asked_at: now,
            progressed_at: now,
        }
    }

    /// Bytes that one side has received.
    #[must_use]
    pub fn received(&self, side: usize) -> u64 {
        self.ends[side].read
    }

    /// Arrival time of the first byte at one side.
    #[must_use]
    pub fn first_byte_at(&self, side: usize) -> Option<Time> {
        self.ends[side].first_byte_at
    }

    /// Tells whether both hosts have all bytes of the script, and the flow has ended.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.closed_at.is_some() && !self.was_reset
    }

    /// Offset up to which this side may have written by now; `None` when there is no end.
    fn may_write(&self, side: usize) -> Option<u64> {
        match (self.work, side) {
            (FlowScript::Download(total), FAR) | (FlowScript::Upload(total), NEAR) => total,
            (FlowScript::Download(_) | FlowScript::Upload(_), _) => Some(0),
            (
                FlowScript::Exchanges {
                    question,
                    answer,
                    count,
                },
                NEAR,
            ) => {
                let answered = self.ends[NEAR].read / answer;
                Some(question * (answered + 1).min(count as u64))
            }
            (
                FlowScript::Exchanges {
                    question, answer, ..
                },
                _,
            ) => Some(answer * (self.ends[FAR].read / question)),
        }
    }

    /// Total number of bytes that this side writes.
    fn writes_in_all(&self, side: usize) -> Option<u64> {
        match (self.work, side) {
            (
                FlowScript::Exchanges {
                    question, count, ..
                },
                NEAR,
            ) => Some(question * count as u64),
            (FlowScript::Exchanges { answer, count, .. }, _) => Some(answer * count as u64),
            (FlowScript::Download(_) | FlowScript::Upload(_), _) => self.may_write(side),
        }
    }

    /// Writes as many bytes as the script and the session allow.
    pub(super) fn write(&mut self, session: &mut Session, side: usize, id: FlowId, source: &Bytes) {
        loop {
            let HostEnd {
                written, finished, ..
            } = self.ends[side];
            if finished {
                return;
            }
            if self.writes_in_all(side) == Some(written) {
                session.finish(id);
                self.ends[side].finished = true;
                return;
            }
            let left = self
                .may_write(side)
                .map_or(u64::MAX, |until| until.saturating_sub(written));
            let room = session.writable(id).min(PIECE);
            let count = left.min(room as u64) as usize;
            if count == 0 {
                return;
            }
            let from = (written % PERIOD as u64) as usize;
            session.write(id, source.slice(from..from + count));
            self.ends[side].written += count as u64;
        }
    }

    /// Reads all there is and checks it.
    ///
    /// # Panics
    /// When a byte is not the one that was written: the session is wrong.
    pub(super) fn read(
        &mut self,
        now: Time,
        session: &mut Session,
        side: usize,
        id: FlowId,
        source: &Bytes,
    ) {
        while let Some(bytes) = session.read(id, PIECE) {
            let from = (self.ends[side].read % PERIOD as u64) as usize;
            assert_eq!(
                bytes,
                source[from..from + bytes.len()],
                "flow {id} brought other bytes than were written"
            );
            self.progressed(now);
            let end = &mut self.ends[side];
            end.first_byte_at.get_or_insert(now);
            end.read += bytes.len() as u64;
            session.consumed(id, end.read);
        }
        if let (FlowScript::Exchanges { answer, .. }, NEAR) = (self.work, side)
            && self.ends[NEAR].read >= answer * (self.exchanges.len() as u64 + 1)
        {
            self.exchanges.push(now.since(self.asked_at));
            self.asked_at = now;
        }
    }

    pub(super) fn close(&mut self, now: Time, was_reset: bool) {
        self.progressed(now);
        self.closed_at = Some(now);
        self.was_reset |= was_reset;
    }

    fn progressed(&mut self, now: Time) {
        let stall = now.since(self.progressed_at);
        self.longest_stall = self.longest_stall.max(stall);
        self.progressed_at = now;
    }

    pub(super) fn note_end(&mut self, side: usize) {
        let end = &mut self.ends[side];
        assert!(!end.saw_end, "an end is told once");
        end.saw_end = true;
        let expected = self.writes_in_all(1 - side);
        assert_eq!(
            expected,
            Some(self.ends[side].read),
            "a clean end comes after every byte"
        );
    }
}

/// Bytes that hosts write, long enough for a piece from any place in the period.
pub(super) fn source() -> Bytes {
    let period: Vec<u8> = (0..PERIOD as u64)
        .map(|place| (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    let mut source = period.clone();
    source.extend_from_slice(&period[..PIECE]);
    Bytes::from(source)
}
