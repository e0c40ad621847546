//! Reading ahead of one open's client: what is asked for, what was sent, which READs that covers.
//!
//! ```text
//!  file:   …consumed… start ▒▒▒▒ sent ▒▒▒▒│░░░ asked for ░░░│ next …                    end
//!                     └────────────── limit at most ────────┘
//! ```
//! A run starts with the file's first block when it is opened, or behind a READ that continues
//! the one before it (or is the first, at the file's start). It may be twice as far ahead as the
//! client has followed it, so what is read in vain is never much more than what was wanted. A READ
//! elsewhere ends the run.
//!
//! It decides nothing about licences, credits or the path; `far` does.

use std::collections::VecDeque;

use super::super::config::{AHEAD_BLOCK_MAX, AHEAD_MAX, FIRST_BLOCK};

/// What becomes of a READ of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadVerdict {
    /// The near half has, or will have before it hears of this, all that answers it.
    Settled,
    /// What answers it was asked for and is not sent yet.
    Wait,
    /// The server must be asked.
    Forward,
}

#[derive(Clone, Copy, Debug)]
struct ReadAheadBlock {
    offset: u64,
    length: u32,
    done: bool,
}

#[derive(Debug)]
struct SequentialRun {
    /// Up to here the client has asked.
    start: u64,
    /// From here on nothing was asked for.
    next: u64,
    /// How far `next` may be from `start`.
    limit: u64,
    /// How much is asked for at a time: what the client asks for at a time.
    block: u32,
    /// What was asked for and the client has not passed, in order.
    blocks: VecDeque<ReadAheadBlock>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    run: Option<SequentialRun>,
    /// Where a READ would continue the last one.
    expected: u64,
    /// The longest READ that the server takes.
    read_max: u32,
    /// Where the file ends, as far as that is certain.
    end: Option<u64>,
}

impl ReadAhead {
    /// For an open whose file is `end` bytes long; reads its first block.
    pub(crate) fn new(end: u64, read_max: u32) -> Self {
        let block = FIRST_BLOCK.min(read_max).max(1);
        let mut ahead = Self::waiting(end, read_max);
        ahead.begin(0, block, u64::from(block));
        ahead
    }

    /// The same, and reads nothing before the client does.
    pub(crate) fn waiting(end: u64, read_max: u32) -> Self {
        Self {
            run: None,
            expected: 0,
            read_max,
            end: Some(end),
        }
    }

    /// Where the file ends, if that is certain.
    pub(crate) fn end(&self) -> Option<u64> {
        self.end
    }

    /// Takes what is known to be out of date: the file may have changed.
    pub(crate) fn forget(&mut self) {
        self.run = None;
        self.end = None;
        // The next READ may continue the last one, and begins a run again.
    }

    /// Reads no further ahead until the client goes on by itself. What is known of the file's end stays.
    pub(crate) fn stop(&mut self) {
        self.run = None;
    }

    /// Bytes asked for or sent that the client has not asked for yet.
    pub(crate) fn ahead(&self) -> u64 {
        #[cfg(test)]
        looks::count();
        self.run.as_ref().map_or(0, |run| run.next - run.start)
    }

    /// A READ of the client's, plain and within what the server takes.
    pub(crate) fn read(&mut self, offset: u64, length: u32) -> ReadVerdict {
        let end = offset + u64::from(length);
        let continues = offset == self.expected;
        self.expected = end;
        let block = length.min(self.read_max).max(1);
        if let Some(run) = &mut self.run {
            let wanted = self.end.map_or(end, |file_end| end.min(file_end));
            if offset >= run.start && (wanted <= run.next || offset >= wanted) {
                run.start = offset.min(run.next);
                run.limit = (run.limit * 2).clamp(4 * u64::from(block), AHEAD_MAX);
                run.block = block.min(AHEAD_BLOCK_MAX);
                run.drop_passed();
                return self.verdict(offset, length);
            }
            // The client has caught up, by one READ or by several at a time.
            if offset == run.next && length <= AHEAD_BLOCK_MAX {
                run.start = end;
                run.next = end;
                run.limit = (run.limit * 2).clamp(4 * u64::from(block), AHEAD_MAX);
                run.block = block;
                run.drop_passed();
                return ReadVerdict::Forward;
            }
        }
        self.run = None;
        if continues && length <= AHEAD_BLOCK_MAX {
            self.begin(end, block, 2 * u64::from(block));
        }
        ReadVerdict::Forward
    }

