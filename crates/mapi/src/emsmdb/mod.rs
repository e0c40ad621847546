//! The calls of the EMSMDB interface ([MS-OXCRPC], and for Outlook XP its older calls).
//!
//! ```text
//!  NDR stub ──► RpcRequest / RpcResponse { envelope, buffers }      0xA5 and LZ77 are undone
//!                                           └─► `rop` reads each buffer
//! ```
//! `rpc.rs` has the calls that carry ROPs, `execute.rs` that of MAPI over HTTP, `connect.rs` those around a session, `extended.rs` the
//! header of Outlook 2003's buffers, `lz77.rs` their compression and `ndr.rs` the integers and
//! arrays of a stub. A stub that is written again is valid, and identical where no buffer is
//! compressed.
//!
//! It does not read ROPs, and keeps no state.

pub mod connect;
pub mod execute;
mod extended;
pub mod lz77;
mod ndr;
pub mod rpc;

pub use extended::{ExtendedFlags, MAX_BUFFERS, PlainBuffer, read_chain, write_chain};

use std::fmt;

use thiserror::Error;

/// The interface of a mailbox's calls ([MS-OXCRPC] §1.9, Standards Assignments), as it stands in a
/// bind: little-endian.
pub const EMSMDB: [u8; 16] = [
    0x00, 0xdb, 0xf1, 0xa4, 0x47, 0xca, 0x67, 0x10, 0xb3, 0x1f, 0x00, 0xdd, 0x01, 0x06, 0x62, 0xda,
];

/// The numbers of the methods of EMSMDB ([MS-OXCRPC] §3.1.4, Message Processing Events).
pub mod opnum {
    /// EcDoConnect of Outlook XP.
    pub const CONNECT: u16 = 0;
    /// EcDoDisconnect.
    pub const DISCONNECT: u16 = 1;
    /// EcDoRpc of Outlook XP.
    pub const RPC: u16 = 2;
    /// EcRRegisterPushNotification.
    pub const REGISTER_PUSH: u16 = 4;
    /// EcDummyRpc.
    pub const DUMMY: u16 = 6;
    /// EcDoConnectEx.
    pub const CONNECT_EX: u16 = 10;
    /// EcDoRpcExt2.
    pub const RPC_EXT2: u16 = 11;
    /// EcDoAsyncConnectEx.
    pub const ASYNC_CONNECT_EX: u16 = 14;
    /// EcDoAsyncWaitEx, the only method of the interface AsyncEMSMDB. It waits on the server for
    /// events, so it is never answered locally.
    pub const ASYNC_WAIT_EX: u16 = 0;
    /// Execute of MAPI over HTTP, whose requests have names and no numbers: this one and the next are
    /// numbers of the machines' own.
    pub const HTTP_EXECUTE: u16 = 0x8001;
    /// A request of HTTP outside all sessions.
    pub const HTTP_PLAIN: u16 = 0x8002;

    /// True for the calls that carry ROPs of a session.
    #[must_use]
    pub fn carries_rops(opnum: u16) -> bool {
        matches!(opnum, RPC | RPC_EXT2 | HTTP_EXECUTE)
    }

    /// True for the calls whose stub begins with the handle of a session.
    #[must_use]
    pub fn has_context(opnum: u16) -> bool {
        !matches!(opnum, CONNECT | CONNECT_EX | DUMMY | HTTP_PLAIN)
    }
}

/// A stub or a buffer that does not have the form of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EmsmdbError {
    /// The bytes end before a value does.
    #[error("the message ends in the middle of a value")]
    Truncated,
    /// Bytes remain behind the last value.
    #[error("{0} bytes follow the last value")]
    Trailing(usize),
    /// A count or a size contradicts another one, or the limit of its field.
    #[error("the field {0} has an impossible value")]
    Contradiction(&'static str),
    /// Compressed data is not valid, or is longer than it says.
    #[error("compressed data is not valid: {0}")]
    Compression(lz77::Lz77Error),
}

/// The handle of a session of EMSMDB (CXH): 4 bytes of attributes and a GUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextHandle(pub [u8; 20]);

impl ContextHandle {
    /// The context handle at the start of the stub of every call of a session.
    #[must_use]
    pub fn of_stub(stub: &[u8]) -> Option<Self> {
        stub.first_chunk().copied().map(Self)
    }

    /// True for the handle of no session, which a failed connect and a disconnect return.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0 == [0; 20]
    }
}

impl fmt::Debug for ContextHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ContextHandle(")?;
        for byte in &self.0[4..8] {
            write!(out, "{byte:02x}")?;
        }
        out.write_str("…)")
    }
}

/// Applies the obfuscation of EMSMDB, which also removes it: each byte XOR 0xA5 ([MS-OXCRPC]
/// §3.1.4.11.1.3, Obfuscation).
pub fn obfuscate(bytes: &mut [u8]) {
    for byte in bytes {
        *byte ^= 0xa5;
    }
}
