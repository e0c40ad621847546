//! The header before an encrypted message ([MS-SMB2] §2.2.41, SMB2 TRANSFORM_HEADER).
//!
//! ```text
//!  0xfd SMB | signature (16) | nonce (16) | size (4) | 0 (2) | flags (2) | session (8) | message, encrypted
//!                             ◄──── authenticated with the message, not encrypted ────►
//! ```

use super::{WireError, array, u16_at, u32_at, u64_at};
use crate::smb::wire::header;

/// Its length in bytes.
pub(crate) const LENGTH: usize = 52;
/// The offset of the part of it that the signature covers beside the message ([MS-SMB2] §3.1.4.3,
/// Encrypting the Message: from the nonce on).
pub(crate) const NONCE_AT: usize = 20;
/// The first four bytes.
const MAGIC: [u8; 4] = *b"\xfdSMB";
/// "Encrypted", the only flag of SMB 3.1.1; in SMB 3.0 the only algorithm, with the same number.
const ENCRYPTED: u16 = 1;

/// Its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransformHeader {
    /// The tag over message and header.
    pub(crate) signature: [u8; 16],
    /// The eleven or twelve bytes of the nonce, and their padding.
    pub(crate) nonce: [u8; 16],
    /// Bytes of the message.
    pub(crate) size: u32,
    /// Nothing, by the specification.
    pub(crate) reserved: u16,
    /// The session whose key the message is encrypted with.
    pub(crate) session: u64,
}

impl TransformHeader {
    /// Reads the header of a complete encrypted message, without its frame.
    ///
    /// # Errors
    /// When the header is cut or says what it must not, or what follows is not as long as it says or
    /// too short for any message.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        if array(message, 0)? != MAGIC {
            return Err(WireError::Invalid("ProtocolId"));
        }
        let transform = Self {
            signature: array(message, 4)?,
            nonce: array(message, NONCE_AT)?,
            size: u32_at(message, 36)?,
            reserved: u16_at(message, 40)?,
            session: u64_at(message, 44)?,
        };
        if u16_at(message, 42)? != ENCRYPTED {
            return Err(WireError::Invalid("Flags"));
        }
        let follows = message.len() - LENGTH;
        if transform.size as usize != follows || follows < header::LENGTH {
            return Err(WireError::Invalid("OriginalMessageSize"));
        }
        Ok(transform)
    }

    /// The 52 bytes.
    pub(crate) fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..NONCE_AT].copy_from_slice(&self.signature);
        bytes[NONCE_AT..36].copy_from_slice(&self.nonce);
        bytes[36..40].copy_from_slice(&self.size.to_le_bytes());
        bytes[40..42].copy_from_slice(&self.reserved.to_le_bytes());
        bytes[42..44].copy_from_slice(&ENCRYPTED.to_le_bytes());
        bytes[44..].copy_from_slice(&self.session.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Vec<u8> {
        let transform = TransformHeader {
            signature: [1; 16],
            nonce: [2; 16],
            size: 70,
            reserved: 3,
            session: 0x1122_3344_5566_7788,
        };
        let mut message = transform.emit().to_vec();
        message.extend([9; 70]);
        message
    }

    #[test]
    fn transform_header_round_trips() {
        let message = whole();
        let transform = TransformHeader::parse(&message).unwrap();
        assert_eq!(transform.emit()[..], message[..LENGTH]);
        assert_eq!(transform.session, 0x1122_3344_5566_7788);
    }

    #[test]
    fn truncated_or_false_size_fails() {
        let message = whole();
        for length in 0..message.len() {
            assert!(
                TransformHeader::parse(&message[..length]).is_err(),
                "{length}"
            );
        }
        let lies = |at: usize, byte: u8| {
            let mut message = whole();
            message[at] = byte;
            TransformHeader::parse(&message)
        };
        let size = Err(WireError::Invalid("OriginalMessageSize"));
        assert_eq!(lies(36, 71), size);
        assert_eq!(lies(36, 69), size);
        assert_eq!(lies(39, 255), size);
        assert_eq!(lies(42, 0), Err(WireError::Invalid("Flags")));
        assert_eq!(lies(43, 1), Err(WireError::Invalid("Flags")));
        assert_eq!(lies(0, 0xfe), Err(WireError::Invalid("ProtocolId")));
        // A message that could hold no header.
        let mut short = message[..LENGTH + 63].to_vec();
        short[36] = 63;
        assert_eq!(TransformHeader::parse(&short), size);
    }
}
