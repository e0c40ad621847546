//! The near half's data of one open's file: blocks that were read ahead, and the end of the file.
//!
//! The far half counts on what it has sent: it takes a READ for answered if its data were sent. While the client reads
//! the file in order, the far half knows what is dropped here. From the first READ elsewhere on, two runs may be in use,
//! and the far half is told of every block that is dropped.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::super::config::{AHEAD_BLOCK_MAX, AHEAD_MAX, ASIDE_MAX};

/// The limit of stored bytes of all opens. The far half reads less ahead; what the client jumped over comes to it.
/// Beyond the limit everything is dropped that no READ waits for, and if that is not enough, all.
pub(crate) const BYTES_MAX: u64 = AHEAD_MAX + 4 * AHEAD_BLOCK_MAX as u64;

/// The answer to a READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CachedRead {
    /// These bytes, fewer than requested only at the file's end.
    Data { pieces: Vec<Bytes>, length: u32 },
    /// The file ends before.
    End,
}

#[derive(Debug)]
struct FileBlock {
    pieces: Vec<Bytes>,
    length: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct FileContents {
    blocks: BTreeMap<u64, FileBlock>,
    bytes: u64,
    end: Option<u64>,
    /// The offset of a READ that goes on in order.
    expected: u64,
    /// The client has read elsewhere.
    has_jumped: bool,
    /// READs were answered from here up to this offset: what lies before it may be dropped.
    answered: Option<u64>,
}

impl FileContents {
    /// Bytes kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets everything that is known of the file.
    pub(crate) fn clear(&mut self) {
        self.drop_blocks();
        self.end = None;
        self.answered = None;
    }

    /// Takes the contents out, for READs of the time before a change.
    pub(crate) fn take(&mut self) -> Self {
        let rest = Self {
            expected: self.expected,
            has_jumped: self.has_jumped,
            ..Self::default()
        };
        std::mem::replace(self, rest)
    }

    /// The client has sent this READ.
    pub(crate) fn note_read(&mut self, offset: u64, length: u32) {
        self.has_jumped |= offset != self.expected;
        self.expected = offset.saturating_add(u64::from(length));
    }

    /// A READ at this offset is answered: what lies before it is dropped by [`Self::drop_answered`].
    pub(crate) fn answered(&mut self, offset: u64) {
        self.answered = Some(self.answered.map_or(offset, |before| before.max(offset)));
    }

    /// The file ends here.
    pub(crate) fn set_end(&mut self, end: u64) {
        self.end = Some(end);
    }

    /// Keeps a block, unless an older one holds all of it, and removes older ones that lie wholly within it. So
    /// of two blocks the one that begins later also ends later, and none hides a part of another. The far half may
    /// count on blocks of two runs that overlap.
    pub(crate) fn insert(&mut self, offset: u64, pieces: Vec<Bytes>) {
        let length: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let end = offset.saturating_add(length);
        let before = self.blocks.range(..=offset).next_back();
        if before.is_some_and(|(start, block)| start.saturating_add(block.length) >= end) {
            return;
        }
        let within = self.blocks.range(offset..end);
        let within = within.filter(|(start, block)| start.saturating_add(block.length) <= end);
        let within: Vec<u64> = within.map(|(start, _)| *start).collect();
        for start in within {
            self.remove(start);
        }
        if let Some(old) = self.blocks.insert(offset, FileBlock { pieces, length }) {
            self.bytes -= old.length;
        }
        self.bytes += length;
    }

    /// Returns the answer to a READ of `length` bytes at `offset`, if all of it is available.
    pub(crate) fn find(&self, offset: u64, length: u32) -> Option<CachedRead> {
        let mut end = offset.checked_add(u64::from(length))?;
        if let Some(file_end) = self.end {
            if offset >= file_end {
                return Some(CachedRead::End);
            }
            end = end.min(file_end);
        }
        let mut pieces = Vec::new();
        let mut at = offset;
        while at < end {
            let (start, block) = self.blocks.range(..=at).next_back()?;
            if at >= start + block.length {
                return None;
            }
            let mut skip = (at - start) as usize;
            for piece in &block.pieces {
                if skip >= piece.len() {
                    skip -= piece.len();
                    continue;
                }
                let take = (piece.len() - skip).min((end - at) as usize);
                pieces.push(piece.slice(skip..skip + take));
                skip = 0;
                at += take as u64;
                if at == end {
                    break;
                }
            }
        }
        Some(CachedRead::Data {
            pieces,
            length: (end - offset) as u32,
        })
    }

