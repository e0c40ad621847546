//! Questions about opens that the far half has asked ahead, and the client's frames that they answer. The
//! server answers those frames as well, but its answers are discarded (`replies`).
//!
//! ```text
//!  client   QUERY_INFO ──── one to three in a compound ────► passes to the far half
//!           ◄── the answers, in one frame, if each of them is here and fits
//! ```

use bytes::Bytes;
use vocab::Time;

use super::{PendingRequest, Smb2NearHalf};
use crate::smb::config::{LISTING_WAITS, QUESTIONS_MAX};
use crate::smb::keys::SignatureMac;
use crate::smb::wire::FileId;
use crate::smb::wire::frame::frame_header;
use crate::smb::wire::header::{self, MessageProtection, Smb2Header, command, flag, status};
use crate::smb::wire::query_info::{InformationQuestion, answer_body};
use crate::smb::wire::split::Smb2MessageHead;

/// The server's answer to a question.
#[derive(Debug)]
pub(super) struct InformationReply {
    question: InformationQuestion,
    /// The client's frames that had arrived before the question to the server.
    position: u64,
    answer: Bytes,
    at: Time,
}

impl InformationReply {
    pub(super) fn bytes(&self) -> usize {
        self.answer.len()
    }
}

/// One question of the client's.
#[derive(Debug)]
struct AskedQuestion {
    header: Smb2Header,
    question: InformationQuestion,
    /// Bytes that the answer may hold.
    length: u32,
}

/// A frame of the client's that has nothing but questions about one open.
#[derive(Debug)]
pub(super) struct QuestionFrame {
    file: FileId,
    asked: Vec<AskedQuestion>,
    /// The signature of the message that is passing.
    mac: Option<SignatureMac>,
}

impl QuestionFrame {
    /// Ends the message that is passing; false if its signature is not its session's.
    fn verify(&mut self) -> bool {
        let is_signed = self
            .asked
            .last()
            .is_some_and(|asked| asked.header.guard() == MessageProtection::Signed);
        let mac = self.mac.take();
        !is_signed || mac.and_then(SignatureMac::verify).is_some()
    }

    /// More of the message that is passing.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        if let Some(mac) = &mut self.mac {
            mac.update(bytes);
        }
    }
}

impl Smb2NearHalf {
    /// A message about an open passes: another of the frame's questions, or the end of them.
    pub(super) fn note_question(&mut self, head: &Smb2MessageHead, file: Option<FileId>) {
        let frame = match head.start {
            0 => self.asking.take(),
            _ => file.map(|file| QuestionFrame {
                file,
                asked: Vec::new(),
                mac: None,
            }),
        };
        self.asking = None;
        let Some(mut frame) = frame else {
            return;
        };
        if !frame.verify()
            || file != Some(frame.file)
            || head.header.command != command::QUERY_INFO
            || frame.asked.len() >= QUESTIONS_MAX
        {
            return;
        }
        let Ok(Some((question, length))) = InformationQuestion::parse(head.body()) else {
            return;
        };
        if head.header.guard() == MessageProtection::Signed {
            let key = self.keys.get(&head.header.session);
            frame.mac = key.map(|key| key.begin(head.message()));
        }
        frame.asked.push(AskedQuestion {
            header: head.header,
            question,
            length,
        });
        self.asking = Some(frame);
    }

    /// A frame of the client's has passed.
    pub(super) fn questions_passed(&mut self, now: Time) {
        if let Some(mut frame) = self.asking.take()
            && frame.verify()
        {
            self.questions = Some(frame);
            self.answer_questions(now);
        }
    }

