//! SMB 2.1: a session for each file and one READ after the other, and a server of one share in memory.
//!
//! Both are those that test the accelerator; messages and answers are the same as with real hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use accelerate::smb::testing::{ClientStep, FileClient, FileServer};
use bytes::{Bytes, BytesMut};
use tcp::ConnectionNumber;

use super::{ClientScript, SMB_PORT};
use crate::host::{HostSockets, SocketEvent};

/// The client.
pub(crate) struct SerialSmbClient {
    /// Names and sizes; a real client asks for the size when it opens a file.
    files: Vec<(String, usize)>,
    block: u32,
    server: Option<IpAddr>,
    current: usize,
    socket: Option<ConnectionNumber>,
    client: FileClient,
    step: SessionStep,
    received: BytesMut,
    arrivals: Vec<Option<Bytes>>,
    failure: Option<String>,
}

/// The request whose answer the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionStep {
    Negotiate,
    SetUp,
    Connect,
    Open,
    Read,
    Close,
}

impl SerialSmbClient {
    pub(crate) fn new(files: &[(String, Bytes)], block: u32) -> Self {
        Self {
            files: files
                .iter()
                .map(|(name, content)| (name.clone(), content.len()))
                .collect(),
            block,
            server: None,
            current: 0,
            socket: None,
            client: FileClient::default(),
            step: SessionStep::Negotiate,
            received: BytesMut::new(),
            arrivals: vec![None; files.len()],
            failure: None,
        }
    }

    fn open(&mut self, sockets: &mut HostSockets) {
        let (Some(server), Some((name, _))) = (self.server, self.files.get(self.current)) else {
            return;
        };
        self.client = FileClient::of(name);
        self.received.clear();
        self.socket = sockets.open((server, SMB_PORT).into());
    }

    fn ask(&mut self, sockets: &mut HostSockets, step: SessionStep) {
        let Some(socket) = self.socket else { return };
        self.step = step;
        let request = match step {
            SessionStep::Negotiate => ClientStep::Negotiate,
            SessionStep::SetUp => ClientStep::SetUp,
            SessionStep::Connect => ClientStep::Connect,
            SessionStep::Open => ClientStep::Open,
            SessionStep::Read => {
                let left = self.files[self.current].1 - self.received.len();
                ClientStep::Read {
                    offset: self.received.len() as u64,
                    length: self.block.min(u32::try_from(left).unwrap_or(u32::MAX)),
                }
            }
            SessionStep::Close => ClientStep::Close,
        };
        let bytes = self.client.ask(request);
        sockets.send(socket, bytes.into());
    }

    /// READ while something is left, else CLOSE.
    fn ask_for_more(&mut self, sockets: &mut HostSockets) {
        let is_whole = self.received.len() >= self.files[self.current].1;
        let step = match is_whole {
            true => SessionStep::Close,
            false => SessionStep::Read,
        };
        self.ask(sockets, step);
    }

    fn take_answer(&mut self, sockets: &mut HostSockets, data: &[u8]) {
        match self.step {
            SessionStep::Negotiate => self.ask(sockets, SessionStep::SetUp),
            SessionStep::SetUp => self.ask(sockets, SessionStep::Connect),
            SessionStep::Connect => self.ask(sockets, SessionStep::Open),
            SessionStep::Open => self.ask_for_more(sockets),
            SessionStep::Read if data.is_empty() => {
                self.failure = Some("a READ was answered without data".to_owned());
            }
            SessionStep::Read => {
                self.received.extend_from_slice(data);
                self.ask_for_more(sockets);
            }
            SessionStep::Close => {
                self.arrivals[self.current] = Some(self.received.split().freeze());
                self.current += 1;
                if let Some(socket) = self.socket {
                    sockets.finish(socket);
                }
                self.open(sockets);
            }
        }
    }
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
            SocketEvent::Opened => self.ask(sockets, SessionStep::Negotiate),
            SocketEvent::Received(bytes) => {
                if let Some(data) = self.client.hear(&bytes) {
                    self.take_answer(sockets, &data);
                }
            }
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                self.failure = Some("the server ended the connection".to_owned());
            }
            SocketEvent::Accepted => {}
        }
    }

    fn is_done(&self) -> bool {
        self.failure.is_some() || self.current == self.files.len()
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn arrivals(&mut self) -> Vec<Option<Bytes>> {
        std::mem::take(&mut self.arrivals)
    }
}

/// The server.
pub(crate) struct SmbServer {
    server: FileServer,
    connections: BTreeMap<ConnectionNumber, usize>,
}

impl SmbServer {
    pub(crate) fn new(files: &[(String, Bytes)]) -> Self {
        let files = files
            .iter()
            .map(|(name, content)| (name.clone(), content.to_vec()));
        Self {
            server: FileServer::of_files(files),
            connections: BTreeMap::new(),
        }
    }

    pub(crate) fn handle(
        &mut self,
        sockets: &mut HostSockets,
        socket: ConnectionNumber,
        event: SocketEvent,
    ) {
        match event {
            SocketEvent::Accepted => {
                let connection = self.server.connect();
                self.connections.insert(socket, connection);
            }
            SocketEvent::Received(bytes) => {
                if let Some(connection) = self.connections.get(&socket) {
                    let answers = self.server.hear_from(*connection, &bytes);
                    sockets.send(socket, answers.into());
                }
            }
            SocketEvent::PeerFinished | SocketEvent::Lost => {
                if let Some(connection) = self.connections.remove(&socket) {
                    self.server.disconnect_from(connection);
                }
                sockets.finish(socket);
            }
            SocketEvent::Opened => {}
        }
    }
}
