//! The QUERY_DIRECTORY requests that prefetched entries may answer. Both halves apply the same
//! rules to every request in the same order, and so agree.
//!
//! ```text
//!  fresh:  fetched as the directory was opened;  answers its first request, alone or with RESTART or REOPEN
//!  going:  fetched behind what the client was given;  answers the request that goes on
//! ```

use super::config::OFFERED_MAX;
use super::sealed::SAME_SESSION;
use super::wire::create::name_of;
use super::wire::directory::{QueryDirectoryRequest, flag};
use super::wire::header::{self, Smb2Header, command};
use super::wire::set_info::{changes_name, plain_change, renames};
use super::wire::split::Smb2MessageHead;
use super::wire::{u16_at, u32_at};

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

/// Returns true if a CREATE changes no directory's entries: it opens what exists, and deletes nothing as
/// it is closed ([MS-SMB2] §2.2.13, CreateDisposition and CreateOptions).
pub(crate) fn only_opens(create: &[u8]) -> bool {
    const FILE_OPEN: u32 = 1;
    u32_at(create, 36) == Ok(FILE_OPEN) && !deletes_on_close(create)
}

/// Returns true if a CREATE deletes what it opens as it is closed, or is not whole.
pub(crate) fn deletes_on_close(create: &[u8]) -> bool {
    const DELETE_ON_CLOSE: u32 = 0x1000;
    u32_at(create, 40).is_ok_and(|options| options & DELETE_ON_CLOSE != 0) || create.len() < 44
}

/// A frame that opens a directory and requests its first names: a CREATE and one QUERY_DIRECTORY that is
/// related to it.
#[derive(Clone, Debug)]
pub(crate) struct ListingFrame {
    /// The header of the CREATE.
    pub(crate) header: Smb2Header,
    create: Vec<u8>,
    query: Option<(Smb2Header, QueryDirectoryRequest)>,
}

impl ListingFrame {
    /// The frame that this message begins, if it may be one.
    pub(crate) fn begin(head: &Smb2MessageHead) -> Option<Self> {
        let header = head.header;
        let is_create = header.command == command::CREATE && header.next != 0 && !header.is_dfs();
        (is_create && head.length <= OFFERED_MAX).then(|| Self {
            header,
            create: head.body().to_vec(),
            query: None,
        })
    }

    /// The bytes of the CREATE's body that are known.
    pub(crate) fn known(&self) -> usize {
        self.create.len()
    }

    /// More of the message that is passing.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        if self.query.is_none() {
            self.create.extend_from_slice(bytes);
        }
    }

    /// The next message of the frame; returns false if it is another frame than described.
    pub(crate) fn add(&mut self, head: &Smb2MessageHead) -> bool {
        let other = &head.header;
        let is_of_it = self.query.is_none()
            && other.command == command::QUERY_DIRECTORY
            && other.has(header::flag::RELATED)
            && other.next == 0
            && other.guard() == self.header.guard()
            && [self.header.session, SAME_SESSION].contains(&other.session)
            && [self.header.tree, u32::MAX].contains(&other.tree);
        let request = QueryDirectoryRequest::parse(head.body()).ok();
        match request.filter(|_| is_of_it) {
            Some(request) => {
                self.query = Some((*other, request));
                true
            }
            None => false,
        }
    }

    /// The request for names, once the frame is complete.
    pub(crate) fn query(&self) -> Option<&(Smb2Header, QueryDirectoryRequest)> {
        self.query.as_ref()
    }

    /// The CREATE's body without padding; see [`plain_create`].
    pub(crate) fn request(&self) -> Option<Vec<u8>> {
        plain_create(&self.create)
    }
}

