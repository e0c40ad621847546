//! Messages as clients write them, without their frames' headers.

use crate::smb::nt1::wire::header::{END_OF_CHAIN, Smb1Header, command, flag2};
use crate::smb::nt1::wire::transfer::ReadAndxRequest;
use crate::smb::nt1::wire::{WORDS_AT, frame};

/// PROCESS_EXIT ([MS-CIFS] §2.2.4.18): the opens of a process end with it.
pub(crate) const PROCESS_EXIT: u8 = 0x11;

/// The longest message that a client accepts, as Windows XP states it.
pub(crate) const CLIENT_BUFFER: u16 = 4_356;

/// A client's header: of process 77, with the status of NT.
pub(crate) fn header(command: u8) -> Smb1Header {
    Smb1Header {
        command,
        status: 0,
        flags: 0x18,
        flags2: 0x8001 | flag2::NT_STATUS,
        process_high: 0,
        signature: [0; 8],
        tree: 0,
        process: 77,
        user: 0,
        mid: 0,
    }
}

/// Builds a message of these words and bytes.
pub(crate) fn body(header: &Smb1Header, words: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut message = header.emit().to_vec();
    message.push((words.len() / 2) as u8);
    message.extend_from_slice(words);
    message.extend((bytes.len() as u16).to_le_bytes());
    message.extend_from_slice(bytes);
    message
}

/// A message in its frame.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    frame(message)
}

pub(crate) fn negotiate() -> Vec<u8> {
    body(
        &header(command::NEGOTIATE),
        &[],
        b"\x02NT LM 0.12\0\x02SMB 2.???\0",
    )
}

pub(crate) fn session_setup() -> Vec<u8> {
    body(
        &header(command::SESSION_SETUP),
        &[
            &END_OF_CHAIN[..],
            &CLIENT_BUFFER.to_le_bytes(),
            &[0; 16],
            &0x0000_40d4u32.to_le_bytes(),
        ]
        .concat(),
        &[0; 8],
    )
}

pub(crate) fn tree_connect() -> Vec<u8> {
    body(
        &header(command::TREE_CONNECT),
        &[&END_OF_CHAIN[..], &[0; 4]].concat(),
        b"\0\\\\srv\\share\0A:\0",
    )
}

/// The same to the server's pipes.
pub(crate) fn pipes_connect() -> Vec<u8> {
    body(
        &header(command::TREE_CONNECT),
        &[&END_OF_CHAIN[..], &[0; 4]].concat(),
        b"\0\\\\srv\\IPC$\0IPC\0",
    )
}

/// A connection to the share in place of the header's tree.
pub(crate) fn tree_reconnect() -> Vec<u8> {
    let mut message = tree_connect();
    message[WORDS_AT + 4] = 1;
    message
}

pub(crate) fn process_exit() -> Vec<u8> {
    body(&header(PROCESS_EXIT), &[], &[])
}

pub(crate) fn tree_disconnect() -> Vec<u8> {
    body(&header(command::TREE_DISCONNECT), &[], &[])
}

/// The parameters of an open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Smb1CreateParameters<'a> {
    pub(crate) name: &'a str,
    pub(crate) flags: u32,
    pub(crate) access: u32,
    /// 1 to open, 3 to open or create, 5 to overwrite or create.
    pub(crate) disposition: u32,
    pub(crate) options: u32,
}

impl<'a> Smb1CreateParameters<'a> {
    pub(crate) fn file(name: &'a str) -> Self {
        Self {
            name,
            flags: 0,
            access: 0x0002_019f,
            disposition: 3,
            options: 0x40,
        }
    }

    pub(crate) fn message(&self) -> Vec<u8> {
        let mut words = END_OF_CHAIN.to_vec();
        words.push(0);
        words.extend((self.name.len() as u16).to_le_bytes());
        words.extend(self.flags.to_le_bytes());
        words.extend([0; 4]);
        words.extend(self.access.to_le_bytes());
        words.extend([0; 8 + 4]);
        words.extend(7u32.to_le_bytes());
        words.extend(self.disposition.to_le_bytes());
        words.extend(self.options.to_le_bytes());
        words.extend(2u32.to_le_bytes());
        words.push(0);
        body(&header(command::NT_CREATE), &words, self.name.as_bytes())
    }
}

