//! PDUs of a connection (C706 §12.6, Connection-oriented RPC PDUs; [MS-RPCE] §2.2.2).
//!
//! ```text
//!   0       1       2       3       4                 8               10              12
//!  ┌───────┬───────┬───────┬───────┬─────────────────┬───────────────┬───────────────┬─────────┐
//!  │ 5     │ minor │ type  │ flags │ representation  │ frag_length   │ auth_length   │ call_id │
//!  ├───────┴───────┴───────┴───────┴─────────────────┴───────────────┴───────────────┴─────────┤
//!  │ the type's own fields │ stub, padding │ sec_trailer (8) │ auth_length bytes                │
//!  └───────────────────────┴───────────────┴─────────────────┴──────────────────────────────────┘
//! ```
//! A PDU is one fragment of a call. Only the little-endian representation is read, because Outlook
//! uses no other.

use thiserror::Error;
use vocab::ByteReader;

/// The length of the header.
pub const HEADER: usize = 16;
/// The length of the fields before a stub in a request or a response.
pub const CALL_HEADER: usize = 24;
/// The length of a security trailer ([MS-RPCE] §2.2.2.11, sec_trailer Structure).
pub const TRAILER: usize = 8;
/// The length of an object's UUID.
const OBJECT: usize = 16;

/// Flags of a PDU (C706 §12.6.3.1, [MS-RPCE] §2.2.2.3).
pub mod pfc {
    /// The first fragment of a call.
    pub const FIRST: u8 = 0x01;
    /// The last one.
    pub const LAST: u8 = 0x02;
    /// In a bind: the sender can sign headers.
    pub const HEADER_SIGN: u8 = 0x04;
    /// In a bind: several calls may be under way at a time.
    pub const MULTIPLEXED: u8 = 0x10;
    /// An object's UUID stands before the stub.
    pub const OBJECT: u8 = 0x80;
}

/// The type of a PDU (C706 §12.6.3.1; [MS-RPCE] §2.2.2.10 for the third leg of authentication).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PduKind {
    /// A call, or a fragment of one.
    Request,
    /// Its result, or a fragment of it.
    Response,
    /// A call has failed.
    Fault,
    /// The client begins an association.
    Bind,
    /// The server takes part in it ...
    BindAck,
    /// ... or does not.
    BindNak,
    /// The client adds presentation contexts.
    AlterContext,
    /// The server's answer to that.
    AlterContextResponse,
    /// The client's last token of authentication.
    Auth3,
    /// The server ends the association.
    Shutdown,
    /// The client cancels a call.
    Cancel,
    /// The client no longer waits for a call.
    Orphaned,
}

impl PduKind {
    /// Every kind, with its number.
    const ALL: [(u8, Self); 12] = [
        (0, Self::Request),
        (2, Self::Response),
        (3, Self::Fault),
        (11, Self::Bind),
        (12, Self::BindAck),
        (13, Self::BindNak),
        (14, Self::AlterContext),
        (15, Self::AlterContextResponse),
        (16, Self::Auth3),
        (17, Self::Shutdown),
        (18, Self::Cancel),
        (19, Self::Orphaned),
    ];

    /// The kind of this number.
    fn from_number(number: u8) -> Option<Self> {
        let mut kinds = Self::ALL.iter();
        kinds.find(|known| known.0 == number).map(|known| known.1)
    }

    /// True if it belongs to a call that a client has made.
    #[must_use]
    pub fn is_of_call(self) -> bool {
        match self {
            Self::Request | Self::Response | Self::Fault | Self::Cancel | Self::Orphaned => true,
            Self::Bind
            | Self::BindAck
            | Self::BindNak
            | Self::AlterContext
            | Self::AlterContextResponse
            | Self::Auth3
            | Self::Shutdown => false,
        }
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        let mut kinds = Self::ALL.iter();
        let known = kinds.find(|known| known.1 == self);
        known.expect("the table has every kind").0
    }
}

/// An error in a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PduError {
    /// Fewer bytes than the header has.
    #[error("the PDU is truncated")]
    Truncated,
    /// The connection carries something else, or another version.
    #[error("not DCE/RPC version 5.0 or 5.1")]
    Version,
    /// Integers are big-endian, or characters are not ASCII.
    #[error("a data representation other than little-endian and ASCII")]
    Representation,
    /// A type that connections do not have.
    #[error("an unknown type of PDU")]
    Kind,
    /// A length that contradicts another one.
    #[error("a length is wrong")]
    Length,
}