/// Returns a CREATE's body with the least padding, if its name lies behind its fixed part, and nothing
/// follows but [`QUERY_ON_DISK_ID`]. Two requests that are equal so ask for the same.
pub(crate) fn plain_create(body: &[u8]) -> Option<Vec<u8>> {
    if !u16_at(body, 44).is_ok_and(|at| usize::from(at) == header::LENGTH + CREATE_FIXED) {
        return None;
    }
    let name = name_of(body)?;
    let mut plain = [&body[..CREATE_FIXED], name].concat();
    let mut end = plain.len();
    let length = u32_at(body, 52).ok()? as usize;
    if length > 0 {
        let at = (u32_at(body, 48).ok()? as usize).checked_sub(header::LENGTH)?;
        let is_padding = |bytes: &[u8]| bytes.len() <= PADDING_MAX && is_zero(bytes);
        let is_query = body.get(end..at).is_some_and(is_padding)
            && length == QUERY_ON_DISK_ID.len()
            && body[at..].starts_with(&QUERY_ON_DISK_ID);
        if !is_query {
            return None;
        }
        end = at + length;
        push_query_on_disk_id(&mut plain);
    }
    is_zero(body.get(end..)?).then_some(plain)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Such a body with another name; `None` where the name is too long.
pub(crate) fn plain_create_of(body: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut named = body.get(..CREATE_FIXED)?.to_vec();
    named[46..48].copy_from_slice(&u16::try_from(name.len()).ok()?.to_le_bytes());
    named.extend_from_slice(name);
    if u32_at(body, 52) != Ok(0) {
        push_query_on_disk_id(&mut named);
    }
    (header::LENGTH + named.len() <= OFFERED_MAX).then_some(named)
}

/// Appends [`QUERY_ON_DISK_ID`] to a CREATE's body as its only context, at a multiple of eight.
fn push_query_on_disk_id(create: &mut Vec<u8>) {
    let at = (header::LENGTH + create.len()).next_multiple_of(8);
    create.resize(at - header::LENGTH, 0);
    create[48..52].copy_from_slice(&(at as u32).to_le_bytes());
    create[52..56].copy_from_slice(&(QUERY_ON_DISK_ID.len() as u32).to_le_bytes());
    create.extend(QUERY_ON_DISK_ID);
}

/// Most bytes between a name and its context: the Linux kernel's client ends a name with a zero character, and
/// then goes to a multiple of eight.
const PADDING_MAX: usize = 8;

/// The create context that asks for a file's id on disk, as the Linux kernel's client sends it ([MS-SMB2]
/// §2.2.13.2.9, SMB2_CREATE_QUERY_ON_DISK_ID): the last one, with its name at 16 and without data.
const QUERY_ON_DISK_ID: [u8; 24] = [
    0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'Q', b'F', b'i', b'd', 0, 0, 0, 0,
];

/// The fixed part of a CREATE's body ([MS-SMB2] §2.2.13).
const CREATE_FIXED: usize = 56;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_is_plain_without_contexts_and_behind_zeros() {
        let mut body = vec![0; 56];
        (body[0], body[44], body[46]) = (57, 120, 4);
        body.extend(b"a\0b\0");
        let plain = plain_create(&body).unwrap();
        assert_eq!(plain, body);
        let padded = [&body[..], &[0; 4]].concat();
        assert_eq!(plain_create(&padded), Some(body.clone()));
        assert_eq!(plain_create(&[&body[..], &[1]].concat()), None);
        let other = plain_create_of(&body, b"c\0").unwrap();
        assert_eq!(name_of(&other), Some(&b"c\0"[..]));
        assert_eq!(plain_create_of(&body, &[1; OFFERED_MAX]), None);
        for cut in 0..body.len() {
            assert_eq!(plain_create(&body[..cut]), None);
        }
        let asking = plain_create_of(&[&body[..52], &[24, 0, 0, 0]].concat(), b"c\0").unwrap();
        assert_eq!(plain_create(&asking), Some(asking.clone()));
        assert_eq!(
            plain_create(&[&asking[..], &[0; 8]].concat()),
            Some(asking.clone())
        );
        // A name that ends at a multiple of eight, and a zero behind it.
        let even = plain_create_of(&asking, b"a\0b\0c\0d\0").unwrap();
        let mut ended = [&even[..64], &[0; 8], &even[64..]].concat();
        assert_eq!(plain_create(&ended), None);
        ended[48] += 8;
        assert_eq!(plain_create(&ended), Some(even));
        for at in 48..asking.len() {
            let mut other = asking.clone();
            other[at] ^= 1;
            let is_name = (56..58).contains(&at);
            assert_eq!(plain_create(&other).is_some(), is_name, "{at}");
        }
        body[52] = 8;
        assert_eq!(plain_create(&body), None);
    }
}
