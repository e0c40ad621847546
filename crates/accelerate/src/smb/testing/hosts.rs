//! A file server, and a client of its, as hosts that are given bytes and give bytes: for tests of
//! whoever carries them.

use super::messages::{self, Create};
use super::server::Server;
use super::world::Client;
use crate::smb::wire::FileId;
use crate::smb::wire::create::CreateAnswer;
use crate::smb::wire::header::status;

/// A server of one file, over one connection.
pub struct FileServer {
    server: Server,
}

impl FileServer {
    const NAME: &'static str = "a";

    /// One whose file holds this.
    #[must_use]
    pub fn new(contents: Vec<u8>) -> Self {
        let mut server = Server::new();
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

    /// What the file holds.
    #[must_use]
    pub fn contents(&self) -> &[u8] {
        &self.server.files[Self::NAME]
    }

    /// How many opens there are.
    #[must_use]
    pub fn open_count(&self) -> usize {
        self.server.open_count()
    }
}

/// What a client asks, one after the other: the first four connect it and open the file.
#[derive(Clone, Debug)]
pub enum Question {
    /// Which dialect.
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
    /// That it is kept.
    Flush,
}

/// A client of such a server's.
pub struct FileClient {
    client: Client,
    /// What is not answered.
    asked: Option<(u64, Question)>,
    file: FileId,
}

impl Default for FileClient {
    fn default() -> Self {
        Self {
            client: Client::new(),
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
    pub fn ask(&mut self, question: Question) -> Vec<u8> {
        assert!(self.asked.is_none(), "{:?} is not answered", self.asked);
        let request = match &question {
            Question::Negotiate => messages::negotiate(),
            Question::SetUp => messages::session_setup(),
            Question::Connect => messages::tree_connect(),
            Question::Open => Create::open(FileServer::NAME).request(),
            Question::OpenLeased => Create::leased(FileServer::NAME, 7).request(),
            Question::Read { offset, length } => messages::read(self.file, *offset, *length),
            Question::Write { offset, data } => messages::write(self.file, *offset, data),
            Question::Flush => messages::flush(self.file),
        };
        let (ids, bytes) = self.client.frame(std::slice::from_ref(&request));
        self.asked = Some((ids[0], question));
        bytes
    }

    /// Takes bytes of the server's. What the question that is answered with them was told: the data of a READ,
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
            Question::SetUp => self.client.session = answer.header.session,
            Question::Connect => self.client.tree = answer.header.tree,
            Question::Open | Question::OpenLeased => {
                let opened = CreateAnswer::parse(&answer.body);
                self.file = opened.expect("it is a CREATE's").file;
            }
            Question::Read { .. } => return Some(answer.data().to_vec()),
            Question::Negotiate | Question::Write { .. } | Question::Flush => {}
        }
        Some(Vec::new())
    }
}
