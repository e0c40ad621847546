//! CREATE: opening a file ([MS-SMB2] §2.2.13, CREATE Request; §2.2.14, CREATE Response).

use super::header::LENGTH;
use super::lease::{self, LeaseContext};
use super::{FileId, WireError, array, expect_structure, u8_at, u16_at, u32_at, u64_at};

/// Oplock levels ([MS-SMB2] §2.2.13, RequestedOplockLevel).
pub(crate) mod oplock_level {
    pub(crate) const NONE: u8 = 0x00;
    pub(crate) const EXCLUSIVE: u8 = 0x08;
    pub(crate) const BATCH: u8 = 0x09;
    pub(crate) const LEASE: u8 = 0xff;
}

/// The offset of the oplock level in a request's body and in an answer's.
pub(crate) const REQUEST_OPLOCK_AT: usize = 3;
pub(crate) const ANSWER_OPLOCK_AT: usize = 2;
/// Create contexts that one request may hold before it is not looked at further: Windows sends
/// seven at most.
const CONTEXTS_MAX: usize = 16;

/// Access rights ([MS-SMB2] §2.2.13.1.1, File_Pipe_Printer_Access_Mask).
mod access {
    pub(super) const READ_DATA: u32 = 0x1;
    pub(super) const WRITE_DATA: u32 = 0x2;
    pub(super) const WRITE_ATTRIBUTES: u32 = 0x100;
    /// FILE_READ_EA, FILE_EXECUTE, FILE_READ_ATTRIBUTES, READ_CONTROL, SYNCHRONIZE, GENERIC_READ and
    /// GENERIC_EXECUTE.
    pub(super) const READ_OTHERWISE: u32 = 0x8 | 0x20 | 0x80 | 0x12_0000 | 0xa000_0000;
    /// All that concerns attributes alone: the above but for FILE_EXECUTE and the generic ones, with
    /// FILE_WRITE_EA, FILE_WRITE_ATTRIBUTES, DELETE, WRITE_DAC and WRITE_OWNER.
    pub(super) const ATTRIBUTES: u32 = 0x8 | 0x10 | 0x80 | 0x100 | 0x1f_0000;
    pub(super) const GENERIC_ALL: u32 = 0x1000_0000;
    pub(super) const GENERIC_WRITE: u32 = 0x4000_0000;
    pub(super) const GENERIC_READ: u32 = 0x8000_0000;
}

/// A request to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateRequest<'a> {
    pub(crate) oplock_level: u8,
    pub(crate) access: u32,
    /// ShareAccess.
    share: u32,
    pub(crate) disposition: u32,
    pub(crate) options: u32,
    contexts: &'a [u8],
}

