//! SMB 2 and 3 on the wire, as far as the tactics read and write it ([MS-SMB2] §2.2, Message Syntax).
//!
//! Parsers take borrowed slices, check every bound and never panic. Fields that no tactic needs
//! stay in the caller's bytes and are passed on unchanged. Integers are little-endian.
//!
//! | file | what |
//! | --- | --- |
//! | `frame` | the four bytes before every message |
//! | `header` | the 64 bytes before every body, synchronous and asynchronous |
//! | `split` | a byte stream cut into messages, their heads and their payload |
//! | `set_up` | NEGOTIATE, SESSION_SETUP, TREE_CONNECT: what the server says of the connection |
//! | `create` | CREATE and its contexts |
//! | `lease` | leases, in CREATE and as they are taken back |
//! | `transfer` | READ and WRITE |
//! | `directory` | QUERY_DIRECTORY |
//! | `oplock` | OPLOCK_BREAK |
//! | `query_info` | QUERY_INFO of a file system |
//! | `set_info` | QUERY_INFO and SET_INFO of a position |
//! | `lock` | whether a LOCK keeps its own holder from writing |
//! | `transform` | the header before an encrypted message |
//! | `target` | which open, tree or session a request works on, and what it does to it |
//!
//! It does not read SMB1 or compressed messages; `split` names them.

pub(crate) mod create;
pub(crate) mod directory;
pub(crate) mod frame;
pub(crate) mod header;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod oplock;
pub(crate) mod query_info;
pub(crate) mod set_info;
pub(crate) mod set_up;
pub(crate) mod split;
pub(crate) mod target;
pub(crate) mod transfer;
pub(crate) mod transform;

use thiserror::Error;

/// An error in bytes that should be an SMB2 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum WireError {
    /// The bytes end before a field does, or an offset points outside of them.
    #[error("the message ends in the middle of a field")]
    Truncated,
    /// A field has a value that the specification does not allow.
    #[error("the field {0} has a value that is not allowed")]
    Invalid(&'static str),
}

/// The server's name for an open file: persistent and volatile part ([MS-SMB2] §2.2.14.1,
/// SMB2_FILEID). Opaque to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(pub(crate) [u8; 16]);

impl FileId {
    /// "The open of the message before this one in the compound" ([MS-SMB2] §3.2.4.1.4,
    /// Sending Compounded Requests).
    pub(crate) const RELATED: FileId = FileId([0xff; 16]);
}

/// The bytes from `at` on as an array.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], WireError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .ok_or(WireError::Truncated)
}

/// One byte.
pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Result<u8, WireError> {
    bytes.get(at).copied().ok_or(WireError::Truncated)
}

/// Two bytes.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Result<u16, WireError> {
    array(bytes, at).map(u16::from_le_bytes)
}

/// Four bytes.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Result<u32, WireError> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// Eight bytes.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Result<u64, WireError> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// Checks a body's first field, its fixed length as the specification counts it.
pub(crate) fn expect_structure(body: &[u8], size: u16) -> Result<(), WireError> {
    match u16_at(body, 0)? == size {
        true => Ok(()),
        false => Err(WireError::Invalid("StructureSize")),
    }
}
