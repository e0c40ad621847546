//! A server of one share in memory, whose files nobody changes.
//!
//! It knows the requests of a client that opens, reads and closes files, and those that an accelerator
//! adds: compounds, oplocks, and questions about a file and its file system. It grants every oplock,
//! because only one client opens a file. It refuses other requests as real servers do. A client that
//! does not speak SMB2 is an error.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use tcp::ConnectionNumber;

use super::message::{
    FrameSplitter, HEADER, SmbHeader, SmbMessage, command, status, u16_at, u32_at, u64_at,
};
use crate::host::{HostSockets, SocketEvent};

/// SMB 2.1, the newest dialect without negotiate contexts and encryption.
const DIALECT: u16 = 0x0210;
/// The capability LARGE_MTU ([MS-SMB2] §2.2.4): requests of more than 64 KiB.
const LARGE_MTU: u32 = 4;
/// Most bytes of a READ, as Samba has them.
const READ_MOST: u32 = 8 << 20;
/// Most credits of a connection; Samba grants 8,192.
const CREDITS_MOST: u64 = 512;
const SESSION: u64 = 77;
const TREE: u32 = 5;

/// Kinds of QUERY_INFO ([MS-SMB2] §2.2.37), and FileStandardInformation ([MS-FSCC] §2.4).
const FILE_INFORMATION: u8 = 1;
const FILE_SYSTEM_INFORMATION: u8 = 2;
const STANDARD: u8 = 5;
/// Bytes of FileStandardInformation, and of the answer about a file system.
const ANSWER_LEAST: usize = 24;

/// The server.
pub(in super::super) struct SmbServer {
    files: BTreeMap<String, Bytes>,
    connections: BTreeMap<ConnectionNumber, SmbServerConnection>,
    next_open: u64,
}

struct SmbServerConnection {
    frames: FrameSplitter,
    /// Credits that the client has not used.
    credits: u64,
    /// Contents of open files.
    opens: BTreeMap<[u8; 16], Bytes>,
}

/// Answer of the server: its status and its body.
type SmbAnswer = Result<Vec<u8>, u32>;

impl SmbServer {
    pub(in super::super) fn new(files: &[(String, Bytes)]) -> Self {
        Self {
            files: files.iter().cloned().collect(),
            connections: BTreeMap::new(),
            next_open: 1,
        }
    }

    /// Takes an event of a connection.
    ///
    /// # Errors
    /// Fails when the client does not speak SMB2.
    pub(in super::super) fn handle(
        &mut self,
        sockets: &mut HostSockets,
        socket: ConnectionNumber,
        event: SocketEvent,
    ) -> Result<(), &'static str> {
        match event {
            SocketEvent::Accepted => {
                let connection = SmbServerConnection {
                    frames: FrameSplitter::default(),
                    credits: 1,
                    opens: BTreeMap::new(),
                };
                self.connections.insert(socket, connection);
            }
            SocketEvent::Received(bytes) => {
                let Some(mut connection) = self.connections.remove(&socket) else {
                    return Ok(());
                };
                connection.frames.push(&bytes);
                while let Some(frame) = connection.frames.next_frame() {
                    let mut before = None;
                    for message in frame? {
                        if let Some(answer) = self.answer(&mut connection, &message, &mut before) {
                            sockets.send(socket, answer.frame());
                        }
                    }
                }
                self.connections.insert(socket, connection);
            }
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                self.connections.remove(&socket);
                sockets.finish(socket);
            }
            SocketEvent::Opened => {}
        }
        Ok(())
    }

    /// Answer to a message; `before` is the open of the message before it in its compound.
    fn answer(
        &mut self,
        connection: &mut SmbServerConnection,
        message: &SmbMessage,
        before: &mut Option<[u8; 16]>,
    ) -> Option<SmbMessage> {
        let mut header = message.header;
        if header.command == command::CANCEL {
            return None;
        }
        match header.command {
            command::SESSION_SETUP => header.session = SESSION,
            command::TREE_CONNECT => header.tree = TREE,
            _ => {}
        }
        let (status, body) = match self.carry_out(connection, message, before) {
            Ok(body) => (status::SUCCESS, body),
            // [MS-SMB2] §2.2.2 (ERROR Response).
            Err(status) => (status, vec![9, 0, 0, 0, 0, 0, 0, 0, 0]),
        };
        Some(SmbMessage {
            header: header.answer(status, connection.grant(&header)),
            body: body.into(),
        })
    }

    fn carry_out(
        &mut self,
        connection: &mut SmbServerConnection,
        message: &SmbMessage,
        before: &mut Option<[u8; 16]>,
    ) -> SmbAnswer {
        let SmbMessage { header, body } = message;
        // The place of the open's number depends on the command.
        let mut file = |at: usize| -> Result<[u8; 16], u32> {
            let own = body.get(at..).and_then(|rest| rest.first_chunk());
            let file = match (header.is_related(), *before) {
                (true, Some(before)) => before,
                (false, _) => *own.ok_or(status::INVALID_PARAMETER)?,
                (true, None) => return Err(status::INVALID_PARAMETER),
            };
            *before = Some(file);
            Ok(file)
        };
        match header.command {
            command::NEGOTIATE => Ok(negotiate_answer()),
            command::SESSION_SETUP => Ok(vec![9, 0, 0, 0, 0, 0, 0, 0, 0]),
            command::TREE_CONNECT => {
                let mut answer = vec![0; 16];
                (answer[0], answer[2]) = (16, 1);
                Ok(answer)
            }
            command::LOGOFF | command::TREE_DISCONNECT | command::ECHO => Ok(vec![4, 0, 0, 0]),
            command::CREATE => {
                let (file, answer) = self.create(connection, body)?;
                *before = Some(file);
                Ok(answer)
            }
            command::CLOSE => {
                let open = connection.opens.remove(&file(8)?);
                open.ok_or(status::FILE_CLOSED)?;
                let mut answer = vec![0; 60];
                answer[0] = 60;
                Ok(answer)
            }
            command::READ => connection.read(file(16)?, body),
            command::QUERY_INFO => {
                let content = connection.content(file(24)?)?;
                query_answer(body, content.len() as u64)
            }
            _ => Err(status::NOT_SUPPORTED),
        }
    }

    fn create(
        &mut self,
        connection: &mut SmbServerConnection,
        body: &[u8],
    ) -> Result<([u8; 16], Vec<u8>), u32> {
        let name = created_name(body).ok_or(status::INVALID_PARAMETER)?;
        let content = self.files.get(&name);
        let content = content.ok_or(status::OBJECT_NAME_NOT_FOUND)?.clone();
        let mut file = [0xcc; 16];
        file[..8].copy_from_slice(&self.next_open.to_le_bytes());
        self.next_open += 1;
        // [MS-SMB2] §2.2.14 (CREATE Response). A lease is asked for by the level 0xff.
        let mut answer = vec![0; 88];
        answer[0] = 89;
        answer[2] = body
            .get(3)
            .copied()
            .filter(|level| *level != 0xff)
            .unwrap_or(0);
        answer[4] = 1;
        let size = (content.len() as u64).to_le_bytes();
        answer[40..48].copy_from_slice(&size);
        answer[48..56].copy_from_slice(&size);
        answer[56] = 0x80;
        answer[64..80].copy_from_slice(&file);
        connection.opens.insert(file, content);
        Ok((file, answer))
    }
}