/// OPEN_ANDX ([MS-CIFS] §2.2.4.41), without an oplock.
pub(crate) fn open_andx(name: &str) -> Vec<u8> {
    let words = [&END_OF_CHAIN[..], &[0; 26]].concat();
    body(&header(command::OPEN), &words, name.as_bytes())
}

pub(crate) fn read(file: u16, offset: u64, length: u32) -> Vec<u8> {
    let request = ReadAndxRequest {
        file,
        offset,
        length,
    };
    request.emit(&header(command::READ))
}

/// A WRITE, and how long its data is.
pub(crate) fn write(file: u16, offset: u64, data: &[u8]) -> (Vec<u8>, usize) {
    let mut words = END_OF_CHAIN.to_vec();
    words.extend(file.to_le_bytes());
    words.extend((offset as u32).to_le_bytes());
    words.extend([0; 4 + 2 + 2]);
    words.extend(((data.len() >> 16) as u16).to_le_bytes());
    words.extend((data.len() as u16).to_le_bytes());
    words.extend((WORDS_AT as u16 + 28 + 2 + 1).to_le_bytes());
    words.extend(((offset >> 32) as u32).to_le_bytes());
    let bytes = [&[0], data].concat();
    (body(&header(command::WRITE), &words, &bytes), data.len())
}

pub(crate) fn close(file: u16) -> Vec<u8> {
    let words = [&file.to_le_bytes()[..], &[0xff; 4]].concat();
    body(&header(command::CLOSE), &words, &[])
}

pub(crate) fn flush(file: u16) -> Vec<u8> {
    body(&header(command::FLUSH), &file.to_le_bytes(), &[])
}

pub(crate) fn seek(file: u16, from: u16, by: i32) -> Vec<u8> {
    let words = [
        &file.to_le_bytes()[..],
        &from.to_le_bytes(),
        &by.to_le_bytes(),
    ]
    .concat();
    body(&header(command::SEEK), &words, &[])
}

/// A READ of the oldest kind.
pub(crate) fn read_old(file: u16, offset: u32, length: u16) -> Vec<u8> {
    let words = [
        &file.to_le_bytes()[..],
        &length.to_le_bytes(),
        &offset.to_le_bytes(),
        &[0; 2],
    ]
    .concat();
    body(&header(command::READ_OLD), &words, &[])
}

/// Builds a lock of 16 bytes from the file's start: shared if the kind is 1, a release if it is 2.
pub(crate) fn locking(file: u16, kind: u8, locks: u16) -> Vec<u8> {
    let mut words = END_OF_CHAIN.to_vec();
    words.extend(file.to_le_bytes());
    words.extend([kind, 0]);
    words.extend([0; 4 + 2]);
    words.extend(locks.to_le_bytes());
    let range = [77, 0, 0, 0, 0, 0, 16, 0, 0, 0];
    let ranges = range.repeat(usize::from(locks));
    body(&header(command::LOCKING), &words, &ranges)
}

/// Builds a request that unlocks, or locks, 16 bytes from each of these offsets for these
/// processes.
pub(crate) fn lock_ranges(file: u16, kind: u8, is_unlock: bool, of: &[(u16, u32)]) -> Vec<u8> {
    let count = of.len() as u16;
    let counts = match is_unlock {
        true => [count, 0],
        false => [0, count],
    };
    let mut words = END_OF_CHAIN.to_vec();
    words.extend(file.to_le_bytes());
    words.extend([kind, 0]);
    words.extend([0; 4]);
    words.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
    let mut ranges = Vec::new();
    for (process, at) in of {
        ranges.extend(process.to_le_bytes());
        ranges.extend(at.to_le_bytes());
        ranges.extend(16u32.to_le_bytes());
    }
    body(&header(command::LOCKING), &words, &ranges)
}

/// Builds a TRANSACTION2 of these parameters and this data.
fn transaction(subcommand: u16, parameters: &[u8], data: &[u8]) -> Vec<u8> {
    let at = (WORDS_AT + 30 + 2 + 3) as u16;
    let short = |value: usize| (value as u16).to_le_bytes();
    let mut words = Vec::new();
    words.extend(short(parameters.len()));
    words.extend(short(data.len()));
    words.extend(short(64));
    words.extend(short(1_024));
    words.extend([0; 2 + 2 + 4 + 2]);
    words.extend(short(parameters.len()));
    words.extend(at.to_le_bytes());
    words.extend(short(data.len()));
    words.extend(short(usize::from(at) + parameters.len()));
    words.extend([1, 0]);
    words.extend(subcommand.to_le_bytes());
    let bytes = [&[0; 3], parameters, data].concat();
    body(&header(command::TRANSACTION_2), &words, &bytes)
}

