//! The clients' messages, byte for byte.

use crate::smb::wire::FileId;
use crate::smb::wire::directory::QueryDirectoryRequest;
use crate::smb::wire::frame::frame_header;
use crate::smb::wire::header::{LENGTH, Smb2Header, command};
use crate::smb::wire::lease::LeaseKey;
use crate::smb::wire::oplock::OplockBreak;
use crate::smb::wire::query_info::{FileSystemQuestion, InformationQuestion};
use crate::smb::wire::transfer::ReadRequest;

/// A message: its header's fields that differ, and its body.
#[derive(Clone, Debug)]
pub(crate) struct Smb2Message {
    pub(crate) command: u16,
    pub(crate) flags: u32,
    pub(crate) charge: u16,
    pub(crate) body: Vec<u8>,
}

impl Smb2Message {
    fn new(command: u16, body: Vec<u8>) -> Self {
        Self {
            command,
            flags: 0,
            charge: 1,
            body,
        }
    }

    pub(crate) fn with_flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    pub(crate) fn header(&self, message_id: u64, session: u64, tree: u32) -> Smb2Header {
        Smb2Header {
            credit_charge: self.charge,
            credits: 64,
            flags: self.flags,
            ..Smb2Header::request(self.command, message_id, session, tree)
        }
    }
}

/// Messages in one frame, padded to multiples of 8 when there are several.
pub(crate) fn frame(messages: &[(Smb2Header, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, (header, body)) in messages.iter().enumerate() {
        let is_last = index + 1 == messages.len();
        let length = LENGTH + body.len();
        let padded = length.next_multiple_of(8);
        let mut header = *header;
        header.next = if is_last { 0 } else { padded as u32 };
        bytes.extend(header.emit());
        bytes.extend_from_slice(body);
        if !is_last {
            bytes.resize(bytes.len() + padded - length, 0);
        }
    }
    let mut framed = frame_header(bytes.len()).to_vec();
    framed.extend(bytes);
    framed
}

pub(crate) fn negotiate() -> Smb2Message {
    let mut body = vec![0; 38];
    body[0] = 36;
    body[2] = 1;
    Smb2Message::new(command::NEGOTIATE, body)
}

pub(crate) fn session_setup() -> Smb2Message {
    let mut body = vec![0; 25];
    body[0] = 25;
    Smb2Message::new(command::SESSION_SETUP, body)
}

/// A SESSION_SETUP with a security token.
pub(crate) fn session_setup_with(token: &[u8]) -> Smb2Message {
    let mut body = vec![0; 24];
    body[0] = 25;
    body[12] = (LENGTH + 24) as u8;
    body[14..16].copy_from_slice(&(token.len() as u16).to_le_bytes());
    body.extend(token);
    Smb2Message::new(command::SESSION_SETUP, body)
}

pub(crate) fn logoff() -> Smb2Message {
    Smb2Message::new(command::LOGOFF, vec![4, 0, 0, 0])
}

/// An IOCTL that queries the server's interfaces.
pub(crate) fn query_interfaces() -> Smb2Message {
    let mut body = vec![0; 56];
    body[0] = 57;
    body[4..8].copy_from_slice(&0x0014_01fcu32.to_le_bytes());
    body[8..24].fill(0xff);
    Smb2Message::new(command::IOCTL, body)
}

pub(crate) fn tree_connect() -> Smb2Message {
    let mut body = vec![0; 16];
    body[0] = 9;
    Smb2Message::new(command::TREE_CONNECT, body)
}

pub(crate) fn tree_disconnect() -> Smb2Message {
    Smb2Message::new(command::TREE_DISCONNECT, vec![4, 0, 0, 0])
}

/// The parameters of a CREATE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Smb2CreateParameters<'a> {
    pub(crate) name: &'a str,
    pub(crate) oplock: u8,
    pub(crate) access: u32,
    pub(crate) share: u32,
    pub(crate) disposition: u32,
    pub(crate) options: u32,
    pub(crate) context: Option<&'a [u8; 4]>,
    /// The key and the state of the requested lease.
    pub(crate) lease: Option<(LeaseKey, u8)>,
}

impl<'a> Smb2CreateParameters<'a> {
    /// To read and write, a file that may be there.
    pub(crate) fn open(name: &'a str) -> Self {
        Self {
            name,
            oplock: 0,
            access: 0x3,
            share: 0x7,
            disposition: 3,
            options: 0x40,
            context: None,
            lease: None,
        }
    }

    /// The same under the lease of this key, with READ, WRITE and HANDLE caching.
    pub(crate) fn leased(name: &'a str, key: u8) -> Self {
        Self {
            oplock: 0xff,
            lease: Some((LeaseKey([key; 16]), 7)),
            ..Self::open(name)
        }
    }

    /// A directory, to list it.
    pub(crate) fn directory(name: &'a str) -> Self {
        Self {
            access: 0x81,
            disposition: 1,
            options: 0x1,
            ..Self::open(name)
        }
    }

