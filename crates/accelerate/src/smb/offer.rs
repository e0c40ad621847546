//! The frames that end all offers of opens, and the names in a listing. Both halves apply the same
//! rules to every frame in the same order, and so agree.

use super::wire::header::{Smb2Header, command};
use super::wire::u32_at;

/// Returns true if a request may change the file that a path leads to, other than through an open
/// of that file. An open from before it is not offered to the client that sent it.
pub(crate) fn drops_offers(header: &Smb2Header) -> bool {
    !matches!(
        header.command,
        command::CREATE
            | command::CLOSE
            | command::READ
            | command::WRITE
            | command::FLUSH
            | command::LOCK
            | command::QUERY_DIRECTORY
            | command::QUERY_INFO
            | command::CHANGE_NOTIFY
            | command::OPLOCK_BREAK
            | command::ECHO
            | command::CANCEL
    )
}

/// Returns the offsets of the name's length and the name in an entry of this class ([MS-FSCC]
/// §2.4.10 FileDirectoryInformation, §2.4.14 FileFullDirectoryInformation, §2.4.8
/// FileBothDirectoryInformation, §2.4.28 FileNamesInformation, §2.4.17
/// FileIdBothDirectoryInformation, §2.4.18 FileIdFullDirectoryInformation).
fn places(class: u8) -> Option<(usize, usize)> {
    match class {
        1 => Some((60, 64)),
        2 => Some((60, 68)),
        3 => Some((60, 94)),
        12 => Some((8, 12)),
        37 => Some((60, 104)),
        38 => Some((60, 80)),
        _ => None,
    }
}

/// FILE_ATTRIBUTE_DIRECTORY, and FILE_ATTRIBUTE_REPARSE_POINT, which leads elsewhere ([MS-FSCC] §2.6).
const DIRECTORY: u32 = 0x10;
const REPARSE_POINT: u32 = 0x400;

/// Returns the names of the directories among entries, `.` and `..` apart; as [`names_of`].
pub(crate) fn subdirectories_of(class: u8, entries: &[u8]) -> Vec<&[u8]> {
    // FileNamesInformation has no attributes.
    if class == 12 {
        return Vec::new();
    }
    let mut found = Vec::new();
    each_entry(class, entries, |entry, name| {
        let attributes = u32_at(entry, 56).unwrap_or(0);
        let is_dots = name == [b'.', 0] || name == [b'.', 0, b'.', 0];
        if attributes & (DIRECTORY | REPARSE_POINT) == DIRECTORY && !is_dots {
            found.push(name);
        }
    });
    found
}

/// Returns the names in entries, in UTF-16 as received; none of an unknown class, and none behind
/// an entry that lies outside.
pub(crate) fn names_of(class: u8, entries: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    each_entry(class, entries, |_, name| names.push(name));
    names
}

/// Visits the entries with their names.
fn each_entry<'a>(class: u8, entries: &'a [u8], mut visit: impl FnMut(&'a [u8], &'a [u8])) {
    let (Some((length_at, name_at)), mut rest) = (places(class), entries) else {
        return;
    };
    while let (Ok(next), Ok(length)) = (u32_at(rest, 0), u32_at(rest, length_at)) {
        let name = rest
            .get(name_at..)
            .and_then(|rest| rest.get(..length as usize));
        let Some(name) = name.filter(|name| !name.is_empty() && name.len() % 2 == 0) else {
            break;
        };
        visit(rest, name);
        match rest.get(next as usize..) {
            Some(behind) if next > 0 => rest = behind,
            _ => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_at_their_class_offsets() {
        for (class, name_at) in [(1, 64), (2, 68), (3, 94), (12, 12), (37, 104), (38, 80)] {
            let length_at = if class == 12 { 8 } else { 60 };
            let mut entries = Vec::new();
            for (name, is_last) in [(b"a\0b\0", false), (b"c\0d\0", true)] {
                let start = entries.len();
                entries.resize(start + name_at + 8, 0);
                let next = if is_last { 0 } else { name_at as u32 + 8 };
                entries[start..start + 4].copy_from_slice(&next.to_le_bytes());
                entries[start + length_at..start + length_at + 4]
                    .copy_from_slice(&4u32.to_le_bytes());
                entries[start + name_at..start + name_at + 4].copy_from_slice(name);
            }
            assert_eq!(names_of(class, &entries), [b"a\0b\0", b"c\0d\0"]);
            for cut in 0..entries.len() {
                assert!(names_of(class, &entries[..cut]).len() <= 2);
            }
        }
        assert!(names_of(99, &[0; 200]).is_empty());
    }

    #[test]
    fn subdirectories_are_told_by_their_attributes() {
        let mut entries = Vec::new();
        for (name, attributes, is_last) in [
            (&b".\0"[..], 0x10u32, false),
            (b"a\0", 0x10, false),
            (b"b\0", 0x80, false),
            (b"c\0", 0x410, false),
            (b"d\0", 0x30, true),
        ] {
            let start = entries.len();
            entries.resize(start + 88, 0);
            entries[start] = if is_last { 0 } else { 88 };
            entries[start + 56..start + 60].copy_from_slice(&attributes.to_le_bytes());
            entries[start + 60] = name.len() as u8;
            entries[start + 80..start + 80 + name.len()].copy_from_slice(name);
        }
        assert_eq!(subdirectories_of(38, &entries), [b"a\0", b"d\0"]);
        assert!(subdirectories_of(12, &entries).is_empty());
    }
}
