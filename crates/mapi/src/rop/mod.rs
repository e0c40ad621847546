//! The remote operations of a mailbox ([MS-OXCROPS]).

/// The numbers of operations ([MS-OXCROPS] §2.2.2, RopId).
pub mod rop_id {
    /// RopRelease.
    pub const RELEASE: u8 = 0x01;
    /// RopOpenMessage.
    pub const OPEN_MESSAGE: u8 = 0x03;
    /// RopOpenStream.
    pub const OPEN_STREAM: u8 = 0x2b;
    /// RopReadStream.
    pub const READ_STREAM: u8 = 0x2c;
    /// RopWriteStream.
    pub const WRITE_STREAM: u8 = 0x2d;
    /// RopLogon.
    pub const LOGON: u8 = 0xfe;
}
