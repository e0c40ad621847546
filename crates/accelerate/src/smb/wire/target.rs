//! Which open, tree or session a request works on, and what that means for what is known of it.
//!
//! Both halves ask this of every request in the same order, and so agree on which data that was
//! read ahead is out of date. What is not known to be harmless counts as a change.

use super::header::{Header, command};
use super::{FileId, WireError, array};

/// What a request does to what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Nothing.
    Nothing,
    /// It asks something of an open and changes nothing.
    Asks(FileId),
    /// It may change the contents or the locks of an open's file.
    Changes(FileId),
    /// It makes sure that what was written is kept.
    Flushes(FileId),
    /// It ends an open.
    Closes(FileId),
    /// It ends all opens of its header's tree.
    EndsTree,
    /// It ends all opens of its header's session.
    EndsSession,
    /// It may do anything.
    Anything,
}

/// What the request with this header and the beginning of its body does. `before` is the open
/// that the message before it in the compound worked on.
pub(crate) fn touch(header: &Header, body: &[u8], before: Option<FileId>) -> Touch {
    // Where the file id stands in each body ([MS-SMB2] §2.2.15 to §2.2.39).
    let (at, with): (usize, fn(FileId) -> Touch) = match header.command {
        command::NEGOTIATE
        | command::SESSION_SETUP
        | command::TREE_CONNECT
        | command::CREATE
        | command::CANCEL
        | command::ECHO
        | command::OPLOCK_BREAK => return Touch::Nothing,
        command::LOGOFF => return Touch::EndsSession,
        command::TREE_DISCONNECT => return Touch::EndsTree,
        command::CLOSE => (8, Touch::Closes),
        command::FLUSH => (8, Touch::Flushes),
        command::READ => (16, Touch::Asks),
        command::WRITE => (16, Touch::Changes),
        command::LOCK | command::IOCTL => (8, Touch::Changes),
        command::QUERY_DIRECTORY | command::CHANGE_NOTIFY => (8, Touch::Asks),
        command::QUERY_INFO => (24, Touch::Asks),
        command::SET_INFO => (16, Touch::Changes),
        _ => return Touch::Anything,
    };
    match (file(body, at), before) {
        (Ok(FileId::RELATED), Some(before)) => with(before),
        (Ok(file), _) => with(file),
        (Err(_), _) => Touch::Anything,
    }
}

fn file(body: &[u8], at: usize) -> Result<FileId, WireError> {
    array(body, at).map(FileId)
}

impl Touch {
    /// The open that it works on.
    pub(crate) fn file(self) -> Option<FileId> {
        match self {
            Touch::Asks(file)
            | Touch::Changes(file)
            | Touch::Flushes(file)
            | Touch::Closes(file) => Some(file),
            Touch::Nothing | Touch::EndsTree | Touch::EndsSession | Touch::Anything => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_related_close_ends_what_the_message_before_worked_on() {
        let header = Header::request(command::CLOSE, 1, 1, 1);
        let body = [0xff; 24];
        let file = FileId([3; 16]);
        assert_eq!(touch(&header, &body, Some(file)), Touch::Closes(file));
        assert_eq!(touch(&header, &body, None), Touch::Closes(FileId::RELATED));
        assert_eq!(touch(&header, &body[..20], Some(file)), Touch::Anything);
    }

    #[test]
    fn what_is_not_known_may_do_anything() {
        let header = Header::request(0x77, 1, 1, 1);
        assert_eq!(touch(&header, &[0; 88], None), Touch::Anything);
    }
}