impl<'a> CreateRequest<'a> {
    /// Reads a whole message, header included.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, WireError> {
        let body = message.get(LENGTH..).ok_or(WireError::Truncated)?;
        expect_structure(body, 57)?;
        let contexts = part(message, u32_at(body, 48)?, u32_at(body, 52)?)?;
        Ok(Self {
            oplock_level: u8_at(body, REQUEST_OPLOCK_AT)?,
            access: u32_at(body, 24)?,
            share: u32_at(body, 32)?,
            disposition: u32_at(body, 36)?,
            options: u32_at(body, 40)?,
            contexts,
        })
    }

    /// Returns true if the request asks by name for the right to read contents. MAXIMUM_ALLOWED
    /// does not count, because the answer does not contain the granted rights.
    pub(crate) fn may_read(&self) -> bool {
        self.access & (access::READ_DATA | access::GENERIC_READ | access::GENERIC_ALL) != 0
    }

    /// The same for writing anywhere in the file; appending alone does not count.
    pub(crate) fn may_write(&self) -> bool {
        self.access & (access::WRITE_DATA | access::GENERIC_WRITE | access::GENERIC_ALL) != 0
    }

    /// Returns true if the request opens an existing file to read it, and asks for nothing else:
    /// FILE_OPEN ([MS-SMB2] §2.2.13, CreateDisposition).
    pub(crate) fn only_reads(&self) -> bool {
        let reads = access::READ_DATA | access::READ_OTHERWISE;
        self.disposition == 1 && self.may_read() && self.access & !reads == 0
    }

    /// Returns true if the target must be a directory: FILE_DIRECTORY_FILE ([MS-SMB2] §2.2.13,
    /// CreateOptions).
    pub(crate) fn is_directory(&self) -> bool {
        self.options & 0x1 != 0
    }

    /// Returns true if others may read, write and delete the file beside the open: FILE_SHARE_READ,
    /// FILE_SHARE_WRITE, FILE_SHARE_DELETE.
    pub(crate) fn is_shared_with_all(&self) -> bool {
        self.share & 0x7 == 0x7
    }

    /// Returns true if the request empties an existing file: FILE_SUPERSEDE, FILE_OVERWRITE,
    /// FILE_OVERWRITE_IF ([MS-SMB2] §2.2.13, CreateDisposition).
    pub(crate) fn empties(&self) -> bool {
        matches!(self.disposition, 0 | 4 | 5)
    }

    /// Returns true if the request and its open can change nothing that another open reads or
    /// writes.
    pub(crate) fn is_for_attributes(&self) -> bool {
        self.access & !access::ATTRIBUTES == 0 && !self.empties()
    }

    /// The names of the create contexts ([MS-SMB2] §2.2.13.2, SMB2_CREATE_CONTEXT Request Values).
    pub(crate) fn context_names(&self) -> Result<Vec<&'a [u8]>, WireError> {
        let contexts = contexts(self.contexts)?;
        Ok(contexts.into_iter().map(|(name, _)| name).collect())
    }

    /// Returns true if the open may outlive its connection ([MS-SMB2] §2.2.13.2.3,
    /// SMB2_CREATE_DURABLE_HANDLE_REQUEST; §2.2.13.2.11, SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2).
    pub(crate) fn is_durable(&self) -> bool {
        let names = self.context_names().unwrap_or_default();
        names.iter().any(|name| matches!(*name, b"DHnQ" | b"DH2Q"))
    }

    /// Returns true if the request reconnects a durable handle ([MS-SMB2] §2.2.13.2.4,
    /// SMB2_CREATE_DURABLE_HANDLE_RECONNECT; §2.2.13.2.12,
    /// SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2), with the oplock or lease that it had.
    pub(crate) fn is_taken_up_again(&self) -> bool {
        let names = self.context_names().unwrap_or_default();
        names.iter().any(|name| matches!(*name, b"DHnC" | b"DH2C"))
    }

    /// Returns true if the request asks for a handle that survives the failure of the server's node
    /// in a cluster ([MS-SMB2] §2.2.13.2.11, SMB2_DHANDLE_FLAG_PERSISTENT).
    pub(crate) fn is_persistent(&self) -> bool {
        let contexts = contexts(self.contexts).unwrap_or_default();
        let mut second = contexts.iter().filter(|(name, _)| *name == b"DH2Q");
        second.any(|(_, data)| u32_at(data, 4).is_ok_and(|flags| flags & 0x2 != 0))
    }

    /// Returns true if the request asks by name for the right to change times and attributes.
    pub(crate) fn may_set_attributes(&self) -> bool {
        let rights = access::WRITE_ATTRIBUTES | access::GENERIC_WRITE | access::GENERIC_ALL;
        self.access & rights != 0
    }

    /// Returns the requested lease; a second one, and an unreadable one, are errors.
    pub(crate) fn lease(&self) -> Result<Option<LeaseContext>, WireError> {
        lease_in(self.contexts)
    }
}

/// A part of a message that two of its fields point to.
fn part(message: &[u8], offset: u32, length: u32) -> Result<&[u8], WireError> {
    match length {
        0 => Ok(&[]),
        _ => message
            .get(offset as usize..)
            .and_then(|rest| rest.get(..length as usize))
            .ok_or(WireError::Truncated),
    }
}

/// The name and the content of a create context.
type CreateContext<'a> = (&'a [u8], &'a [u8]);

fn contexts(mut rest: &[u8]) -> Result<Vec<CreateContext<'_>>, WireError> {
    let mut contexts = Vec::new();
    while !rest.is_empty() {
        if contexts.len() == CONTEXTS_MAX {
            return Err(WireError::Invalid("CreateContexts"));
        }
        let next = u32_at(rest, 0)? as usize;
        let name = part(rest, u16_at(rest, 4)?.into(), u16_at(rest, 6)?.into())?;
        let data = part(rest, u16_at(rest, 10)?.into(), u32_at(rest, 12)?)?;
        contexts.push((name, data));
        if next == 0 {
            break;
        }
        rest = rest.get(next..).ok_or(WireError::Truncated)?;
    }
    Ok(contexts)
}

