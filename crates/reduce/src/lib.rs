//! Data reduction: chunks, fingerprints, the dictionary, references, compression.
//!
//! ```text
//! segment ─► encoder ─► records ═WAN═► decoder ─► segment     one pair for each flow, direction
//!               │  ▲                      │  │
//!               │  └──── repair ──────────┘  │
//!            Dictionary                  Dictionary           one for each node
//!               │ ▲ disk requests, completions
//! ```
//! The [`FlowEncoder`] cuts payload into chunks by its content and sends a short reference for each
//! one that the peer is known to hold; the rest travels compressed, against similar chunks where
//! there are some. The [`FlowDecoder`] delivers nothing that has not passed a BLAKE3 check, and asks
//! for what it cannot resolve. The [`Dictionary`] keeps chunks in memory and in a crash-safe log;
//! it is a cache and may lose everything at any time.
//!
//! All of it is sans-I/O: time is handed in, the disk is requests ([`DiskRequest`]) and
//! completions, and nothing here knows of sockets or threads. Formats:
//! `docs/formats/reduced-stream.md`, `docs/formats/dictionary.md`. Fuzzing starts at
//! [`FlowDecoder::push`], [`RepairRequest::parse`], [`RepairAnswer::parse`] and [`scan_segment`].

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod anchor;
mod check;
mod chunker;
mod config;
mod content;
mod decoder;
mod dictionary;
mod disk;
mod encoder;
mod error;
mod fingerprint;
mod literals;
mod matcher;
mod record;
mod repair;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod window_coder;
mod windows;

pub use config::*;
pub use content::{
    ContentHandle, ContentRead, ContentReader, ContentUnavailable, ContentWriter, HandleError,
    StoreError,
};
pub use decoder::{DecoderOutput, FlowDecoder};
pub use dictionary::{
    ContentPin, Dictionary, DictionaryKey, DictionaryStatistics, PeerSlot, PinPurpose, PinState,
    SegmentScan, scan_segment,
};
pub use disk::{
    DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest, SegmentListing,
    parse_segment_file_name, segment_file_name,
};
pub use encoder::{FlowEncoder, FlowReduction};
pub use error::ReductionError;
pub use repair::{AnswerScope, RepairAnswer, RepairRequest, RepairScope};
