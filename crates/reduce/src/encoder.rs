//! The encoder (signatures; the body follows).
#![allow(unused_variables)]
use bytes::Bytes;
use vocab::{Segment, Time};

use crate::{Dictionary, EncoderConfig, Error, PeerSlot};

/// What reduction did for one direction of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowReduction {
    /// Bytes that came in.
    pub raw_bytes: u64,
    /// Bytes that went out, repairs not counted.
    pub encoded_bytes: u64,
    /// Raw bytes for which a reference was sent.
    pub referenced_bytes: u64,
    /// Raw bytes sent as they are or compressed.
    pub literal_bytes: u64,
    /// Of the literal bytes, those that compression could not make smaller.
    pub incompressible_bytes: u64,
    /// Of the literal bytes, those compressed against similar chunks the peer holds.
    pub delta_bytes: u64,
    /// Records sent.
    pub records: u64,
    /// Repair requests answered.
    pub repairs: u64,
    /// Raw bytes sent again for them.
    pub repaired_bytes: u64,
}

/// One direction of one flow, towards the WAN.
pub struct Encoder {}

impl Encoder {
    /// An encoder for a flow to that peer.
    #[must_use]
    pub fn new(config: EncoderConfig, peer: PeerSlot) -> Self {
        Self {}
    }
    /// Takes in what is to be sent.
    pub fn push(&mut self, now: Time, segment: Segment) {}
    /// Nothing more will be pushed: hold nothing back.
    pub fn finish(&mut self) {}
    /// Raw bytes pushed and not yet encoded.
    #[must_use]
    pub fn pending(&self) -> usize {
        0
    }
    /// The next encoded bytes, at most `max`; `None` when there is nothing to send now.
    pub fn poll_encoded(
        &mut self,
        now: Time,
        dictionary: &mut Dictionary,
        max: usize,
    ) -> Option<Bytes> {
        None
    }
    /// When a held tail must go out: call [`Self::poll_encoded`] then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }
    /// The peer's decoder has consumed the encoded stream up to `offset`.
    pub fn acknowledged(&mut self, offset: u64, dictionary: &mut Dictionary) {}
    /// Raw bytes kept for repair.
    #[must_use]
    pub fn retained(&self) -> usize {
        0
    }
    /// Answers a decoder's request.
    ///
    /// # Errors
    /// When the request is malformed or names a range that is not retained.
    pub fn repair(&mut self, request: &[u8]) -> Result<Bytes, Error> {
        Ok(Bytes::new())
    }
    /// Counters for `why`.
    #[must_use]
    pub fn statistics(&self) -> FlowReduction {
        FlowReduction::default()
    }
}
