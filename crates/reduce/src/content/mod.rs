//! Content handles: a body that streams through is kept as references into the dictionary.
//!
//! ```text
//!  body, in pieces ─► ContentWriter ─► chunks that are not there ─► Dictionary
//!                          └─► references ─► ContentHandle ─► an index keeps it, 36 bytes a chunk
//!
//!  ContentHandle, range ─► ContentReader ─► chunks from memory or disk, each hashed ─► pieces
//!                                └─► one is not there, or not what it was ─► "no longer there"
//! ```
//! So there is one copy of content: an HTTP cache, a file or an attachment is an index of handles, and
//! what the handles name is subject to the dictionary's limits. A miss in the dictionary is a miss of
//! that cache, and never a wrong byte: each chunk that is read is hashed and compared before it is
//! delivered, and the handle's own check says that its references are those of the body that was
//! stored.
//!
//! What is stored here is this node's own. No peer may refer to it ([`Dictionary`] says of each chunk
//! which peers may), and no link to or from it is made. Format of a serialised handle:
//! `docs/formats/content-handle.md`.
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
