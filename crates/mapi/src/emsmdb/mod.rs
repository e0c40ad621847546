//! The mailbox interface EMSMDB ([MS-OXCRPC]) and the interfaces beside it.

/// The interface of a mailbox's calls ([MS-OXCRPC] §1.9, Standards Assignments), as it stands in a
/// bind: little-endian.
pub const EMSMDB: [u8; 16] = [
    0x00, 0xdb, 0xf1, 0xa4, 0x47, 0xca, 0x67, 0x10, 0xb3, 0x1f, 0x00, 0xdd, 0x01, 0x06, 0x62, 0xda,
];

/// The numbers of its calls ([MS-OXCRPC] §3.1.4; 0 and 2 are those of Outlook XP, which the
/// specification calls reserved).
pub mod opnum {
    /// EcDoConnect.
    pub const CONNECT: u16 = 0;
    /// EcDoDisconnect.
    pub const DISCONNECT: u16 = 1;
    /// EcDoRpc.
    pub const RPC: u16 = 2;
    /// EcDoConnectEx.
    pub const CONNECT_EX: u16 = 10;
    /// EcDoRpcExt2.
    pub const RPC_EXT2: u16 = 11;
}
