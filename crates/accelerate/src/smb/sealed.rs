//! The content of an encrypted message, cut as if it had come in the clear.

use bytes::Bytes;

use super::wire::frame::frame_header;
use super::wire::header::{Smb2Header, UNASKED, flag};
use super::wire::split::{Smb2Splitter, SplitterPiece};

/// The session id of a compounded message that uses the session of the message before it ([MS-SMB2]
/// §3.2.4.1.4, Sending Compounded Requests).
pub(crate) const SAME_SESSION: u64 = u64::MAX;

/// Returns the pieces of a frame of these messages, every head marked as sealed; `None` when they
/// are not whole messages of this session: another's, encrypted or compressed once more, or no
/// messages.
pub(crate) fn pieces(session: u64, messages: &[u8]) -> Option<Vec<SplitterPiece>> {
    if messages.len() >= 1 << 24 {
        return None;
    }
    let mut frame = frame_header(messages.len()).to_vec();
    frame.extend_from_slice(messages);
    let mut splitter = Smb2Splitter::new();
    splitter.push(Bytes::from(frame));
    let mut pieces = Vec::new();
    loop {
        match splitter.next().ok()?? {
            SplitterPiece::Head(mut head) => {
                if !is_of(session, &head.header) {
                    return None;
                }
                head.header.is_sealed = true;
                pieces.push(SplitterPiece::Head(head));
            }
            SplitterPiece::End => {
                pieces.push(SplitterPiece::End);
                return splitter.at_boundary().then_some(pieces);
            }
            piece => pieces.push(piece),
        }
    }
}

/// Returns true if a message may be part of an encrypted message of this session ([MS-SMB2]
/// §3.3.5.2.1, Decrypting the Message). A server's unsolicited message names no session (§3.3.4.6,
/// Object Store Indicates an Oplock Break). A message that is marked as related belongs to this
/// session, even if none precedes it.
pub(crate) fn is_of(session: u64, header: &Smb2Header) -> bool {
    let is_unasked = header.has(flag::FROM_SERVER) && header.message_id == UNASKED;
    matches!(header.session, of if of == session || of == SAME_SESSION)
        || is_unasked && header.session == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::testing::messages::{echo, frame};
    use crate::smb::wire::frame::FRAME_HEADER;

    #[test]
    fn only_whole_messages_of_the_session_are_taken() {
        let echo = echo();
        let compound = |second| {
            let messages = [
                (echo.header(1, 7, 5), &echo.body[..]),
                (echo.header(2, second, 5), &echo.body[..]),
            ];
            frame(&messages)[FRAME_HEADER..].to_vec()
        };
        for second in [7, SAME_SESSION] {
            let pieces = pieces(7, &compound(second)).unwrap();
            let sealed = pieces.iter().filter(|piece| match piece {
                SplitterPiece::Head(head) => head.header.is_sealed,
                _ => false,
            });
            assert_eq!(sealed.count(), 2);
        }
        let whole = compound(7);
        assert_eq!(pieces(8, &whole), None);
        assert_eq!(pieces(7, &compound(8)), None);
        for magic in [0xfd, 0xfc, 0xff] {
            let mut nested = whole.clone();
            nested[0] = magic;
            assert_eq!(pieces(7, &nested), None);
        }
        for length in 0..64 + 8 {
            assert_eq!(pieces(7, &whole[..length]), None, "{length}");
        }
    }
}
