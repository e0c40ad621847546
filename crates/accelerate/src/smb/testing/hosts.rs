//! A file server and its client, as hosts that exchange bytes: for tests of the code that carries
//! them.

use super::messages::{self, Smb2CreateParameters};
use super::server::Smb2Server;
use super::world::Smb2Client;
use crate::smb::wire::FileId;
use crate::smb::wire::create::CreateResponse;
use crate::smb::wire::header::status;

/// A server of files, over any number of connections.
pub struct FileServer {
    server: Smb2Server,
    /// Bytes of its answers.
    answered_bytes: u64,
}

impl FileServer {
    const NAME: &'static str = "a";

    /// A server of one file with this content, with one connection.
    #[must_use]
    pub fn new(contents: Vec<u8>) -> Self {
        let mut server = Self::of_files([(Self::NAME.to_owned(), contents)]);
        server.connect();
        server
    }

    /// A server of these files, without a connection.
    #[must_use]
    pub fn of_files(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let mut server = Smb2Server::new();
        server.files.extend(files);
        Self {
            server,
            answered_bytes: 0,
        }
    }

    /// Accepts a connection and returns its number.
    pub fn connect(&mut self) -> usize {
        self.server.connect()
    }

    /// Takes bytes of the first client, and gives its answers.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.hear_from(0, bytes)
    }

    /// Takes bytes of the client of this connection, and gives its answers.
    pub fn hear_from(&mut self, connection: usize, bytes: &[u8]) -> Vec<u8> {
        self.server.receive(connection, bytes);
        let answers = self.server.take(connection);
        self.answered_bytes += answers.len() as u64;
        answers
    }

    /// The bytes of all its answers.
    #[must_use]
    pub fn answered_bytes(&self) -> u64 {
        self.answered_bytes
    }

    /// The first connection has ended.
    pub fn disconnect(&mut self) {
        self.disconnect_from(0);
    }

    /// This connection has ended.
    pub fn disconnect_from(&mut self, connection: usize) {
        self.server.disconnect(connection);
    }

    /// The contents of the file.
    #[must_use]
    pub fn contents(&self) -> &[u8] {
        &self.server.files[Self::NAME]
    }

    /// The number of opens.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.server.open_count()
    }
}

/// The client's requests in order: the first four connect it and open the file.
#[derive(Clone, Debug)]
pub enum ClientStep {
    /// Negotiate the dialect.
    Negotiate,
    /// For a session.
    SetUp,
    /// For the share.
    Connect,
    /// To open the file, to read and write it.
    Open,
    /// The same under a lease.
    OpenLeased,
    /// For what it holds.
    Read {
        /// From here on.
        offset: u64,
        /// So many bytes.
        length: u32,
    },
    /// To write to it.
    Write {
        /// From here on.
        offset: u64,
        /// This.
        data: Vec<u8>,
    },
    /// Flush the written data.
    Flush,
    /// To close the file.
    Close,
}

/// A client of such a server.
pub struct FileClient {
    client: Smb2Client,
    /// The unanswered request.
    asked: Option<(u64, ClientStep)>,
    name: String,
    file: FileId,
}

impl Default for FileClient {
    fn default() -> Self {
        Self::of(FileServer::NAME)
    }
}

impl FileClient {
    /// A client of this file.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut client = Smb2Client::new();
        client.keeps_streams = false;
        Self {
            client,
            asked: None,
            name: name.to_owned(),
            file: FileId([0; 16]),
        }
    }

    /// The bytes of a question.
    ///
    /// # Panics
    /// When the one before is not answered.
    pub fn ask(&mut self, question: ClientStep) -> Vec<u8> {
        assert!(self.asked.is_none(), "{:?} is not answered", self.asked);
        let request = match &question {
            ClientStep::Negotiate => messages::negotiate(),
            ClientStep::SetUp => messages::session_setup(),
            ClientStep::Connect => messages::tree_connect(),
            ClientStep::Open => Smb2CreateParameters::open(&self.name).request(),
            ClientStep::OpenLeased => Smb2CreateParameters::leased(&self.name, 7).request(),
            ClientStep::Read { offset, length } => messages::read(self.file, *offset, *length),
            ClientStep::Write { offset, data } => messages::write(self.file, *offset, data),
            ClientStep::Flush => messages::flush(self.file),
            ClientStep::Close => messages::close(self.file),
        };
        let (ids, bytes) = self.client.frame(std::slice::from_ref(&request));
        self.asked = Some((ids[0], question));
        bytes
    }

    /// Takes the server's bytes. Returns the result of the answered request: the data of a READ,
    /// nothing of another.
    ///
    /// # Panics
    /// When it is refused.
    pub fn hear(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.client.receive(bytes);
        let (id, _) = self.asked.as_ref()?;
        let answer = self.client.answered.remove(id)?;
        assert_eq!(answer.header.status, status::SUCCESS, "{:?}", self.asked);
        match self.asked.take()?.1 {
            ClientStep::SetUp => self.client.session = answer.header.session,
            ClientStep::Connect => self.client.tree = answer.header.tree,
            ClientStep::Open | ClientStep::OpenLeased => {
                let opened = CreateResponse::parse(&answer.body);
                self.file = opened.expect("it is a CREATE's").file;
            }
            ClientStep::Read { .. } => return Some(answer.data().to_vec()),
            ClientStep::Negotiate
            | ClientStep::Write { .. }
            | ClientStep::Flush
            | ClientStep::Close => {}
        }
        Some(Vec::new())
    }
}
