//! Questions about an open that are asked ahead of its client.
//!
//! ```text
//!  client   CREATE ─► ... ◄─ answer   QUERY_INFO ─► ◄─ from here, or from the server
//!  far               CREATE, QUERY_INFO of the last such open's questions, at once
//! ```
//! Clients ask the same questions about every file that they open in the same way, and after they have
//! renamed one. The far half remembers the questions of the last open of a kind, and asks them as soon as
//! the server has made the next one. Behind a question that only the server may answer, it asks those that
//! follow. If the client has read of the last such open before its questions, they are asked behind the first data,
//! which would delay them otherwise. The near half uses an answer for a question that arrives within 20 ms.
//! A program that has written a file may ask about another one, which it replaces: behind a FLUSH, the question that
//! followed the last one is asked about the open of the same form.
//!
//! Only questions are asked ahead whose answers have neither lengths nor times, and those about streams
//! under a licence (docs/decisions/0084). The client's own questions go to the server as well, so that the
//! two halves need not agree on the fate of an answer.

use std::collections::VecDeque;

use bytes::Bytes;
use vocab::SegmentKind;

use super::message::GatheredMessage;
use super::open::TrackedOpen;
use super::{RequestPurpose, Smb2FarHalf};
use crate::smb::config::{INFORMATION_MAX, QUESTION_HABITS_MAX, QUESTIONS_MAX};
use crate::smb::frames::HalfFrame;
use crate::smb::wire::FileId;
use crate::smb::wire::create::CreateRequest;
use crate::smb::wire::header::{Smb2Header, command, status};
use crate::smb::wire::query_info::{InformationQuestion, information};
use crate::smb::wire::set_info::changes_name;
use crate::smb::wire::split::Smb2MessageHead;
use crate::smb::wire::target::CompoundChain;

/// The event after which a client asks its questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuestionTrigger {
    /// The open of a file, by the request's rights, options and disposition.
    Opened {
        access: u32,
        options: u32,
        disposition: u32,
    },
    /// A change of a file's name.
    NameChanged,
}

impl QuestionTrigger {
    /// The form of a CREATE.
    pub(super) fn of(request: &CreateRequest<'_>) -> Self {
        Self::Opened {
            access: request.access,
            options: request.options,
            disposition: request.disposition,
        }
    }
}

/// The questions of one open.
#[derive(Debug, Default)]
pub(crate) struct AskedQuestions {
    trigger: Option<QuestionTrigger>,
    asked: Vec<InformationQuestion>,
    /// The client has read of the open before its first question.
    follow_reads: bool,
    /// They are to be asked once the first data has been sent.
    is_delayed: bool,
}

/// The questions that followed an event.
#[derive(Clone, Debug, Default)]
struct UsualQuestions {
    asked: Vec<InformationQuestion>,
    /// They came behind READs.
    follow_reads: bool,
}

/// The questions that followed each kind of event the last time, the latest at the end.
#[derive(Debug, Default)]
pub(crate) struct QuestionHabits(VecDeque<(QuestionTrigger, UsualQuestions)>);

impl QuestionHabits {
    fn learn(&mut self, trigger: QuestionTrigger, usual: UsualQuestions) {
        self.0.retain(|(other, _)| *other != trigger);
        while self.0.len() >= QUESTION_HABITS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((trigger, usual));
    }

    fn of(&self, trigger: QuestionTrigger) -> UsualQuestions {
        let mut habits = self.0.iter();
        let found = habits.find(|(other, _)| *other == trigger);
        found.map(|(_, usual)| usual.clone()).unwrap_or_default()
    }
}

/// The question about another open that follows a FLUSH.
#[derive(Debug, Default)]
pub(super) struct FlushHabit {
    /// The client's FLUSH that is under way, by its message id, and its open.
    flushing: Option<(u64, FileId)>,
    /// The open that was flushed last, until the client asks about another one.
    flushed: Option<FileId>,
    /// The form of the open that was asked about, and the question.
    follows: Option<(QuestionTrigger, InformationQuestion)>,
}

impl Smb2FarHalf {
    /// Records a FLUSH, and the question about another open that follows it.
    fn note_flush(&mut self, header: &Smb2Header, file: FileId, body: &[u8]) {
        match header.command {
            command::FLUSH => self.flush_habit.flushing = Some((header.message_id, file)),
            command::QUERY_INFO => {
                let Some(flushed) = self.flush_habit.flushed.take() else {
                    return;
                };
                let form = self.opens.get(&file).and_then(|open| open.form);
                let question = InformationQuestion::parse(body).ok().flatten();
                let follows = form.zip(question.map(|(question, _)| question));
                self.flush_habit.follows = follows.filter(|_| file != flushed);
            }
            _ => {}
        }
    }

    /// The server has answered a FLUSH with success.
    pub(super) fn ask_after_flush(&mut self, message_id: u64) {
        let flushing = self.flush_habit.flushing;
        let Some((_, flushed)) = flushing.filter(|(id, _)| *id == message_id) else {
            return;
        };
        self.flush_habit.flushing = None;
        self.flush_habit.flushed = Some(flushed);
        let Some((form, question)) = self.flush_habit.follows else {
            return;
        };
        let opens = self.opens.iter();
        let mut meant = opens.filter(|(file, open)| **file != flushed && open.form == Some(form));
        // With several the next question is unknown.
        if let (Some((file, _)), None) = (meant.next(), meant.next()) {
            let file = *file;
            self.ask_ahead(file, vec![question]);
        }
    }

