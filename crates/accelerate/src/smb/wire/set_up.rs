//! What the server says of a connection, a session and a tree: NEGOTIATE, SESSION_SETUP and
//! TREE_CONNECT. They are read and never written: they pass byte-identical, because later keys are
//! derived from them ([MS-SMB2] §3.1.4.2, Generating Cryptographic Keys).

use super::{WireError, expect_structure, u8_at, u16_at, u32_at};

/// The dialects as they are numbered ([MS-SMB2] §2.2.4, NEGOTIATE Response).
pub(crate) mod dialect {
    /// The first one of SMB 3.
    pub(crate) const SMB_3_0: u16 = 0x0300;
    /// The first one that demands a signed TREE_CONNECT of users with a key.
    pub(crate) const SMB_3_1_1: u16 = 0x0311;
    /// "SMB 2 or newer, ask again", to a NEGOTIATE of SMB1.
    pub(crate) const WILDCARD: u16 = 0x02ff;
}

/// The answer to a NEGOTIATE ([MS-SMB2] §2.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NegotiateAnswer {
    pub(crate) dialect: u16,
    pub(crate) capabilities: u32,
    pub(crate) max_read: u32,
    pub(crate) max_write: u32,
}

impl NegotiateAnswer {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 65)?;
        Ok(Self {
            dialect: u16_at(body, 4)?,
            capabilities: u32_at(body, 24)?,
            max_read: u32_at(body, 32)?,
            max_write: u32_at(body, 36)?,
        })
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
pub(crate) struct SessionSetupAnswer {
    flags: u16,
}

impl SessionSetupAnswer {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 9)?;
        Ok(Self {
            flags: u16_at(body, 2)?,
        })
    }

    /// The user is a guest or nobody, so that the session has no key.
    pub(crate) fn is_without_key(self) -> bool {
        self.flags & 0x3 != 0
    }
}

/// The answer to a TREE_CONNECT ([MS-SMB2] §2.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeConnectAnswer {
    share_type: u8,
}

impl TreeConnectAnswer {
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
