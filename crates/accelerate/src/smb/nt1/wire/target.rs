//! The effects of a request, and the open that it works on. Both halves apply the same rules to
//! every request in the same order, and so agree.

use super::header::NO_ANDX;
use super::header::{Smb1Header, command};
use super::oplock::LockingRequest;
use super::position::{self, SeekRequest};
use super::set_up::disconnects;
use super::{WORDS_AT, transfer, u8_at, u16_at, u32_at, word_count};

/// "All files of this process" in a FLUSH ([MS-CIFS] §2.2.4.6.1).
const EVERY_FILE: u16 = 0xffff;

/// Functions of NT_TRANSACT ([MS-CIFS] §2.2.2.3).
const TRANSACT_CREATE: u16 = 0x01;
const CHANGE_NOTIFY: u16 = 0x04;

/// Subcommands of TRANSACTION2 ([MS-CIFS] §2.2.2.2).
const OPEN_2: u16 = 0x00;
const FIND_FIRST: u16 = 0x01;
const FIND_NEXT: u16 = 0x02;
const QUERY_FS: u16 = 0x03;
const QUERY_PATH: u16 = 0x05;
const SET_PATH: u16 = 0x06;
const QUERY_FILE: u16 = 0x07;
const SET_FILE: u16 = 0x08;
const GET_REFERRAL: u16 = 0x10;

/// The level of SET_FILE that locks, of the Unix extensions (Samba 4.17).
const SET_POSIX_LOCK: u16 = 0x208;

/// The level of SET_PATH that opens a file, of the same extensions.
const POSIX_OPEN: u16 = 0x209;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Smb1RequestEffect {
    /// No open, and the contents of no file.
    Nothing,
    /// It reads this open's file.
    Reads(transfer::ReadAndxRequest),
    /// It writes to this open's file.
    Writes(transfer::WriteAndxRequest),
    /// It queries this open and changes nothing.
    Asks(u16),
    /// The same, and the answer tells FilePositionInformation.
    AsksPosition(u16),
    /// It tells and moves the other position.
    Seeks(SeekRequest),
    /// It reads this open's file in another way, and only the server knows the range.
    ReadsOtherwise(u16),
    /// It may change this open, or its file.
    Changes(u16),
    /// It locks or unlocks parts of the file.
    Locks(LockingRequest),
    /// It gives an oplock back.
    Releases(LockingRequest),
    /// The written data must reach the disk.
    Flushes(u16),
    /// The same for all opens of a process.
    FlushesAll,
    /// It closes this open.
    Closes(u16),
    /// It opens a file.
    Opens,
    /// The opens of a tree end with it.
    EndsTree,
    /// The opens of a user end with it.
    EndsUser,
    /// It may change any file.
    Anything,
    /// It may have any effect on any open: a chain, or an unknown request.
    Unread,
    /// Bytes without a header follow it.
    Raw,
}

/// Returns the effect of a request, from its header and the available part of its message.
pub(crate) fn touch(header: &Smb1Header, message: &[u8]) -> Smb1RequestEffect {
    known(header, message).unwrap_or(Smb1RequestEffect::Unread)
}