/// Bytes of a lease key.
const LEASE_KEY_LENGTH: usize = 16;

/// The places in a CREATE of the offset and the length of its create contexts.
const CONTEXTS_AT: usize = LENGTH + 48;
const CONTEXTS_LENGTH_AT: usize = LENGTH + 52;

/// Takes the requests for a durable handle out of a whole CREATE, header included. Its length does
/// not change: the context before is linked to the one behind, and the bytes between are unused
/// ([MS-SMB2] §2.2.13.2, SMB2_CREATE_CONTEXT Request Values, Next).
pub(crate) fn decline_durable(message: &mut [u8]) -> Result<(), WireError> {
    let (at, length) = (
        u32_at(message, CONTEXTS_AT)?,
        u32_at(message, CONTEXTS_LENGTH_AT)?,
    );
    let list = part(message, at, length)?;
    // The beginnings of all contexts, and which remain.
    let mut places = Vec::new();
    let mut start = 0;
    for (name, _) in contexts(list)? {
        places.push((start, !matches!(name, b"DHnQ" | b"DH2Q")));
        start += u32_at(list, start)? as usize;
    }
    let end_of = |index: usize| places.get(index + 1).map_or(list.len(), |(next, _)| *next);
    let kept = places.iter().enumerate().filter(|(_, (_, stays))| *stays);
    let kept: Vec<(usize, usize)> = kept
        .map(|(index, (start, _))| (*start, end_of(index)))
        .collect();
    let (first, end) = match (kept.first(), kept.last()) {
        (Some((first, _)), Some((_, end))) => (*first, *end),
        _ => (0, 0),
    };
    let write = |message: &mut [u8], place: usize, value: usize| {
        message[place..place + 4].copy_from_slice(&(value as u32).to_le_bytes());
    };
    for (index, (start, _)) in kept.iter().enumerate() {
        let next = kept.get(index + 1).map_or(0, |(next, _)| next - start);
        write(message, at as usize + start, next);
    }
    let offset = if end > 0 { at as usize + first } else { 0 };
    write(message, CONTEXTS_AT, offset);
    write(message, CONTEXTS_LENGTH_AT, end - first);
    Ok(())
}

/// Returns the place in a message of the content of its context with this name, if the context is
/// there and holds `length` bytes. `list` is the place and the length of the context list.
fn content_at(message: &[u8], list: (u32, u32), name: &[u8], length: usize) -> Option<usize> {
    let (at, list_length) = list;
    let list = part(message, at, list_length).ok()?;
    let mut start = 0;
    for (of, data) in contexts(list).ok()? {
        if of == name && data.len() >= length {
            let offset = u16_at(list, start + 10).ok()?;
            return Some(at as usize + start + usize::from(offset));
        }
        start += u32_at(list, start).ok()? as usize;
    }
    None
}

/// Returns the place of the lease key in a whole CREATE, header included.
pub(crate) fn lease_key_at(message: &[u8]) -> Option<usize> {
    let list = (
        u32_at(message, CONTEXTS_AT).ok()?,
        u32_at(message, CONTEXTS_LENGTH_AT).ok()?,
    );
    content_at(message, list, lease::CONTEXT, LEASE_KEY_LENGTH)
}

/// Returns the place of the lease key in a whole answer, header included.
pub(crate) fn answered_lease_key_at(message: &[u8]) -> Option<usize> {
    let list = (
        u32_at(message, LENGTH + 80).ok()?,
        u32_at(message, LENGTH + 84).ok()?,
    );
    content_at(message, list, lease::CONTEXT, LEASE_KEY_LENGTH)
}

/// Returns a CREATE's body with zeros in place of the numbers that a client draws anew for every
/// open: the lease key, and the CreateGuid of a durable handle ([MS-SMB2] §2.2.13.2.11,
/// SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2). Two requests that are equal without them ask for the
/// same.
pub(crate) fn without_drawn_numbers(body: &[u8]) -> Vec<u8> {
    let mut message = vec![0; LENGTH];
    message.extend_from_slice(body);
    let list = (
        u32_at(&message, CONTEXTS_AT).unwrap_or(0),
        u32_at(&message, CONTEXTS_LENGTH_AT).unwrap_or(0),
    );
    let key = content_at(&message, list, lease::CONTEXT, LEASE_KEY_LENGTH);
    let guid = content_at(&message, list, b"DH2Q", 32).map(|at| at + 16);
    for at in [key, guid].into_iter().flatten() {
        message[at..at + 16].fill(0);
    }
    message.split_off(LENGTH)
}

