//! Content handles: a streamed body is kept as references into the dictionary.
//!
//! ```text
//!  body, in pieces ─► ContentWriter ─► chunks that are not there ─► Dictionary
//!                          └─► references ─► ContentHandle ─► an index keeps it, 36 bytes a chunk
//!
//!  ContentHandle, range ─► ContentReader ─► chunks from memory or disk, each hashed ─► pieces
//!                                └─► one is not there, or not what it was ─► "no longer there"
//! ```
//! So content is stored once: an HTTP cache, a file or an attachment is an index of handles, and
//! the named content is subject to the dictionary's limits. A miss in the dictionary is a miss of
//! that cache, and never a wrong byte. Each chunk that is read is hashed and compared before it is
//! delivered, and the handle's own check confirms that its references are those of the stored body.
//!
//! Stored content belongs to this node. No peer may refer to it ([`Dictionary`] tracks which peers
//! may refer to each chunk), and it has no links to or from other chunks. Format of a serialised
//! handle: `docs/formats/content-handle.md`.
//!
//! [`Dictionary`]: crate::Dictionary

mod handle;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use handle::BodyReference;
#[cfg(any(test, feature = "testing"))]
pub(crate) use handle::write_check;
pub use handle::{ContentHandle, HandleError};
pub use reader::{ContentRead, ContentReader, ContentUnavailable};
pub use writer::{ContentWriter, StoreError};
