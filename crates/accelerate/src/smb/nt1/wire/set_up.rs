//! SESSION_SETUP_ANDX ([MS-CIFS] §2.2.4.53) and TREE_CONNECT_ANDX (§2.2.4.55), alone or behind it.

use super::header::{LENGTH, Smb1Header, command};
use super::{WORDS_AT, expect_words, u8_at, u16_at, u32_at};

/// The bit of Capabilities, of either end, for READs of more than 16 bits (CAP_LARGE_READX, [MS-SMB]
/// §2.2.4.5.2.1).
pub(super) const LARGE_READS: u32 = 0x0000_4000;

/// The service of trees that hold files ([MS-CIFS] §2.2.4.55.2, Service).
const DISK: &[u8] = b"A:\0";

/// The request's bit that disconnects the header's tree first ([MS-CIFS] §2.2.4.55.1, Flags).
const DISCONNECT_TREE: u16 = 0x0001;

/// Returns the tree that a successful answer connects to, and whether it holds files.
pub(crate) fn connected(header: &Smb1Header, message: &[u8]) -> Option<(u16, bool)> {
    let at = match header.command {
        command::TREE_CONNECT => LENGTH,
        command::SESSION_SETUP if u8_at(message, WORDS_AT) == Ok(command::TREE_CONNECT) => {
            usize::from(u16_at(message, WORDS_AT + 2).ok()?)
        }
        _ => return None,
    };
    let words = usize::from(u8_at(message, at).ok()?);
    // Behind the count of bytes; never in Unicode.
    let service = message.get(at + 1 + 2 * words + 2..)?;
    Some((header.tree, service.starts_with(DISK)))
}

/// The capabilities in a client's request to set a session up ([MS-CIFS] §2.2.4.53.1; [MS-SMB]
/// §2.2.4.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientCapabilities {
    /// The longest message, in bytes (MaxBufferSize).
    pub(crate) buffer: u16,
    /// READs of more than 16 bits (CAP_LARGE_READX).
    pub(crate) is_large: bool,
}

impl ClientCapabilities {
    /// The capabilities of a client that has sent none.
    pub(crate) const ALL: Self = Self {
        buffer: u16::MAX,
        is_large: true,
    };

    /// Reads the capabilities from a request that contains them.
    pub(crate) fn parse(header: &Smb1Header, message: &[u8]) -> Option<Self> {
        let is_one = header.command == command::SESSION_SETUP;
        let words = expect_words(message, &[10, 12, 13])
            .ok()
            .filter(|_| is_one)?;
        let capabilities = match words {
            13 => u32_at(message, WORDS_AT + 22).ok()?,
            12 => u32_at(message, WORDS_AT + 20).ok()?,
            _ => 0,
        };
        Some(Self {
            buffer: u16_at(message, WORDS_AT + 4).ok()?,
            is_large: capabilities & LARGE_READS != 0,
        })
    }

    /// The capabilities that both have.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            buffer: self.buffer.min(other.buffer),
            is_large: self.is_large && other.is_large,
        }
    }
}

/// Returns true if a request to connect to a tree, alone in its message, ends another tree.
pub(crate) fn disconnects(message: &[u8]) -> bool {
    u16_at(message, WORDS_AT + 4).is_ok_and(|flags| flags & DISCONNECT_TREE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{body, header};

    #[test]
    fn file_tree_differs_from_pipes() {
        let answer = Smb1Header {
            tree: 9,
            ..header(command::TREE_CONNECT)
        };
        for (service, is_disk) in [
            (&b"A:\0NTFS\0"[..], true),
            (b"IPC\0\0", false),
            (b"", false),
        ] {
            let words = [0xff, 0, 0, 0, 1, 0];
            let alone = body(&answer, &words, service);
            assert_eq!(connected(&answer, &alone), Some((9, is_disk)));
            let session = Smb1Header {
                command: command::SESSION_SETUP,
                ..answer
            };
            let mut chain = body(
                &session,
                &[command::TREE_CONNECT, 0, 50, 0, 0, 0],
                b"Unix\0",
            );
            chain.resize(50, 0);
            chain.extend(&alone[LENGTH..]);
            assert_eq!(connected(&session, &chain), Some((9, is_disk)));
        }
        let other = header(command::SESSION_SETUP);
        let message = body(&other, &[0xff, 0, 0, 0, 0, 0], b"A:\0");
        assert_eq!(connected(&other, &message), None);
    }
}
