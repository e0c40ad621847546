//! One column: a NumPy file, version 1.0 of that format.
//!
//! ```text
//!   \x93NUMPY │ 1 │ 0 │ length of the text (u16) │ {'descr': '<i8', …, 'shape': (   123,), } │ values
//!   ◄───────────────────────────── HEAD_BYTES ───────────────────────────────────────────► little-endian
//! ```
//! The number of rows stands in a field of fixed width, so that it can be replaced in place.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes before the first value; NumPy aligns it to 64.
pub(super) const HEAD_BYTES: usize = 128;

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    U8,
    U16,
    U32,
    I64,
}

impl ColumnType {
    /// The type as NumPy writes it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            ColumnType::U8 => "|u1",
            ColumnType::U16 => "<u2",
            ColumnType::U32 => "<u4",
            ColumnType::I64 => "<i8",
        }
    }

    /// Bytes of a value.
    pub(super) const fn width(self) -> u64 {
        match self {
            ColumnType::U8 => 1,
            ColumnType::U16 => 2,
            ColumnType::U32 => 4,
            ColumnType::I64 => 8,
        }
    }
}

/// File of a column.
#[derive(Debug)]
pub(super) struct ColumnFile {
    file: File,
    kind: ColumnType,
    encoded: Vec<u8>,
}

impl ColumnFile {
    /// Makes the file with no rows.
    pub(super) fn create(path: &Path, kind: ColumnType) -> io::Result<Self> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&head(kind, 0))?;
        Ok(Self {
            file,
            kind,
            encoded: Vec::new(),
        })
    }

    /// Appends a value for each row; readers see them after [`ColumnFile::set_rows`].
    pub(super) fn append<R, const N: usize>(
        &mut self,
        rows: &[R],
        value: impl Fn(&R) -> [u8; N],
    ) -> io::Result<()> {
        self.encoded.clear();
        for row in rows {
            self.encoded.extend_from_slice(&value(row));
        }
        self.file.write_all(&self.encoded)
    }

    /// Writes the number of rows into the head.
    pub(super) fn set_rows(&mut self, rows: u64) -> io::Result<()> {
        self.file.write_all_at(&head(self.kind, rows), 0)
    }
}

fn head(kind: ColumnType, rows: u64) -> [u8; HEAD_BYTES] {
    const START: usize = 10;
    let mut head = [b' '; HEAD_BYTES];
    head[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    head[8..START].copy_from_slice(&((HEAD_BYTES - START) as u16).to_le_bytes());
    let text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({rows:>20},), }}",
        kind.name()
    );
    head[START..START + text.len()].copy_from_slice(text.as_bytes());
    head[HEAD_BYTES - 1] = b'\n';
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_fits_any_number_of_rows() {
        for rows in [0, 1, u64::MAX] {
            let head = head(ColumnType::I64, rows);
            let text = std::str::from_utf8(&head[10..]).unwrap();
            assert!(text.contains(&format!("{rows},), }}")), "{text}");
            assert!(text.ends_with(" \n") || text.ends_with("}\n"));
        }
    }
}