/// The fixed part of a CREATE's body up to the place of its name ([MS-SMB2] §2.2.13): oplock level, rights,
/// attributes, share, disposition and options.
pub(crate) type CreateForm = [u8; 44];

/// Returns the form of a CREATE's body.
pub(crate) fn form_of(body: &[u8]) -> Option<CreateForm> {
    body.get(..44)?.try_into().ok()
}

/// The body of a CREATE that opens an existing name for its attributes alone: FILE_READ_ATTRIBUTES, shared with
/// all, without contexts.
pub(crate) fn attributes_request(name: &[u8]) -> Option<Vec<u8>> {
    let mut body = vec![0; 56];
    body[0] = 57;
    // Impersonation ([MS-SMB2] §2.2.13, ImpersonationLevel).
    body[4] = 2;
    (body[24], body[32], body[36]) = (0x80, 7, 1);
    body[44..46].copy_from_slice(&(NAME_AT as u16).to_le_bytes());
    body[46..48].copy_from_slice(&u16::try_from(name.len()).ok()?.to_le_bytes());
    body.extend_from_slice(name);
    Some(body)
}

/// Returns the name in a CREATE's body, unchanged.
pub(crate) fn name_of(body: &[u8]) -> Option<&[u8]> {
    let at = usize::from(u16_at(body, 44).ok()?).checked_sub(LENGTH)?;
    let length = usize::from(u16_at(body, 46).ok()?);
    body.get(at..)?.get(..length)
}

/// The place of the name in a CREATE behind its fixed part.
const NAME_AT: usize = LENGTH + 56;
/// Most bytes between a name and the contexts: the end of the name's text, and padding to a
/// multiple of eight.
const PADDING_MAX: usize = 10;

/// Returns the offset of the create contexts in a CREATE's body, if it has contexts.
pub(crate) fn contexts_offset(body: &[u8]) -> Option<u32> {
    let length = u32_at(body, CONTEXTS_LENGTH_AT - LENGTH).ok()?;
    let offset = u32_at(body, CONTEXTS_AT - LENGTH).ok()?;
    (length > 0).then_some(offset)
}

/// Returns the offset that the contexts of a CREATE would have with another name: the next multiple of eight behind the
/// name, if its own body is laid out so.
pub(crate) fn contexts_after(body: &[u8], name: &[u8]) -> Option<u32> {
    let after = |name: &[u8]| (NAME_AT + name.len()).next_multiple_of(8) as u32;
    (contexts_offset(body)? == after(name_of(body)?)).then(|| after(name))
}

/// Returns a CREATE's body with another name, and with its contexts at this offset. A body in
/// another layout than that of clients (the name behind the fixed part, zeros, and the contexts)
/// gives `None`.
pub(crate) fn renamed(body: &[u8], name: &[u8], offset: u32) -> Option<Vec<u8>> {
    let written = |name: &[u8], offset: u32| {
        let mut renamed = body.get(..56)?.to_vec();
        let at = u32_at(body, 48).ok()? as usize;
        let length = u32_at(body, 52).ok()? as usize;
        let contexts = body.get(at.checked_sub(LENGTH)?..)?.get(..length)?;
        renamed[44..46].copy_from_slice(&(NAME_AT as u16).to_le_bytes());
        renamed[46..48].copy_from_slice(&u16::try_from(name.len()).ok()?.to_le_bytes());
        renamed[48..52].copy_from_slice(&offset.to_le_bytes());
        renamed.extend_from_slice(name);
        let padding = (offset as usize).checked_sub(LENGTH + renamed.len())?;
        if padding > PADDING_MAX {
            return None;
        }
        renamed.resize(renamed.len() + padding, 0);
        renamed.extend_from_slice(contexts);
        Some(renamed)
    };
    let same = written(name_of(body)?, contexts_offset(body)?)?;
    written(name, offset).filter(|_| same == body)
}

fn lease_in(bytes: &[u8]) -> Result<Option<LeaseContext>, WireError> {
    let contexts = contexts(bytes)?;
    let mut leases = contexts.iter().filter(|(name, _)| *name == lease::CONTEXT);
    match (leases.next(), leases.next()) {
        (None, _) => Ok(None),
        (Some((_, data)), None) => LeaseContext::parse(data).map(Some),
        (Some(_), Some(_)) => Err(WireError::Invalid("CreateContexts")),
    }
}

