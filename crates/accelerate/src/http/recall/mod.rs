//! Short revalidations: a tag stands for a request and its conditions, and a date for the 304 that confirms a response.
//!
//! ```text
//!   far half ──Tagged(t)──► near half       before a response with validators; the far node keeps request and head as t
//!   near half ──Recall(t)──► far half       the same request again, with the validators of the response as conditions
//!   far half ──Confirmed(date)──► near half the 304 repeats the head of t but for its Date
//! ```
//! A new connection that revalidates one object costs some 900 bytes on the WAN, of which two thirds are heads that both
//! nodes have seen before. The far half builds the request from what it keeps, and the near half builds the 304. A request
//! whose head differs in one byte travels as it is. So does a 304 that says anything new, and a tag that the far node no
//! longer knows costs one more round trip ([`RecallFrame::Unknown`]).
//!
//! The near half has said by a frame of the prefetches that it reads frames, so nothing here happens without prefetch.
//! A tag is a random number, and is valid for one near node and one server.

mod far;
mod frames;
mod memory;
#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256};

pub(super) use far::{FarRecall, RecallReply};
pub(super) use frames::RecallFrame;
pub(super) use memory::RecallMemory;

/// Bytes of the heads of one exchange. Servers take requests of 8 KiB.
const EXCHANGE_MAX: usize = 8 << 10;
/// Bytes of memory for all exchanges of a far node: some 5,000.
const EXCHANGES_BYTES_MAX: usize = 6 << 20;
/// The memory of an exchange beside its heads, about.
const EXCHANGE_OVERHEAD: usize = 512;

/// A tag of the far node for the request that a stored response answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecallTag {
    /// The site that the far node knew when it gave the tag.
    site: u64,
    tag: u64,
    /// Digest of the request's head without its conditional fields.
    digest: [u8; 16],
}

impl RecallTag {
    /// The tag of a request with this head.
    pub(super) fn new(site: u64, tag: u64, head: &[u8]) -> Self {
        let digest = digest(head);
        Self { site, tag, digest }
    }

    /// The far node's number for it.
    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// The site for which it is valid.
    pub(super) fn site(&self) -> u64 {
        self.site
    }

    /// True if the tag stands for a request with exactly this head.
    pub(super) fn is_of(&self, head: &[u8]) -> bool {
        self.digest == digest(head)
    }
}

fn digest(head: &[u8]) -> [u8; 16] {
    let whole = Sha256::digest(head);
    let mut digest = [0; 16];
    digest.copy_from_slice(&whole[..16]);
    digest
}