pub(crate) fn query_file(file: u16, level: u16) -> Vec<u8> {
    let parameters = [file.to_le_bytes(), level.to_le_bytes()].concat();
    transaction(0x07, &parameters, &[])
}

/// Sets a file's end (SMB_SET_FILE_END_OF_FILE_INFO).
pub(crate) fn set_size(file: u16, size: u64) -> Vec<u8> {
    let parameters = [&file.to_le_bytes()[..], &0x104u16.to_le_bytes(), &[0; 2]].concat();
    transaction(0x08, &parameters, &size.to_le_bytes())
}

/// The same by the file's name.
pub(crate) fn set_size_by_name(name: &str, size: u64) -> Vec<u8> {
    let parameters = [&0x104u16.to_le_bytes()[..], &[0; 4], name.as_bytes()].concat();
    transaction(0x06, &parameters, &size.to_le_bytes())
}

/// Opens a file by the Unix extensions.
pub(crate) fn unix_open(name: &str) -> Vec<u8> {
    unix_open_with(name, 0, 0)
}

/// The same with these OpenFlags and PosixOpenFlags.
pub(crate) fn unix_open_with(name: &str, flags: u32, posix_flags: u32) -> Vec<u8> {
    let parameters = [&0x209u16.to_le_bytes()[..], &[0; 4], name.as_bytes()].concat();
    let data = [
        &flags.to_le_bytes()[..],
        &posix_flags.to_le_bytes(),
        &[0; 8],
        &0x200u16.to_le_bytes(),
    ];
    transaction(0x06, &parameters, &data.concat())
}

/// The same as [`set_size`] in two messages, with half of the data in each.
pub(crate) fn set_size_in_parts(file: u16, size: u64) -> [Vec<u8>; 2] {
    let mut first = set_size(file, size);
    first.truncate(first.len() - 4);
    let bytes_at = WORDS_AT + 30;
    for (at, value) in [(22, 4), (30, (first.len() - bytes_at - 2) as u16)] {
        first[WORDS_AT + at..WORDS_AT + at + 2].copy_from_slice(&value.to_le_bytes());
    }
    let at = (WORDS_AT + 18 + 2) as u16;
    let words: Vec<u8> = [6, 8, 0, 0, 0, 4, at, 4, file]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let rest = &size.to_le_bytes()[4..];
    let second = body(&header(command::TRANSACTION_2_SECONDARY), &words, rest);
    [first, second]
}

/// Waits until something in a directory changes.
pub(crate) fn notify(directory: u16) -> Vec<u8> {
    let mut words = [0; 46];
    words[35] = 4;
    words[36] = 4;
    words[42..44].copy_from_slice(&directory.to_le_bytes());
    body(&header(command::NT_TRANSACT), &words, &[])
}

/// Sets a position (FilePositionInformation).
pub(crate) fn tell(file: u16, position: u64) -> Vec<u8> {
    let parameters = [&file.to_le_bytes()[..], &1_014u16.to_le_bytes(), &[0; 2]].concat();
    transaction(0x08, &parameters, &position.to_le_bytes())
}

pub(crate) fn find_first() -> Vec<u8> {
    transaction(0x01, &[0; 12], &[])
}

pub(crate) fn echo(count: u16) -> Vec<u8> {
    body(&header(command::ECHO), &count.to_le_bytes(), b"echo")
}

pub(crate) fn cancel() -> Vec<u8> {
    body(&header(command::NT_CANCEL), &[], &[])
}

/// The same message with a CLOSE chained behind it.
pub(crate) fn chained(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    message[WORDS_AT] = command::CLOSE;
    let at = (message.len() as u16).to_le_bytes();
    message[WORDS_AT + 2..WORDS_AT + 4].copy_from_slice(&at);
    let file = [message[WORDS_AT + 4], message[WORDS_AT + 5]];
    message.push(3);
    message.extend(file);
    message.extend([0xff; 4]);
    message.extend([0; 2]);
    message
}
