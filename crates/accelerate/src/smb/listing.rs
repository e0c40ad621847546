//! The QUERY_DIRECTORY requests that prefetched entries may answer. Both halves apply the same
//! rules to every request in the same order, and so agree.
//!
//! ```text
//!  fresh:  fetched as the directory was opened;  answers its first request, alone or with RESTART or REOPEN
//!  going:  fetched behind what the client was given;  answers the request that goes on
//! ```

use super::wire::directory::{QueryDirectoryRequest, flag};
use super::wire::header::{Smb2Header, command};
use super::wire::set_info::{changes_name, plain_change, renames};
use super::wire::u32_at;

/// The longest pattern that is prefetched, in bytes of UTF-16: the part that the head of a message
/// contains.
pub(crate) const PATTERN_MAX: usize = 56;

/// The parameters of a directory query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryQuery {
    pub(crate) class: u8,
    pattern: [u8; PATTERN_MAX],
    pattern_length: u8,
}

/// The least length of a request that is prefetched: clients that list a whole directory request 15
/// KiB and more at a time (the Linux kernel's client requests the least), and one that requests less
/// may continue name by name (smbtorture's dir.many does, with 4 KiB).
pub(crate) const LEAST_LENGTH: u32 = 8_192;
/// The same where one of the halves is of a release before [`COMPOUNDS`](super::frames::COMPOUNDS).
pub(crate) const OLD_LEAST_LENGTH: u32 = 16_384;

impl DirectoryQuery {
    /// The first query of file managers and stock clients: FileIdBothDirectoryInformation
    /// ([MS-FSCC] §2.4.17) of every name.
    pub(crate) fn usual() -> Self {
        Self::new(37, b"*\0").expect("a short pattern")
    }

    /// Creates a query of this class and pattern; `None` where the pattern is too long.
    pub(crate) fn new(class: u8, bytes: &[u8]) -> Option<Self> {
        let mut pattern = [0; PATTERN_MAX];
        pattern.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self {
            class,
            pattern,
            pattern_length: bytes.len() as u8,
        })
    }

    pub(crate) fn pattern(&self) -> &[u8] {
        &self.pattern[..usize::from(self.pattern_length)]
    }

    /// Returns the query of a request, if the request goes through a whole listing in answers of
    /// this length or more.
    pub(crate) fn of(request: &QueryDirectoryRequest, least_length: u32) -> Option<Self> {
        let is_plain = request.flags & !(flag::RESTART | flag::REOPEN) == 0;
        match is_plain && request.length >= least_length {
            true => Self::new(request.class, &request.pattern),
            false => None,
        }
    }

    /// Returns true if entries of this query, `length` bytes of them, answer the request.
    /// `least_length` is the rule that both halves know.
    pub(crate) fn answers(
        &self,
        request: &QueryDirectoryRequest,
        is_fresh: bool,
        length: usize,
        least_length: u32,
    ) -> bool {
        let allowed = if is_fresh {
            flag::RESTART | flag::REOPEN
        } else {
            0
        };
        request.flags & !allowed == 0
            && request.class == self.class
            && request.pattern == self.pattern()
            && request.length >= least_length
            && length <= request.length as usize
    }
}

/// Returns true if a request may make a name that was not there.
pub(crate) fn may_make_names(header: &Smb2Header, body: &[u8]) -> bool {
    match header.command {
        command::READ
        | command::WRITE
        | command::QUERY_DIRECTORY
        | command::QUERY_INFO
        | command::CHANGE_NOTIFY
        | command::ECHO
        | command::CANCEL
        | command::FLUSH
        | command::LOCK
        | command::OPLOCK_BREAK
        | command::CLOSE => false,
        // FILE_OPEN and FILE_OVERWRITE ([MS-SMB2] §2.2.13, CreateDisposition).
        command::CREATE => !matches!(u32_at(body, 36), Ok(1 | 4)),
        command::SET_INFO => plain_change(body).is_none() && (!changes_name(body) || renames(body)),
        _ => true,
    }
}

/// Returns true if a request may change the entries of a directory. An earlier listing is then not
/// given to the client that made the change.
pub(crate) fn may_change_names(header: &Smb2Header) -> bool {
    !matches!(
        header.command,
        command::READ
            | command::QUERY_DIRECTORY
            | command::QUERY_INFO
            | command::ECHO
            | command::CANCEL
            | command::FLUSH
    )
}
