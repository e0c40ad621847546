//! Head of a column file: reads the NumPy format, versions 1.0 to 3.0, and refuses every shape that is
//! no column of ours.
//!
//! The head is text from a file that anyone may have written: it is read by a small grammar of its
//! own, `{'descr': TEXT, 'fortran_order': False, 'shape': (ROWS,), }` in any order of keys.

use thiserror::Error;

/// Longest text of a head that is read; NumPy's are below 200 bytes for one column.
const TEXT_MAX: usize = 4_096;
/// Bytes of a file from which a head is read, at most.
pub const COLUMN_HEAD_MAX: usize = 12 + TEXT_MAX;
/// Start of every NumPy file.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Head of a column of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnHead {
    /// Type as NumPy writes it, such as `<i8`.
    pub kind: String,
    /// Rows that the file is to have.
    pub rows: u64,
    /// Bytes before the first value.
    pub start: usize,
}

/// Reason why a file is no column of ours, as a sentence about the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ColumnHeadError {
    /// The sentence.
    pub message: String,
}

impl ColumnHead {
    /// Reads the head from the first [`COLUMN_HEAD_MAX`] bytes of a file, or from all of a shorter one.
    ///
    /// # Errors
    /// When they are no head of NumPy, or that of another shape than a column's.
    pub fn parse(bytes: &[u8]) -> Result<Self, ColumnHeadError> {
        read(bytes).map_err(|message| ColumnHeadError { message })
    }
}

fn read(bytes: &[u8]) -> Result<ColumnHead, String> {
    let short = || "it ends within its head".to_owned();
    let magic = bytes.get(..MAGIC.len()).ok_or_else(short)?;
    if magic != MAGIC {
        return Err("it is no NumPy file: its first bytes are not \\x93NUMPY".to_owned());
    }
    let &[version, _, one, two] = bytes
        .get(6..10)
        .and_then(|four| four.first_chunk())
        .ok_or_else(short)?;
    let (length, text_start) = match version {
        1 => (u32::from_le_bytes([one, two, 0, 0]), 10),
        2 | 3 => {
            let &[three, four] = bytes
                .get(10..12)
                .and_then(|rest| rest.first_chunk())
                .ok_or_else(short)?;
            (u32::from_le_bytes([one, two, three, four]), 12)
        }
        other => {
            return Err(format!(
                "it has version {other} of the NumPy format; versions 1 to 3 are read"
            ));
        }
    };
    let length = length as usize;
    if length > TEXT_MAX {
        return Err(format!(
            "its head has {length} bytes; a column's has at most {TEXT_MAX}"
        ));
    }
    let start = text_start + length;
    let text = bytes.get(text_start..start).ok_or_else(short)?;
    let text = std::str::from_utf8(text).map_err(|_| "its head is no text".to_owned())?;
    parse(text, start)
}

/// Parses the dictionary of the head.
fn parse(text: &str, start: usize) -> Result<ColumnHead, String> {
    let bad = || format!("its head is no description of a column: {}", shown(text));
    let inner = text
        .trim()
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .ok_or_else(bad)?;
    let (mut kind, mut rows, mut is_c_order) = (None, None, false);
    let mut rest = inner.trim_start();
    while !rest.is_empty() {
        let (key, after) = quoted(rest).ok_or_else(bad)?;
        let after = after.trim_start().strip_prefix(':').ok_or_else(bad)?;
        let after = after.trim_start();
        rest = match key {
            "descr" => {
                let (value, after) = quoted(after).ok_or_else(|| {
                    format!("its values are records of several fields: {}", shown(text))
                })?;
                kind = Some(value.to_owned());
                after
            }
            "fortran_order" => {
                let order = after.strip_prefix("False");
                is_c_order = order.is_some();
                order
                    .or_else(|| after.strip_prefix("True"))
                    .ok_or_else(bad)?
            }
            "shape" => {
                let (shape, after) = after
                    .strip_prefix('(')
                    .and_then(|inner| inner.split_once(')'))
                    .ok_or_else(bad)?;
                rows = Some(one_dimension(shape)?);
                after
            }
            _ => return Err(bad()),
        };
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    // One dimension has the same values in both orders, but our files have C order.
    if !is_c_order {
        return Err("its values are in Fortran order".to_owned());
    }
    Ok(ColumnHead {
        kind: kind.ok_or_else(bad)?,
        rows: rows.ok_or_else(bad)?,
        start,
    })
}

/// The number of rows in the text between the brackets of a shape.
fn one_dimension(shape: &str) -> Result<u64, String> {
    let bad = || format!("its shape is ({shape}); a column has one dimension");
    let (rows, rest) = shape.split_once(',').ok_or_else(bad)?;
    if !rest.trim().is_empty() {
        return Err(bad());
    }
    rows.trim().parse().map_err(|_| bad())
}

/// A text in quotes, and the text behind it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mark = text
        .chars()
        .next()
        .filter(|mark| matches!(mark, '\'' | '"'))?;
    text[1..].split_once(mark)
}

/// The start of a foreign text, printable.
fn shown(text: &str) -> String {
    const SHOWN: usize = 80;
    let start: String = text.trim().chars().take(SHOWN).collect();
    vocab::printable(&start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn heads_of_numpy_and_of_ours_are_read() {
        for text in [
            "{'descr': '<i8', 'fortran_order': False, 'shape': (7,), }          \n",
            "{'descr': '<i8', 'fortran_order': False, 'shape': (                   7,), }\n",
            "{\"shape\": (7,), \"fortran_order\": False, \"descr\": \"<i8\"}",
        ] {
            let head = ColumnHead::parse(&file(text)).unwrap();
            let expected = ColumnHead {
                kind: "<i8".to_owned(),
                rows: 7,
                start: 10 + text.len(),
            };
            assert_eq!(head, expected);
        }
    }

    #[test]
    fn foreign_shapes_and_texts_are_refused() {
        let head = |parts: &str| file(&format!("{{{parts}}}"));
        for (bytes, part) in [
            (b"PK\x03\x04 a zip file".to_vec(), "no NumPy file"),
            (b"\x93NUM".to_vec(), "within its head"),
            (b"\x93NUMPY\x09\x00\x05\x00".to_vec(), "version 9"),
            (b"\x93NUMPY\x01\x00\xff\xff".to_vec(), "65535 bytes"),
            (
                head("'descr': '<i8', 'fortran_order': False, 'shape': (3, 4), "),
                "one dimension",
            ),
            (
                head("'descr': '<i8', 'fortran_order': False, 'shape': (), "),
                "one dimension",
            ),
            (
                head("'descr': '<i8', 'fortran_order': False, 'shape': (-1,), "),
                "one dimension",
            ),
            (
                head("'descr': '<i8', 'fortran_order': True, 'shape': (3,), "),
                "Fortran",
            ),
            (
                head("'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (3,), "),
                "several fields",
            ),
            (head("'descr': '<i8', 'shape': (3,), "), "Fortran"),
            (head("'other': 5"), "no description"),
            (head("€"), "no description"),
        ] {
            let error = ColumnHead::parse(&bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{error} lacks {part}");
        }
    }
}
