//! FTP (RFC 959) with extended passive mode (RFC 2428): the dialogue of curl with vsftpd.
//!
//! ```text
//! 220 ► USER 331 ► PASS 230 ► (CWD 250) ► for each file:
//!                            EPSV 229 ► data connection ► TYPE I 200 ► RETR or STOR 150 ► data ► 226
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use tcp::ConnectionNumber;

use super::{ClientScript, FTP_DATA_PORT, FTP_PORT};
use crate::host::{HostSockets, SocketEvent};

/// Directory of uploads.
const UPLOADS: &str = "upload";

/// The client.
pub(crate) struct FtpClient {
    files: Vec<(String, Bytes)>,
    is_upload: bool,
    server: Option<IpAddr>,
    control: Option<ConnectionNumber>,
    data: Option<ConnectionNumber>,
    replies: ReplyReader,
    current: usize,
    step: ClientStep,
    received: BytesMut,
    /// The data connection has ended, and the server has confirmed the transfer.
    data_ended: bool,
    is_confirmed: bool,
    arrivals: Vec<Option<Bytes>>,
    failure: Option<String>,
}

/// The reply that the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientStep {
    Greeting,
    User,
    Password,
    Directory,
    Passive,
    Type,
    Transfer,
    Done,
}

impl FtpClient {
    pub(crate) fn download(files: &[(String, Bytes)]) -> Self {
        Self::new(files, false)
    }

    pub(crate) fn upload(files: &[(String, Bytes)]) -> Self {
        Self::new(files, true)
    }

    fn new(files: &[(String, Bytes)], is_upload: bool) -> Self {
        Self {
            files: files.to_vec(),
            is_upload,
            server: None,
            control: None,
            data: None,
            replies: ReplyReader::default(),
            current: 0,
            step: ClientStep::Greeting,
            received: BytesMut::new(),
            data_ended: false,
            is_confirmed: false,
            arrivals: vec![None; files.len()],
            failure: None,
        }
    }

    fn say(&mut self, sockets: &mut HostSockets, line: &str, step: ClientStep) {
        self.step = step;
        if let Some(control) = self.control {
            sockets.send(control, format!("{line}\r\n").into());
        }
    }

    /// Begins the next file, or leaves.
    fn next_file(&mut self, sockets: &mut HostSockets) {
        if self.current < self.files.len() {
            return self.say(sockets, "EPSV", ClientStep::Passive);
        }
        self.say(sockets, "QUIT", ClientStep::Done);
        if let Some(control) = self.control {
            sockets.finish(control);
        }
    }

    fn take_reply(&mut self, sockets: &mut HostSockets, code: u16) {
        match (self.step, code) {
            (ClientStep::Greeting, 220) => {
                self.say(sockets, "USER anonymous", ClientStep::User);
            }
            (ClientStep::User, 331) => {
                self.say(sockets, "PASS ftp@example.com", ClientStep::Password);
            }
            (ClientStep::Password, 230) if self.is_upload => {
                self.say(sockets, &format!("CWD {UPLOADS}"), ClientStep::Directory);
            }
            (ClientStep::Password, 230) | (ClientStep::Directory, 250) => self.next_file(sockets),
            (ClientStep::Passive, 229) => {
                let server = self.server.map(|server| (server, FTP_DATA_PORT).into());
                self.data = server.and_then(|server| sockets.open(server));
                (self.data_ended, self.is_confirmed) = (false, false);
                self.received.clear();
            }
            (ClientStep::Type, 200) => {
                let verb = if self.is_upload { "STOR" } else { "RETR" };
                let line = format!("{verb} {}", self.files[self.current].0);
                self.say(sockets, &line, ClientStep::Transfer);
            }
            (ClientStep::Transfer, 150) => {
                if let (true, Some(data)) = (self.is_upload, self.data) {
                    sockets.send(data, self.files[self.current].1.clone());
                    sockets.finish(data);
                }
            }
            (ClientStep::Transfer, 226) => {
                self.is_confirmed = true;
                self.end_file(sockets);
            }
            (ClientStep::Done, 221) => {}
            (step, code) => {
                self.failure = Some(format!("the server replied {code} at the step {step:?}"));
            }
        }
    }

    fn end_file(&mut self, sockets: &mut HostSockets) {
        if self.step != ClientStep::Transfer || !self.data_ended || !self.is_confirmed {
            return;
        }
        if !self.is_upload {
            self.arrivals[self.current] = Some(self.received.split().freeze());
        }
        self.current += 1;
        self.next_file(sockets);
    }
}

impl ClientScript for FtpClient {
    fn start(&mut self, sockets: &mut HostSockets, server: IpAddr) {
        self.server = Some(server);
        self.control = sockets.open((server, FTP_PORT).into());
    }

    fn handle(&mut self, sockets: &mut HostSockets, socket: ConnectionNumber, event: SocketEvent) {
        let is_control = self.control == Some(socket);
        match event {
            SocketEvent::Received(bytes) if is_control => {
                self.replies.push(&bytes);
                while let Some(code) = self.replies.next() {
                    self.take_reply(sockets, code);
                }
            }
            SocketEvent::Opened if !is_control => {
                self.say(sockets, "TYPE I", ClientStep::Type);
            }
            SocketEvent::Received(bytes) => self.received.extend_from_slice(&bytes),
            SocketEvent::PeerFinished if !is_control => {
                sockets.finish(socket);
                self.data_ended = true;
                self.end_file(sockets);
            }
            SocketEvent::Lost if !self.is_done() => {
                self.failure = Some("a connection was reset".to_owned());
            }
            SocketEvent::Opened
            | SocketEvent::Accepted
            | SocketEvent::PeerFinished
            | SocketEvent::Lost => {}
        }
    }

