//! The prefetched answers about a share's file system, and the queries that they answer. The server
//! answers the queries as well, but its answers are discarded (`replies`).

use bytes::Bytes;
use vocab::Time;

use super::{PendingRequest, Smb2NearHalf};
use crate::smb::config::LISTING_WAITS;
use crate::smb::wire::FileId;
use crate::smb::wire::frame::frame_header;
use crate::smb::wire::header::{self, Smb2Header, status};
use crate::smb::wire::query_info::{FileSystemQuestion, answer_body};

/// The server's answer to a query that was sent as an open was made.
#[derive(Debug)]
pub(super) struct FileSystemReply {
    pub(super) class: u8,
    /// The client's frames that had arrived before the query to the server.
    pub(super) position: u64,
    pub(super) answer: Bytes,
    pub(super) at: Time,
}

impl Smb2NearHalf {
    /// Stores a prefetched answer.
    pub(super) fn store_file_system_reply(
        &mut self,
        now: Time,
        file: FileId,
        told: FileSystemReply,
    ) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.file_system = Some(told);
        let mut pending = self.pending.values();
        let asked = pending.find_map(|pending| match pending {
            PendingRequest::Asks {
                file_system: Some((header, question)),
                is_answered: false,
                ..
            } if question.file == file => Some((*header, *question)),
            _ => None,
        });
        if let Some((header, question)) = asked {
            self.answer_file_system(now, &header, &question);
        }
    }

    /// The client's question has passed.
    pub(super) fn asks_file_system(
        &mut self,
        now: Time,
        header: &Smb2Header,
        question: &FileSystemQuestion,
    ) {
        if let Some(PendingRequest::Asks {
            file_system,
            is_answered: false,
            ..
        }) = self.pending.get_mut(&header.message_id)
        {
            *file_system = Some((*header, *question));
            self.answer_file_system(now, header, question);
        }
    }

    /// Answers the query, if the prefetched answer fits.
    fn answer_file_system(
        &mut self,
        now: Time,
        header: &Smb2Header,
        question: &FileSystemQuestion,
    ) {
        if self.serves(now, question.file, header).is_none() {
            return;
        }
        let names_changed_at = self.names_changed_at;
        let Some(open) = self.opens.get_mut(&question.file) else {
            return;
        };
        let answers = |told: &mut FileSystemReply| {
            told.class == question.class
                && told.answer.len() <= question.length as usize
                && now.since(told.at) <= LISTING_WAITS
                && names_changed_at <= told.position
        };
        let Some(told) = open.file_system.take_if(answers) else {
            return;
        };
        let Some(PendingRequest::Asks { is_answered, .. }) =
            self.pending.get_mut(&header.message_id)
        else {
            return;
        };
        *is_answered = true;
        self.answered += 1;
        let body = answer_body(&told.answer);
        let mut answer = frame_header(header::LENGTH + body.len()).to_vec();
        answer.extend(header.answer(status::SUCCESS).emit());
        answer.extend(body);
        self.give(header, answer, Vec::new());
    }
}