fn known(header: &Smb1Header, message: &[u8]) -> Option<Smb1RequestEffect> {
    let is_chained = || u8_at(message, WORDS_AT).is_ok_and(|next| next != NO_ANDX);
    Some(match header.command {
        command::READ if transfer::waits(message) => {
            Smb1RequestEffect::ReadsOtherwise(u16_at(message, WORDS_AT + 4).ok()?)
        }
        command::READ => Smb1RequestEffect::Reads(transfer::ReadAndxRequest::parse(message).ok()?),
        command::WRITE => Smb1RequestEffect::Writes(transfer::WriteAndxRequest::parse(message).ok()?),
        command::CLOSE => Smb1RequestEffect::Closes(u16_at(message, WORDS_AT).ok()?),
        command::FLUSH => match u16_at(message, WORDS_AT).ok()? {
            EVERY_FILE => Smb1RequestEffect::FlushesAll,
            file => Smb1RequestEffect::Flushes(file),
        },
        command::LOCKING => {
            let locking = LockingRequest::parse(message).ok()?;
            match locking.releases() {
                true => Smb1RequestEffect::Releases(locking),
                false => Smb1RequestEffect::Locks(locking),
            }
        }
        command::SEEK => Smb1RequestEffect::Seeks(SeekRequest::parse(message).ok()?),
        command::READ_OLD => Smb1RequestEffect::ReadsOtherwise(u16_at(message, WORDS_AT).ok()?),
        command::QUERY_INFORMATION_2 => Smb1RequestEffect::Asks(u16_at(message, WORDS_AT).ok()?),
        command::WRITE_OLD | command::SET_INFORMATION_2 => {
            Smb1RequestEffect::Changes(u16_at(message, WORDS_AT).ok()?)
        }
        command::TRANSACTION_2 => transaction(message)?,
        // Its contents are the same behind it; what it truncates has no licence: who holds one is asked
        // for it by the server first.
        command::NT_CREATE if !is_chained() => Smb1RequestEffect::Opens,
        command::TREE_DISCONNECT => Smb1RequestEffect::EndsTree,
        command::LOGOFF if !is_chained() => Smb1RequestEffect::EndsUser,
        command::OPEN if !is_chained() => Smb1RequestEffect::Anything,
        // Their chains hold what sets a connection up, and opens of what has no licence yet.
        command::NEGOTIATE | command::TREE_CONNECT_OLD | command::ECHO | command::NT_CANCEL => {
            Smb1RequestEffect::Nothing
        }
        // It ends the header's tree whether it connects to another or not.
        command::TREE_CONNECT if !is_chained() && disconnects(message) => Smb1RequestEffect::EndsTree,
        command::TREE_CONNECT if sets_up(message) => Smb1RequestEffect::Nothing,
        // The TREE_CONNECT in its chain may end the header's tree, if there is one.
        command::SESSION_SETUP if sets_up(message) && (!is_chained() || has_no_tree(header)) => {
            Smb1RequestEffect::Nothing
        }
        // On pipes and mailslots alone.
        command::TRANSACTION | command::TRANSACTION_SECONDARY => Smb1RequestEffect::Nothing,
        command::CHECK_DIRECTORY
        | command::QUERY_INFORMATION
        | command::QUERY_INFORMATION_DISK
        | command::FIND_CLOSE_2 => Smb1RequestEffect::Nothing,
        // It waits until a directory changes.
        command::NT_TRANSACT if function(message) == Some(CHANGE_NOTIFY) => Smb1RequestEffect::Nothing,
        command::TRANSACTION_2_SECONDARY
        | command::NT_TRANSACT
        | command::NT_TRANSACT_SECONDARY
        // CREATE_DIRECTORY, DELETE_DIRECTORY, OPEN, CREATE, DELETE, RENAME and SET_INFORMATION by name.
        | 0x00..=0x03
        | 0x06
        | 0x07
        | 0x09 => Smb1RequestEffect::Anything,
        // READ_RAW and READ_MPX to WRITE_MPX_SECONDARY.
        command::READ_RAW..=command::WRITE_COMPLETE => Smb1RequestEffect::Raw,
        _ => return None,
    })
}

/// Returns true if a request asks for attributes or names by a name: no half answers such.
pub(crate) fn asks_by_name(header: &Smb1Header, message: &[u8]) -> bool {
    match header.command {
        command::TRANSACTION_2 => u16_at(message, WORDS_AT + 28)
            .is_ok_and(|setup| matches!(setup, FIND_FIRST | FIND_NEXT | QUERY_PATH)),
        command::CHECK_DIRECTORY | command::QUERY_INFORMATION => true,
        _ => false,
    }
}

/// Returns true if a CLOSE sets no time of the file ([MS-CIFS] §2.2.4.5.1, LastTimeModified): it has nothing to report.
pub(crate) fn only_closes(message: &[u8]) -> bool {
    let [before_2038, unset] = [0, u32::MAX];
    word_count(message) == Ok(3)
        && u32_at(message, WORDS_AT + 2).is_ok_and(|time| [before_2038, unset].contains(&time))
}

/// Returns true if an AndX chain that begins so contains only the commands that set a connection
/// up.
fn sets_up(message: &[u8]) -> bool {
    let next = u8_at(message, WORDS_AT);
    next.is_ok_and(|next| matches!(next, NO_ANDX | command::TREE_CONNECT))
}

