//! SMB 2.1: a session for each file and one READ after the other, and a server of one share in memory.

mod message;
mod server;

use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use tcp::ConnectionNumber;

use super::{ClientScript, SMB_PORT};
use crate::host::{HostSockets, SocketEvent};
use message::{FrameSplitter, HEADER, SmbHeader, SmbMessage, command, status, u32_at, u64_at};
pub(super) use server::SmbServer;

/// Bytes that one credit pays for.
const CREDIT_BYTES: u32 = 65_536;
/// Most bytes of memory that a client reserves for a file when it opens it.
const RESERVED_MOST: usize = 128 << 20;
/// Rights to read a file, shared with every other open ([MS-SMB2] §2.2.13).
const READ_ACCESS: u32 = 0x0012_0089;
const SHARE_ALL: u32 = 7;
/// Dispositions and options of the CREATE: the file exists, and is no directory.
const OPEN_EXISTING: u32 = 1;
const NO_DIRECTORY: u32 = 0x40;

/// The client.
pub(super) struct SerialSmbClient {
    names: Vec<String>,
    block: u32,
    server: Option<IpAddr>,
    current: usize,
    socket: Option<ConnectionNumber>,
    frames: FrameSplitter,
    next_message: u64,
    session: u64,
    tree: u32,
    file: [u8; 16],
    /// Size of the file, from the answer to the CREATE.
    size: u64,
    step: u16,
    received: BytesMut,
    arrivals: Vec<Option<Bytes>>,
    failure: Option<String>,
}

impl SerialSmbClient {
    pub(super) fn new(files: &[(String, Bytes)], block: u32) -> Self {
        Self {
            names: files.iter().map(|(name, _)| name.clone()).collect(),
            block,
            server: None,
            current: 0,
            socket: None,
            frames: FrameSplitter::default(),
            next_message: 0,
            session: 0,
            tree: 0,
            file: [0; 16],
            size: 0,
            step: command::NEGOTIATE,
            received: BytesMut::new(),
            arrivals: vec![None; files.len()],
            failure: None,
        }
    }

    fn open(&mut self, sockets: &mut HostSockets) {
        let Some(server) = self.server.filter(|_| self.current < self.names.len()) else {
            return;
        };
        self.frames = FrameSplitter::default();
        (self.next_message, self.session, self.tree) = (0, 0, 0);
        self.received.clear();
        self.socket = sockets.open((server, SMB_PORT).into());
    }

    /// Sends the request of this command.
    fn ask(&mut self, sockets: &mut HostSockets, step: u16) {
        let Some(socket) = self.socket else { return };
        self.step = step;
        let body = match step {
            command::NEGOTIATE => sized(36, 38, &[(2, &[1, 0][..]), (36, &[0x10, 2][..])]),
            command::SESSION_SETUP => sized(25, 25, &[]),
            command::TREE_CONNECT => sized(9, 16, &[]),
            command::CREATE => create(&self.names[self.current]),
            command::READ => {
                let offset = self.received.len() as u64;
                let left = u32::try_from(self.size - offset).unwrap_or(u32::MAX);
                let length = self.block.min(left);
                sized(
                    49,
                    49,
                    &[
                        (2, &[HEADER as u8 + 16][..]),
                        (4, &length.to_le_bytes()[..]),
                        (8, &offset.to_le_bytes()[..]),
                        (16, &self.file[..]),
                    ],
                )
            }
            _ => sized(24, 24, &[(8, &self.file[..])]),
        };
        let charge = match step {
            command::READ => self.block.div_ceil(CREDIT_BYTES).max(1) as u16,
            _ => 1,
        };
        let header = SmbHeader {
            charge,
            ..SmbHeader::request(step, self.next_message, self.session, self.tree)
        };
        self.next_message += u64::from(charge);
        let message = SmbMessage {
            header,
            body: body.into(),
        };
        sockets.send(socket, message.frame());
    }

    /// Sends a READ while something is left, else CLOSE.
    fn ask_for_more(&mut self, sockets: &mut HostSockets) {
        let is_whole = self.received.len() as u64 >= self.size;
        let step = match is_whole {
            true => command::CLOSE,
            false => command::READ,
        };
        self.ask(sockets, step);
    }

