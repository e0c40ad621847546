//! The server's answers about a connection, a session and a tree: NEGOTIATE, SESSION_SETUP and
//! TREE_CONNECT. They are read and never written: they pass byte-identical, because later keys are
//! derived from them ([MS-SMB2] §3.1.4.2, Generating Cryptographic Keys).

use super::header::LENGTH;
use super::{WireError, array, expect_structure, u8_at, u16_at, u32_at, u64_at};

/// The types of the NEGOTIATE contexts that choose encryption and signing ([MS-SMB2] §2.2.3.1).
const ENCRYPTION_CAPABILITIES: u16 = 2;
const SIGNING_CAPABILITIES: u16 = 8;
/// The seconds between the years in which FILETIME and Unix begin to count.
pub(crate) const SECONDS_1601_TO_1970: u64 = 11_644_473_600;
/// More contexts than the specification has kinds of; a message with more is not believed.
const CONTEXTS_MAX: u16 = 64;

/// The dialects as they are numbered ([MS-SMB2] §2.2.4, NEGOTIATE Response).
pub(crate) mod dialect {
    /// The first one with leases.
    pub(crate) const SMB_2_1: u16 = 0x0210;
    /// The first one of SMB 3.
    pub(crate) const SMB_3_0: u16 = 0x0300;
    /// The first one that demands a signed TREE_CONNECT of users with a key.
    pub(crate) const SMB_3_1_1: u16 = 0x0311;
    /// The dialect "SMB 2 or newer, negotiate again", in an answer to a NEGOTIATE of SMB1.
    pub(crate) const WILDCARD: u16 = 0x02ff;
}

/// Returns the client's GUID in its NEGOTIATE, the same over all its connections ([MS-SMB2] §2.2.3,
/// ClientGuid).
pub(crate) fn client_guid(body: &[u8]) -> Result<[u8; 16], WireError> {
    expect_structure(body, 36)?;
    array(body, 12)
}

/// The answer to a NEGOTIATE ([MS-SMB2] §2.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiateResponse {
    pub(crate) dialect: u16,
    /// The server's GUID, the same at all its addresses.
    pub(crate) server_guid: [u8; 16],
    pub(crate) capabilities: u32,
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
    /// The server's clock, in seconds since 1970, if it tells it.
    pub(crate) system_time: Option<u64>,
}

impl NegotiateResponse {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 65)?;
        Ok(Self {
            dialect: u16_at(body, 4)?,
            server_guid: array(body, 8)?,
            capabilities: u32_at(body, 24)?,
            max_read: u32_at(body, 32)?,
            max_write: u32_at(body, 36)?,
            // A FILETIME counts 100 ns since 1601 ([MS-DTYP] §2.3.3).
            system_time: (u64_at(body, 40)? / 10_000_000).checked_sub(SECONDS_1601_TO_1970),
        })
    }

    /// Returns the number of the signing algorithm, if the answer, here the whole message, contains
    /// one ([MS-SMB2] §2.2.4, NegotiateContextList; §2.2.3.1.7).
    pub(crate) fn signing_algorithm(message: &[u8]) -> Result<Option<u16>, WireError> {
        Self::chosen(message, SIGNING_CAPABILITIES)
    }

    /// The number of the cipher that messages are encrypted with, in the same way (§2.2.3.1.2).
    pub(crate) fn cipher(message: &[u8]) -> Result<Option<u16>, WireError> {
        Self::chosen(message, ENCRYPTION_CAPABILITIES)
    }

    /// Returns the server's choice in a context of this kind. Both kinds begin with a count and the
    /// numbers.
    fn chosen(message: &[u8], kind: u16) -> Result<Option<u16>, WireError> {
        let body = message.get(LENGTH..).ok_or(WireError::Truncated)?;
        let count = u16_at(body, 6)?;
        if count > CONTEXTS_MAX {
            return Err(WireError::Invalid("NegotiateContextCount"));
        }
        let mut at = u32_at(body, 60)? as usize;
        for _ in 0..count {
            let context = message.get(at..).ok_or(WireError::Truncated)?;
            let length = usize::from(u16_at(context, 2)?);
            if u16_at(context, 0)? == kind {
                // A count, which is 1 in an answer, and what was chosen.
                return u16_at(context, 10).map(Some);
            }
            // Contexts start at multiples of eight.
            at += (8 + length).next_multiple_of(8);
        }
        Ok(None)
    }

    /// Requests of more than 64 KiB are allowed, and cost credits by their size.
    pub(crate) fn is_large_mtu(&self) -> bool {
        self.capabilities & 0x4 != 0
    }

    /// A session may use several connections.
    pub(crate) fn is_multichannel(&self) -> bool {
        self.capabilities & 0x8 != 0
    }
}

/// The answer to a SESSION_SETUP ([MS-SMB2] §2.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionSetupResponse {
    flags: u16,
}

impl SessionSetupResponse {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 9)?;
        Ok(Self {
            flags: u16_at(body, 2)?,
        })
    }

    /// Returns true if the user is a guest or anonymous, so that the session has no key.
    pub(crate) fn is_without_key(self) -> bool {
        self.flags & 0x3 != 0
    }
}

/// Returns true if a SESSION_SETUP request, here the whole message, binds a further channel to an
/// established session ([MS-SMB2] §2.2.5, SMB2_SESSION_FLAG_BINDING).
pub(crate) fn is_binding(message: &[u8]) -> bool {
    u8_at(message, LENGTH + 2).is_ok_and(|flags| flags & 1 != 0)
}

/// The security token of a SESSION_SETUP request, here the whole message ([MS-SMB2] §2.2.5).
pub(crate) fn session_setup_token(message: &[u8]) -> Result<&[u8], WireError> {
    let body = message.get(LENGTH..).ok_or(WireError::Truncated)?;
    expect_structure(body, 25)?;
    buffer(message, u16_at(body, 12)?, u16_at(body, 14)?)
}

/// The security token of a SESSION_SETUP answer, here the whole message ([MS-SMB2] §2.2.6).
pub(crate) fn security_token(message: &[u8]) -> Result<&[u8], WireError> {
    let body = message.get(LENGTH..).ok_or(WireError::Truncated)?;
    expect_structure(body, 9)?;
    buffer(message, u16_at(body, 4)?, u16_at(body, 6)?)
}

fn buffer(message: &[u8], at: u16, length: u16) -> Result<&[u8], WireError> {
    message
        .get(usize::from(at)..)
        .and_then(|rest| rest.get(..usize::from(length)))
        .ok_or(WireError::Truncated)
}

/// The answer to a TREE_CONNECT ([MS-SMB2] §2.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeConnectResponse {
    share_type: u8,
}

impl TreeConnectResponse {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 16)?;
        Ok(Self {
            share_type: u8_at(body, 2)?,
        })
    }

    /// The share holds files, not pipes or printers.
    pub(crate) fn is_disk(self) -> bool {
        self.share_type == 1
    }
}
