//! The connection's properties in the server's answer ([MS-CIFS] §2.2.4.52.2, NEGOTIATE Response;
//! [MS-SMB] §2.2.4.5.2).

use super::set_up::{ClientCapabilities, LARGE_READS};
use super::transfer::{LONGEST_ANSWERED, READ_DATA_AT};
use super::{WORDS_AT, WireError, expect_words, u8_at, u16_at, u32_at};

/// Bits of SecurityMode: the server demands signatures.
const SIGNATURES_REQUIRED: u8 = 0x08;

/// Bits of Capabilities.
const NT_SMBS: u32 = 0x0000_0010;

/// The answer of a server that speaks NT LM 0.12; other dialects answer with fewer words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Smb1NegotiateResponse {
    pub(crate) requires_signatures: bool,
    /// The number of requests that may be outstanding.
    pub(crate) mpx_count: u16,
    /// The longest message that the server takes, in bytes.
    pub(crate) buffer_size: u32,
    capabilities: u32,
}

impl Smb1NegotiateResponse {
    /// Reads one.
    ///
    /// # Errors
    /// When it is of another dialect, or cut short.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        expect_words(message, &[17])?;
        Ok(Self {
            requires_signatures: u8_at(message, WORDS_AT + 2)? & SIGNATURES_REQUIRED != 0,
            mpx_count: u16_at(message, WORDS_AT + 3)?,
            buffer_size: u32_at(message, WORDS_AT + 7)?,
            capabilities: u32_at(message, WORDS_AT + 19)?,
        })
    }

    /// Returns true if the server supports NT_CREATE_ANDX and related commands.
    pub(crate) fn knows_nt(&self) -> bool {
        self.capabilities & NT_SMBS != 0
    }

    /// The longest READ of ours that it answers in full: with CAP_LARGE_READX by the field ([MS-SMB]
    /// §2.2.4.2.1), else by its own buffer and the client's.
    pub(crate) fn read_max(&self, client: ClientCapabilities) -> u32 {
        let by_buffer = self.buffer_size.saturating_sub(READ_DATA_AT as u32);
        let by_field = match self.capabilities & LARGE_READS {
            0 => by_buffer,
            _ => u32::MAX,
        };
        by_field
            .min(self.longest_answered(client))
            .min(u32::from(u16::MAX))
    }

    /// The longest client READ that it answers in full. With the server's CAP_LARGE_READX the
    /// client's buffer bounds only other answers: Windows XP reads 60 kB with one of 4 KiB. The
    /// bits above a READ's 16 bits of length are a part of it only where both have that capability
    /// (servers differ where the client has not).
    pub(crate) fn longest_answered(&self, client: ClientCapabilities) -> u32 {
        match (self.capabilities & LARGE_READS, client.is_large) {
            (0, _) => u32::from(client.buffer).saturating_sub(READ_DATA_AT as u32),
            (_, false) => u32::from(u16::MAX),
            (_, true) => LONGEST_ANSWERED,
        }
    }
}
