//! Settings and fixed limits, each with its unit and its reason.

use std::time::Duration;

use vocab::ByteCount;

/// Shortest chunk cut by content, in bytes. Below it a reference and an index entry cost too much.
/// That many bytes of each chunk need no hash to find its end.
pub const MIN_CHUNK: usize = 8 * 1024;
/// The longest chunk, in bytes: bounds what either side keeps of a chunk that is not yet whole.
pub const MAX_CHUNK: usize = 64 * 1024;
/// Largest number of raw bytes in one record. A record is verified and delivered as a whole, so the
/// limit bounds what a malicious record can make the other side allocate. References for that many
/// bytes cost a few dozen bytes. A repair of all of them still fits one message of the flow layer
/// (1 MiB).
pub const MAX_RECORD_RAW: usize = 512 * 1024;
/// Literal bytes in one record at most: these take time on a slow link, and the record's first
/// byte waits for its last.
pub const MAX_RECORD_LITERALS: usize = 128 * 1024;
/// Operations in one record at most: bounds what the decoder keeps of a short record.
pub const MAX_RECORD_OPERATIONS: usize = 4096;
/// Chunks that one record may take bytes from at most, bases included: bounds the look-ups that
/// a run of a few bytes can cause.
pub const MAX_RECORD_SOURCES: usize = 1024;
/// Encoded bytes of one record's body at most: the literals stored as they are, the longest list
/// of sources and the longest list of operations.
pub const MAX_RECORD_BODY: usize =
    MAX_RECORD_LITERALS + 13 * MAX_RECORD_SOURCES + 16 * MAX_RECORD_OPERATIONS + 1024;
/// Bytes of one frame between the halves of an accelerator at most; it is delivered in one piece.
pub const MAX_FRAME: usize = 1024 * 1024;
/// Chunks that may serve as the base of one record's delta at most: bounds the decoder's look-ups.
pub const MAX_BASES: usize = 32;
/// Bytes of bases in one record's delta at most: bounds what both sides copy together.
pub const MAX_BASE_BYTES: usize = 256 * 1024;
/// Largest number of chunk bytes that one record uses, each chunk counted once: all its raw bytes
/// from whole chunks, three times that for chunks of which it takes a piece, and its bases. Without
/// the limit a short record of many references could make the decoder read much of the disk into
/// memory.
pub const MAX_SOURCE_BYTES: usize = 4 * MAX_RECORD_RAW + MAX_BASE_BYTES;
/// Size of the window of earlier literals that a bulk flow's literals are compressed against, in
/// bytes, as a power of two: 8 MiB. A full window is replaced before zstd's buffer wraps around,
/// because zstd is slower by a third beyond that point.
pub(crate) const WINDOW_LOG: u32 = 23;
/// Bulk flows of a node whose literals are coded with a window of earlier ones at most; further
/// ones go without. Bounds the memory to some 80 MiB.
pub const MAX_ENCODING_WINDOWS: usize = 8;
/// Number of windows on the decoding side, for the flows of all peers together. Records of a
/// further one are requested again, and its encoder then continues without. It bounds the memory to
/// some 105 MiB.
pub const MAX_DECODING_WINDOWS: usize = 12;
/// Time for which the tail of a bulk transfer waits for the rest of its chunk: too short to notice,
/// and longer than the gap between two reads of a busy socket.
pub const TAIL_HOLD: Duration = Duration::from_millis(3);
/// Payload that has to come in close succession (no gap longer than [`TAIL_HOLD`]) before
/// references are collected, in bytes: replies of an ordinary size never wait for it.
pub const BULK: usize = 256 * 1024;
/// Records whose references a decoder looks up ahead of the one it works on, so that the disk
/// reads of a warm transfer overlap ...
pub const DECODE_AHEAD_RECORDS: usize = 8;
/// ... while they take no more bytes than this together: raw ones, or of chunks that they are made
/// from, whichever is more.
pub const DECODE_AHEAD_BYTES: usize = 2 * 1024 * 1024;
/// Number of records that are searched for missing chunks while the first of them waits for a
/// repair, so that all repairs take one round trip ...
pub const REPAIR_AHEAD_RECORDS: usize = 32;
/// ... while they take no more bytes than this together, counted in the same way: as much as an
/// encoder keeps of its own for a flow.
pub const REPAIR_AHEAD_BYTES: usize = 8 * 1024 * 1024;
/// References, and runs, in one repair request at most; more are asked for as one.
pub const MAX_REPAIR_RANGES: usize = 64;
/// Number of requests for parts of a record that a decoder makes before it asks for all of it: one
/// for the chunks found missing at first, and one for those found missing once the keys of runs are
/// known.
pub(crate) const PARTIAL_REPAIRS: usize = 2;
/// Largest number of repairs of one record that an encoder answers: those for parts of it, and the
/// one for all. Without a limit a peer could have the same half mebibyte compressed and sent again
/// endlessly, with requests of a dozen bytes.
pub const MAX_RECORD_REPAIRS: usize = PARTIAL_REPAIRS + 1;
/// Bytes of one repair request at most: every number in it at its longest.
pub const MAX_REPAIR_REQUEST: usize = 10 + 2 * 8 * (1 + MAX_REPAIR_RANGES);
/// Largest part of the dictionary's memory that holds chunks for flows that may have to send them
/// again, as a divisor: the references of a whole bulk transfer on a long fat line, 64 MiB by
/// default.
pub(crate) const LENT_PART: usize = 4;
/// Number of peers whose holdings are tracked: one bit each in every index entry. A further peer
/// still gets compression and references within a flow.
pub const MAX_TRACKED_PEERS: usize = 64;
/// The longest single read asked of the disk, in bytes (recovery reads segments in such pieces).
pub const MAX_DISK_READ: u32 = 1024 * 1024;
/// The longest single append, in bytes: what waits while another is under way goes out together.
pub const MAX_DISK_APPEND: usize = 1024 * 1024;
/// Queued bytes that are appended at once. Together with another record they are shorter than the
/// longest append ...
pub(crate) const GATHERED: usize = 768 * 1024;
/// ... or the time after which fewer bytes are appended. Chunks that arrive sooner are gathered. A
/// large append uses a fraction of the processor time of many small ones, and the delay is short
/// compared with [`SYNC_INTERVAL`], which has to pass as well before data is certain to survive a
/// loss of power.
pub(crate) const GATHERING: Duration = Duration::from_millis(20);
/// Alignment of appended bytes in memory, in bytes, which is that in the file: the largest block of
/// disks, and the alignment that direct writes need.
pub const DISK_BLOCK: usize = 4096;
/// Bytes that may wait to be appended before new chunks stay in memory only: a slow disk must
/// neither hold up a flow nor fill the memory.
pub const MAX_DISK_BACKLOG: usize = 32 * 1024 * 1024;
/// A sync is asked for after this many appended bytes ...
pub const SYNC_BYTES: u64 = 8 * 1024 * 1024;
/// ... or this long after the first byte that is not yet synced.
pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which the dictionary does not use the disk after a failed write.
pub const DISK_RETRY: Duration = Duration::from_secs(10);
/// Segment files at most, whatever their size: each restart may leave a short one.
pub const MAX_SEGMENTS: usize = 16 * 1024;
/// References in one content handle at most: 9 MiB of them, for a body of 2 GiB at least, and of
/// 2.6 GB as content is commonly cut. Bounds what a flow keeps of a body that it stores, and what a
/// handle read from disk can make the node allocate.
pub const MAX_CONTENT_REFERENCES: usize = 256 * 1024;
/// Bytes of a stored body that are fetched ahead of its reader at most: enough for a disk to work on
/// some dozens of chunks at a time, and little for each of many readers.
pub const CONTENT_READ_AHEAD: usize = 512 * 1024;
/// Chunks that are pinned, or unpinned, in one call at most, which takes less than a millisecond.
pub const PIN_STEP: usize = 4096;
/// Largest number of bodies pinned at the same time; a read of a further one is not pinned. It
/// bounds the work of finding bodies without readers.
pub const MAX_PINNED_BODIES: usize = 4096;
/// Part of the dictionary's memory that may be pinned, as a divisor. It counts only what is not on
/// disk. With as much lent and as much waiting for the disk, a quarter is left for everything else.
pub const PINNED_MEMORY_PART: u64 = 4;
/// Part of the dictionary's disk whose segments may be kept for pinned chunks, as a divisor. New
/// chunks go to the other half.
pub const PINNED_DISK_PART: u64 = 2;

