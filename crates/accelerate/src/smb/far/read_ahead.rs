//! Reads ahead of one open's client: tracks the requested and the sent ranges, and the READs that
//! they cover.
//!
//! ```text
//!  file:   …consumed… start ▒▒▒▒ sent ▒▒▒▒│░░░ asked for ░░░│ next …                    end
//!                     └────────────── limit at most ────────┘
//! ```
//! A run starts with the file's first block when it is opened, or behind a READ that continues the
//! one before it (or is the first, at the file's start). It may reach twice as far ahead as the
//! client has followed it, so unused data is never much more than used data. From the second READ on it may fill the
//! path to the near half, which costs the link no more than a round trip. A READ elsewhere sets the run aside, if it
//! is short, and a READ there continues it: programs look at a document's end before they read on at its start. The
//! first READ elsewhere that begins near the file's end is followed to the end at once. If the client read both ends of
//! the last file that it opened in this way, both are read with the open ([`FirstParts`]).
//!
//! It decides nothing about licences, credits or the path; `far` does.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::config::{
    AHEAD_BLOCK_MAX, AHEAD_MAX, ASIDE_MAX, FIRST_BLOCK, FIRST_BLOCK_MIN, TAIL_MAX,
};

/// The handling of a client's READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadVerdict {
    /// The near half has all data for it, or will have it before this message arrives.
    Settled,
    /// The data that answers it was requested and is not sent yet.
    Wait,
    /// The server must answer it.
    Forward,
}

/// The parts of a file that a client reads first: bytes from its start and before its end. 0: unknown, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FirstParts {
    pub(crate) start: u64,
    pub(crate) tail: u64,
}

#[derive(Clone, Copy, Debug)]
struct ReadAheadBlock {
    offset: u64,
    length: u32,
    done: bool,
}

#[derive(Debug)]
struct SequentialRun {
    /// The end of the client's requests.
    start: u64,
    /// The end of the requested data.
    next: u64,
    /// The greatest distance of `next` from `start`.
    limit: u64,
    /// The client has usually left the run here.
    left_at: u64,
    /// True once a READ of the client has followed the run.
    is_followed: bool,
    /// The size of one request: the client's own size.
    block: u32,
    /// The blocks that were requested and that the client has not passed, in order.
    blocks: VecDeque<ReadAheadBlock>,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    run: Option<SequentialRun>,
    /// The run that a READ elsewhere interrupted.
    aside: Option<SequentialRun>,
    /// True once the file's end was read ahead because of a READ near it.
    has_read_tail: bool,
    /// The run aside is the file's end, and is to be read with the open.
    wants_tail: bool,
    /// The length of the file as it was opened.
    opened_end: u64,
    /// The parts of the file that the client read first, until it read elsewhere for the second time.
    parts: FirstParts,
    /// The client has read elsewhere than behind its first READs.
    has_left_start: bool,
    /// The offset at which a READ would continue the last one.
    expected: u64,
    /// Bytes in flight that fill the path to the near half; 0: unknown.
    path_bytes: u64,
    /// The longest READ that the server takes.
    read_max: u32,
    /// The end of the file, as far as it is certain.
    end: Option<u64>,
}

impl ReadAhead {
    /// For an open whose file is `end` bytes long; reads its first block.
    pub(crate) fn new(end: u64, read_max: u32, path_bytes: u64) -> Self {
        Self::reading(end, read_max, path_bytes, FirstParts::default())
    }

    /// The same where the client has read these parts of the last file first; reads them.
    pub(crate) fn reading(end: u64, read_max: u32, path_bytes: u64, usual: FirstParts) -> Self {
        let first = match usual.start {
            0 => FIRST_BLOCK,
            // Files of one kind differ in the length of their first part.
            start => start.clamp(FIRST_BLOCK_MIN.into(), FIRST_BLOCK.into()) as u32,
        };
        let block = first.min(read_max).max(1);
        let mut ahead = Self::waiting(end, read_max, path_bytes);
        ahead.begin(0, block, u64::from(block));
        let tail = usual
            .tail
            .next_multiple_of(FIRST_BLOCK_MIN.into())
            .min(TAIL_MAX);
        if tail > 0 && end > u64::from(block) + tail {
            let block = read_max.min(tail as u32).max(1);
            ahead.aside = Some(SequentialRun::new(end - tail, block, tail));
            if let Some(run) = ahead
                .run
                .as_mut()
                .filter(|_| usual.start < u64::from(FIRST_BLOCK))
            {
                run.left_at = usual.start;
            }
            (ahead.has_read_tail, ahead.wants_tail) = (true, true);
        }
        ahead
    }

