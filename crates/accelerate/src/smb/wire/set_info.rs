//! QUERY_INFO and SET_INFO of an open's position, and SET_INFO of its length, times and attributes
//! ([MS-SMB2] §2.2.37, QUERY_INFO Request; §2.2.39, SET_INFO Request; [MS-FSCC] §2.4, File Information
//! Classes).

use super::header::LENGTH;
use super::{FileId, WireError, array, expect_structure, u8_at, u16_at, u32_at, u64_at};

/// SMB2_0_INFO_FILE.
const INFO_FILE: u8 = 1;
/// FilePositionInformation, and FileAllInformation, which holds it too.
const POSITION: u8 = 14;
const ALL: u8 = 18;
/// FileBasicInformation: times and attributes, and its length.
const BASIC: u8 = 4;
const BASIC_LENGTH: u32 = 40;
/// FileEndOfFileInformation and FileAllocationInformation, and their length.
const END_OF_FILE: u8 = 20;
const ALLOCATION: u8 = 19;
const END_OF_FILE_LENGTH: u32 = 8;
/// FileRenameInformation and FileDispositionInformation.
const RENAME: u8 = 10;
const DISPOSITION: u8 = 13;
/// Bytes of a SET_INFO's fixed part.
const FIXED: usize = 32;

/// Returns true if a QUERY_INFO asks for the position where the open's last READ ended.
pub(crate) fn asks_for_position(body: &[u8]) -> Result<bool, WireError> {
    expect_structure(body, 41)?;
    Ok(u8_at(body, 2)? == INFO_FILE && matches!(u8_at(body, 3)?, POSITION | ALL))
}

/// The position that a SET_INFO sets; none where it sets something else.
pub(crate) fn position_set(body: &[u8]) -> Option<u64> {
    expect_structure(body, 33).ok()?;
    let is_position = u8_at(body, 2) == Ok(INFO_FILE) && u8_at(body, 3) == Ok(POSITION);
    let at = usize::from(u16_at(body, 8).ok()?).checked_sub(LENGTH)?;
    is_position.then(|| u64_at(body, at).ok()).flatten()
}

/// A change of a file that takes effect at once, and leaves nothing for the file's CLOSE to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainChange {
    /// New times and attributes ([MS-FSCC] §2.4.7, FileBasicInformation).
    Attributes,
    /// A new length ([MS-FSCC] §2.4.13, FileEndOfFileInformation).
    Length,
    /// Room for so many bytes, or a new length if there are more ([MS-FSCC] §2.4.4,
    /// FileAllocationInformation).
    Room,
}

/// Returns the plain change that a SET_INFO makes, if it makes no other.
pub(crate) fn plain_change(body: &[u8]) -> Option<PlainChange> {
    let (change, length) = match u8_at(body, 3) {
        Ok(BASIC) => (PlainChange::Attributes, BASIC_LENGTH),
        Ok(END_OF_FILE) => (PlainChange::Length, END_OF_FILE_LENGTH),
        Ok(ALLOCATION) => (PlainChange::Room, END_OF_FILE_LENGTH),
        _ => return None,
    };
    let is_whole = expect_structure(body, 33).is_ok()
        && u8_at(body, 2) == Ok(INFO_FILE)
        && u32_at(body, 4) == Ok(length)
        && u16_at(body, 8) == Ok((LENGTH + FIXED) as u16)
        && body.len() >= FIXED + length as usize;
    is_whole.then_some(change)
}

/// The length, or the room, that a SET_INFO with a plain change of one sets.
pub(crate) fn length_set(body: &[u8]) -> Option<u64> {
    match plain_change(body)? {
        PlainChange::Length | PlainChange::Room => u64_at(body, FIXED).ok(),
        PlainChange::Attributes => None,
    }
}

/// Returns true if a SET_INFO renames a file, or marks it for deletion with its last CLOSE ([MS-FSCC]
/// §2.4.42, FileRenameInformation; §2.4.11, FileDispositionInformation).
pub(crate) fn changes_name(body: &[u8]) -> bool {
    expect_structure(body, 33).is_ok()
        && u8_at(body, 2) == Ok(INFO_FILE)
        && matches!(u8_at(body, 3), Ok(RENAME | DISPOSITION))
}

/// Returns true if a SET_INFO renames a file. The server has done all of it when it answers.
pub(crate) fn renames(body: &[u8]) -> bool {
    changes_name(body) && u8_at(body, 3) == Ok(RENAME)
}

/// A change of a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange<'a> {
    /// To this path in the tree, in UTF-16.
    Rename(&'a [u8]),
    /// With the CLOSE.
    Delete,
}

/// Returns the open and the change of a whole SET_INFO's body, if it changes a name in one of these ways ([MS-FSCC]
/// §2.4.42.2, FileRenameInformation for the SMB2 Protocol; §2.4.11, FileDispositionInformation).
pub(crate) fn name_change(body: &[u8]) -> Option<(FileId, NameChange<'_>)> {
    let is_change = changes_name(body) && u16_at(body, 8) == Ok((LENGTH + FIXED) as u16);
    let file = FileId(array(body, 16).ok().filter(|_| is_change)?);
    let information = body.get(FIXED..)?.get(..u32_at(body, 4).ok()? as usize)?;
    if !renames(body) {
        return (information.first() == Some(&1)).then_some((file, NameChange::Delete));
    }
    let length = u32_at(information, 16).ok()? as usize;
    let name = information.get(20..)?.get(..length)?;
    let is_in_tree = u64_at(information, 8) == Ok(0) && !name.is_empty();
    is_in_tree.then_some((file, NameChange::Rename(name)))
}

/// The answer to a SET_INFO ([MS-SMB2] §2.2.40, SET_INFO Response).
pub(crate) const ANSWER: [u8; 2] = [2, 0];

/// The body of a SET_INFO that sets it.
pub(crate) fn set_position_body(file: FileId, position: u64) -> [u8; FIXED + 8] {
    let mut body = [0; FIXED + 8];
    body[0] = 33;
    body[2] = INFO_FILE;
    body[3] = POSITION;
    body[4..8].copy_from_slice(&8u32.to_le_bytes());
    body[8..10].copy_from_slice(&((LENGTH + FIXED) as u16).to_le_bytes());
    body[16..32].copy_from_slice(&file.0);
    body[32..].copy_from_slice(&position.to_le_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_round_trips_and_others_fail() {
        let body = set_position_body(FileId([7; 16]), 0x1_0000_0003);
        assert_eq!(position_set(&body), Some(0x1_0000_0003));
        for (at, byte) in [(0, 41), (2, 2), (3, ALL), (8, 3), (8, 0xff)] {
            let mut body = body;
            body[at] = byte;
            assert_eq!(position_set(&body), None, "{at}");
        }
        for length in 0..body.len() {
            assert_eq!(position_set(&body[..length]), None, "{length}");
        }
    }
}