    /// Records a frame's questions, and the events that end the questions of an open.
    pub(super) fn note_questions(&mut self, message: &GatheredMessage) {
        let mut chain = CompoundChain::default();
        for head in message.heads() {
            let Some(file) = chain.touch(&head.header, head.body()).file() else {
                continue;
            };
            self.note_flush(&head.header, file, head.body());
            let Some(open) = self.opens.get_mut(&file) else {
                continue;
            };
            if head.header.command == command::READ {
                open.is_read = true;
                open.questions.follow_reads |= open.questions.asked.is_empty();
            }
            let questions = &mut open.questions;
            if head.header.command == command::QUERY_INFO {
                // It is too late to ask ahead of the client.
                questions.is_delayed = false;
            }
            let is_name = head.header.command == command::SET_INFO && changes_name(head.body());
            if head.header.command == command::QUERY_INFO
                && let Ok(Some((question, _))) = InformationQuestion::parse(head.body())
                && questions.asked.len() < QUESTIONS_MAX
            {
                questions.asked.push(question);
            }
            if is_name || head.header.command == command::CLOSE {
                let usual = UsualQuestions {
                    asked: std::mem::take(&mut questions.asked),
                    follow_reads: std::mem::take(&mut questions.follow_reads),
                };
                if let Some(trigger) = questions.trigger.take() {
                    self.question_habits.learn(trigger, usual);
                }
                questions.trigger = is_name.then_some(QuestionTrigger::NameChanged);
            }
        }
    }

    /// The server has opened a file.
    pub(super) fn ask_after_open(&mut self, file: FileId, trigger: QuestionTrigger) {
        if let Some(open) = self.opens.get_mut(&file) {
            open.questions.trigger = Some(trigger);
            let usual = self.question_habits.of(trigger);
            match usual.follow_reads && open.awaits_first_data() {
                true => open.questions.is_delayed = true,
                false => self.ask_ahead(file, usual.asked),
            }
        }
    }

    /// Data of an open has been sent. Asks what waits for its first data.
    pub(super) fn ask_delayed(&mut self, file: FileId) {
        let Some(open) = self.opens.get_mut(&file) else {
            return;
        };
        if open.awaits_first_data() {
            return;
        }
        let is_delayed = std::mem::take(&mut open.questions.is_delayed);
        let looks = open.looks.take();
        if let Some(trigger) = open.questions.trigger.filter(|_| is_delayed) {
            self.ask_ahead(file, self.question_habits.of(trigger).asked);
        }
        if let Some(looks) = looks {
            self.look_behind_data(looks);
        }
    }

    /// The server has made a change through an open, perhaps of its name.
    pub(super) fn ask_after_change(&mut self, file: FileId) {
        let open = self.opens.get(&file);
        if open.is_some_and(|open| open.questions.trigger == Some(QuestionTrigger::NameChanged)) {
            let usual = self.question_habits.of(QuestionTrigger::NameChanged);
            self.ask_ahead(file, usual.asked);
        }
    }

    /// The server has answered a question of the client's.
    pub(super) fn ask_after_question(&mut self, file: FileId, question: InformationQuestion) {
        let open = self.opens.get(&file);
        let trigger = open.and_then(|open| open.questions.trigger);
        // Those behind one that may be asked ahead were asked with it.
        let Some(trigger) = trigger.filter(|_| !question.is_stable()) else {
            return;
        };
        let questions = self.question_habits.of(trigger).asked;
        let place = questions.iter().position(|other| *other == question);
        let behind = place.map_or(questions.len(), |place| place + 1);
        self.ask_ahead(file, questions[behind..].to_vec());
    }

    fn ask_ahead(&mut self, file: FileId, questions: Vec<InformationQuestion>) {
        if !self.near_takes_office_requests {
            return;
        }
        let Some(header) = self.question_header(file) else {
            return;
        };
        let is_held = self.opens.get(&file).is_some_and(TrackedOpen::is_held);
        for question in questions {
            let may_ask = question.is_stable() || question.is_of_streams() && is_held;
            if !may_ask || !self.ids.can_take(1) {
                continue;
            }
            let purpose = RequestPurpose::AsksAhead {
                file,
                question,
                position: self.position,
            };
            self.send_own(header, &question.emit(file, INFORMATION_MAX), purpose);
        }
    }

    /// The server has answered one of these questions.
    pub(super) fn send_information(
        &mut self,
        head: &Smb2MessageHead,
        rest: &[(SegmentKind, Bytes)],
        (file, question, position): (FileId, InformationQuestion, u64),
    ) {
        if head.header.status != status::SUCCESS {
            return;
        }
        let mut body = head.body().to_vec();
        rest.iter()
            .for_each(|(_, bytes)| body.extend_from_slice(bytes));
        // One that is longer than asked for, or makes no sense, the client's own question will meet.
        if let Ok(answer) = information(&body)
            && answer.len() <= INFORMATION_MAX as usize
        {
            self.tell_near(HalfFrame::Information {
                file,
                position,
                question,
                answer: answer.to_vec().into(),
            });
        }
    }
}