    /// Returns the parts of the file that the client has read first.
    pub(crate) fn first_parts(&self) -> FirstParts {
        self.parts
    }

    /// Returns true if all data that is wanted now has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        let is_done = self
            .runs()
            .flat_map(|run| &run.blocks)
            .all(|block| block.done);
        is_done && self.next(u64::MAX).is_none()
    }

    /// The same, and reads nothing before the client does.
    pub(crate) fn waiting(end: u64, read_max: u32, path_bytes: u64) -> Self {
        Self {
            run: None,
            aside: None,
            has_read_tail: false,
            wants_tail: false,
            opened_end: end,
            parts: FirstParts::default(),
            has_left_start: false,
            expected: 0,
            path_bytes,
            read_max,
            end: Some(end),
        }
    }

    /// Returns the end of the file, if it is certain.
    pub(crate) fn end(&self) -> Option<u64> {
        self.end
    }

    /// Forgets all data because the file may have changed.
    pub(crate) fn forget(&mut self) {
        self.stop();
        self.end = None;
        // The next READ may continue the last one, and begins a run again.
    }

    /// Stops reading ahead until the client continues by itself. The known end of the file stays.
    pub(crate) fn stop(&mut self) {
        self.run = None;
        self.aside = None;
        self.wants_tail = false;
    }

    /// The bytes that were requested or sent and that the client has not requested yet. A run aside counts only if it
    /// is long: many opens may have a short one.
    pub(crate) fn ahead(&self) -> u64 {
        #[cfg(test)]
        looks::count();
        let run = self.run.as_ref().map_or(0, SequentialRun::ahead);
        let aside = self.aside.as_ref().map_or(0, SequentialRun::ahead);
        run + if aside > ASIDE_MAX { aside } else { 0 }
    }

    /// Handles a client's READ, plain and within the server's limit.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> ReadVerdict {
        let end = offset + u64::from(length);
        let continues = offset == self.expected;
        self.expected = end;
        self.note_part(offset, end);
        let block = length.min(self.read_max).max(1);
        if let Some(verdict) = self.follow(offset, length) {
            return verdict;
        }
        std::mem::swap(&mut self.run, &mut self.aside);
        self.wants_tail = false;
        if let Some(verdict) = self.follow(offset, length) {
            return verdict;
        }
        // The run that the client left is in `aside` now, and the one that it left before in `run`.
        if self
            .aside
            .as_ref()
            .is_none_or(|run| !(1..=ASIDE_MAX).contains(&run.ahead()))
        {
            self.aside = self.run.take();
        }
        self.run = None;
        let tail = self.end.and_then(|file_end| file_end.checked_sub(end));
        let is_tail = |tail: &u64| (1..=TAIL_MAX).contains(tail) && !self.has_read_tail;
        if continues && length <= AHEAD_BLOCK_MAX {
            self.begin(end, block, 2 * u64::from(block));
        } else if let Some(tail) = tail.filter(is_tail) {
            self.has_read_tail = true;
            self.begin(end, self.read_max.min(tail as u32), tail);
        }
        ReadVerdict::Forward
    }

    /// Notes a READ among those that the client begins with.
    fn note_part(&mut self, offset: u64, end: u64) {
        if !self.has_left_start && offset == self.parts.start {
            // One that reached the end does not say how much of a longer file the client would read.
            self.parts.start = match end >= self.opened_end {
                true => u64::from(FIRST_BLOCK),
                false => end,
            };
            return;
        }
        // It comes back for more than it has read first.
        if self.has_left_start && offset == self.parts.start {
            self.parts.start = u64::from(FIRST_BLOCK);
        }
        let tail = self.opened_end.saturating_sub(offset);
        if !self.has_left_start && (1..=TAIL_MAX).contains(&tail) {
            self.parts.tail = tail;
        }
        self.has_left_start = true;
    }

    /// Handles a READ within the run, or right behind it; `None` for another.
    fn follow(&mut self, offset: u64, length: u32) -> Option<ReadVerdict> {
        let end = offset + u64::from(length);
        let block = length.min(self.read_max).max(1);
        let run = self.run.as_mut()?;
        let wanted = self.end.map_or(end, |file_end| end.min(file_end));
        if offset >= run.start && (wanted <= run.next || offset >= wanted) {
            run.start = offset.min(run.next);
            if end > run.left_at {
                run.extend(block, self.path_bytes);
            }
            run.block = block.min(AHEAD_BLOCK_MAX);
            run.drop_passed();
            return Some(self.verdict(offset, length));
        }
        // The client has caught up, by one READ or by several at a time.
        if offset == run.next && length <= AHEAD_BLOCK_MAX {
            run.start = end;
            run.next = end;
            run.extend(block, self.path_bytes);
            run.block = block;
            run.drop_passed();
            return Some(ReadVerdict::Forward);
        }
        None
    }

    /// Returns the verdict on a READ that was received earlier, from the data that has been sent
    /// now.
    pub(crate) fn verdict(&self, offset: u64, length: u32) -> ReadVerdict {
        if self.run.is_none() && self.aside.is_none() {
            return ReadVerdict::Forward;
        }
        let end = offset + u64::from(length);
        let end = self.end.map_or(end, |file_end| end.min(file_end));
        if offset >= end {
            // Behind the file's end, which the near half was told.
            return ReadVerdict::Settled;
        }
        let mut verdicts = self.runs().map(|run| run.verdict(offset, end));
        verdicts
            .find(|verdict| *verdict != ReadVerdict::Forward)
            .unwrap_or(ReadVerdict::Forward)
    }

    fn runs(&self) -> impl Iterator<Item = &SequentialRun> {
        self.run.iter().chain(&self.aside)
    }

    /// Returns the next request to the server, of at most `room` bytes beyond the client's own
    /// requests.
    pub(crate) fn next(&self, room: u64) -> Option<(u64, u32)> {
        let tail = self.aside.as_ref().filter(|_| self.wants_tail);
        let mut runs = self.run.iter().chain(tail);
        runs.find_map(|run| self.next_of(run, room))
    }

    fn next_of(&self, run: &SequentialRun, room: u64) -> Option<(u64, u32)> {
        let mut length = u64::from(run.block.min(self.read_max));
        if let Some(end) = self.end {
            length = length.min(end.saturating_sub(run.next));
        }
        let ahead = run.next - run.start + length;
        (length > 0 && ahead <= run.limit.max(u64::from(run.block)) && length <= room)
            .then_some((run.next, length as u32))
    }

    /// Records the request that [`Self::next`] returned as sent.
    pub(crate) fn asked(&mut self, offset: u64, length: u32) {
        let mut runs = self.run.iter_mut().chain(&mut self.aside);
        if let Some(run) = runs.find(|run| run.next == offset) {
            run.next = offset + u64::from(length);
            run.blocks.push_back(ReadAheadBlock {
                offset,
                length,
                done: false,
            });
        }
    }

    /// Returns true if an answer to this request is still outstanding.
    pub(crate) fn awaits(&self, offset: u64, length: u32) -> bool {
        let mut blocks = self.runs().flat_map(|run| &run.blocks);
        blocks.any(|block| block.offset == offset && block.length == length && !block.done)
    }

    /// Records that `count` bytes of the requested data have been sent. Fewer bytes than requested
    /// mean that the file ends there.
    pub(crate) fn sent(&mut self, offset: u64, length: u32, count: u32) {
        for run in self.run.iter_mut().chain(&mut self.aside) {
            let mut blocks = run.blocks.iter_mut();
            if let Some(block) =
                blocks.find(|block| block.offset == offset && block.length == length)
            {
                block.done = true;
            }
        }
        if count < length {
            let end = offset + u64::from(count);
            self.end = Some(self.end.map_or(end, |known| known.min(end)));
        }
    }

    /// The near half no longer has the blocks that begin in this range.
    pub(crate) fn dropped(&mut self, range: &Range<u64>) {
        for run in self.run.iter_mut().chain(&mut self.aside) {
            // What is not sent yet will be there.
            run.blocks
                .retain(|block| !block.done || !range.contains(&block.offset));
        }
    }

    fn begin(&mut self, at: u64, block: u32, limit: u64) {
        self.run = Some(SequentialRun::new(at, block, limit));
    }
}

