//! The header before every message ([MS-CIFS] §2.2.3.1, The SMB Header).

use super::{WireError, array, u8_at, u16_at, u32_at};

/// Bytes of a header.
pub(crate) const LENGTH: usize = 32;
/// Its first four.
pub(crate) const MAGIC: [u8; 4] = [0xff, b'S', b'M', b'B'];
/// The multiplex id of a server's unsolicited message ([MS-CIFS] §3.3.4.2, oplock breaks).
pub(crate) const UNASKED: u16 = 0xffff;

/// "No further command" in a chain ([MS-CIFS] §2.2.4, SMB_COM_NO_ANDX_COMMAND).
pub(crate) const NO_ANDX: u8 = 0xff;

const MID_AT: usize = 30;

/// Commands ([MS-CIFS] §2.2.2.1, SMB_COM Command Codes).
pub(crate) mod command {
    pub(crate) const OPEN_OLD: u8 = 0x02;
    pub(crate) const CREATE: u8 = 0x03;
    pub(crate) const CLOSE: u8 = 0x04;
    pub(crate) const FLUSH: u8 = 0x05;
    pub(crate) const READ_OLD: u8 = 0x0a;
    pub(crate) const WRITE_OLD: u8 = 0x0b;
    pub(crate) const CREATE_TEMPORARY: u8 = 0x0e;
    pub(crate) const CREATE_NEW: u8 = 0x0f;
    pub(crate) const CHECK_DIRECTORY: u8 = 0x10;
    pub(crate) const SEEK: u8 = 0x12;
    pub(crate) const QUERY_INFORMATION: u8 = 0x08;
    pub(crate) const READ_RAW: u8 = 0x1a;
    pub(crate) const WRITE_COMPLETE: u8 = 0x20;
    pub(crate) const SET_INFORMATION_2: u8 = 0x22;
    pub(crate) const QUERY_INFORMATION_2: u8 = 0x23;
    pub(crate) const LOCKING: u8 = 0x24;
    pub(crate) const TRANSACTION: u8 = 0x25;
    pub(crate) const TRANSACTION_SECONDARY: u8 = 0x26;
    pub(crate) const ECHO: u8 = 0x2b;
    pub(crate) const OPEN: u8 = 0x2d;
    pub(crate) const READ: u8 = 0x2e;
    pub(crate) const WRITE: u8 = 0x2f;
    pub(crate) const TRANSACTION_2: u8 = 0x32;
    pub(crate) const TRANSACTION_2_SECONDARY: u8 = 0x33;
    pub(crate) const FIND_CLOSE_2: u8 = 0x34;
    pub(crate) const TREE_CONNECT_OLD: u8 = 0x70;
    pub(crate) const TREE_DISCONNECT: u8 = 0x71;
    pub(crate) const NEGOTIATE: u8 = 0x72;
    pub(crate) const SESSION_SETUP: u8 = 0x73;
    pub(crate) const LOGOFF: u8 = 0x74;
    pub(crate) const TREE_CONNECT: u8 = 0x75;
    pub(crate) const QUERY_INFORMATION_DISK: u8 = 0x80;
    pub(crate) const NT_TRANSACT: u8 = 0xa0;
    pub(crate) const NT_TRANSACT_SECONDARY: u8 = 0xa1;
    pub(crate) const NT_CREATE: u8 = 0xa2;
    pub(crate) const NT_CANCEL: u8 = 0xa4;
}

/// Bits of Flags.
pub(crate) mod flag {
    /// Set in the server's messages.
    pub(crate) const REPLY: u8 = 0x80;
}

/// Bits of Flags2.
pub(crate) mod flag2 {
    pub(crate) const SIGNATURE: u16 = 0x0004;
    pub(crate) const SIGNATURE_REQUIRED: u16 = 0x0010;
    /// Status is an NTSTATUS, and not a class and a code.
    pub(crate) const NT_STATUS: u16 = 0x4000;
}

/// The signature field before a session is set up ([MS-SMB] §3.2.4.2.4), of clients that could
/// sign.
const NO_SIGNATURE_YET: [u8; 8] = *b"BSRSPYL ";

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Smb1Header {
    pub(crate) command: u8,
    /// The status field; its form depends on [`flag2::NT_STATUS`].
    pub(crate) status: u32,
    pub(crate) flags: u8,
    pub(crate) flags2: u16,
    pub(crate) process_high: u16,
    pub(crate) signature: [u8; 8],
    pub(crate) tree: u16,
    pub(crate) process: u16,
    pub(crate) user: u16,
    pub(crate) mid: u16,
}