impl SmbServerConnection {
    /// Credits of an answer: as many as the client requests, within the limit, and never none for a client
    /// that has none left.
    fn grant(&mut self, header: &SmbHeader) -> u16 {
        self.credits = self.credits.saturating_sub(header.charge.max(1).into());
        let room = CREDITS_MOST.saturating_sub(self.credits);
        let least = u64::from(self.credits == 0);
        let granted = u64::from(header.credits).min(room).max(least);
        self.credits += granted;
        granted as u16
    }

    fn content(&self, file: [u8; 16]) -> Result<&Bytes, u32> {
        self.opens.get(&file).ok_or(status::FILE_CLOSED)
    }

    fn read(&self, file: [u8; 16], body: &[u8]) -> SmbAnswer {
        let content = self.content(file)?;
        let (Some(length), Some(offset)) = (u32_at(body, 4), u64_at(body, 8)) else {
            return Err(status::INVALID_PARAMETER);
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = content.get(start..).unwrap_or_default();
        let data = &rest[..rest.len().min(length.min(READ_MOST) as usize)];
        if data.is_empty() {
            return Err(status::END_OF_FILE);
        }
        // [MS-SMB2] §2.2.20 (READ Response).
        let mut answer = BytesMut::with_capacity(16 + data.len());
        answer.put_slice(&[17, 0, HEADER as u8 + 16, 0]);
        answer.put_u32_le(data.len() as u32);
        answer.put_bytes(0, 8);
        answer.put_slice(data);
        Ok(answer.into())
    }
}

/// [MS-SMB2] §2.2.4 (NEGOTIATE Response).
fn negotiate_answer() -> Vec<u8> {
    let mut answer = vec![0; 65];
    (answer[0], answer[2]) = (65, 1);
    answer[4..6].copy_from_slice(&DIALECT.to_le_bytes());
    answer[24..28].copy_from_slice(&LARGE_MTU.to_le_bytes());
    for at in [28, 32, 36] {
        answer[at..at + 4].copy_from_slice(&READ_MOST.to_le_bytes());
    }
    answer
}

/// The name in a CREATE ([MS-SMB2] §2.2.13).
fn created_name(body: &[u8]) -> Option<String> {
    let at = usize::from(u16_at(body, 44)?).checked_sub(HEADER)?;
    let length = usize::from(u16_at(body, 46)?);
    let units = body.get(at..at + length)?.chunks_exact(2);
    let units: Vec<u16> = units
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect();
    String::from_utf16(&units).ok()
}

/// [MS-SMB2] §2.2.38 (QUERY_INFO Response): the size of a file, or the size and room of the file system.
fn query_answer(body: &[u8], bytes: u64) -> SmbAnswer {
    let class = |at: usize| body.get(at).copied();
    let found: Vec<u8> = match (class(2), class(3)) {
        (Some(FILE_INFORMATION), Some(STANDARD)) => {
            let mut found = Vec::with_capacity(ANSWER_LEAST);
            found.extend(bytes.to_le_bytes());
            found.extend(bytes.to_le_bytes());
            found.extend([1, 0, 0, 0, 0, 0, 0, 0]);
            found
        }
        (Some(FILE_SYSTEM_INFORMATION), Some(_)) => vec![0; ANSWER_LEAST],
        _ => return Err(status::NOT_SUPPORTED),
    };
    let mut answer = vec![9, 0, HEADER as u8 + 8, 0];
    answer.extend((found.len() as u32).to_le_bytes());
    answer.extend(found);
    Ok(answer)
}