    pub(crate) fn request(&self) -> Smb2Message {
        let mut body = vec![0; 56];
        body[0] = 57;
        body[3] = self.oplock;
        body[24..28].copy_from_slice(&self.access.to_le_bytes());
        body[32..36].copy_from_slice(&self.share.to_le_bytes());
        body[36..40].copy_from_slice(&self.disposition.to_le_bytes());
        body[40..44].copy_from_slice(&self.options.to_le_bytes());
        body[44..46].copy_from_slice(&120u16.to_le_bytes());
        let name: Vec<u8> = self
            .name
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        body[46..48].copy_from_slice(&(name.len() as u16).to_le_bytes());
        body.extend(&name);
        let mut contexts = Vec::new();
        if let Some(context) = self.context {
            let next = if self.lease.is_some() { 24 } else { 0 };
            contexts.extend([next, 0, 0, 0, 16, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            contexts.extend(context);
            contexts.extend([0; 4]);
        }
        if let Some((key, state)) = self.lease {
            contexts.extend([0, 0, 0, 0, 16, 0, 4, 0, 0, 0, 24, 0, 32, 0, 0, 0]);
            contexts.extend(b"RqLs\0\0\0\0");
            contexts.extend(key.0);
            contexts.extend([state, 0, 0, 0]);
            contexts.extend([0; 12]);
        }
        if !contexts.is_empty() {
            let at = body.len().next_multiple_of(8);
            body.resize(at, 0);
            body[48..52].copy_from_slice(&((LENGTH + at) as u32).to_le_bytes());
            body[52..56].copy_from_slice(&(contexts.len() as u32).to_le_bytes());
            body.extend(contexts);
        }
        Smb2Message::new(command::CREATE, body)
    }
}

pub(crate) fn read(file: FileId, offset: u64, length: u32) -> Smb2Message {
    let request = ReadRequest {
        flags: 0,
        length,
        offset,
        file,
        minimum: 0,
        channel: 0,
    };
    Smb2Message {
        charge: length.div_ceil(65_536).max(1) as u16,
        ..Smb2Message::new(command::READ, request.emit().to_vec())
    }
}

pub(crate) fn write(file: FileId, offset: u64, data: &[u8]) -> Smb2Message {
    let mut body = vec![0; 48];
    body[0] = 49;
    body[2..4].copy_from_slice(&((LENGTH + 48) as u16).to_le_bytes());
    body[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
    body[8..16].copy_from_slice(&offset.to_le_bytes());
    body[16..32].copy_from_slice(&file.0);
    body.extend(data);
    Smb2Message {
        charge: data.len().div_ceil(65_536).max(1) as u16,
        ..Smb2Message::new(command::WRITE, body)
    }
}

/// A request whose body is its size, flags and a file: CLOSE, FLUSH, LOCK (of nothing).
fn on_file(command: u16, size: u8, length: usize, file: FileId) -> Smb2Message {
    let mut body = vec![0; length];
    body[0] = size;
    body[8..24].copy_from_slice(&file.0);
    Smb2Message::new(command, body)
}

pub(crate) fn close(file: FileId) -> Smb2Message {
    on_file(command::CLOSE, 24, 24, file)
}

/// A CLOSE that requests the file's attributes.
pub(crate) fn close_with_attributes(file: FileId) -> Smb2Message {
    let mut request = close(file);
    request.body[2] = 1;
    request
}

pub(crate) fn flush(file: FileId) -> Smb2Message {
    on_file(command::FLUSH, 24, 24, file)
}

pub(crate) fn lock(file: FileId) -> Smb2Message {
    on_file(command::LOCK, 48, 48, file)
}

/// A LOCK of the file's first 100 bytes against others' WRITEs, the holder's own included
/// ([MS-SMB2] §2.2.26.1, SMB2_LOCKFLAG_SHARED_LOCK).
pub(crate) fn lock_shared(file: FileId) -> Smb2Message {
    let mut request = lock(file);
    request.body[2] = 1;
    request.body[32] = 100;
    request.body[40] = 0x11;
    request
}

/// SET_INFO of the file's end.
pub(crate) fn set_end(file: FileId, end: u64) -> Smb2Message {
    let mut body = vec![0; 32];
    body[0] = 33;
    body[2] = 1;
    body[3] = 20;
    body[4] = 8;
    body[8] = 96;
    body[16..32].copy_from_slice(&file.0);
    body.extend(end.to_le_bytes());
    Smb2Message::new(command::SET_INFO, body)
}

/// SET_INFO of the file's allocation.
pub(crate) fn set_allocation(file: FileId, bytes: u64) -> Smb2Message {
    let mut request = set_end(file, bytes);
    request.body[3] = 19;
    request
}

/// Marks a SET_INFO in a field that servers ignore, so that two alike can be told apart ([MS-SMB2] §2.2.39,
/// SET_INFO Request: Reserved).
pub(crate) fn mark_set(request: &mut Smb2Message, mark: u16) {
    request.body[10..12].copy_from_slice(&mark.to_le_bytes());
}

/// SET_INFO of the file's times and attributes.
pub(crate) fn set_basic(file: FileId) -> Smb2Message {
    let mut request = set_end(file, 0);
    request.body[3] = 4;
    request.body[4] = 40;
    request.body.resize(32 + 40, 0);
    request
}

/// A CREATE that takes a durable handle up again.
pub(crate) fn reconnect(name: &str, file: FileId) -> Smb2Message {
    let create = Smb2CreateParameters {
        context: Some(b"DH2C"),
        ..Smb2CreateParameters::open(name)
    };
    let mut request = create.request();
    let context = request.body.len() - 24;
    request.body[context + 10] = 24;
    request.body[context + 12] = 36;
    request.body[52] = 60;
    request.body.extend(file.0);
    request.body.extend([0; 20]);
    request
}

/// SET_INFO of where the last READ ended.
pub(crate) fn set_position(file: FileId, position: u64) -> Smb2Message {
    let mut request = set_end(file, position);
    request.body[3] = 14;
    request
}

/// SET_INFO that gives the file another name, which nothing may have.
pub(crate) fn rename(file: FileId, to: &str) -> Smb2Message {
    let mut request = set_end(file, 0);
    let name: Vec<u8> = to.encode_utf16().flat_map(u16::to_le_bytes).collect();
    request.body[3] = 10;
    request.body.truncate(32);
    request.body.extend([0; 16]);
    request.body.extend((name.len() as u32).to_le_bytes());
    request.body.extend(name);
    let length = (request.body.len() - 32) as u32;
    request.body[4..8].copy_from_slice(&length.to_le_bytes());
    request
}

/// SET_INFO that deletes the file with its last open.
pub(crate) fn delete(file: FileId) -> Smb2Message {
    let mut request = set_end(file, 0);
    request.body[3] = 13;
    request.body[4] = 1;
    request.body.truncate(32);
    request.body.push(1);
    request
}

/// QUERY_INFO of the file's length.
pub(crate) fn query_length(file: FileId) -> Smb2Message {
    let mut request = query_position(file);
    request.body[3] = 5;
    request
}

/// QUERY_INFO of the file system, in this class.
pub(crate) fn query_file_system(file: FileId, class: u8) -> Smb2Message {
    let question = FileSystemQuestion {
        class,
        length: 65_535,
        file,
    };
    Smb2Message::new(command::QUERY_INFO, question.emit().to_vec())
}

/// QUERY_INFO with this question.
pub(crate) fn query_information(file: FileId, question: InformationQuestion) -> Smb2Message {
    Smb2Message::new(command::QUERY_INFO, question.emit(file, 4_096).to_vec())
}

/// QUERY_INFO of where the last READ ended.
pub(crate) fn query_position(file: FileId) -> Smb2Message {
    let mut body = vec![0; 40];
    body[0] = 41;
    body[2] = 1;
    body[3] = 14;
    body[4] = 8;
    body[24..40].copy_from_slice(&file.0);
    Smb2Message::new(command::QUERY_INFO, body)
}

/// QUERY_DIRECTORY of all names.
pub(crate) fn list(file: FileId, flags: u8, length: u32) -> Smb2Message {
    let request = QueryDirectoryRequest {
        class: 37,
        flags,
        file,
        pattern: b"*\0".to_vec(),
        length,
    };
    Smb2Message {
        charge: length.div_ceil(65_536).max(1) as u16,
        ..Smb2Message::new(command::QUERY_DIRECTORY, request.emit())
    }
}

pub(crate) fn echo() -> Smb2Message {
    Smb2Message::new(command::ECHO, vec![4, 0, 0, 0])
}

pub(crate) fn cancel() -> Smb2Message {
    Smb2Message::new(command::CANCEL, vec![4, 0, 0, 0])
}

/// A request that the server answers at once with "pending", and only when cancelled in the end.
pub(crate) fn change_notify(file: FileId) -> Smb2Message {
    on_file(command::CHANGE_NOTIFY, 32, 32, file)
}

/// Gives back a lease but for this state ([MS-SMB2] §2.2.24.2, Lease Break Acknowledgment).
pub(crate) fn acknowledge_lease(key: LeaseKey, state: u8) -> Smb2Message {
    let mut body = vec![0; 36];
    body[0] = 36;
    body[8..24].copy_from_slice(&key.0);
    body[24] = state;
    Smb2Message::new(command::OPLOCK_BREAK, body)
}

pub(crate) fn acknowledge(file: FileId, level: u8) -> Smb2Message {
    let body = OplockBreak { level, file }.emit();
    Smb2Message::new(command::OPLOCK_BREAK, body.to_vec())
}