/// Returns true if a request names no tree: 0 before there is one, or a number that servers never
/// give.
fn has_no_tree(header: &Smb1Header) -> bool {
    matches!(header.tree, 0 | 0xffff)
}

/// The function of an NT_TRANSACT ([MS-CIFS] §2.2.4.62.1).
fn function(message: &[u8]) -> Option<u16> {
    u16_at(message, WORDS_AT + 36).ok()
}

/// Returns true if the answer may contain a new file id.
pub(crate) fn may_open(header: &Smb1Header, touch: Smb1RequestEffect, message: &[u8]) -> bool {
    match header.command {
        command::NT_TRANSACT => {
            function(message).is_none_or(|function| function == TRANSACT_CREATE)
        }
        // The second does so by a level of the Unix extensions.
        command::TRANSACTION_2 => {
            u16_at(message, WORDS_AT + 28).is_ok_and(|setup| matches!(setup, OPEN_2 | SET_PATH))
        }
        command::OPEN | command::OPEN_OLD | command::CREATE => true,
        _ => matches!(touch, Smb1RequestEffect::Opens | Smb1RequestEffect::Unread),
    }
}

fn transaction(message: &[u8]) -> Option<Smb1RequestEffect> {
    let parameter = |at: usize| {
        let parameters = usize::from(u16_at(message, WORDS_AT + 20).ok()?);
        u16_at(message, parameters + at).ok()
    };
    Some(match u16_at(message, WORDS_AT + 28).ok()? {
        FIND_FIRST | FIND_NEXT | QUERY_FS | QUERY_PATH | GET_REFERRAL => Smb1RequestEffect::Nothing,
        QUERY_FILE => match position::is_reported_by(parameter(2)?) {
            true => Smb1RequestEffect::AsksPosition(parameter(0)?),
            false => Smb1RequestEffect::Asks(parameter(0)?),
        },
        // Who may read or write what is for the server to judge behind it.
        SET_FILE if parameter(2)? == SET_POSIX_LOCK => return None,
        SET_FILE => Smb1RequestEffect::Changes(parameter(0)?),
        _ => Smb1RequestEffect::Anything,
    })
}

/// Returns true if a request opens a file by the Unix extensions. Its answer names the open where no
/// half looks for it.
pub(crate) fn opens_by_unix_extensions(header: &Smb1Header, message: &[u8]) -> bool {
    let level = || {
        let parameters = usize::from(u16_at(message, WORDS_AT + 20).ok()?);
        u16_at(message, parameters).ok()
    };
    header.command == command::TRANSACTION_2
        && u16_at(message, WORDS_AT + 28) == Ok(SET_PATH)
        && level() == Some(POSIX_OPEN)
}

/// Returns the number of a server's answers to a request: the count of an ECHO ([MS-CIFS]
/// §2.2.4.39.1, EchoCount); none for a request without an answer.
pub(crate) fn answers(header: &Smb1Header, message: &[u8]) -> u16 {
    /// A transaction whose sender wants no answer ([MS-CIFS] §2.2.4.33.1, Flags).
    const NO_RESPONSE: u16 = 0x0002;
    match header.command {
        command::ECHO => u16_at(message, WORDS_AT).unwrap_or(1),
        command::NT_CANCEL
        | command::TRANSACTION_SECONDARY
        | command::TRANSACTION_2_SECONDARY
        | command::NT_TRANSACT_SECONDARY => 0,
        command::LOCKING if LockingRequest::begins_without_answer(message) => 0,
        command::TRANSACTION
            if u16_at(message, WORDS_AT + 10).is_ok_and(|flags| flags & NO_RESPONSE != 0) =>
        {
            0
        }
        _ => 1,
    }
}

/// Returns true if a request belongs to another one, and bears its multiplex id.
pub(crate) fn is_secondary(header: &Smb1Header) -> bool {
    matches!(
        header.command,
        command::NT_CANCEL
            | command::TRANSACTION_SECONDARY
            | command::TRANSACTION_2_SECONDARY
            | command::NT_TRANSACT_SECONDARY
    )
}