impl SequentialRun {
    fn new(at: u64, block: u32, limit: u64) -> Self {
        Self {
            start: at,
            next: at,
            limit,
            left_at: 0,
            is_followed: false,
            block,
            blocks: VecDeque::new(),
        }
    }

    fn ahead(&self) -> u64 {
        self.next - self.start
    }

    /// Returns the verdict on a READ from `offset` to `end`, from the data of this run.
    fn verdict(&self, offset: u64, end: u64) -> ReadVerdict {
        let mut reached = offset;
        for block in &self.blocks {
            if block.offset <= reached && reached < block.offset + u64::from(block.length) {
                if !block.done {
                    return ReadVerdict::Wait;
                }
                reached = block.offset + u64::from(block.length);
                if reached >= end {
                    return ReadVerdict::Settled;
                }
            }
        }
        ReadVerdict::Forward
    }

    /// Lets the run reach further ahead, after a READ of `block` bytes that followed it.
    fn extend(&mut self, block: u32, path_bytes: u64) {
        let path = if self.is_followed { path_bytes } else { 0 };
        let least = path.max(4 * u64::from(block)).min(AHEAD_MAX);
        self.limit = (self.limit * 2).clamp(least, AHEAD_MAX);
        self.is_followed = true;
    }

    /// Forgets the blocks that lie wholly before `start`, as the near half does.
    fn drop_passed(&mut self) {
        while self
            .blocks
            .front()
            .is_some_and(|block| block.done && block.offset + u64::from(block.length) <= self.start)
        {
            self.blocks.pop_front();
        }
    }
}