/// A file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateResponse {
    pub(crate) oplock_level: u8,
    pub(crate) end_of_file: u64,
    pub(crate) attributes: u32,
    pub(crate) file: FileId,
}

impl CreateResponse {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, WireError> {
        expect_structure(body, 89)?;
        Ok(Self {
            oplock_level: u8_at(body, ANSWER_OPLOCK_AT)?,
            end_of_file: u64_at(body, 48)?,
            attributes: u32_at(body, 56)?,
            file: FileId(array(body, 64)?),
        })
    }

    /// The lease that a whole answer, header included, gives.
    pub(crate) fn lease(message: &[u8]) -> Result<Option<LeaseContext>, WireError> {
        let body = message.get(LENGTH..).ok_or(WireError::Truncated)?;
        lease_in(part(message, u32_at(body, 80)?, u32_at(body, 84)?)?)
    }

    /// Returns true if a whole answer, header included, says that the open is durable ([MS-SMB2]
    /// §2.2.14.2.3, SMB2_CREATE_DURABLE_HANDLE_RESPONSE; §2.2.14.2.12,
    /// SMB2_CREATE_DURABLE_HANDLE_RESPONSE_V2).
    pub(crate) fn is_durable(message: &[u8]) -> Result<bool, WireError> {
        let body = message.get(LENGTH..).ok_or(WireError::Truncated)?;
        let contexts = contexts(part(message, u32_at(body, 80)?, u32_at(body, 84)?)?)?;
        let mut names = contexts.iter().map(|(name, _)| *name);
        Ok(names.any(|name| matches!(name, b"DHnQ" | b"DH2Q")))
    }

    /// The length in bytes of a whole answer, header included, up to the end of its fixed part or of its
    /// create contexts. `None` if it has others than one with the file's id on disk.
    pub(crate) fn length_with_id_on_disk(message: &[u8]) -> Option<usize> {
        const FIXED: usize = LENGTH + 88;
        let body = message.get(LENGTH..FIXED)?;
        let (at, length) = (u32_at(body, 80).ok()?, u32_at(body, 84).ok()?);
        if length == 0 {
            return Some(FIXED);
        }
        let found = contexts(part(message, at, length).ok()?).ok()?;
        let is_id = matches!(found[..], [(b"QFid", _)]) && at as usize == FIXED;
        is_id.then_some(FIXED + length as usize)
    }

    /// [MS-FSCC] §2.6 (File Attributes): FILE_ATTRIBUTE_DIRECTORY.
    pub(crate) fn is_directory(&self) -> bool {
        self.attributes & 0x10 != 0
    }

