//! The parts of their files that clients read first, by the form of the open.
//!
//! Programs that open files in the same way begin with the same parts: an unpacking program with the start and the
//! directory at the end, Windows' Explorer with the two parts that a thumbnail needs. The far half reads these parts
//! with the next such open (`read_ahead`).

use std::collections::VecDeque;

use super::Smb2FarHalf;
use super::query_ahead::QuestionTrigger;
use super::read_ahead::FirstParts;
use crate::smb::config::READ_HABITS_MAX;
use crate::smb::wire::FileId;

/// The parts that were read first the last time, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct ReadHabits(VecDeque<(QuestionTrigger, FirstParts)>);

impl ReadHabits {
    pub(super) fn of(&self, form: QuestionTrigger) -> FirstParts {
        let mut habits = self.0.iter();
        let found = habits.find(|(other, _)| *other == form);
        found.map(|(_, parts)| *parts).unwrap_or_default()
    }

    fn learn(&mut self, form: QuestionTrigger, parts: FirstParts) {
        self.0.retain(|(other, _)| *other != form);
        while self.0.len() >= READ_HABITS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((form, parts));
    }
}

impl Smb2FarHalf {
    /// The client has read of this open, or closes it.
    pub(super) fn learn_first_parts(&mut self, file: FileId) {
        let open = self.opens.get(&file);
        let reads = open.and_then(|open| open.reads.as_ref());
        let form = open.and_then(|open| open.form);
        // One that was not read says nothing.
        if let (Some(reads), Some(form)) = (reads, form)
            && reads.first_parts() != FirstParts::default()
        {
            self.read_habits.learn(form, reads.first_parts());
        }
    }
}