    /// Whether what answers this READ of an earlier time has been sent now.
    pub(crate) fn verdict(&self, offset: u64, length: u32) -> ReadVerdict {
        let Some(run) = &self.run else {
            return ReadVerdict::Forward;
        };
        let end = offset + u64::from(length);
        let end = self.end.map_or(end, |file_end| end.min(file_end));
        if offset >= end {
            // Behind the file's end, which the near half was told.
            return ReadVerdict::Settled;
        }
        let mut reached = offset;
        for block in &run.blocks {
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

    /// What to ask the server for next, of at most `room` bytes beyond what the client asked for.
    pub(crate) fn next(&self, room: u64) -> Option<(u64, u32)> {
        let run = self.run.as_ref()?;
        let mut length = u64::from(run.block.min(self.read_max));
        if let Some(end) = self.end {
            length = length.min(end.saturating_sub(run.next));
        }
        let ahead = run.next - run.start + length;
        (length > 0 && ahead <= run.limit.max(u64::from(run.block)) && length <= room)
            .then_some((run.next, length as u32))
    }

    /// The server was asked for what [`Self::next`] said.
    pub(crate) fn asked(&mut self, offset: u64, length: u32) {
        if let Some(run) = &mut self.run {
            run.next = offset + u64::from(length);
            run.blocks.push_back(ReadAheadBlock {
                offset,
                length,
                done: false,
            });
        }
    }

    /// Whether an answer to this is still awaited.
    pub(crate) fn awaits(&self, offset: u64, length: u32) -> bool {
        self.run.as_ref().is_some_and(|run| {
            run.blocks
                .iter()
                .any(|block| block.offset == offset && block.length == length && !block.done)
        })
    }

    /// What was asked for has been sent: `count` bytes of it. Fewer than asked for means that the
    /// file ends there.
    pub(crate) fn sent(&mut self, offset: u64, length: u32, count: u32) {
        if let Some(run) = &mut self.run
            && let Some(block) = run
                .blocks
                .iter_mut()
                .find(|block| block.offset == offset && block.length == length)
        {
            block.done = true;
        }
        if count < length {
            let end = offset + u64::from(count);
            self.end = Some(self.end.map_or(end, |known| known.min(end)));
        }
    }

    fn begin(&mut self, at: u64, block: u32, limit: u64) {
        self.run = Some(SequentialRun {
            start: at,
            next: at,
            limit,
            block,
            blocks: VecDeque::new(),
        });
    }
}

impl SequentialRun {
    /// Forgets what lies wholly before `start`: the near half has, too.
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

/// How often it is asked how far ahead an open is: with a thousand opens, the work of a flow.
#[cfg(test)]
pub(crate) mod looks {
    use std::cell::Cell;

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    pub(super) fn count() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// Those of this test since it last asked.
    pub(crate) fn take() -> usize {
        LOOKS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for all that may be asked for; the offsets.
    fn ask(ahead: &mut ReadAhead) -> Vec<(u64, u32)> {
        let mut asked = Vec::new();
        while let Some((offset, length)) = ahead.next(u64::MAX) {
            ahead.asked(offset, length);
            asked.push((offset, length));
        }
        asked
    }

    #[test]
    fn an_open_reads_its_first_block_and_no_more() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20);
        assert_eq!(ask(&mut ahead), [(0, 65_536)]);
        let mut small = ReadAhead::new(100, 8 << 20);
        assert_eq!(ask(&mut small), [(0, 100)]);
        assert_eq!(ask(&mut ReadAhead::new(0, 8 << 20)), []);
    }

    #[test]
    fn a_serial_reader_is_followed_further_and_further() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20);
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
    fn a_read_elsewhere_ends_the_run_and_a_serial_pair_begins_one() {
        let mut ahead = ReadAhead::new(1 << 30, 8 << 20);
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
    fn the_end_of_the_file_is_known_and_not_read_beyond() {
        let mut ahead = ReadAhead::new(70_000, 8 << 20);
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
    fn a_short_answer_is_the_end_and_a_change_forgets_all() {
        let mut ahead = ReadAhead::new(1 << 20, 8 << 20);
        ask(&mut ahead);
        ahead.sent(0, 65_536, 10);
        assert_eq!(ahead.end(), Some(10));
        assert_eq!(ahead.read(0, 65_536), ReadVerdict::Settled);
        ahead.forget();
        assert_eq!(ahead.read(0, 65_536), ReadVerdict::Forward);
        assert_eq!(ahead.end(), None);
    }
}
