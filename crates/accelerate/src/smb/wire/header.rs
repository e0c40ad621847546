//! The header before every SMB2 body ([MS-SMB2] §2.2.1, SMB2 Packet Header).

use super::{WireError, array, u16_at, u32_at, u64_at};

/// Its length in bytes.
pub(crate) const LENGTH: usize = 64;
/// The first four bytes of every SMB2 message.
pub(crate) const MAGIC: [u8; 4] = *b"\xfeSMB";
/// The offset of the message id.
const MESSAGE_ID_AT: usize = 24;
/// The offset of the signature, which extends to the header's end.
pub(crate) const SIGNATURE_AT: usize = 48;
/// The message id of a server's unsolicited message ([MS-SMB2] §2.2.23, OPLOCK_BREAK Notification).
pub(crate) const UNASKED: u64 = u64::MAX;

/// Commands ([MS-SMB2] §2.2.1.2, SMB2 Packet Header - SYNC).
pub(crate) mod command {
    pub(crate) const NEGOTIATE: u16 = 0x00;
    pub(crate) const SESSION_SETUP: u16 = 0x01;
    pub(crate) const LOGOFF: u16 = 0x02;
    pub(crate) const TREE_CONNECT: u16 = 0x03;
    pub(crate) const TREE_DISCONNECT: u16 = 0x04;
    pub(crate) const CREATE: u16 = 0x05;
    pub(crate) const CLOSE: u16 = 0x06;
    pub(crate) const FLUSH: u16 = 0x07;
    pub(crate) const READ: u16 = 0x08;
    pub(crate) const WRITE: u16 = 0x09;
    pub(crate) const LOCK: u16 = 0x0a;
    pub(crate) const IOCTL: u16 = 0x0b;
    pub(crate) const CANCEL: u16 = 0x0c;
    pub(crate) const ECHO: u16 = 0x0d;
    pub(crate) const QUERY_DIRECTORY: u16 = 0x0e;
    pub(crate) const CHANGE_NOTIFY: u16 = 0x0f;
    pub(crate) const QUERY_INFO: u16 = 0x10;
    pub(crate) const SET_INFO: u16 = 0x11;
    pub(crate) const OPLOCK_BREAK: u16 = 0x12;
}

/// Flags ([MS-SMB2] §2.2.1.2).
pub(crate) mod flag {
    /// The message is an answer.
    pub(crate) const FROM_SERVER: u32 = 0x1;
    /// The header carries an async id in place of process and tree.
    pub(crate) const ASYNC: u32 = 0x2;
    /// The message is related to the one before it in the compound.
    pub(crate) const RELATED: u32 = 0x4;
    /// The signature field is one.
    pub(crate) const SIGNED: u32 = 0x8;
    /// The priority, which an answer repeats.
    pub(crate) const PRIORITY: u32 = 0x70;
    /// The path in the request is one of the distributed file system.
    pub(crate) const DFS_OPERATIONS: u32 = 0x1000_0000;
}

/// Statuses that a tactic looks at or gives ([MS-ERREF] §2.3.1, NTSTATUS Values).
pub(crate) mod status {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const PENDING: u32 = 0x0000_0103;
    pub(crate) const NO_MORE_FILES: u32 = 0x8000_0006;
    pub(crate) const NO_SUCH_FILE: u32 = 0xc000_000f;
    pub(crate) const OBJECT_NAME_NOT_FOUND: u32 = 0xc000_0034;
    pub(crate) const INVALID_PARAMETER: u32 = 0xc000_000d;
    /// A session's set-up continues.
    pub(crate) const MORE_PROCESSING_REQUIRED: u32 = 0xc000_0016;
    pub(crate) const END_OF_FILE: u32 = 0xc000_0011;
    /// The server does not support the request.
    pub(crate) const NOT_SUPPORTED: u32 = 0xc000_00bb;
    /// The server knows the session no more.
    pub(crate) const USER_SESSION_DELETED: u32 = 0xc000_0203;
    /// The session must be set up again.
    pub(crate) const NETWORK_SESSION_EXPIRED: u32 = 0xc000_035c;
    /// The file system is full, or the user's quota is used up.
    pub(crate) const DISK_FULL: u32 = 0xc000_007f;
    pub(crate) const QUOTA_EXCEEDED: u32 = 0xc000_0044;
    pub(crate) const DISK_QUOTA_EXCEEDED: u32 = 0xc000_0802;
    /// The status of written data that could not be passed on.
    pub(crate) const UNEXPECTED_IO_ERROR: u32 = 0xc000_00e9;

