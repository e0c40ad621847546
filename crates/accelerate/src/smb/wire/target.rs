//! The open, tree or session that a request works on, and the effect on the known state.
//!
//! Both halves apply the same rules to every request in the same order, and so agree on the
//! prefetched data that is out of date. A request that is not known to be harmless counts as a
//! change.

use super::header::{Smb2Header, command, flag};
use super::{FileId, WireError, array};

/// The effect of a request on the known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEffect {
    /// Nothing.
    Nothing,
    /// It queries an open and changes nothing.
    Asks(FileId),
    /// It may change the contents or the locks of an open's file.
    Changes(FileId),
    /// It makes written data durable.
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

/// The effects of a frame's requests, given in their order.
///
/// A related request works on the open of the request before it, whatever open its own body names
/// ([MS-SMB2] §3.3.5.2.7.2, Handling Compounded Related Requests).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompoundChain {
    /// The open that was last worked on; behind a CREATE it is not known yet.
    file: Option<FileId>,
}

/// Returns the effect of a request that is alone in its frame.
pub(crate) fn touch(header: &Smb2Header, body: &[u8]) -> RequestEffect {
    CompoundChain::default().touch(header, body)
}

impl CompoundChain {
    /// Returns the effect of the next request, from its header and the beginning of its body.
    pub(crate) fn touch(&mut self, header: &Smb2Header, body: &[u8]) -> RequestEffect {
        // Where the file id stands in each body ([MS-SMB2] §2.2.15 to §2.2.39).
        let (at, with): (usize, fn(FileId) -> RequestEffect) = match header.command {
            command::CREATE => {
                self.file = Some(FileId::RELATED);
                return RequestEffect::Nothing;
            }
            command::NEGOTIATE
            | command::SESSION_SETUP
            | command::TREE_CONNECT
            | command::CANCEL
            | command::ECHO
            | command::OPLOCK_BREAK => return RequestEffect::Nothing,
            command::LOGOFF => return RequestEffect::EndsSession,
            command::TREE_DISCONNECT => return RequestEffect::EndsTree,
            command::CLOSE => (8, RequestEffect::Closes),
            command::FLUSH => (8, RequestEffect::Flushes),
            command::READ => (16, RequestEffect::Asks),
            command::WRITE => (16, RequestEffect::Changes),
            command::LOCK | command::IOCTL => (8, RequestEffect::Changes),
            command::QUERY_DIRECTORY | command::CHANGE_NOTIFY => (8, RequestEffect::Asks),
            command::QUERY_INFO => (24, RequestEffect::Asks),
            command::SET_INFO => (16, RequestEffect::Changes),
            _ => return RequestEffect::Anything,
        };
        let Ok(named) = file(body, at) else {
            return RequestEffect::Anything;
        };
        let before = self.file.filter(|_| header.has(flag::RELATED));
        let file = before.unwrap_or(named);
        self.file = Some(file);
        with(file)
    }
}

fn file(body: &[u8], at: usize) -> Result<FileId, WireError> {
    array(body, at).map(FileId)
}

impl RequestEffect {
    /// The open that it works on.
    pub(crate) fn file(self) -> Option<FileId> {
        match self {
            RequestEffect::Asks(file)
            | RequestEffect::Changes(file)
            | RequestEffect::Flushes(file)
            | RequestEffect::Closes(file) => Some(file),
            RequestEffect::Nothing
            | RequestEffect::EndsTree
            | RequestEffect::EndsSession
            | RequestEffect::Anything => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn related(command: u16) -> Smb2Header {
        let mut header = Smb2Header::request(command, 1, 1, 1);
        header.flags |= flag::RELATED;
        header
    }

    #[test]
    fn related_request_uses_the_previous_open() {
        let (one, other) = (FileId([3; 16]), FileId([4; 16]));
        for named in [FileId::RELATED, other] {
            let mut chain = CompoundChain::default();
            let asked = chain.touch(&Smb2Header::request(command::FLUSH, 1, 1, 1), &body_of(one));
            assert_eq!(asked, RequestEffect::Flushes(one));
            assert_eq!(
                chain.touch(&related(command::ECHO), &[4, 0, 0, 0]),
                RequestEffect::Nothing
            );
            let closes = chain.touch(&related(command::CLOSE), &body_of(named));
            assert_eq!(closes, RequestEffect::Closes(one));
        }
    }

    #[test]
    fn unrelated_request_uses_its_own_open() {
        let (one, other) = (FileId([3; 16]), FileId([4; 16]));
        for named in [FileId::RELATED, other] {
            let close = Smb2Header::request(command::CLOSE, 1, 1, 1);
            let mut chain = CompoundChain::default();
            chain.touch(&Smb2Header::request(command::FLUSH, 1, 1, 1), &body_of(one));
            assert_eq!(
                chain.touch(&close, &body_of(named)),
                RequestEffect::Closes(named)
            );
        }
    }

    #[test]
    fn open_of_a_create_is_unknown_to_followers() {
        let mut chain = CompoundChain::default();
        let create = Smb2Header::request(command::CREATE, 1, 1, 1);
        assert_eq!(chain.touch(&create, &[0; 56]), RequestEffect::Nothing);
        let close = chain.touch(&related(command::CLOSE), &body_of(FileId([4; 16])));
        assert_eq!(close, RequestEffect::Closes(FileId::RELATED));
    }

    #[test]
    fn a_body_that_is_cut_may_do_anything() {
        let body = body_of(FileId([3; 16]));
        let header = Smb2Header::request(command::CLOSE, 1, 1, 1);
        assert_eq!(touch(&header, &body[..20]), RequestEffect::Anything);
    }

    /// A FLUSH's or CLOSE's.
    fn body_of(file: FileId) -> [u8; 24] {
        let mut body = [0; 24];
        body[8..].copy_from_slice(&file.0);
        body
    }

    #[test]
    fn unknown_requests_may_do_anything() {
        let header = Smb2Header::request(0x77, 1, 1, 1);
        assert_eq!(touch(&header, &[0; 88]), RequestEffect::Anything);
    }
}
