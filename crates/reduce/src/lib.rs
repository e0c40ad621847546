//! Data reduction: chunks, fingerprints, the dictionary, references, compression.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]
mod chunker;
mod config;
mod decoder;
mod dictionary;
mod disk;
mod encoder;
mod error;
mod fingerprint;
mod literals;
mod record;
mod repair;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use config::*;
pub use decoder::{Decoded, Decoder};
pub use dictionary::{Dictionary, DictionaryStatistics, PeerSlot, SegmentScan, scan_segment};
pub use disk::{
    DiskAnswer, DiskCompletion, DiskFault, DiskOperation, DiskRequest, SegmentListing,
    parse_segment_file_name, segment_file_name,
};
pub use encoder::{Encoder, FlowReduction};
pub use error::Error;
pub use repair::{AnswerScope, RepairAnswer, RepairRequest, RepairScope};