/// Returns true if a secondary request, or an NT_CANCEL, can belong to a request of this command.
pub(crate) fn belongs_to(secondary: &Smb1Header, primary: u8) -> bool {
    match secondary.command {
        command::TRANSACTION_SECONDARY => primary == command::TRANSACTION,
        command::TRANSACTION_2_SECONDARY => primary == command::TRANSACTION_2,
        command::NT_TRANSACT_SECONDARY => primary == command::NT_TRANSACT,
        _ => secondary.command == command::NT_CANCEL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::nt1::testing::{
        body, chained, close, flush, header, open_andx, query_file, read, set_size,
        set_size_by_name,
    };

    fn of(message: &[u8]) -> Smb1RequestEffect {
        touch(&Smb1Header::parse(message).unwrap(), message)
    }

    #[test]
    fn requests_on_opens_name_them() {
        assert!(
            matches!(of(&read(7, 0, 10)), Smb1RequestEffect::Reads(request) if request.file == 7)
        );
        assert_eq!(of(&close(7)), Smb1RequestEffect::Closes(7));
        assert_eq!(of(&flush(7)), Smb1RequestEffect::Flushes(7));
        assert_eq!(of(&flush(0xffff)), Smb1RequestEffect::FlushesAll);
        assert_eq!(of(&query_file(7, 0x107)), Smb1RequestEffect::Asks(7));
        assert_eq!(
            of(&query_file(7, 1_014)),
            Smb1RequestEffect::AsksPosition(7)
        );
        assert_eq!(of(&set_size(7, 100)), Smb1RequestEffect::Changes(7));
    }

    #[test]
    fn set_times_change_and_foreign_locks_end_licences() {
        let times = [&9u16.to_le_bytes()[..], &[0; 12]].concat();
        let message = body(&header(command::SET_INFORMATION_2), &times, &[]);
        assert_eq!(of(&message), Smb1RequestEffect::Changes(9));
        let mut message = set_size(9, 100);
        let level = message.windows(2).position(|at| at == [0x04, 0x01]);
        let at = level.expect("the level stands there");
        message[at..at + 2].copy_from_slice(&[0x08, 0x02]);
        assert_eq!(of(&message), Smb1RequestEffect::Unread);
    }

    #[test]
    fn pipe_read_with_timeout_ends_no_licence() {
        let mut message = read(7, 0, 10);
        message[WORDS_AT + 14..WORDS_AT + 18].fill(0xff);
        assert_eq!(of(&message), Smb1RequestEffect::ReadsOtherwise(7));
        assert_eq!(of(&chained(&message)), Smb1RequestEffect::Unread);
        assert_eq!(of(&message[..WORDS_AT + 18]), Smb1RequestEffect::Unread);
    }

    #[test]
    fn requests_that_return_file_ids_are_recognised() {
        let may_open = |message: &[u8]| {
            let header = Smb1Header::parse(message).unwrap();
            may_open(&header, touch(&header, message), message)
        };
        assert!(may_open(&open_andx("a")));
        // The Unix extensions open files so.
        assert!(may_open(&set_size_by_name("a", 9)));
        assert!(!may_open(&set_size(7, 9)) && !may_open(&query_file(7, 0x107)));
        assert!(!may_open(&close(7)) && !may_open(&read(7, 0, 10)));
        // Whatever begins so.
        assert!(may_open(&chained(&read(7, 0, 10))));
    }

    #[test]
    fn a_transaction_that_waits_for_changes_makes_none() {
        let mut words = [0; 38];
        words[36] = 4;
        let message = body(&header(command::NT_TRANSACT), &words, &[]);
        assert_eq!(of(&message), Smb1RequestEffect::Nothing);
        words[36] = 1;
        let message = body(&header(command::NT_TRANSACT), &words, &[]);
        assert_eq!(of(&message), Smb1RequestEffect::Anything);
    }

    #[test]
    fn chained_or_unknown_requests_may_do_anything() {
        assert_eq!(of(&chained(&read(7, 0, 10))), Smb1RequestEffect::Unread);
        assert_eq!(of(&header(0x2c).alone()), Smb1RequestEffect::Unread);
        assert_eq!(of(&header(0x1a).alone()), Smb1RequestEffect::Raw);
        let whole = query_file(7, 0x107);
        for cut in header::LENGTH..whole.len() {
            let touch = of(&whole[..cut]);
            assert!(
                matches!(
                    touch,
                    Smb1RequestEffect::Unread | Smb1RequestEffect::Asks(7)
                ),
                "{touch:?}"
            );
        }
    }

    use super::super::header;
}
