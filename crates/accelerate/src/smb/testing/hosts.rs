//! A file server and its client, as hosts that exchange bytes: for tests of the code that carries
//! them.

use super::messages::{self, Smb2CreateParameters};
use super::server::Smb2Server;
use super::world::Smb2Client;
use crate::smb::wire::FileId;
use crate::smb::wire::create::CreateResponse;
use crate::smb::wire::header::status;

/// A server of one file, over one connection.
pub struct FileServer {
    server: Smb2Server,
}

impl FileServer {
    const NAME: &'static str = "a";

    /// One whose file holds this.
    #[must_use]
    pub fn new(contents: Vec<u8>) -> Self {
        let mut server = Smb2Server::new();
        server.connect();
        server.files.insert(Self::NAME.to_owned(), contents);
        Self { server }
    }

    /// Takes bytes of its client's, and gives its answers.
    pub fn hear(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.server.receive(0, bytes);
        self.server.take(0)
    }

    /// The connection has ended.
    pub fn disconnect(&mut self) {
        self.server.disconnect(0);
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
}

/// A client of such a server.
pub struct FileClient {
    client: Smb2Client,
    /// The unanswered request.
    asked: Option<(u64, ClientStep)>,
    file: FileId,
}

impl Default for FileClient {
    fn default() -> Self {
        Self {
            client: Smb2Client::new(),
            asked: None,
            file: FileId([0; 16]),
        }
    }
}

impl FileClient {
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
            ClientStep::Open => Smb2CreateParameters::open(FileServer::NAME).request(),
            ClientStep::OpenLeased => Smb2CreateParameters::leased(FileServer::NAME, 7).request(),
            ClientStep::Read { offset, length } => messages::read(self.file, *offset, *length),
            ClientStep::Write { offset, data } => messages::write(self.file, *offset, data),
            ClientStep::Flush => messages::flush(self.file),
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
            ClientStep::Negotiate | ClientStep::Write { .. } | ClientStep::Flush => {}
        }
        Some(Vec::new())
    }
}
