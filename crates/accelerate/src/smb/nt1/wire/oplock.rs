//! LOCKING_ANDX ([MS-CIFS] §2.2.4.32): byte-range locks, and with a bit of its own the break of an oplock
//! and its giving back.

use super::header::{END_OF_CHAIN, Smb1Header, UNASKED, command};
use super::{WORDS_AT, WireError, expect_unchained, expect_words, u8_at, u16_at, u32_at};

/// Bits of TypeOfLock: the locks are shared; an oplock is broken or given back.
const SHARED: u8 = 0x01;
const OPLOCK_RELEASE: u8 = 0x02;
/// Its ranges have places and lengths of 64 bits.
const LARGE_FILES: u8 = 0x10;

/// One alone in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockingRequest {
    pub(crate) file: u16,
    kind: u8,
    unlocks: u16,
    locks: u16,
    /// The process that its ranges name; `None` if they name several, or are not all there.
    process: Option<u16>,
}

impl LockingRequest {
    /// Reads one.
    ///
    /// # Errors
    /// When it is not one, cut short, or the first of a chain.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        expect_words(message, &[8])?;
        expect_unchained(message)?;
        let kind = u8_at(message, WORDS_AT + 6)?;
        let unlocks = u16_at(message, WORDS_AT + 12)?;
        let locks = u16_at(message, WORDS_AT + 14)?;
        let length = match kind & LARGE_FILES {
            0 => 10,
            _ => 20,
        };
        // Each begins with its process ([MS-CIFS] §2.2.4.32.1, LOCKING_ANDX_RANGE).
        let process_of = |range: usize| u16_at(message, WORDS_AT + 16 + 2 + range * length).ok();
        let ranges = usize::from(unlocks) + usize::from(locks);
        let first = process_of(0);
        Ok(Self {
            file: u16_at(message, WORDS_AT + 4)?,
            kind,
            unlocks,
            locks,
            process: first.filter(|_| (1..ranges).all(|range| process_of(range) == first)),
        })
    }

    /// Returns true if all locks of the request belong to this process.
    pub(crate) fn is_of(&self, process: u16) -> bool {
        self.unlocks == 0 && self.locks == 0 || self.process == Some(process)
    }

    /// Returns true if the message releases an oplock: from a server it breaks one, from a client
    /// it gives one back.
    pub(crate) fn releases(&self) -> bool {
        self.kind & OPLOCK_RELEASE != 0
    }

    /// Returns true if a server does not answer it ([MS-CIFS] §3.3.5.30: a release without locks),
    /// whatever is chained to it (Samba 4.17).
    pub(crate) fn is_without_answer(&self) -> bool {
        self.releases() && self.locks == 0 && self.unlocks == 0
    }

    /// The same for a message that may be the first of a chain.
    pub(crate) fn begins_without_answer(message: &[u8]) -> bool {
        expect_words(message, &[8]).is_ok()
            && u8_at(message, WORDS_AT + 6).is_ok_and(|kind| kind & OPLOCK_RELEASE != 0)
            && u32_at(message, WORDS_AT + 12) == Ok(0)
    }

    /// Returns true if a lock may exclude its own holder's writes.
    pub(crate) fn may_lock_shared(&self) -> bool {
        self.locks > 0 && self.kind & SHARED != 0
    }
}

/// Returns the file whose oplock a message of the server's breaks, if it breaks one.
pub(crate) fn broken(header: &Smb1Header, message: &[u8]) -> Option<u16> {
    if header.command != command::LOCKING || header.mid != UNASKED {
        return None;
    }
    let locking = LockingRequest::parse(message).ok()?;
    locking.releases().then_some(locking.file)
}

/// The whole message with which an oplock is given back, to none.
pub(crate) fn release(header: &Smb1Header, file: u16) -> Vec<u8> {
    let mut message = header.like(command::LOCKING).emit().to_vec();
    message.push(8);
    message.extend(END_OF_CHAIN);
    message.extend(file.to_le_bytes());
    message.extend([OPLOCK_RELEASE, 0]);
    message.extend([0; 4 + 2 + 2]);
    message.extend([0; 2]);
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{chained, header, locking as locking_of};

    #[test]
    fn oplock_release_is_recognised_and_unanswered() {
        let message = release(&header(command::LOCKING), 0x1234);
        let locking = LockingRequest::parse(&message).unwrap();
        assert_eq!(locking.file, 0x1234);
        assert!(locking.releases() && locking.is_without_answer());
        assert!(!locking.may_lock_shared());
        assert!(LockingRequest::begins_without_answer(&message));
        assert!(LockingRequest::begins_without_answer(&chained(&message)));
        assert!(!LockingRequest::begins_without_answer(&locking_of(5, 2, 1)));
        assert!(!LockingRequest::begins_without_answer(&locking_of(5, 0, 0)));
        for cut in 0..message.len() {
            assert!(LockingRequest::parse(&message[..cut]).is_err());
        }
    }

    #[test]
    fn a_break_is_one_only_without_a_request() {
        let asked = header(command::LOCKING);
        let message = release(&asked, 5);
        assert_eq!(broken(&asked, &message), None);
        let unasked = Smb1Header {
            mid: UNASKED,
            ..asked
        };
        assert_eq!(broken(&unasked, &message), Some(5));
    }
}