    /// Its data may be another file's, or in another place, from where a READ fetches it:
    /// FILE_ATTRIBUTE_REPARSE_POINT, _OFFLINE, _RECALL_ON_OPEN and _RECALL_ON_DATA_ACCESS.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.attributes & (0x400 | 0x1000 | 0x4_0000 | 0x40_0000) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CREATE with two contexts: a maximal access request and a durable handle request.
    fn message() -> Vec<u8> {
        let mut message = vec![0; LENGTH];
        let mut body = vec![0; 56];
        body[0] = 57;
        body[3] = oplock_level::BATCH;
        body[24..28].copy_from_slice(&0x0012_0089u32.to_le_bytes());
        body[48..52].copy_from_slice(&128u32.to_le_bytes());
        message.extend(body);
        message.extend([0; 8]);
        let context = |next: u32, name: &[u8; 4]| {
            let mut context = next.to_le_bytes().to_vec();
            context.extend([16, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            context.extend(name);
            context.extend([0; 4]);
            context
        };
        message.extend(context(24, b"MxAc"));
        message.extend(context(0, b"DHnQ"));
        message[LENGTH + 52..LENGTH + 56].copy_from_slice(&48u32.to_le_bytes());
        message
    }

    #[test]
    fn a_request_names_its_rights_and_contexts() {
        let message = message();
        let request = CreateRequest::parse(&message).unwrap();
        assert_eq!(request.oplock_level, oplock_level::BATCH);
        assert!(request.may_read() && !request.may_write());
        assert_eq!(
            request.context_names().unwrap(),
            [&b"MxAc"[..], &b"DHnQ"[..]]
        );
    }

    #[test]
    fn declined_durability_leaves_the_other_contexts() {
        let others: [&[&[u8; 4]]; 6] = [
            &[b"DHnQ"],
            &[b"DHnQ", b"MxAc"],
            &[b"MxAc", b"DH2Q"],
            &[b"MxAc", b"DH2Q", b"QFid"],
            &[b"DHnQ", b"MxAc", b"DH2Q", b"QFid", b"DHnQ"],
            &[b"MxAc"],
        ];
        for names in others {
            let mut message = message();
            message.truncate(128);
            for (index, name) in names.iter().enumerate() {
                let next = if index + 1 == names.len() { 0 } else { 24u32 };
                message.extend(next.to_le_bytes());
                message.extend([16, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                message.extend(*name);
                message.extend([0; 4]);
            }
            let length = 24 * names.len() as u32;
            message[CONTEXTS_LENGTH_AT..][..4].copy_from_slice(&length.to_le_bytes());
            let before = message.len();
            decline_durable(&mut message).unwrap();
            assert_eq!(message.len(), before);
            let left: Vec<&[u8]> = names
                .iter()
                .filter(|name| !name.starts_with(b"DH"))
                .map(|name| &name[..])
                .collect();
            let request = CreateRequest::parse(&message).unwrap();
            assert_eq!(request.context_names().unwrap(), left, "{names:?}");
        }
        let whole = message();
        for cut in 0..whole.len() {
            let _ = decline_durable(&mut whole[..cut].to_vec());
        }
    }

    #[test]
    fn renamed_request_keeps_everything_else() {
        let mut body = vec![0; 56];
        (body[0], body[44], body[46], body[48]) = (57, 120, 6, 128);
        body.extend(b"a\0b\0c\0\0\0");
        body.extend(b"contexts");
        body[52] = 8;
        let other = renamed(&body, b"l\0o\0n\0g\0", 136).unwrap();
        assert_eq!(name_of(&other), Some(&b"l\0o\0n\0g\0"[..]));
        assert_eq!(contexts_offset(&other), Some(136));
        assert_eq!(&other[72..], b"contexts");
        assert_eq!(renamed(&other, b"a\0b\0c\0", 128), Some(body.clone()));
        // Too near or too far, and bodies in another layout.
        assert_eq!(renamed(&body, b"l\0o\0n\0g\0", 120), None);
        assert_eq!(renamed(&body, b"a\0", 160), None);
        body[63] = 1;
        assert_eq!(renamed(&body, b"a\0b\0c\0", 128), None);
        for cut in 0..body.len() {
            assert_eq!(renamed(&body[..cut], b"a\0", 128), None);
        }
    }

    #[test]
    fn drawn_numbers_do_not_tell_requests_apart() {
        let request = |key: u8, guid: u8| {
            let mut message = message();
            message.truncate(128);
            message.extend([56, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0, 32, 0, 0, 0]);
            message.extend(b"DH2Q\0\0\0\0");
            message.extend([0; 16]);
            message.extend([guid; 16]);
            message.extend([0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0, 32, 0, 0, 0]);
            message.extend(b"RqLs\0\0\0\0");
            message.extend([key; 16]);
            message.extend([7; 16]);
            message[CONTEXTS_LENGTH_AT] = 112;
            message
        };
        let message = request(1, 2);
        let at = lease_key_at(&message).unwrap();
        assert_eq!(message[at..at + 16], [1; 16]);
        let drawn = |key, guid| without_drawn_numbers(&request(key, guid)[LENGTH..]);
        assert_eq!(drawn(1, 2), drawn(3, 4));
        assert_ne!(drawn(1, 2), message[LENGTH..]);
        let mut other = request(1, 2);
        other[at + 16] = 3;
        assert_ne!(without_drawn_numbers(&other[LENGTH..]), drawn(1, 2));
        for cut in LENGTH..message.len() {
            let _ = without_drawn_numbers(&message[LENGTH..cut]);
        }
    }

    #[test]
    fn invalid_or_circular_contexts_end_parsing() {
        let mut message = message();
        message[128..132].copy_from_slice(&400u32.to_le_bytes());
        let request = CreateRequest::parse(&message).unwrap();
        assert_eq!(request.context_names(), Err(WireError::Truncated));
        for cut in 0..message.len() {
            if let Ok(request) = CreateRequest::parse(&message[..cut]) {
                let _ = request.context_names();
            }
        }
    }
}