/// Limits of the dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DictionaryConfig {
    /// Bytes of memory for chunks and index together, bookkeeping included; at least 1 MiB is
    /// used. Of it, what indexes the disk may take half.
    pub memory: ByteCount,
    /// Bytes on disk; less than 1 MiB keeps nothing there and asks nothing of it.
    pub disk: ByteCount,
    /// Bytes in one segment file, between 64 KiB and 1 GiB: the unit in which the oldest data is
    /// dropped.
    pub segment: ByteCount,
}

impl Default for DictionaryConfig {
    fn default() -> Self {
        Self {
            memory: ByteCount::mebibytes(256),
            disk: ByteCount::new(0),
            segment: ByteCount::mebibytes(32),
        }
    }
}

/// Permission to store a flow's payload in the dictionaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoragePolicy {
    /// Payload is chunked, looked up and stored on both sides.
    #[default]
    Remember,
    /// A policy forbids it: payload is compressed, never looked up and never remembered.
    Never,
}

/// Settings of the encoder of one direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// zstd's level for what no reference covers, 1 to 19; 3 keeps up with 1 Gbit/s on one core.
    pub level: i32,
    /// Raw bytes kept for repair until the peer has acknowledged them; encoding pauses there. Chunks
    /// that were referred to as a whole are kept by the dictionary and do not count, while it has
    /// memory to lend.
    pub retained: ByteCount,
    /// Literal bytes in one record at most; no more than [`MAX_RECORD_LITERALS`] is used.
    pub record: ByteCount,
    /// Permission to store the payload in the dictionaries.
    pub storing: StoragePolicy,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            level: 3,
            retained: ByteCount::mebibytes(8),
            record: ByteCount::new(MAX_RECORD_LITERALS as u64),
            storing: StoragePolicy::Remember,
        }
    }
}

/// Settings of the decoder of one direction of a flow. There are none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderConfig {}
