//! NT_CREATE_ANDX ([MS-CIFS] §2.2.4.64; [MS-SMB] §2.2.4.9).

use super::header::command;
use super::{
    WORDS_AT, WireError, expect_unchained, expect_words, u8_at, u16_at, u32_at, u64_at, word_count,
};

/// The offset of a request's Flags.
const FLAGS_AT: usize = WORDS_AT + 7;
/// The offset of an answer's OplockLevel.
const LEVEL_AT: usize = WORDS_AT + 4;

/// Bits of Flags: for an exclusive oplock, for a batch oplock, for the directory around the file.
const REQUEST_OPLOCK: u32 = 0x02;
const REQUEST_BATCH: u32 = 0x04;
const OPEN_DIRECTORY: u32 = 0x08;

/// Rights to read and write a file's data ([MS-CIFS] §2.2.1.4.1, File_Access_Mask).
const READ_DATA: u32 = 0x0000_0001 | 0x8000_0000 | 0x1000_0000;
const WRITE_DATA: u32 = 0x0000_0002 | 0x4000_0000 | 0x1000_0000;

/// The create options whose meaning an oplock would change, or that require more durability than a
/// cache gives ([MS-CIFS] §2.2.4.64.1, CreateOptions); the same as in SMB 2.
const OPTIONS_NOT_SERVED: u32 = 0x0000_0001 // FILE_DIRECTORY_FILE
    | 0x0000_0002 // FILE_WRITE_THROUGH
    | 0x0000_0008 // FILE_NO_INTERMEDIATE_BUFFERING
    | 0x0000_0100 // FILE_COMPLETE_IF_OPLOCKED
    | 0x0000_1000 // FILE_DELETE_ON_CLOSE
    | 0x0001_0000 // FILE_OPEN_REQUIRING_OPLOCK
    | 0x0010_0000 // FILE_RESERVE_OPFILTER
    | 0x0020_0000; // FILE_OPEN_REPARSE_POINT

/// A request to open a file, alone in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NtCreateRequest {
    flags: u32,
    access: u32,
    options: u32,
}

impl NtCreateRequest {
    /// Reads one.
    ///
    /// # Errors
    /// When it is not one, cut short, or the first of a chain.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        expect_words(message, &[24])?;
        expect_unchained(message)?;
        Ok(Self {
            flags: u32_at(message, FLAGS_AT)?,
            access: u32_at(message, WORDS_AT + 15)?,
            options: u32_at(message, WORDS_AT + 39)?,
        })
    }

    /// Returns true if it requests the right to read data.
    pub(crate) fn may_read(&self) -> bool {
        self.access & READ_DATA != 0
    }

    /// Returns true if it requests the right to write data.
    pub(crate) fn may_write(&self) -> bool {
        self.access & WRITE_DATA != 0
    }

    /// Returns true if the open may be served under an oplock.
    pub(crate) fn is_served(&self) -> bool {
        (self.may_read() || self.may_write())
            && self.flags & OPEN_DIRECTORY == 0
            && self.options & OPTIONS_NOT_SERVED == 0
    }

    /// Returns true if the client requests an oplock itself.
    pub(crate) fn asks_for_oplock(&self) -> bool {
        self.flags & (REQUEST_OPLOCK | REQUEST_BATCH) != 0
    }
}

/// A request of the Unix extensions to open a file, in one message: a TRANSACTION2 whose data are
/// OpenFlags, PosixOpenFlags, the permissions of a new file, and the level of the answer (Samba 4.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnixOpenRequest {
    flags: u32,
    posix_flags: u32,
    level: u16,
}

/// The level of an answer that describes the file, SMB_QUERY_FILE_UNIX_BASIC, and the bytes before its
/// description: OplockFlags, the file id, CreateAction, the level, and padding.
const UNIX_BASIC: u16 = 0x200;
const UNIX_FRONT: usize = 12;