    /// The status in which a client is told that a change, which it was told is done, was refused with `status`.
    /// A client does what it was refused for its session again ([MS-SMB2] §3.2.5.1.6, Handling Session
    /// Expiration), but it has this change no more: it must learn of a loss.
    pub(crate) fn of_loss(status: u32) -> u32 {
        match status {
            NETWORK_SESSION_EXPIRED | USER_SESSION_DELETED => UNEXPECTED_IO_ERROR,
            status => status,
        }
    }
}

/// A header's meaning. Every field of it is kept, so that emitting it gives the same 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Smb2Header {
    /// The number of message ids that the message takes; 0 counts as 1.
    pub(crate) credit_charge: u16,
    /// The status of an answer; the channel sequence number of a request.
    pub(crate) status: u32,
    /// See [`command`].
    pub(crate) command: u16,
    /// The credits that are requested, or granted.
    pub(crate) credits: u16,
    /// See [`flag`].
    pub(crate) flags: u32,
    /// From this header to the next of the compound; 0 for the last.
    pub(crate) next: u32,
    /// The request's number, which its answer repeats.
    pub(crate) message_id: u64,
    /// The lower half of an async id, otherwise the client's process.
    pub(crate) process: u32,
    /// The upper half of an async id, otherwise the tree.
    pub(crate) tree: u32,
    /// The session.
    pub(crate) session: u64,
    /// The signature, or zeros.
    pub(crate) signature: [u8; 16],
    /// The message arrived encrypted, and its answer must be encrypted. The field is not part of
    /// the 64 bytes: the decrypting code sets it.
    pub(crate) is_sealed: bool,
}

/// The protection of a message, the weakest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MessageProtection {
    /// Nothing.
    #[default]
    Nothing,
    /// Its signature.
    Signed,
    /// It arrived encrypted; a signature inside is ignored ([MS-SMB2] §3.3.5.2.4, Verifying the
    /// Signature).
    Sealed,
}

