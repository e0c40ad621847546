//! What can be set, and every limit that cannot, each with its unit and its reason.

use std::time::Duration;

use vocab::ByteCount;

/// The shortest chunk that content cuts, in bytes: below it a reference and an index entry cost
/// too much for what they stand for.
pub const MIN_CHUNK: usize = 4 * 1024;
/// Where the cutting rule turns from strict to eager, in bytes, so that most chunks are near it.
pub const NORMAL_CHUNK: usize = 8 * 1024;
/// The longest chunk, in bytes: bounds what either side keeps of a chunk that is not yet whole.
pub const MAX_CHUNK: usize = 64 * 1024;
/// Raw bytes in one record at most: verified and delivered as a whole, so it bounds the delay of
/// the first byte on a slow link, and what a malicious record can make the other side allocate.
pub const MAX_RECORD_RAW: usize = 128 * 1024;
/// Operations in one record at most, for the same reasons.
pub const MAX_RECORD_OPERATIONS: usize = 4096;
/// Encoded bytes of one record's body at most: the raw limit stored as it is, and the longest
/// list of operations.
pub const MAX_RECORD_BODY: usize = MAX_RECORD_RAW + 24 * MAX_RECORD_OPERATIONS + 1024;
/// Bytes of one frame between the halves of an accelerator at most; it is delivered in one piece.
pub const MAX_FRAME: usize = 1024 * 1024;
/// Chunks that may serve as the base of one record's delta at most: bounds the decoder's look-ups.
pub const MAX_BASES: usize = 32;
/// Bytes of bases in one record's delta at most: bounds what both sides copy together.
pub const MAX_BASE_BYTES: usize = 256 * 1024;
/// Bytes of chunks that one record is made from at most, each chunk counted once: all its raw
/// bytes from whole chunks, the longest chunk for a piece of each of the shortest, and its bases.
/// Without it a short record of many references could have much of the disk read into memory.
pub const MAX_SOURCE_BYTES: usize =
    MAX_RECORD_RAW + MAX_RECORD_RAW / MIN_CHUNK * MAX_CHUNK + MAX_BASE_BYTES;
/// How long the tail of a bulk transfer waits for the rest of its chunk: less than anyone
/// notices, longer than the gap between two reads of a busy socket.
pub const TAIL_HOLD: Duration = Duration::from_millis(3);
/// Records whose references a decoder looks up ahead of the one it works on, so that the disk
/// reads of a warm transfer overlap.
pub const DECODE_AHEAD_RECORDS: usize = 8;
/// Ranges in one repair request at most; more are asked for as one.
pub const MAX_REPAIR_RANGES: usize = 64;
/// Peers whose holdings can be told apart: one bit each in every index entry. A further peer
/// still gets compression and references within a flow.
pub const MAX_TRACKED_PEERS: usize = 64;
/// The longest single read asked of the disk, in bytes (recovery reads segments in such pieces).
pub const MAX_DISK_READ: u32 = 1024 * 1024;
/// The longest single append, in bytes: what waits while another is under way goes out together.
pub const MAX_DISK_APPEND: usize = 1024 * 1024;
/// Bytes that may wait to be appended before new chunks stay in memory only: a slow disk must
/// neither hold up a flow nor fill the memory.
pub const MAX_DISK_BACKLOG: usize = 32 * 1024 * 1024;
/// A sync is asked for after this many appended bytes ...
pub const SYNC_BYTES: u64 = 8 * 1024 * 1024;
/// ... or this long after the first byte that is not yet synced.
pub const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long the dictionary leaves the disk alone after a failed write.
pub const DISK_RETRY: Duration = Duration::from_secs(10);
/// Segment files at most, whatever their size: each restart may leave a short one.
pub const MAX_SEGMENTS: usize = 16 * 1024;

/// How much the dictionary may hold.
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

/// Whether a flow's payload may enter the dictionaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storing {
    /// It is chunked, looked up and remembered on both sides.
    #[default]
    Remember,
    /// A policy forbids it: payload is compressed, never looked up and never remembered.
    Never,
}

/// How one direction of a flow is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// zstd's level for what no reference covers, 1 to 19; 3 keeps up with 1 Gbit/s on one core.
    pub level: i32,
    /// Raw bytes kept for repair until the peer has acknowledged them; encoding pauses there.
    pub retained: ByteCount,
    /// Raw bytes in one record at most; no more than [`MAX_RECORD_RAW`] is used.
    pub record: ByteCount,
    /// Whether the payload may enter the dictionaries.
    pub storing: Storing,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            level: 3,
            retained: ByteCount::mebibytes(8),
            record: ByteCount::new(MAX_RECORD_RAW as u64),
            storing: Storing::Remember,
        }
    }
}

/// How one direction of a flow is decoded. There is nothing to set yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderConfig {}
