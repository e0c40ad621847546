//! SMB 1 in its last dialect, NT LM 0.12, as far as the tactics read and write it ([MS-CIFS] §2.2, Message
//! Syntax; [MS-SMB] §2.2).
//!
//! ```text
//!  frame:  0 | length (24 bits) | header (32) | words: count, then 2 bytes each | bytes: count (16 bits), …
//! ```
//! Parsers take a message without its frame's header, check every bound and never panic. Fields
//! that no tactic needs stay in the caller's bytes and are passed on unchanged. Integers are
//! little-endian. A message may hold a chain of commands (AndX); only the first of a message
//! without a chain is read, and of others the list of their commands.
//!
//! | file | what |
//! | --- | --- |
//! | `header` | the 32 bytes before every message |
//! | `split` | a byte stream cut into frames, whole or as it passes |
//! | `negotiate` | what the server says of the connection |
//! | `set_up` | how long a client's messages may be, and which trees hold files |
//! | `create` | NT_CREATE_ANDX |
//! | `transfer` | READ_ANDX and WRITE_ANDX |
//! | `position` | SEEK, and the levels that tell and set a position |
//! | `oplock` | LOCKING_ANDX, with which oplocks are broken and given back as well |
//! | `target` | which open, tree or user a request works on, and what it does to it |
//! | `transaction` | when a transaction has been answered |
//!
//! It does not read raw mode, whose messages have no header; `target` names it.

pub(crate) mod create;
pub(crate) mod header;
pub(crate) mod negotiate;
pub(crate) mod oplock;
pub(crate) mod position;
pub(crate) mod set_up;
pub(crate) mod split;
pub(crate) mod target;
pub(crate) mod transaction;
pub(crate) mod transfer;

use super::super::wire::{WireError, array, u8_at, u16_at, u32_at, u64_at};

/// The offset of a message's words: behind the header and their count.
pub(crate) const WORDS_AT: usize = header::LENGTH + 1;

/// Returns the number of words in a message.
pub(crate) fn word_count(message: &[u8]) -> Result<u8, WireError> {
    u8_at(message, header::LENGTH)
}

/// Checks that a message has one of these numbers of words, and is long enough for them and the
/// count of bytes.
fn expect_words(message: &[u8], counts: &[u8]) -> Result<u8, WireError> {
    let count = word_count(message)?;
    if !counts.contains(&count) {
        return Err(WireError::Invalid("WordCount"));
    }
    u16_at(message, WORDS_AT + 2 * usize::from(count))?;
    Ok(count)
}

/// Checks that no further command follows.
fn expect_unchained(message: &[u8]) -> Result<(), WireError> {
    match u8_at(message, WORDS_AT)? {
        header::NO_ANDX => Ok(()),
        _ => Err(WireError::Invalid("AndXCommand")),
    }
}

/// A frame's header for a message of this length ([MS-SMB] §2.1, Transport: direct TCP).
pub(crate) fn frame(message: &[u8]) -> Vec<u8> {
    let mut bytes = (message.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes
}