    /// Stores an answer of the server's.
    pub(super) fn store_information(
        &mut self,
        now: Time,
        file: FileId,
        position: u64,
        question: InformationQuestion,
        answer: Bytes,
    ) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        open.information.retain(|reply| reply.question != question);
        if open.information.len() >= QUESTIONS_MAX {
            open.information.remove(0);
        }
        open.information.push(InformationReply {
            question,
            position,
            answer,
            at: now,
        });
        self.answer_questions(now);
    }

    /// Answers the last frame of questions, if all of its answers are here.
    fn answer_questions(&mut self, now: Time) {
        let Some(frame) = &self.questions else {
            return;
        };
        let Some(first) = frame.asked.first().map(|asked| asked.header) else {
            return;
        };
        let is_open = |header: &Smb2Header| {
            let pending = self.pending.get(&header.message_id);
            matches!(
                pending,
                Some(PendingRequest::Asks {
                    is_answered: false,
                    ..
                })
            )
        };
        if !frame.asked.iter().all(|asked| is_open(&asked.header)) {
            self.questions = None;
            return;
        }
        if self.serves(now, frame.file, &first).is_none() {
            return;
        }
        let Some(open) = self.opens.get(&frame.file) else {
            return;
        };
        let find = |asked: &AskedQuestion| {
            let fits = |reply: &&InformationReply| {
                reply.question == asked.question
                    && reply.answer.len() <= asked.length as usize
                    && now.since(reply.at) <= LISTING_WAITS
                    && self.answers_changed_at <= reply.position
                    && open.changed_at <= reply.position
            };
            let found = open.information.iter().find(fits);
            found.map(|reply| reply.answer.clone())
        };
        let answers: Option<Vec<Bytes>> = frame.asked.iter().map(find).collect();
        // A related request may leave its session and tree to the one before.
        let is_its = |asked: &AskedQuestion| {
            let is_related = asked.header.has(flag::RELATED);
            let whose = (asked.header.session, asked.header.tree);
            asked.header.guard() >= first.guard()
                && (is_related || whose == (first.session, first.tree))
        };
        let (Some(answers), true) = (answers, frame.asked.iter().all(is_its)) else {
            return;
        };
        let Some(frame) = self.questions.take() else {
            return;
        };
        self.give_answers(&first, &frame.asked, &answers);
    }

    /// Gives the client the answers to the questions of a frame, in one frame.
    fn give_answers(&mut self, first: &Smb2Header, asked: &[AskedQuestion], answers: &[Bytes]) {
        let key = self.keys.get(&first.session);
        let key = key.filter(|_| first.guard() == MessageProtection::Signed);
        let mut messages = Vec::new();
        for (index, (asked, answer)) in asked.iter().zip(answers).enumerate() {
            let mut body = answer_body(answer);
            let mut next = 0;
            if index + 1 < answers.len() {
                // Messages of a compound begin at multiples of eight ([MS-SMB2] §3.3.4.1.3).
                let length = (header::LENGTH + body.len()).next_multiple_of(8);
                body.resize(length - header::LENGTH, 0);
                next = length as u32;
            }
            let mut header = asked.header.answer(status::SUCCESS);
            (header.session, header.tree) = (first.session, first.tree);
            header.flags |= asked.header.flags & flag::RELATED;
            header.next = next;
            let mut message = header.emit().to_vec();
            message.extend(body);
            if let Some(key) = key {
                key.sign(&mut message, []);
            }
            messages.extend(message);
        }
        for asked in asked {
            if let Some(PendingRequest::Asks { is_answered, .. }) =
                self.pending.get_mut(&asked.header.message_id)
            {
                *is_answered = true;
            }
        }
        self.answered += asked.len() as u64;
        let mut front = frame_header(messages.len()).to_vec();
        front.extend(messages);
        self.give_signed(first, front);
    }

    /// Returns true if the answers in a frame of the server's are discarded together, or none of them is:
    /// a frame has either answers to questions that were answered here, or others.
    pub(super) fn discards_alike(&mut self, head: &Smb2MessageHead, is_discarded: bool) -> bool {
        if head.start > 0 {
            self.discards_frame = is_discarded;
        }
        self.discards_frame == is_discarded
    }
}