    /// Forgets the blocks, and keeps where the file ends.
    pub(crate) fn drop_blocks(&mut self) {
        self.blocks.clear();
        self.bytes = 0;
    }

    /// Forgets what lies before the answered READs and before `waiting`, the first READ that waits. Returns the ranges
    /// that the far half must be told of: no block that is kept begins in them.
    pub(crate) fn drop_answered(&mut self, waiting: Option<u64>) -> Vec<Range<u64>> {
        let Some(answered) = self.answered.take() else {
            return Vec::new();
        };
        let dropped = self.drop_before(waiting.map_or(answered, |waiting| answered.min(waiting)));
        match self.has_jumped {
            true => dropped,
            false => Vec::new(),
        }
    }

    /// Forgets the blocks wholly before `offset` up to the first gap: a serial reader does not return to them.
    /// The last blocks before the gap stay, because the far half keeps a run that the client interrupted. Returns the
    /// ranges of the blocks that it forgets.
    fn drop_before(&mut self, offset: u64) -> Vec<Range<u64>> {
        let mut first = offset;
        let mut dropped = Vec::new();
        let mut passed: Option<Range<u64>> = None;
        while let Some((start, end)) = self.block_before(first) {
            if end > offset {
                // The block of this offset.
                first = start;
                continue;
            }
            if end < first {
                dropped.extend(self.limit_before(first));
                break;
            }
            let behind = passed.map_or(first, |passed| passed.end);
            passed = Some(start..behind);
            first = start;
            self.remove(start);
        }
        dropped.extend(passed);
        dropped
    }

    /// Start and end of the last block that begins before `offset`.
    fn block_before(&self, offset: u64) -> Option<(u64, u64)> {
        let (start, block) = self.blocks.range(..offset).next_back()?;
        Some((*start, start + block.length))
    }

    /// Forgets the first blocks before `offset` until those left are no more than a run that was set aside.
    fn limit_before(&mut self, offset: u64) -> Option<Range<u64>> {
        let before = || self.blocks.range(..offset);
        let kept: u64 = before().map(|(_, block)| block.length).sum();
        let mut over = kept.saturating_sub(ASIDE_MAX);
        let mut first = None;
        while over > 0
            && let Some((&start, block)) = self.blocks.range(..offset).next()
        {
            over = over.saturating_sub(block.length);
            first.get_or_insert(start);
            self.remove(start);
        }
        let behind = self.blocks.range(..offset).next();
        Some(first?..behind.map_or(offset, |(start, _)| *start))
    }