/// The header of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduHeader {
    /// The minor version of the protocol: 0, or 1 for fragments of binds.
    pub minor: u8,
    /// The type.
    pub kind: PduKind,
    /// Flags of [`pfc`].
    pub flags: u8,
    /// Bytes of the whole PDU.
    pub fragment_length: u16,
    /// Bytes of the authentication value behind the security trailer; 0 where there is none of both.
    pub auth_length: u16,
    /// The number of the call.
    pub call_id: u32,
}

impl PduHeader {
    /// Reads the header at the begin of these bytes.
    ///
    /// # Errors
    /// When the bytes are no header, or too few.
    pub fn parse(bytes: &[u8]) -> Result<Self, PduError> {
        let mut reader = ByteReader::new(bytes);
        let mut take = || reader.array::<4>().map_err(|_| PduError::Truncated);
        let [major, minor, kind, flags] = take()?;
        if major != 5 || minor > 1 {
            return Err(PduError::Version);
        }
        // [C706] §14.1 (Data Representation Format Label): integers in the high half of the first
        // byte, characters in the low one. Calls of Outlook carry no floating-point number.
        let [integers_and_characters, ..] = take()?;
        if integers_and_characters != 0x10 {
            return Err(PduError::Representation);
        }
        let kind = PduKind::from_number(kind).ok_or(PduError::Kind)?;
        let [f0, f1, a0, a1] = take()?;
        let header = Self {
            minor,
            kind,
            flags,
            fragment_length: u16::from_le_bytes([f0, f1]),
            auth_length: u16::from_le_bytes([a0, a1]),
            call_id: u32::from_le_bytes(take()?),
        };
        let trailer = match header.auth_length {
            0 => 0,
            length => TRAILER + usize::from(length),
        };
        match usize::from(header.fragment_length) >= HEADER + trailer {
            true => Ok(header),
            false => Err(PduError::Length),
        }
    }

    /// Writes the header.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&[5, self.minor, self.kind.number(), self.flags]);
        bytes[4] = 0x10;
        bytes[8..10].copy_from_slice(&self.fragment_length.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.auth_length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.call_id.to_le_bytes());
        bytes
    }

    /// True if a flag is set.
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// True if it is the first PDU of an association, from either side.
    #[must_use]
    pub fn opens_association(&self) -> bool {
        matches!(
            self.kind,
            PduKind::Bind | PduKind::BindAck | PduKind::BindNak
        )
    }

    /// The bytes before the stub, the object's UUID included.
    #[must_use]
    pub fn stub_offset(&self) -> usize {
        match self.kind {
            PduKind::Request if self.has(pfc::OBJECT) => CALL_HEADER + OBJECT,
            // The status of a fault counts as its stub: that is what servers encrypt.
            PduKind::Request | PduKind::Response | PduKind::Fault => CALL_HEADER,
            PduKind::Bind
            | PduKind::BindAck
            | PduKind::BindNak
            | PduKind::AlterContext
            | PduKind::AlterContextResponse
            | PduKind::Auth3
            | PduKind::Shutdown
            | PduKind::Cancel
            | PduKind::Orphaned => HEADER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> PduHeader {
        PduHeader {
            minor: 0,
            kind: PduKind::Request,
            flags: pfc::FIRST | pfc::LAST,
            fragment_length: 0x1234,
            auth_length: 16,
            call_id: 0x89ab_cdef,
        }
    }

    #[test]
    fn headers_are_written_and_read_back_equal() {
        for (_, kind) in PduKind::ALL {
            let header = PduHeader { kind, ..header() };
            assert_eq!(PduHeader::parse(&header.emit()), Ok(header));
        }
    }

    #[test]
    fn bytes_stand_where_the_standard_puts_them() {
        // [C706] §12.6.3.1: version 5.0, request, first and last, little-endian and ASCII.
        let wanted = [
            5, 0, 0, 3, 0x10, 0, 0, 0, 0x34, 0x12, 16, 0, 0xef, 0xcd, 0xab, 0x89,
        ];
        assert_eq!(header().emit(), wanted);
    }

    #[test]
    fn other_protocols_and_lengths_are_refused() {
        let good = header().emit();
        let with = |at: usize, byte: u8| {
            let mut bad = good;
            bad[at] = byte;
            PduHeader::parse(&bad)
        };
        assert_eq!(with(0, b'G'), Err(PduError::Version));
        assert_eq!(with(1, 2), Err(PduError::Version));
        assert_eq!(with(2, 1), Err(PduError::Kind));
        assert_eq!(with(4, 0), Err(PduError::Representation));
        assert_eq!(with(9, 0).map(|header| header.fragment_length), Ok(0x34));
        assert_eq!(with(11, 0x13), Err(PduError::Length));
        for cut in 0..HEADER {
            assert_eq!(PduHeader::parse(&good[..cut]), Err(PduError::Truncated));
        }
    }
}
