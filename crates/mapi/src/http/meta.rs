//! The lines in front of an answer ([MS-OXCMAPIHTTP] §2.2.2.2, Common Response Format).
//!
//! ```text
//!  PROCESSING │ PENDING … │ DONE │ fields │ empty line │ the response body, in binary
//! ```
//! A server sends PROCESSING at once, and PENDING from time to time while the client waits.

/// Bytes of these lines. Servers send two fields of some tens of bytes.
pub(super) const META_MAX: usize = 8 * 1024;

/// The state of the lines at the front of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetaLines {
    /// They have not ended.
    Partial,
    /// The server takes long: the client has to see the lines while it waits.
    Pending,
    /// They have so many bytes, and the response body follows.
    Whole(usize),
    /// They have another form, or report that the request failed.
    Unknown,
}

impl MetaLines {
    /// Reads the lines of a body, as far as it is there.
    pub(super) fn read(body: &[u8]) -> Self {
        let mut at = 0;
        let mut is_done = false;
        let window = &body[..body.len().min(META_MAX)];
        while let Some(length) = window[at..].iter().position(|byte| *byte == b'\n') {
            let line = &window[at..at + length + 1];
            at += length + 1;
            let Some(line) = line.strip_suffix(b"\r\n") else {
                return Self::Unknown;
            };
            match (is_done, line) {
                (false, b"PROCESSING") => {}
                (false, b"PENDING") => return Self::Pending,
                (false, b"DONE") => is_done = true,
                (false, _) => return Self::Unknown,
                (true, b"") => return Self::Whole(at),
                (true, field) if has_failed(field) => return Self::Unknown,
                (true, _) => {}
            }
        }
        match window.len() < META_MAX {
            true => Self::Partial,
            false => Self::Unknown,
        }
    }
}

/// True for a field with a result other than success.
fn has_failed(field: &[u8]) -> bool {
    let Some(colon) = field.iter().position(|byte| *byte == b':') else {
        return true;
    };
    let (name, value) = field.split_at(colon);
    name.eq_ignore_ascii_case(b"x-responsecode") && value[1..].trim_ascii() != b"0"
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[u8] = b"PROCESSING\r\nDONE\r\nX-ElapsedTime: 3\r\n\r\n\0\0\0\0";

    #[test]
    fn lines_end_in_front_of_the_response_body() {
        let length = WHOLE.len() - 4;
        assert_eq!(MetaLines::read(WHOLE), MetaLines::Whole(length));
        for end in 0..length {
            assert_eq!(MetaLines::read(&WHOLE[..end]), MetaLines::Partial, "{end}");
        }
    }

    #[test]
    fn slow_and_failed_answers_are_recognised() {
        let samples: [(&[u8], MetaLines); 5] = [
            (b"PROCESSING\r\nPENDING\r\n", MetaLines::Pending),
            (
                b"PROCESSING\r\nDONE\r\nX-ResponseCode: 10\r\n\r\n",
                MetaLines::Unknown,
            ),
            (b"<html>\r\n", MetaLines::Unknown),
            (b"DONE\n\n", MetaLines::Unknown),
            (b"DONE\r\nno field\r\n\r\n", MetaLines::Unknown),
        ];
        for (body, expected) in samples {
            assert_eq!(MetaLines::read(body), expected);
        }
        let endless = [b"PROCESSING\r\n".repeat(META_MAX), b"DONE".to_vec()].concat();
        assert_eq!(MetaLines::read(&endless), MetaLines::Unknown);
    }
}
