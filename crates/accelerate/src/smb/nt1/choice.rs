//! The selection of a flow's dialect, SMB 1 or SMB 2.
//!
//! ```text
//!                  the client begins with SMB 2, or says more before it is answered
//!   Deciding ──┬──────────────────────────────────────────────────────────────────► SMB 2
//!              ├── its one message of SMB 1 is answered in SMB 2 ─────────────────► SMB 2
//!              └── it is answered in SMB 1 ───────────────────────────────────────► SMB 1
//! ```
//! A client that speaks both offers dialects of both in a NEGOTIATE of SMB 1 ([MS-SMB2]
//! §3.3.5.3.1), and the server's answer decides. Until then all bytes go through the half for SMB
//! 2, which passes that one message unchanged. Both halves see the same answer behind the same
//! message, and so agree. The near half also reports its result, without which the far half serves
//! nothing.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::{SegmentKind, Time};

use super::wire::header::MAGIC;
use super::wire::split::{FRAME_HEADER, Smb1Splitter};
use super::{far, near};
use crate::smb::config::{ConsistencyMode, SmbSettings};
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput};

/// The bytes of a frame that show its dialect.
const LOOK: usize = FRAME_HEADER + MAGIC.len();

/// A half for SMB 1, from where the other was.
#[derive(Clone, Debug)]
pub(crate) enum Smb1Alternative {
    Near,
    Far(SmbSettings),
}

/// The observed bytes.
#[derive(Debug, Default)]
struct NegotiateObservation {
    /// The client's bytes, as long as they may be one message of SMB 1.
    asked: Smb1Splitter,
    /// One has been there whole, and nothing behind it.
    has_asked: bool,
    /// The beginning of the server's bytes.
    answered: Vec<u8>,
}

/// See the module documentation.
pub(crate) struct DialectSelector {
    running: Box<dyn AcceleratorHalf>,
    /// `None` once it is known.
    seen: Option<NegotiateObservation>,
    other: Smb1Alternative,
    /// The outputs that the half for SMB 2 still holds.
    outputs: VecDeque<AcceleratorOutput>,
}

impl DialectSelector {
    /// Creates a half for SMB 2 that one for SMB 1 may replace.
    pub(crate) fn new(running: Box<dyn AcceleratorHalf>, other: Smb1Alternative) -> Self {
        let is_off = matches!(&other, Smb1Alternative::Far(settings) if settings.consistency == ConsistencyMode::Off);
        Self {
            running,
            seen: (!is_off).then(NegotiateObservation::default),
            other,
            outputs: VecDeque::new(),
        }
    }

    /// Bytes of the client's.
    fn asked(&mut self, bytes: &[u8]) {
        let Some(seen) = &mut self.seen else {
            return;
        };
        seen.asked.push(bytes);
        let held = seen.asked.held();
        let is_strange = match seen.asked.next() {
            _ if seen.has_asked => held > 0,
            Ok(Some(_)) => {
                seen.has_asked = true;
                seen.asked.held() > 0
            }
            Ok(None) => false,
            // SMB 2 among them.
            Err(_) => true,
        };
        if is_strange {
            self.seen = None;
        }
    }

    /// Bytes of the server's, before they are given to the half that runs; whether they are answers in SMB 1.
    fn is_answered_in_smb1(&mut self, bytes: &[u8]) -> bool {
        let Some(seen) = &mut self.seen else {
            return false;
        };
        let missing = LOOK.saturating_sub(seen.answered.len());
        seen.answered
            .extend_from_slice(&bytes[..missing.min(bytes.len())]);
        if seen.answered.len() < LOOK {
            return false;
        }
        let is_smb1 = seen.has_asked && seen.answered[FRAME_HEADER..] == MAGIC;
        self.seen = None;
        is_smb1
    }

    /// The server's bytes from before the dialect was known.
    fn early_answer(&self) -> Bytes {
        let seen = self.seen.as_ref();
        seen.map_or_else(Bytes::new, |seen| Bytes::copy_from_slice(&seen.answered))
    }

    fn change(&mut self, to: Box<dyn AcceleratorHalf>) {
        while let Some(output) = self.running.poll_output() {
            self.outputs.push_back(output);
        }
        self.running = to;
    }

    /// The server's bytes at the far half: kept until it is known for whom they are.
    fn far_answer(&mut self, now: Time, settings: SmbSettings, bytes: Bytes) {
        let early = self.early_answer();
        if self.is_answered_in_smb1(&bytes) {
            self.change(Box::new(far::Smb1FarHalf::new(settings)));
        } else if self.seen.is_some() {
            return;
        }
        if !early.is_empty() {
            self.running.handle(now, AcceleratorInput::Lan(early));
        }
        self.running.handle(now, AcceleratorInput::Lan(bytes));
    }
}

impl AcceleratorHalf for DialectSelector {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        if self.seen.is_none() {
            return self.running.handle(now, input);
        }
        let other = self.other.clone();
        match (other, &input) {
            (Smb1Alternative::Near, AcceleratorInput::Lan(bytes)) => self.asked(bytes),
            (Smb1Alternative::Far(_), AcceleratorInput::Wan(segment))
                if segment.kind != SegmentKind::Frame =>
            {
                self.asked(&segment.bytes);
            }
            (Smb1Alternative::Near, AcceleratorInput::Wan(segment))
                if segment.kind != SegmentKind::Frame
                    && self.is_answered_in_smb1(&segment.bytes) =>
            {
                // As it came, like all before it.
                self.running.handle(now, input);
                return self.change(Box::new(near::Smb1NearHalf::new()));
            }
            (Smb1Alternative::Far(settings), AcceleratorInput::Lan(bytes)) => {
                return self.far_answer(now, settings, bytes.clone());
            }
            (Smb1Alternative::Far(_), AcceleratorInput::LanFinished) => {
                let early = self.early_answer();
                self.seen = None;
                if !early.is_empty() {
                    self.running.handle(now, AcceleratorInput::Lan(early));
                }
            }
            _ => {}
        }
        self.running.handle(now, input);
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.outputs
            .pop_front()
            .or_else(|| self.running.poll_output())
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.running.poll_timeout()
    }

    fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.running.set_backlog(now, bytes);
    }

    fn buffered(&self) -> usize {
        let seen = self.seen.as_ref();
        let held = seen.map_or(0, |seen| seen.asked.held() + seen.answered.len());
        held + self.running.buffered()
    }

    fn answered(&self) -> u64 {
        self.running.answered()
    }

    fn note(&self) -> Option<String> {
        self.running.note()
    }
}