/// The count of checks how far ahead an open is: with a thousand opens, they are the main work of a
/// flow.
#[cfg(test)]
pub(crate) mod looks {
    use std::cell::Cell;

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    pub(super) fn count() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// Returns the count of this test since the last call.
    pub(crate) fn take() -> usize {
        LOOKS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends all permitted requests. Returns their offsets.
    fn ask(ahead: &mut ReadAhead) -> Vec<(u64, u32)> {
        let mut asked = Vec::new();
        while let Some((offset, length)) = ahead.next(u64::MAX) {
            ahead.asked(offset, length);
            asked.push((offset, length));
        }
        asked
    }

    #[test]
    fn open_reads_only_its_first_block() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20, 0);
        assert_eq!(ask(&mut ahead), [(0, 65_536)]);
        let mut small = ReadAhead::new(100, 8 << 20, 0);
        assert_eq!(ask(&mut small), [(0, 100)]);
        assert_eq!(ask(&mut ReadAhead::new(0, 8 << 20, 0)), []);
    }

    #[test]
    fn a_serial_reader_is_followed_further_and_further() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20, 0);
        ask(&mut ahead);
        assert_eq!(ahead.read(0, 60_000), ReadVerdict::Wait);
        ahead.sent(0, 65_536, 65_536);
        assert_eq!(ahead.verdict(0, 60_000), ReadVerdict::Settled);
        let mut reach = 0;
        for turn in 1..6 {
            let blocks = ask(&mut ahead);
            if turn == 1 {
                assert_eq!(blocks[0], (65_536, 60_000));
            }
            for (offset, length) in blocks {
                ahead.sent(offset, length, length);
            }
            assert_eq!(ahead.read(turn * 60_000, 60_000), ReadVerdict::Settled);
            assert!(ahead.ahead() + 60_000 > reach);
            reach = ahead.ahead();
        }
        assert!(reach > 1 << 20, "{reach}");
    }

    #[test]
    fn second_read_fills_a_known_path() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20, 3_240_000);
        ask(&mut ahead);
        ahead.sent(0, 65_536, 65_536);
        ahead.read(0, 60_000);
        ask(&mut ahead);
        assert!(ahead.ahead() <= 4 * 60_000, "one READ may be the only one");
        ahead.read(60_000, 60_000);
        ask(&mut ahead);
        assert!((3_180_000..=3_240_000).contains(&ahead.ahead()));
    }

    #[test]
    fn distant_read_ends_the_run() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20, 0);
        ask(&mut ahead);
        assert_eq!(ahead.read(1 << 20, 4_096), ReadVerdict::Forward);
        assert_eq!(ask(&mut ahead), []);
        assert_eq!(ahead.read((1 << 20) + 4_096, 4_096), ReadVerdict::Forward);
        assert_eq!(
            ask(&mut ahead),
            [((1 << 20) + 8_192, 4_096), ((1 << 20) + 12_288, 4_096)]
        );
    }

    #[test]
    fn look_at_the_end_reads_it_whole_and_leaves_the_start() {
        let mut ahead = ReadAhead::new(1 << 20, 8 << 20, 0);
        ask(&mut ahead);
        ahead.sent(0, 65_536, 65_536);
        assert_eq!(ahead.read(0, 8_192), ReadVerdict::Settled);
        let tail = (1 << 20) - 65_536;
        assert_eq!(ahead.read(tail, 8_192), ReadVerdict::Forward);
        assert_eq!(ask(&mut ahead), [(tail + 8_192, 57_344)]);
        assert_eq!(ahead.read(tail + 8_192, 8_192), ReadVerdict::Wait);
        ahead.sent(tail + 8_192, 57_344, 57_344);
        assert_eq!(ahead.read(tail + 16_384, 8_192), ReadVerdict::Settled);
        assert_eq!(ahead.read(8_192, 8_192), ReadVerdict::Settled);
        let asked = ask(&mut ahead);
        assert_eq!(asked.first(), Some(&(65_536, 8_192)));
        // Back at the end, and a second look near it: the end is not read again.
        assert_eq!(ahead.read(tail + 24_576, 8_192), ReadVerdict::Settled);
        assert_eq!(ahead.read(tail + 4_096, 1_024), ReadVerdict::Forward);
        assert_eq!(ask(&mut ahead), []);
    }

    #[test]
    fn both_ends_are_read_if_the_last_client_did() {
        let mut last = ReadAhead::new(200_000, 8 << 20, 0);
        last.read(0, 32_768);
        last.read(196_608, 3_392);
        last.read(32_768, 32_768);
        let usual = last.first_parts();
        assert_eq!((usual.start, usual.tail), (65_536, 3_392));
        let usual = FirstParts {
            start: 32_768,
            ..usual
        };
        let mut ahead = ReadAhead::reading(300_000, 8 << 20, 0, usual);
        let tail = 300_000 - 32_768;
        assert_eq!(ask(&mut ahead), [(0, 32_768), (tail, 32_768)]);
        assert_eq!(ahead.read(0, 32_768), ReadVerdict::Wait);
        ahead.sent(0, 32_768, 32_768);
        assert!(!ahead.is_sent());
        assert_eq!(ask(&mut ahead), [], "the last client stopped here");
        assert_eq!(ahead.read(294_912, 5_088), ReadVerdict::Wait);
        ahead.sent(tail, 32_768, 32_768);
        assert_eq!(ahead.verdict(294_912, 5_088), ReadVerdict::Settled);
        // The start goes on where it was left.
        assert_eq!(ahead.read(32_768, 32_768), ReadVerdict::Forward);
        assert_eq!(ask(&mut ahead).first(), Some(&(65_536, 32_768)));
        // Where both parts meet there is no end apart.
        let mut short = ReadAhead::reading(60_000, 8 << 20, 0, usual);
        assert_eq!(ask(&mut short), [(0, 32_768)]);
    }

    #[test]
    fn whole_file_says_nothing_about_first_parts() {
        let mut ahead = ReadAhead::new(10_000, 8 << 20, 0);
        ahead.read(0, 16_384);
        let usual = ahead.first_parts();
        assert_eq!(usual.tail, 0);
        let mut ahead = ReadAhead::reading(1 << 20, 8 << 20, 0, usual);
        assert_eq!(ask(&mut ahead), [(0, 65_536)]);
    }

    #[test]
    fn answer_of_a_run_aside_settles_the_read_that_waits() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20, 0);
        ask(&mut ahead);
        assert_eq!(ahead.read(0, 8_192), ReadVerdict::Wait);
        assert_eq!(ahead.read(1 << 20, 8_192), ReadVerdict::Forward);
        assert!(ahead.awaits(0, 65_536));
        ahead.sent(0, 65_536, 65_536);
        assert_eq!(ahead.verdict(0, 8_192), ReadVerdict::Settled);
        ahead.forget();
        assert_eq!(ahead.verdict(0, 8_192), ReadVerdict::Forward);
    }

    #[test]
    fn blocks_that_the_near_half_dropped_settle_nothing() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20, 0);
        ask(&mut ahead);
        ahead.sent(0, 65_536, 65_536);
        assert_eq!(ahead.read(0, 8_192), ReadVerdict::Settled);
        let asked = ask(&mut ahead);
        assert_eq!(asked[0], (65_536, 8_192));
        ahead.sent(65_536, 8_192, 8_192);
        assert_eq!(ahead.read(1 << 20, 8_192), ReadVerdict::Forward);
        ahead.dropped(&(0..65_536));
        assert_eq!(ahead.read(8_192, 8_192), ReadVerdict::Forward);
        assert_eq!(ahead.read(65_536, 8_192), ReadVerdict::Settled);
        ahead.dropped(&(0..1 << 20));
        assert_eq!(ahead.read(asked[1].0, asked[1].1), ReadVerdict::Wait);
    }

    #[test]
    fn long_run_is_not_set_aside() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20, 3_240_000);
        ask(&mut ahead);
        ahead.sent(0, 65_536, 65_536);
        for turn in 0..2 {
            ahead.read(turn * 60_000, 60_000);
            ask(&mut ahead);
        }
        assert!(ahead.ahead() > ASIDE_MAX);
        assert_eq!(ahead.read(1 << 29, 4_096), ReadVerdict::Forward);
        assert_eq!(ahead.read(120_000, 4_096), ReadVerdict::Forward);
    }

    #[test]
    fn reading_stops_at_the_end_of_file() {
        let mut ahead = ReadAhead::new(70_000, 8 << 20, 0);
        ask(&mut ahead);
        ahead.sent(0, 65_536, 65_536);
        assert_eq!(ahead.read(0, 65_536), ReadVerdict::Settled);
        assert_eq!(ask(&mut ahead), [(65_536, 4_464)]);
        ahead.sent(65_536, 4_464, 4_464);
        assert_eq!(ahead.read(65_536, 65_536), ReadVerdict::Settled);
        assert_eq!(ahead.read(131_072, 65_536), ReadVerdict::Settled);
        assert_eq!(ask(&mut ahead), []);
    }

    #[test]
    fn short_answer_marks_the_end_of_file() {
        let mut ahead = ReadAhead::new(1 << 20, 8 << 20, 0);
        ask(&mut ahead);
        ahead.sent(0, 65_536, 10);
        assert_eq!(ahead.end(), Some(10));
        assert_eq!(ahead.read(0, 65_536), ReadVerdict::Settled);
        ahead.forget();
        assert_eq!(ahead.read(0, 65_536), ReadVerdict::Forward);
        assert_eq!(ahead.end(), None);
    }
}
