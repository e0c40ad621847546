//! Bodies that halves store in the node's dictionary and read back.
//!
//! ```text
//!  store   Store ─► Append … ─► Finish ──► Stored{handle} ─► an index keeps the handle
//!             └────────┴─ Abandon              └ or Refused, at any time: nothing was stored
//!  read    Read{handle, range} ──► Piece … ─► Ended         └ or Gone, at any time
//!             └─ StopReading
//! ```
//! A half sends its requests by [`AcceleratorOutput::Content`](super::AcceleratorOutput::Content)
//! and receives the reports by [`AcceleratorInput::Content`](super::AcceleratorInput::Content). The
//! half chooses an id for each store and each read. The id is in use from the first request to the
//! report that ends it, or until the half gives up.
//!
//! - **What is stored.** The half hands in the bytes that it has, a piece of a segment without its head, say;
//!   they are not copied for being stored. It hands in payload of this flow only, for the engine refuses what the
//!   policy of either node keeps out of the dictionary.
//! - **What is read.** The pieces are right and in order, and come as the flow's receivers take what the half makes
//!   of them: while much waits for the host, or for the peer, no further piece comes. A read that waits for the
//!   disk stops nothing else.
//! - **Gone** is an ordinary answer: the dictionary is a cache. A half asks again wherever the body came from.
//! - A handle outlives the flow and the process. No peer can use it or learn from it.

use std::ops::Range;

use bytes::Bytes;

/// One store or read of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(pub u64);

/// The name of a stored body. It is opaque here; equal handles name equal bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentHandle(Bytes);

/// A request of a half to store, read or keep a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentRequest {
    /// Begin to store a body. At most [`MAX_CONTENT_STORES`] at a time.
    Store {
        /// The number that the half gives to this store.
        id: ContentId,
    },
    /// Store the body's next bytes. They are ignored if the body was refused.
    Append {
        /// The number of the store.
        id: ContentId,
        /// The bytes.
        bytes: Bytes,
    },
    /// End the body; [`ContentReport::Stored`] or [`ContentReport::Refused`] follows, unless it was
    /// refused before.
    Finish {
        /// The number of the store.
        id: ContentId,
    },
    /// Do not store the body after all. No report follows.
    Abandon {
        /// The number of the store.
        id: ContentId,
    },
    /// Read a range of a body. At most [`MAX_CONTENT_READS`] at a time.
    Read {
        /// The number that the half gives to this read.
        id: ContentId,
        /// The body's name.
        handle: ContentHandle,
        /// The bytes to read, counted from its beginning; those beyond its end are left out.
        range: Range<u64>,
    },
    /// Give no more pieces of a read. No report follows.
    StopReading {
        /// The number of the read.
        id: ContentId,
    },
    /// Keep the body in the dictionary as long as there is room for kept bodies: it is more
    /// valuable to the accelerator than others. This lasts beyond the flow, until
    /// [`Self::Release`], or until the node ends. No report follows.
    Keep {
        /// The body's name.
        handle: ContentHandle,
    },
    /// Let the body be evicted like any other. No report follows.
    Release {
        /// The body's name.
        handle: ContentHandle,
    },
}

/// An answer to a half's [`ContentRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentReport {
    /// The body is stored.
    Stored {
        /// The number of the store.
        id: ContentId,
        /// The body's name. Any flow of this node can read the body by it from now on.
        handle: ContentHandle,
        /// Its length in bytes.
        length: u64,
    },
    /// The body is not stored.
    Refused {
        /// The number of the store.
        id: ContentId,
        /// The cause.
        refusal: ContentRefusal,
    },
    /// The next bytes of a read.
    Piece {
        /// The number of the read.
        id: ContentId,
        /// The bytes, one at least.
        bytes: Bytes,
    },
    /// All of the range was given.
    Ended {
        /// The number of the read.
        id: ContentId,
    },
    /// The rest of the range cannot be given.
    Gone {
        /// The number of the read.
        id: ContentId,
        /// The cause.
        absence: ContentAbsence,
    },
}

/// The cause for which a body is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentRefusal {
    /// The policy of this node or of the peer keeps the flow's content out of the dictionary.
    Policy,
    /// The body is too long, or the half stores too many at a time.
    Limit,
    /// A chunk of the body cannot be distinguished from another one.
    Collides,
}

/// The cause for which a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentAbsence {
    /// It is no longer there, or its handle is damaged. The handle is useless from now on.
    Gone,
    /// The node has just started and is still reading its disk. The handle must be kept.
    NotYet,
    /// The half reads too many at a time.
    Limit,
}

/// Bodies that one half stores at a time at most: as many as an HTTP/2 connection has streams by default.
/// Each holds a chunk and its references.
pub const MAX_CONTENT_STORES: usize = 128;
/// Bodies that one half reads at a time at most, for the same reason.
pub const MAX_CONTENT_READS: usize = 128;

impl ContentHandle {
    /// Creates a handle from the bytes that an index has kept. If they are damaged, the body counts
    /// as gone.
    #[must_use]
    pub fn from_bytes(serialised: Bytes) -> Self {
        Self(serialised)
    }

    /// The bytes that an index keeps to name the body later. They are shared, not copied.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}
