//! The file system queries that are sent ahead of clients as they open a directory of a share.
//!
//! A stock client that has listed a directory opens the share's root for its attributes and queries
//! the free space. The answer is sent to the near half with the open, and given there if the
//! client's query follows at once. The client's own query still goes to the server, so that the two
//! halves need not agree on the fate of an answer (docs/decisions/0047).

use super::open::TrackedOpen;
use super::{RequestPurpose, Smb2FarHalf, StreamFinish};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::FileId;
use crate::smb::wire::header::{Smb2Header, command, status};
use crate::smb::wire::query_info::{FileSystemQuestion, information};
use crate::smb::wire::split::Smb2MessageHead;

use super::message::GatheredMessage;

/// FileFsSizeInformation ([MS-FSCC] §2.5.8), which a stock smbclient queries.
const SIZE: u8 = 3;

/// Bytes of an answer of ours: more than the fixed classes have, and no more than the head of a
/// message holds.
const ANSWER_MAX: u32 = 80;

/// The query that is predicted for a directory opened for its attributes: the client's last one.
#[derive(Debug)]
pub(crate) struct FileSystemGuess {
    class: u8,
    /// True if such a query followed the last directory that was opened so.
    is_wanted: bool,
}

impl Default for FileSystemGuess {
    fn default() -> Self {
        Self {
            class: SIZE,
            is_wanted: true,
        }
    }
}

impl Smb2FarHalf {
    /// Records a client's query as the prediction of its next one.
    pub(super) fn note_file_system(&mut self, message: &GatheredMessage) {
        if let Some(head) = message.single()
            && head.header.command == command::QUERY_INFO
            && let Ok(Some(question)) = FileSystemQuestion::parse(head.body())
        {
            self.usual_file_system = FileSystemGuess {
                class: question.class,
                is_wanted: true,
            };
        }
    }

    /// A directory was opened for its attributes.
    pub(super) fn ask_file_system(&mut self, file: FileId) {
        let usual = &mut self.usual_file_system;
        if !std::mem::replace(&mut usual.is_wanted, false) {
            return;
        }
        let question = FileSystemQuestion {
            class: usual.class,
            length: ANSWER_MAX,
            file,
        };
        let header = self.question_header(file).filter(|_| self.ids.can_take(1));
        let Some(header) = header else {
            return;
        };
        let purpose = RequestPurpose::AsksFileSystem {
            file,
            class: question.class,
            position: self.position,
        };
        self.send_own(header, &question.emit(), purpose);
    }

    /// Returns the header of a QUERY_INFO that asks ahead of the client, or `None` if a request that changes its answer
    /// is under way.
    pub(super) fn question_header(&self, file: FileId) -> Option<Smb2Header> {
        // What the client asked for before must be in what it is told.
        let mut outstanding = self.outstanding.values();
        let is_idle = self.queue.is_empty() && !outstanding.any(|request| request.changes_names);
        if !is_idle || self.client_finish != StreamFinish::Open {
            return None;
        }
        self.opens.get(&file).map(|open| self.query_header(open))
    }

    /// Returns the header of a QUERY_INFO of our own.
    pub(super) fn query_header(&self, open: &TrackedOpen) -> Smb2Header {
        let mut header = open.request(command::QUERY_INFO);
        let is_large = self
            .connection
            .negotiated()
            .is_some_and(|agreed| agreed.is_large_mtu());
        header.credit_charge = u16::from(is_large);
        header.credits = 1;
        header
    }

    /// The server has answered it.
    pub(super) fn send_file_system_reply(
        &mut self,
        head: &Smb2MessageHead,
        file: FileId,
        class: u8,
        position: u64,
    ) {
        if head.header.status != status::SUCCESS {
            return;
        }
        // One that is longer than asked for, or makes no sense, the client's own question will meet.
        if let Ok(answer) = information(head.body())
            && answer.len() <= ANSWER_MAX as usize
        {
            self.tell_near(HalfFrame::FileSystem {
                file,
                position,
                class,
                answer: answer.to_vec().into(),
            });
        }
    }
}
