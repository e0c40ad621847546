//! The decoder (signatures; the body follows).
#![allow(unused_variables)]
use bytes::Bytes;
use vocab::Segment;

use crate::{DecoderConfig, Dictionary, Error, PeerSlot};

/// What [`Decoder::poll`] has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The next segment, verified.
    Segment(Segment),
    /// Nothing until more is pushed.
    NeedMore,
    /// Nothing until the dictionary has had a disk completion: poll again after each.
    WaitForDisk,
    /// A request to be carried to the peer's [`crate::Encoder::repair`]; given once. Until its
    /// answer is handed in, [`Decoder::poll`] says [`Decoded::WaitForRepair`].
    NeedRepair(Bytes),
    /// Nothing until the answer to the repair request is handed in.
    WaitForRepair,
}

/// One direction of one flow, from the WAN.
pub struct Decoder {}

impl Decoder {
    /// A decoder for a flow from that peer.
    #[must_use]
    pub fn new(config: DecoderConfig, peer: PeerSlot) -> Self {
        Self {}
    }
    /// Takes in encoded bytes, cut anywhere.
    pub fn push(&mut self, encoded: Bytes) {}
    /// The next thing.
    ///
    /// # Errors
    /// When the stream is malformed; the flow must then be reset, every later call fails too.
    pub fn poll(&mut self, dictionary: &mut Dictionary) -> Result<Decoded, Error> {
        Ok(Decoded::NeedMore)
    }
    /// The encoded offset up to which everything has been resolved and handed out.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        0
    }
    /// Takes in the answer to a repair request; [`Self::poll`] then goes on.
    ///
    /// # Errors
    /// When the answer is malformed or answers nothing that was asked.
    pub fn handle_repair(&mut self, answer: &[u8]) -> Result<(), Error> {
        Ok(())
    }
    /// Whether all that was pushed has been consumed: a clean end may only come here.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        true
    }
}