impl UnixOpenRequest {
    /// Reads one; the caller has found that the transaction is one.
    ///
    /// # Errors
    /// When it is cut short, or comes in several messages.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        let [all, count, at] = [2, 22, 24].map(|at| u16_at(message, WORDS_AT + at));
        let (all, count, at) = (all?, count?, usize::from(at?));
        if all != count || count < 18 {
            return Err(WireError::Invalid("DataCount"));
        }
        Ok(Self {
            flags: u32_at(message, at)?,
            posix_flags: u32_at(message, at + 4)?,
            level: u16_at(message, at + 16)?,
        })
    }

    /// Returns true if the open may be served under the oplock that it asks for: it opens what exists, to
    /// read it.
    pub(crate) fn is_served(&self) -> bool {
        /// SMB_O_RDONLY, and SMB_O_NOFOLLOW, which changes nothing once a file is open.
        const READ_ONLY: u32 = 0x1;
        const NO_FOLLOW: u32 = 0x400;
        self.posix_flags & !NO_FOLLOW == READ_ONLY
            && self.flags & (REQUEST_OPLOCK | REQUEST_BATCH) != 0
            && self.level == UNIX_BASIC
    }
}

/// Adds a request for an exclusive oplock.
pub(crate) fn ask_for_oplock(message: &mut [u8]) {
    if let Some(byte) = message.get_mut(FLAGS_AT) {
        *byte |= REQUEST_OPLOCK as u8;
    }
}

/// Removes the granted oplock from an answer.
pub(crate) fn hide_oplock(message: &mut [u8]) {
    if let Some(byte) = message.get_mut(LEVEL_AT) {
        *byte = 0;
    }
}

/// Returns the file id in a successful answer, of any command that opens files; the caller passes
/// only those transactions that do.
pub(crate) fn opened_file(message: &[u8]) -> Option<u16> {
    if word_count(message).ok()? == 0 {
        return None;
    }
    let at = match u8_at(message, 4).ok()? {
        command::NT_CREATE => WORDS_AT + 5,
        command::OPEN => WORDS_AT + 4,
        command::OPEN_OLD | command::CREATE | command::CREATE_TEMPORARY | command::CREATE_NEW => {
            WORDS_AT
        }
        // Their parameters begin with it, behind the oplock's level in the second; an answer in several
        // messages has them in the first.
        command::TRANSACTION_2 => transaction_opened(message)?,
        command::NT_TRANSACT => {
            let [count, at, from] = [11, 15, 19].map(|at| u32_at(message, WORDS_AT + at).ok());
            let parameters = at.filter(|_| count >= Some(4) && from == Some(0))?;
            (parameters as usize).checked_add(2)?
        }
        _ => return None,
    };
    u16_at(message, at).ok()
}

/// Returns the offset of the file id in the answer to a TRANSACTION2: OPEN2's has 28 or 30 bytes of
/// parameters ([MS-CIFS] §2.2.6.1.2), and SET_PATH_INFORMATION's two, with data only where the Unix
/// extensions open a file (Samba 4.17).
fn transaction_opened(message: &[u8]) -> Option<usize> {
    let short = |at: usize| u16_at(message, WORDS_AT + at).map(usize::from).ok();
    let is_first = short(10)? == 0 && short(16)? == 0;
    match (short(6)?, short(12)?) {
        (28.., _) if is_first => short(8),
        (..=2, 4..) if is_first => Some(short(14)? + 2),
        _ => None,
    }
}

/// The place of the file's type in its description; 0 is a regular file.
const UNIX_TYPE_AT: usize = 56;

/// The answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NtCreateResponse {
    level: u8,
    pub(crate) file: u16,
    pub(crate) size: u64,
    kind: u16,
    is_directory: bool,
}