    fn remove(&mut self, start: u64) {
        if let Some(block) = self.blocks.remove(&start) {
            self.bytes -= block.length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(found: Option<CachedRead>) -> Option<Vec<u8>> {
        match found? {
            CachedRead::Data { pieces, length } => {
                let bytes = pieces.concat();
                assert_eq!(bytes.len(), length as usize);
                Some(bytes)
            }
            CachedRead::End => Some(Vec::new()),
        }
    }

    fn bounds(ranges: Vec<Range<u64>>) -> Vec<(u64, u64)> {
        let bounds = ranges.into_iter().map(|range| (range.start, range.end));
        bounds.collect()
    }

    #[test]
    fn exactly_the_stored_ranges_are_found() {
        let file: Vec<u8> = (0..60).collect();
        let mut contents = FileContents::default();
        for (offset, cut) in [(40, 45), (0, 7), (20, 20)] {
            let pieces = [&file[offset..cut], &file[cut..offset + 20]];
            let pieces = pieces.map(Bytes::copy_from_slice);
            contents.insert(offset as u64, pieces.to_vec());
        }
        for offset in 0..60u64 {
            for length in 1..=(60 - offset) {
                let found = data(contents.find(offset, length as u32));
                let wanted = &file[offset as usize..(offset + length) as usize];
                assert_eq!(found.as_deref(), Some(wanted));
            }
            assert_eq!(contents.find(offset, 61), None);
        }
        contents.set_end(60);
        assert_eq!(data(contents.find(50, 100)).unwrap(), &file[50..]);
        assert_eq!(contents.find(60, 1), Some(CachedRead::End));
        assert_eq!(bounds(contents.drop_before(25)), [(0, 20)]);
        assert_eq!(contents.bytes(), 40);
        assert_eq!(contents.find(10, 5), None);
        assert!(contents.find(20, 5).is_some());
    }

    #[test]
    fn blocks_before_a_gap_stay_within_their_limit() {
        let block = |length: usize| vec![Bytes::from(vec![0; length])];
        let mut contents = FileContents::default();
        contents.insert(0, block(65_536));
        contents.insert(1 << 20, block(8_192));
        contents.insert((1 << 20) + 8_192, block(8_192));
        let looked = (1 << 20, (1 << 20) + 8_192);
        assert_eq!(bounds(contents.drop_before(looked.1)), [looked]);
        assert!(contents.find(8_192, 8_192).is_some());
        assert_eq!(contents.find(1 << 20, 8_192), None);
        assert_eq!(contents.bytes(), 65_536 + 8_192);
        contents.insert(100_000, block(ASIDE_MAX as usize));
        let dropped = bounds(contents.drop_before((1 << 20) + 8_192));
        assert_eq!(dropped, [(0, 100_000)]);
        assert_eq!(contents.find(8_192, 8_192), None);
        assert!(contents.find(100_000, 8_192).is_some());
        assert_eq!(contents.bytes(), ASIDE_MAX + 8_192);
    }

    #[test]
    fn dropped_blocks_are_told_once_the_client_has_jumped() {
        let block = || vec![Bytes::from(vec![0; 8_192])];
        let mut contents = FileContents::default();
        for at in 0..8 {
            contents.insert(at * 8_192, block());
        }
        let answer = |contents: &mut FileContents, at: u64, waiting| {
            contents.note_read(at, 8_192);
            contents.answered(at);
            bounds(contents.drop_answered(waiting))
        };
        assert_eq!(answer(&mut contents, 0, None), []);
        assert_eq!(answer(&mut contents, 8_192, None), []);
        assert_eq!(contents.bytes(), 7 * 8_192);
        assert_eq!(
            answer(&mut contents, 3 * 8_192, Some(2 * 8_192)),
            [(8_192, 2 * 8_192)]
        );
        assert_eq!(
            answer(&mut contents, 4 * 8_192, None),
            [(2 * 8_192, 4 * 8_192)]
        );
        contents.take();
        contents.insert(0, block());
        assert_eq!(answer(&mut contents, 8_192, None), [(0, 8_192)]);
    }

    #[test]
    fn old_short_block_hides_no_longer_one() {
        let mut contents = FileContents::default();
        contents.insert(600, vec![Bytes::from(vec![6; 10])]);
        contents.insert(700, vec![Bytes::from(vec![7; 90])]);
        contents.insert(500, vec![Bytes::from(vec![5; 250])]);
        assert_eq!(contents.bytes(), 340);
        assert_eq!(data(contents.find(640, 60)), Some(vec![5; 60]));
        assert_eq!(data(contents.find(740, 20)), Some(vec![7; 20]));
    }

    /// Two runs of the far half may overlap, and it counts on the blocks of both.
    #[test]
    fn new_short_block_hides_no_longer_one() {
        let mut contents = FileContents::default();
        contents.insert(1_009, vec![Bytes::from(vec![9; 220])]);
        contents.insert(1_011, vec![Bytes::from(vec![9; 19])]);
        contents.insert(1_030, vec![Bytes::from(vec![9; 19])]);
        assert_eq!(data(contents.find(1_011, 64)), Some(vec![9; 64]));
        contents.insert(1_000, vec![Bytes::from(vec![9; 100])]);
        assert_eq!(data(contents.find(1_000, 229)), Some(vec![9; 229]));
        assert_eq!(contents.bytes(), 320);
    }
}
