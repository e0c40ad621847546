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

/// Returns the names in entries, in UTF-16 as received; none of an unknown class, and none behind
/// an entry that lies outside.
pub(crate) fn names_of(class: u8, entries: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    let (Some((length_at, name_at)), mut rest) = (places(class), entries) else {
        return names;
    };
    while let (Ok(next), Ok(length)) = (u32_at(rest, 0), u32_at(rest, length_at)) {
        let name = rest
            .get(name_at..)
            .and_then(|rest| rest.get(..length as usize));
        let Some(name) = name.filter(|name| !name.is_empty() && name.len() % 2 == 0) else {
            break;
        };
        names.push(name);
        match rest.get(next as usize..) {
            Some(behind) if next > 0 => rest = behind,
            _ => break,
        }
    }
    names
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
}