impl Smb1Header {
    /// Reads one.
    ///
    /// # Errors
    /// When it is not one, or not all of it is there.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        if array::<4>(message, 0)? != MAGIC {
            return Err(WireError::Invalid("Protocol"));
        }
        Ok(Self {
            command: u8_at(message, 4)?,
            status: u32_at(message, 5)?,
            flags: u8_at(message, 9)?,
            flags2: u16_at(message, 10)?,
            process_high: u16_at(message, 12)?,
            signature: array(message, 14)?,
            tree: u16_at(message, 24)?,
            process: u16_at(message, 26)?,
            user: u16_at(message, 28)?,
            mid: u16_at(message, MID_AT)?,
        })
    }

    /// The bytes of it.
    pub(crate) fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.command;
        bytes[5..9].copy_from_slice(&self.status.to_le_bytes());
        bytes[9] = self.flags;
        bytes[10..12].copy_from_slice(&self.flags2.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.process_high.to_le_bytes());
        bytes[14..22].copy_from_slice(&self.signature);
        bytes[24..26].copy_from_slice(&self.tree.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.process.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.user.to_le_bytes());
        bytes[MID_AT..].copy_from_slice(&self.mid.to_le_bytes());
        bytes
    }

    /// Returns true if the server sent the message.
    pub(crate) fn is_reply(&self) -> bool {
        self.flags & flag::REPLY != 0
    }

    /// Returns true if the message bears a signature ([MS-CIFS] §2.2.3.1, SecuritySignature).
    /// Clients that could sign and do not set the flag alone.
    pub(crate) fn is_signed(&self) -> bool {
        self.signature != [0; 8] && self.signature != NO_SIGNATURE_YET
    }

    /// The header of an answer that succeeds.
    pub(crate) fn answer(&self) -> Self {
        Self {
            status: 0,
            flags: self.flags | flag::REPLY,
            flags2: self.flags2 & !(flag2::SIGNATURE | flag2::SIGNATURE_REQUIRED),
            signature: [0; 8],
            ..*self
        }
    }

    /// A request of our own in the name of this request's sender.
    pub(crate) fn like(&self, command: u8) -> Self {
        Self {
            command,
            status: 0,
            signature: [0; 8],
            ..*self
        }
    }

    /// Returns the status for a device error in an answer to this request.
    pub(crate) fn io_error(&self) -> u32 {
        match self.flags2 & flag2::NT_STATUS {
            // The class ERRHRD, the code ERRgeneral ([MS-CIFS] §2.2.2.4, SMB Error Classes and Codes).
            0 => u32::from_le_bytes([3, 0, 31, 0]),
            _ => 0xc000_00e9, // STATUS_UNEXPECTED_IO_ERROR
        }
    }

    /// A whole message without words and bytes: the form of an error.
    pub(crate) fn alone(&self) -> Vec<u8> {
        let mut message = self.emit().to_vec();
        message.extend([0, 0, 0]);
        message
    }
}

/// Gives a message another multiplex id.
pub(crate) fn set_mid(message: &mut [u8], mid: u16) {
    if let Some(field) = message.get_mut(MID_AT..MID_AT + 2) {
        field.copy_from_slice(&mid.to_le_bytes());
    }
}

/// The words with which a message ends its chain.
pub(crate) const END_OF_CHAIN: [u8; 4] = [NO_ANDX, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_truncated_one_fails() {
        let header = Smb1Header {
            command: command::READ,
            status: 0xc000_0022,
            flags: 0x98,
            flags2: 0xc807,
            process_high: 3,
            signature: *b"12345678",
            tree: 7,
            process: 0xfeff,
            user: 100,
            mid: 65_534,
        };
        let bytes = header.emit();
        assert_eq!(Smb1Header::parse(&bytes), Ok(header));
        for cut in 0..bytes.len() {
            assert_eq!(Smb1Header::parse(&bytes[..cut]), Err(WireError::Truncated));
        }
        assert!(header.is_signed());
        assert!(!header.answer().is_signed());
        assert_eq!(header.answer().flags2 & 0x14, 0);
    }

    #[test]
    fn placeholder_signature_is_no_signature() {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[14..22].copy_from_slice(b"BSRSPYL ");
        assert!(!Smb1Header::parse(&bytes).unwrap().is_signed());
    }
}