    fn is_done(&self) -> bool {
        self.failure.is_some() || self.step == ClientStep::Done
    }

    fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    fn arrivals(&mut self) -> Vec<Option<Bytes>> {
        std::mem::take(&mut self.arrivals)
    }
}

/// Codes of replies of one line each.
#[derive(Default)]
struct ReplyReader {
    lines: LineReader,
}

impl ReplyReader {
    fn push(&mut self, bytes: &[u8]) {
        self.lines.push(bytes);
    }

    fn next(&mut self) -> Option<u16> {
        let line = self.lines.next()?;
        Some(
            line.get(..3)
                .and_then(|code| code.parse().ok())
                .unwrap_or(0),
        )
    }
}

/// Lines that end in CR LF.
#[derive(Default)]
struct LineReader {
    waiting: BytesMut,
}

impl LineReader {
    fn push(&mut self, bytes: &[u8]) {
        self.waiting.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<String> {
        let end = self.waiting.windows(2).position(|pair| pair == b"\r\n")?;
        let line = self.waiting.split_to(end + 2);
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

/// The server.
#[derive(Default)]
pub(crate) struct FtpServer {
    files: BTreeMap<String, Bytes>,
    stored: BTreeMap<String, Bytes>,
    commands: BTreeMap<ConnectionNumber, LineReader>,
    /// Data connections that no command has used yet.
    waiting: VecDeque<ConnectionNumber>,
    storing: BTreeMap<ConnectionNumber, StoredUpload>,
    /// Data connections of downloads, with their control connections.
    sending: BTreeMap<ConnectionNumber, ConnectionNumber>,
}

struct StoredUpload {
    control: ConnectionNumber,
    name: String,
    content: BytesMut,
}

impl FtpServer {
    pub(crate) fn new(files: &[(String, Bytes)]) -> Self {
        Self {
            files: files.iter().cloned().collect(),
            ..Self::default()
        }
    }

    /// A file that was uploaded.
    pub(crate) fn take_stored(&mut self, name: &str) -> Option<Bytes> {
        self.stored.remove(name)
    }

    pub(crate) fn handle_control(
        &mut self,
        sockets: &mut HostSockets,
        socket: ConnectionNumber,
        event: SocketEvent,
    ) {
        match event {
            SocketEvent::Accepted => {
                sockets.send(socket, Bytes::from_static(b"220 (vsFTPd 3.0.5)\r\n"))
            }
            SocketEvent::Received(bytes) => {
                let mut lines = self.commands.remove(&socket).unwrap_or_default();
                lines.push(&bytes);
                while let Some(line) = lines.next() {
                    self.take_command(sockets, socket, &line);
                }
                self.commands.insert(socket, lines);
            }
            SocketEvent::PeerFinished => sockets.finish(socket),
            SocketEvent::Opened | SocketEvent::Lost => {}
        }
    }

    fn take_command(&mut self, sockets: &mut HostSockets, control: ConnectionNumber, line: &str) {
        let (verb, argument) = line.split_once(' ').unwrap_or((line, ""));
        let reply = match verb {
            "USER" => "331 Please specify the password.".to_owned(),
            "PASS" => "230 Login successful.".to_owned(),
            "CWD" => "250 Directory successfully changed.".to_owned(),
            "EPSV" => format!("229 Entering Extended Passive Mode (|||{FTP_DATA_PORT}|)"),
            "TYPE" => "200 Switching to Binary mode.".to_owned(),
            "QUIT" => "221 Goodbye.".to_owned(),
            "RETR" => match (self.files.get(argument), self.waiting.pop_front()) {
                (Some(content), Some(data)) => {
                    sockets.send(data, content.clone());
                    sockets.finish(data);
                    self.sending.insert(data, control);
                    format!("150 Opening BINARY mode data connection for {argument}.")
                }
                _ => "550 Failed to open file.".to_owned(),
            },
            "STOR" => match self.waiting.pop_front() {
                Some(data) => {
                    let upload = StoredUpload {
                        control,
                        name: argument.to_owned(),
                        content: BytesMut::new(),
                    };
                    self.storing.insert(data, upload);
                    "150 Ok to send data.".to_owned()
                }
                None => "425 Failed to establish connection.".to_owned(),
            },
            _ => "500 Unknown command.".to_owned(),
        };
        sockets.send(control, format!("{reply}\r\n").into());
    }

    pub(crate) fn handle_data(
        &mut self,
        sockets: &mut HostSockets,
        socket: ConnectionNumber,
        event: SocketEvent,
    ) {
        match event {
            SocketEvent::Accepted => self.waiting.push_back(socket),
            SocketEvent::Received(bytes) => {
                if let Some(upload) = self.storing.get_mut(&socket) {
                    upload.content.extend_from_slice(&bytes);
                }
            }
            SocketEvent::PeerFinished => {
                sockets.finish(socket);
                let control = match self.storing.remove(&socket) {
                    Some(upload) => {
                        self.stored.insert(upload.name, upload.content.freeze());
                        Some(upload.control)
                    }
                    None => self.sending.remove(&socket),
                };
                if let Some(control) = control {
                    sockets.send(control, Bytes::from_static(b"226 Transfer complete.\r\n"));
                }
            }
            SocketEvent::Opened | SocketEvent::Lost => {}
        }
    }
}