impl NtCreateResponse {
    /// Reads one. It has 34 words, with an extended answer 42, or 50 as some servers count them.
    ///
    /// # Errors
    /// When it is not one, or cut short.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, WireError> {
        expect_words(message, &[34, 42, 50])?;
        expect_unchained(message)?;
        Ok(Self {
            level: u8_at(message, LEVEL_AT)?,
            file: u16_at(message, WORDS_AT + 5)?,
            size: u64_at(message, WORDS_AT + 55)?,
            kind: u16_at(message, WORDS_AT + 63)?,
            is_directory: u8_at(message, WORDS_AT + 67)? != 0,
        })
    }

    /// Reads the answer to a [`UnixOpenRequest`].
    ///
    /// # Errors
    /// When it is not one, cut short, or comes in several messages.
    pub(crate) fn parse_unix(message: &[u8]) -> Result<Self, WireError> {
        expect_words(message, &[10])?;
        let short = |at: usize| u16_at(message, WORDS_AT + at);
        if short(2)? != short(12)? || short(16)? != 0 {
            return Err(WireError::Invalid("DataCount"));
        }
        let at = usize::from(short(14)?);
        if usize::from(short(12)?) < UNIX_FRONT + UNIX_TYPE_AT + 4
            || u16_at(message, at + 8)? != UNIX_BASIC
        {
            return Err(WireError::Invalid("ReturnLevel"));
        }
        let kind = u32_at(message, at + UNIX_FRONT + UNIX_TYPE_AT)?;
        Ok(Self {
            level: u8::try_from(u16_at(message, at)?).unwrap_or(0),
            file: u16_at(message, at + 2)?,
            size: u64_at(message, at + UNIX_FRONT)?,
            kind: u16::from(kind != 0),
            is_directory: false,
        })
    }

    /// An exclusive or batch oplock was given.
    pub(crate) fn is_exclusive(&self) -> bool {
        matches!(self.level, 1 | 2)
    }

    /// Any oplock was given.
    pub(crate) fn has_oplock(&self) -> bool {
        self.level != 0
    }

    /// It is a file with contents: no directory, pipe or printer.
    pub(crate) fn is_file(&self) -> bool {
        self.kind == 0 && !self.is_directory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{body, header, unix_open, unix_open_with};

    #[test]
    fn unix_open_is_served_if_it_only_reads() {
        let served = |message: &[u8]| UnixOpenRequest::parse(message).map(|open| open.is_served());
        let message = unix_open_with("a", 2, 1);
        assert_eq!(served(&message), Ok(true));
        for cut in 0..message.len() {
            assert!(served(&message[..cut]).is_err(), "{cut}");
        }
        // For writing, to empty it, without an oplock, and nothing at all.
        for (flags, posix_flags) in [(2, 2), (2, 4), (2, 0x41), (2, 0x11), (0, 1)] {
            let message = unix_open_with("a", flags, posix_flags);
            assert_eq!(served(&message), Ok(false), "{posix_flags:x}");
        }
        assert_eq!(served(&unix_open("a")), Ok(false));
    }

    #[test]
    fn unix_answer_describes_a_regular_file() {
        let mut data = vec![1, 0, 7, 0, 1, 0, 0, 0, 0, 2, 0, 0];
        data.extend(300u64.to_le_bytes());
        data.resize(UNIX_FRONT + 100, 0);
        let at = (WORDS_AT + 20 + 2) as u16;
        let words = [0, 112, 0, 0, at, 0, 112, at, 0, 0];
        let words: Vec<u8> = words
            .iter()
            .flat_map(|word: &u16| word.to_le_bytes())
            .collect();
        let message = body(&header(command::TRANSACTION_2), &words, &data);
        let answer = NtCreateResponse::parse_unix(&message).unwrap();
        assert!(answer.is_exclusive() && answer.is_file());
        assert_eq!((answer.file, answer.size), (7, 300));
        for cut in 0..usize::from(at) + UNIX_FRONT + UNIX_TYPE_AT + 4 {
            assert!(
                NtCreateResponse::parse_unix(&message[..cut]).is_err(),
                "{cut}"
            );
        }
        let mut other = message.clone();
        other[usize::from(at) + UNIX_FRONT + UNIX_TYPE_AT] = 1;
        assert!(!NtCreateResponse::parse_unix(&other).unwrap().is_file());
        other[usize::from(at) + 8] = 1;
        assert!(NtCreateResponse::parse_unix(&other).is_err());
    }

    /// The answer to a TRANSACTION2 with this many bytes of parameters and data, which count up.
    fn answer(parameters: u16, data: u16, displacement: u16) -> Vec<u8> {
        let at = (WORDS_AT + 20 + 2) as u16;
        let words = [
            parameters,
            data,
            0,
            parameters,
            at,
            displacement,
            data,
            at + parameters,
            0,
            0,
        ];
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let bytes: Vec<u8> = (0..(parameters + data) as u8).collect();
        body(&header(command::TRANSACTION_2), &words, &bytes)
    }

    #[test]
    fn transaction_returns_a_file_id_in_two_places() {
        assert_eq!(opened_file(&answer(30, 0, 0)), Some(0x0100));
        assert_eq!(opened_file(&answer(30, 0, 2)), None);
        assert_eq!(opened_file(&answer(2, 12, 0)), Some(0x0504));
        assert_eq!(opened_file(&answer(2, 0, 0)), None);
        let whole = answer(2, 12, 0);
        for cut in 0..whole.len() {
            let found = opened_file(&whole[..cut]);
            assert!(matches!(found, None | Some(0x0504)), "{found:?}");
        }
    }
}
