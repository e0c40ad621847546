//! Scripts of the hosts: clients that transfer files as the lab's clients do, and their servers.
//!
//! | workload | client |
//! | --- | --- |
//! | HTTP | a connection for each file, as one curl per file |
//! | FTP | one session, with a data connection for each file, as one curl |
//! | SMB | a session for each file, and one READ of 60 KiB after the other |
//! | MAPI | a session for each attachment, and one RopReadStream after the other |
//!
//! What a host sends is data: a message that a script does not understand ends the transfer with a
//! failure that names it.

mod ftp;
mod http;
mod mail;
mod smb;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use tcp::ConnectionNumber;
use vocab::Time;

use crate::host::{HostSockets, SocketEvent};
pub use mail::MailGeneration;

/// Ports of the servers, and of the one data connection at a time that FTP has.
const HTTP_PORT: u16 = 80;
const FTP_PORT: u16 = 21;
const SMB_PORT: u16 = 445;
const FTP_DATA_PORT: u16 = 30_000;
/// Port of the mailbox. No endpoint mapper names it: the nodes' configuration does.
pub(crate) const MAILBOX_PORT: u16 = 6001;
/// All ports on which the server listens.
pub(crate) const SERVER_PORTS: [u16; 5] =
    [HTTP_PORT, FTP_PORT, SMB_PORT, FTP_DATA_PORT, MAILBOX_PORT];

/// Workload of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedWorkload {
    /// HTTP/1.1, one GET for each connection.
    HttpDownload,
    /// FTP in one session.
    FtpDownload,
    /// FTP in one session, into the directory `upload`.
    FtpUpload,
    /// SMB 2.1 with one READ of this size in flight.
    SmbSerialDownload {
        /// Bytes of a READ.
        block: u32,
    },
    /// MAPI with one RopReadStream in flight.
    MailDownload {
        /// Generation of the client.
        generation: MailGeneration,
    },
}

impl SimulatedWorkload {
    /// Tells whether the client sends the files.
    #[must_use]
    pub const fn is_upload(self) -> bool {
        match self {
            Self::FtpUpload => true,
            Self::HttpDownload
            | Self::FtpDownload
            | Self::SmbSerialDownload { .. }
            | Self::MailDownload { .. } => false,
        }
    }
}

/// A client that transfers files one after the other.
pub(crate) trait ClientScript {
    /// Opens the first connection.
    fn start(&mut self, sockets: &mut HostSockets, server: IpAddr);
    /// Takes an event of one of its connections.
    fn handle(&mut self, sockets: &mut HostSockets, socket: ConnectionNumber, event: SocketEvent);
    /// Tells whether all files are transferred, or the script has failed.
    fn is_done(&self) -> bool;
    /// Text of the failure, if there was one.
    fn failure(&self) -> Option<&str>;
    /// Files that arrived, in order.
    fn arrivals(&mut self) -> Vec<Option<Bytes>>;
}

/// The client of a workload.
pub(crate) fn client(
    workload: SimulatedWorkload,
    files: &[(String, Bytes)],
) -> Box<dyn ClientScript> {
    match workload {
        SimulatedWorkload::HttpDownload => Box::new(http::HttpClient::new(files)),
        SimulatedWorkload::FtpDownload => Box::new(ftp::FtpClient::download(files)),
        SimulatedWorkload::FtpUpload => Box::new(ftp::FtpClient::upload(files)),
        SimulatedWorkload::SmbSerialDownload { block } => {
            Box::new(smb::SerialSmbClient::new(files, block))
        }
        SimulatedWorkload::MailDownload { generation } => {
            Box::new(mail::MailClientScript::new(files, generation))
        }
    }
}

/// Servers of all protocols, with the files of one transfer.
#[derive(Default)]
pub(crate) struct ServerScript {
    http: http::HttpServer,
    ftp: ftp::FtpServer,
    smb: Option<smb::SmbServer>,
    mail: Option<mail::MailboxServer>,
    /// Text of the first failure.
    failure: Option<String>,
    ports: BTreeMap<ConnectionNumber, u16>,
}

impl ServerScript {
    /// Servers of the files, or, for an upload, of none.
    pub(crate) fn new(
        workload: SimulatedWorkload,
        files: &[(String, Bytes)],
        calendar_start: Duration,
    ) -> Self {
        let served = match workload.is_upload() {
            true => &[],
            false => files,
        };
        let mut script = Self::default();
        match workload {
            SimulatedWorkload::HttpDownload => {
                script.http = http::HttpServer::new(served, calendar_start);
            }
            SimulatedWorkload::FtpDownload | SimulatedWorkload::FtpUpload => {
                script.ftp = ftp::FtpServer::new(served);
            }
            SimulatedWorkload::SmbSerialDownload { .. } => {
                script.smb = Some(smb::SmbServer::new(served));
            }
            SimulatedWorkload::MailDownload { .. } => {
                script.mail = Some(mail::MailboxServer::new(served));
            }
        }
        script
    }

    /// Takes an event of a connection.
    pub(crate) fn handle(
        &mut self,
        now: Time,
        sockets: &mut HostSockets,
        socket: ConnectionNumber,
        event: SocketEvent,
    ) {
        if event == SocketEvent::Accepted
            && let Some(addresses) = sockets.addresses(socket)
        {
            self.ports.insert(socket, addresses.local.port());
        }
        match self.ports.get(&socket) {
            Some(&HTTP_PORT) => self.http.handle(now, sockets, socket, event),
            Some(&FTP_PORT) => self.ftp.handle_control(sockets, socket, event),
            Some(&FTP_DATA_PORT) => self.ftp.handle_data(sockets, socket, event),
            Some(&SMB_PORT) => {
                if let Some(smb) = &mut self.smb
                    && let Err(problem) = smb.handle(sockets, socket, event)
                {
                    self.fail(sockets, socket, format!("the SMB server: {problem}"));
                }
            }
            Some(&MAILBOX_PORT) => {
                if let Some(mail) = &mut self.mail
                    && let Err(problem) = mail.handle(sockets, socket, event)
                {
                    self.fail(sockets, socket, format!("the mailbox server: {problem}"));
                }
            }
            Some(_) | None => {}
        }
    }

    /// Resets a connection whose client the server does not understand.
    fn fail(&mut self, sockets: &mut HostSockets, socket: ConnectionNumber, problem: String) {
        sockets.abort(socket);
        self.failure.get_or_insert(problem);
    }

    /// Text of the first failure, if there was one.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Files that were sent to the server, in the order of `files`.
    pub(crate) fn arrivals(&mut self, files: &[(String, Bytes)]) -> Vec<Option<Bytes>> {
        let stored = |(name, _): &(String, Bytes)| self.ftp.take_stored(name);
        files.iter().map(stored).collect()
    }
}
