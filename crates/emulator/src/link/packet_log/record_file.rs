//! A file that knows which records are complete in it, even when its disk fills up in the middle of
//! one.
//!
//! ```text
//!   bytes ──► buffer, with the end of each part ──write_out──► file
//! ```
//! Nothing reaches the file but by [`RecordFile::write_out`], which counts what it wrote: behind an
//! error it is known to the byte which records are in the file, and where the last whole part ends.

use std::io::{self, Write};

/// Buffer size at which it is written out: some 4,000 rows, or 170 full-size packets with their
/// comments.
const BUFFER_FULL: usize = 1 << 18;

/// A file behind a buffer of whole parts.
#[derive(Debug)]
pub(super) struct RecordFile<W> {
    out: W,
    buffer: Vec<u8>,
    /// The ends of the parts in the buffer.
    ends: Vec<PartEnd>,
    /// Length of the file, up to the buffer's beginning.
    length: u64,
}

/// End of a part.
#[derive(Clone, Copy, Debug)]
struct PartEnd {
    at: usize,
    is_record: bool,
}

/// Outcome of writing out a buffer.
#[derive(Debug)]
pub(super) struct WriteOutcome {
    /// Records that are whole in the file since the last time.
    pub(super) records: u64,
    /// Why the rest is not.
    pub(super) failure: Option<WriteFailure>,
}

/// The end of a file.
#[derive(Debug)]
pub(super) struct WriteFailure {
    pub(super) error: io::Error,
    /// Records that were in the buffer and are not in the file.
    pub(super) lost: u64,
    /// The file up to its last whole part.
    pub(super) whole: u64,
}

impl<W: Write> RecordFile<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            buffer: Vec::with_capacity(BUFFER_FULL + (1 << 16)),
            ends: Vec::new(),
            length: 0,
        }
    }

    /// The underlying file.
    pub(super) fn out(&self) -> &W {
        &self.out
    }

    /// Ends a record: all bytes since the last part belong to it.
    pub(super) fn end_record(&mut self) {
        self.end(true);
    }

    /// Ends a part that belongs to no record.
    pub(super) fn end_part(&mut self) {
        self.end(false);
    }

    /// Tells whether the buffer must be written out.
    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER_FULL
    }

    fn end(&mut self, is_record: bool) {
        self.ends.push(PartEnd {
            at: self.buffer.len(),
            is_record,
        });
    }

    /// Writes all whole parts into the file.
    pub(super) fn write_out(&mut self) -> WriteOutcome {
        let end = self.ends.last().map_or(0, |end| end.at);
        let mut written = 0;
        let error = loop {
            if written == end {
                break None;
            }
            match self.out.write(&self.buffer[written..end]) {
                Ok(0) => break Some(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        let (whole, cut): (Vec<PartEnd>, Vec<PartEnd>) =
            self.ends.drain(..).partition(|end| end.at <= written);
        let records = |ends: &[PartEnd]| ends.iter().filter(|end| end.is_record).count() as u64;
        let failure = error.map(|error| WriteFailure {
            error,
            lost: records(&cut),
            whole: self.length + whole.last().map_or(0, |end| end.at as u64),
        });
        self.length += written as u64;
        self.buffer.drain(..end);
        WriteOutcome {
            records: records(&whole),
            failure,
        }
    }
}

/// Into the buffer.
impl<W> Write for RecordFile<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of limited size, which accepts at most seven bytes at once.
    struct LimitedDisk {
        room: usize,
        content: Vec<u8>,
    }

    impl Write for LimitedDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(7).min(self.room - self.content.len());
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.content.extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn record_counts_once_its_last_byte_is_written() {
        for room in 0..60 {
            let mut file = RecordFile::new(LimitedDisk {
                room,
                content: Vec::new(),
            });
            file.write_all(b"head\n").unwrap();
            file.end_part();
            let (mut written, mut lost, mut whole) = (0, 0, None);
            for round in 0..4 {
                for _ in 0..3 {
                    file.write_all(b"0,1,2\n").unwrap();
                    file.end_record();
                }
                // The beginning of the next part is nothing yet.
                file.write_all(b"#").unwrap();
                let out = file.write_out();
                written += out.records;
                if let Some(failure) = out.failure {
                    (lost, whole) = (failure.lost + 3 * (3 - round), Some(failure.whole));
                    break;
                }
                file.write_all(b"\n").unwrap();
                file.end_part();
            }
            let text = String::from_utf8(file.out.content.clone()).unwrap();
            let whole_rows = text.matches("0,1,2\n").count() as u64;
            assert_eq!(written, whole_rows, "{room} bytes of room: {text}");
            assert_eq!(written + lost, 12, "{room} bytes of room");
            let last_line = text.rfind('\n').map_or(0, |at| at + 1);
            assert!(whole.is_none_or(|whole| whole == last_line as u64));
            assert_eq!(whole.is_some(), room < 5 + 12 * 6 + 3 * 2);
        }
    }
}