    /// Takes the answer to the request that waits.
    fn take_answer(
        &mut self,
        sockets: &mut HostSockets,
        answer: &SmbMessage,
    ) -> Result<(), String> {
        if answer.header.command != self.step {
            return Err(format!(
                "command {:#x} was answered in the place of {:#x}",
                answer.header.command, self.step
            ));
        }
        if answer.header.status != status::SUCCESS {
            return Err(format!(
                "the server refused command {:#x} with status {:#010x}",
                self.step, answer.header.status
            ));
        }
        match self.step {
            command::NEGOTIATE => self.ask(sockets, command::SESSION_SETUP),
            command::SESSION_SETUP => {
                self.session = answer.header.session;
                self.ask(sockets, command::TREE_CONNECT);
            }
            command::TREE_CONNECT => {
                self.tree = answer.header.tree;
                self.ask(sockets, command::CREATE);
            }
            command::CREATE => {
                let file = answer.body.get(64..).and_then(|rest| rest.first_chunk());
                let size = u64_at(&answer.body, 48);
                let (Some(file), Some(size)) = (file, size) else {
                    return Err("the answer to a CREATE is too short".to_owned());
                };
                (self.file, self.size) = (*file, size);
                let whole = usize::try_from(size).unwrap_or(usize::MAX);
                self.received.reserve(whole.min(RESERVED_MOST));
                self.ask_for_more(sockets);
            }
            command::READ => {
                let data = read_data(&answer.body).filter(|data| !data.is_empty());
                self.received
                    .extend_from_slice(data.ok_or("a READ was answered without data")?);
                self.ask_for_more(sockets);
            }
            _ => {
                self.arrivals[self.current] = Some(self.received.split().freeze());
                self.current += 1;
                if let Some(socket) = self.socket {
                    sockets.finish(socket);
                }
                self.open(sockets);
            }
        }
        Ok(())
    }

    fn take(&mut self, sockets: &mut HostSockets, bytes: &[u8]) -> Result<(), String> {
        self.frames.push(bytes);
        while let Some(frame) = self.frames.next_frame() {
            for answer in frame? {
                self.take_answer(sockets, &answer)?;
            }
        }
        Ok(())
    }
}

/// A body of this length: its size, and fields at their places.
fn sized(size: u8, length: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut body = vec![0; length];
    body[0] = size;
    for (at, bytes) in fields {
        body[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    body
}

/// [MS-SMB2] §2.2.13 (CREATE Request).
fn create(name: &str) -> Vec<u8> {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
    let mut body = sized(
        57,
        56,
        &[
            (24, &READ_ACCESS.to_le_bytes()[..]),
            (32, &SHARE_ALL.to_le_bytes()[..]),
            (36, &OPEN_EXISTING.to_le_bytes()[..]),
            (40, &NO_DIRECTORY.to_le_bytes()[..]),
            (44, &(HEADER as u16 + 56).to_le_bytes()[..]),
            (46, &length.to_le_bytes()[..]),
        ],
    );
    body.extend(name);
    body
}

/// The data of a READ's answer ([MS-SMB2] §2.2.20).
fn read_data(body: &[u8]) -> Option<&[u8]> {
    let at = usize::from(*body.get(2)?).checked_sub(HEADER)?;
    let length = u32_at(body, 4)? as usize;
    body.get(at..at.checked_add(length)?)
}

impl ClientScript for SerialSmbClient {
    fn start(&mut self, sockets: &mut HostSockets, server: IpAddr) {
        self.server = Some(server);
        self.open(sockets);
    }

    fn handle(&mut self, sockets: &mut HostSockets, socket: ConnectionNumber, event: SocketEvent) {
        if self.socket != Some(socket) || self.is_done() {
            return;
        }
        match event {
            SocketEvent::Opened => self.ask(sockets, command::NEGOTIATE),
            SocketEvent::Received(bytes) => self.failure = self.take(sockets, &bytes).err(),
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                self.failure = Some("the server ended the connection".to_owned());
            }
            SocketEvent::Accepted => {}
        }
    }

    fn is_done(&self) -> bool {
        self.failure.is_some() || self.current == self.names.len()
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn arrivals(&mut self) -> Vec<Option<Bytes>> {
        std::mem::take(&mut self.arrivals)
    }
}