impl Smb2Header {
    /// Reads the header at the front of `bytes`.
    ///
    /// # Errors
    /// When there are too few bytes, or they are no SMB2 header.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if array(bytes, 0)? != MAGIC {
            return Err(WireError::Invalid("ProtocolId"));
        }
        if u16_at(bytes, 4)? != LENGTH as u16 {
            return Err(WireError::Invalid("StructureSize"));
        }
        Ok(Self {
            credit_charge: u16_at(bytes, 6)?,
            status: u32_at(bytes, 8)?,
            command: u16_at(bytes, 12)?,
            credits: u16_at(bytes, 14)?,
            flags: u32_at(bytes, 16)?,
            next: u32_at(bytes, 20)?,
            message_id: u64_at(bytes, MESSAGE_ID_AT)?,
            process: u32_at(bytes, 32)?,
            tree: u32_at(bytes, 36)?,
            session: u64_at(bytes, 40)?,
            signature: array(bytes, SIGNATURE_AT)?,
            is_sealed: false,
        })
    }

    /// The 64 bytes.
    #[must_use]
    pub(crate) fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&(LENGTH as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&self.credit_charge.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.status.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.command.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.credits.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.flags.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.next.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.message_id.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.process.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.tree.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.session.to_le_bytes());
        bytes[SIGNATURE_AT..].copy_from_slice(&self.signature);
        bytes
    }

    /// A request with only the fields that every request needs.
    pub(crate) fn request(command: u16, message_id: u64, session: u64, tree: u32) -> Self {
        Self {
            credit_charge: 0,
            status: 0,
            command,
            credits: 1,
            flags: 0,
            next: 0,
            message_id,
            // What clients write that have no process to name ([MS-SMB2] §2.2.1.2, Reserved).
            process: 0xfeff,
            tree,
            session,
            signature: [0; 16],
            is_sealed: false,
        }
    }

    /// A request of our own that is like one of the client's: in its session and tree, from its process,
    /// and protected as it was.
    pub(crate) fn alike(command: u16, model: &Self) -> Self {
        Self {
            flags: model.flags & flag::SIGNED,
            is_sealed: model.is_sealed,
            process: model.process,
            credit_charge: model.credit_charge,
            ..Self::request(command, 0, model.session, model.tree)
        }
    }

    /// Returns true if the path in the request begins with a server and a share, which the server resolves
    /// ([MS-SMB2] §3.3.5.9, Receiving an SMB2 CREATE Request). Requests of our own have no such path.
    pub(crate) fn is_dfs(&self) -> bool {
        self.has(flag::DFS_OPERATIONS)
    }

    /// The protection of the message.
    pub(crate) fn guard(&self) -> MessageProtection {
        match (self.is_sealed, self.has(flag::SIGNED)) {
            (true, _) => MessageProtection::Sealed,
            (false, true) => MessageProtection::Signed,
            (false, false) => MessageProtection::Nothing,
        }
    }

    /// The header of an answer to this request, which returns the credits that it used.
    pub(crate) fn answer(&self, status: u32) -> Self {
        Self {
            status,
            credits: self.charge(),
            flags: flag::FROM_SERVER | self.flags & flag::PRIORITY,
            next: 0,
            signature: [0; 16],
            ..*self
        }
    }

    /// Returns true if a request bears the channel sequence number that connections begin with. A
    /// client that has lost a channel increments the number, and the server decides by it about the
    /// requests ([MS-SMB2] §3.3.5.2.10, Verifying the Channel Sequence Number).
    pub(crate) fn is_of_first_channel(&self) -> bool {
        self.status == 0
    }

    /// The number of message ids that the message takes ([MS-SMB2] §3.3.5.2.3, Verifying the
    /// Sequence Number).
    pub(crate) fn charge(&self) -> u16 {
        self.credit_charge.max(1)
    }

    /// Returns true if any of the flags in `which` is set.
    pub(crate) fn has(&self, which: u32) -> bool {
        self.flags & which != 0
    }
}

/// Writes another message id over the header at the front of `bytes`.
///
/// # Panics
/// When `bytes` holds no whole header; the caller has parsed it.
pub(crate) fn set_message_id(bytes: &mut [u8], message_id: u64) {
    bytes[MESSAGE_ID_AT..MESSAGE_ID_AT + 8].copy_from_slice(&message_id.to_le_bytes());
}

/// Writes another status over the header at the front of `bytes`.
///
/// # Panics
/// As [`set_message_id`].
pub(crate) fn set_status(bytes: &mut [u8], status: u32) {
    bytes[8..12].copy_from_slice(&status.to_le_bytes());
}

/// An answer with an error status alone, behind its frame header ([MS-SMB2] §2.2.2, ERROR
/// Response): a structure size of 9, and nothing else set.
pub(crate) fn error_answer(request: &Smb2Header, status: u32) -> Vec<u8> {
    let mut message = super::frame::frame_header(LENGTH + ERROR_BODY.len()).to_vec();
    message.extend(request.answer(status).emit());
    message.extend(ERROR_BODY);
    message
}

/// See [`error_answer`].
pub(crate) const ERROR_BODY: [u8; 9] = [9, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips() {
        let bytes: Vec<u8> = (0..LENGTH as u8).collect();
        let mut bytes = bytes;
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[64, 0]);
        let header = Smb2Header::parse(&bytes).unwrap();
        assert_eq!(&header.emit()[..], &bytes[..]);
        assert_eq!(header.message_id, 0x1f1e_1d1c_1b1a_1918);
        set_message_id(&mut bytes, 7);
        assert_eq!(Smb2Header::parse(&bytes).unwrap().message_id, 7);
    }

    #[test]
    fn truncated_or_foreign_header_fails() {
        let bytes = Smb2Header::request(command::ECHO, 1, 2, 3).emit();
        for length in 0..LENGTH {
            assert_eq!(
                Smb2Header::parse(&bytes[..length]),
                Err(WireError::Truncated)
            );
        }
        let mut foreign = bytes;
        foreign[0] = 0xfd;
        assert_eq!(
            Smb2Header::parse(&foreign),
            Err(WireError::Invalid("ProtocolId"))
        );
    }
}
