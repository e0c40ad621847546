//! The header of the frame around SMB messages ([MS-SMB2] §2.1, Transport): a zero and the length
//! of the content, in 24 bits.

/// Bytes of a frame's own header.
pub(crate) const FRAME_HEADER: usize = 4;

/// The four bytes before a message of `length` bytes.
///
/// # Panics
/// When it does not fit into 24 bits.
pub(crate) fn frame_header(length: usize) -> [u8; FRAME_HEADER] {
    assert!(length < 1 << 24, "a frame's length has 24 bits");
    (length as u32).to_be_bytes()
}
