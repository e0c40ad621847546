//! What the far half learns of the connection while everything passes: dialect, sessions, trees.
//!
//! From this alone follows whether an open may be served: the share must hold files, requests must
//! go unsigned, and no other connection may be able to work on the same open.

use std::collections::{HashMap, HashSet};

use super::super::config::TREES_MAX;
use super::super::wire::create::{CreateRequest, oplock_level};
use super::super::wire::header::{Smb2Header, command, flag, status};
use super::super::wire::lease;
use super::super::wire::set_up::{
    NegotiateResponse, SessionSetupResponse, TreeConnectResponse, client_guid, dialect,
};
use super::super::wire::u32_at;
use crate::claims::ClaimKey;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Smb2Connection {
    /// What the client calls itself; zeros until it has said.
    client: [u8; 16],
    negotiated: Option<NegotiateResponse>,
    /// Sessions that stand, and whether they are without a key.
    sessions: HashMap<u64, bool>,
    /// Trees of disk shares, by session.
    disks: HashSet<(u64, u32)>,
    /// Sessions whose client has asked over which addresses it could have further channels.
    may_have_channels: HashSet<u64>,
}

/// The control code by which a client asks for a server's interfaces, before it opens a further
/// channel ([MS-SMB2] §2.2.31, FSCTL_QUERY_NETWORK_INTERFACE_INFO).
const QUERY_NETWORK_INTERFACE_INFO: u32 = 0x0014_01fc;

/// Whether a request asks for the server's interfaces.
pub(crate) fn asks_for_interfaces(header: &Smb2Header, body: &[u8]) -> bool {
    header.command == command::IOCTL && u32_at(body, 4) == Ok(QUERY_NETWORK_INTERFACE_INFO)
}

/// Create options that an oplock asked for beside the client's back would change the meaning of,
/// or that ask for more care than a cache gives ([MS-SMB2] §2.2.13, CreateOptions).
const OPTIONS_NOT_SERVED: u32 = 0x0000_0001 // FILE_DIRECTORY_FILE
    | 0x0000_0002 // FILE_WRITE_THROUGH
    | 0x0000_0008 // FILE_NO_INTERMEDIATE_BUFFERING
    | 0x0000_0100 // FILE_COMPLETE_IF_OPLOCKED
    | 0x0000_1000 // FILE_DELETE_ON_CLOSE
    | 0x0001_0000 // FILE_OPEN_REQUIRING_OPLOCK
    | 0x0010_0000 // FILE_RESERVE_OPFILTER
    | 0x0020_0000; // FILE_OPEN_REPARSE_POINT

/// The same of an open of a directory or for attributes alone, for which no oplock is asked: what
/// happens at its CLOSE, or waits for an oplock.
const OPTIONS_NOT_BARE: u32 = 0x0000_0100 // FILE_COMPLETE_IF_OPLOCKED
    | 0x0000_1000 // FILE_DELETE_ON_CLOSE
    | 0x0001_0000 // FILE_OPEN_REQUIRING_OPLOCK
    | 0x0010_0000; // FILE_RESERVE_OPFILTER

/// Create contexts of opens that an oplock is asked for with. Of durable handles and leases it is not: what
/// the server stores with them would change ([MS-SMB2] §3.3.5.9.6).
const CONTEXTS_SERVED: [&[u8]; 5] = [b"MxAc", b"QFid", b"AlSi", b"ExtA", b"SecD"];

/// Those that an open may have beside them which the client asks for an oplock or lease with itself. What it is
/// given stays the client's; a handle that it takes up again is not served.
const CONTEXTS_OF_ITS_OWN: [&[u8]; 3] = [b"DHnQ", b"DH2Q", lease::CONTEXT];

impl Smb2Connection {
    /// Learns from an answer, in the order in which they come.
    pub(crate) fn learn(&mut self, header: &Smb2Header, body: &[u8]) {
        // An answer that was pending does not name its tree.
        if header.status != status::SUCCESS || header.has(flag::ASYNC) {
            return;
        }
        match header.command {
            command::NEGOTIATE => {
                self.negotiated = NegotiateResponse::parse(body)
                    .ok()
                    .filter(|answer| answer.dialect != dialect::WILDCARD);
            }
            command::SESSION_SETUP => {
                if let Ok(answer) = SessionSetupResponse::parse(body)
                    && self.sessions.len() < TREES_MAX
                {
                    self.sessions
                        .insert(header.session, answer.is_without_key());
                }
            }
            command::TREE_CONNECT => {
                if let Ok(answer) = TreeConnectResponse::parse(body)
                    && answer.is_disk()
                    && self.disks.len() < TREES_MAX
                {
                    self.disks.insert((header.session, header.tree));
                }
            }
            command::TREE_DISCONNECT => {
                self.disks.remove(&(header.session, header.tree));
            }
            command::LOGOFF => {
                self.sessions.remove(&header.session);
                self.disks.retain(|(session, _)| *session != header.session);
                self.may_have_channels.remove(&header.session);
            }
            _ => {}
        }
    }

    /// What a client says of itself.
    pub(crate) fn note_client(&mut self, header: &Smb2Header, body: &[u8]) {
        if header.command == command::NEGOTIATE
            && let Ok(client) = client_guid(body)
        {
            self.client = client;
        }
    }

    /// Between whom the connection is, once that is agreed; `None` where leases are unknown.
    pub(crate) fn ends(&self) -> Option<ClaimKey> {
        let agreed = self.negotiated.as_ref()?;
        let mut ends = [0; 32];
        ends[..16].copy_from_slice(&self.client);
        ends[16..].copy_from_slice(&agreed.server_guid);
        (agreed.dialect >= dialect::SMB_2_1).then_some(ClaimKey(ends))
    }

    /// What was agreed in NEGOTIATE.
    pub(crate) fn negotiated(&self) -> Option<&NegotiateResponse> {
        self.negotiated.as_ref()
    }

    /// Whether a session that is set up now derives keys from the bytes of its messages, which
    /// then must not be altered ([MS-SMB2] §3.2.5.3, pre-authentication integrity).
    pub(crate) fn hashes_set_up(&self) -> bool {
        self.negotiated
            .is_none_or(|agreed| agreed.dialect >= dialect::SMB_3_1_1)
    }

    /// A session of this client's may get further channels.
    pub(crate) fn note_channels(&mut self, session: u64) {
        if self.may_have_channels.len() < TREES_MAX {
            self.may_have_channels.insert(session);
        }
    }

    /// Whether a session stands that signs nothing: a guest's, or nobody's.
    pub(crate) fn is_without_key(&self, session: u64) -> bool {
        self.sessions.get(&session) == Some(&true)
    }

    /// Whether opens in this tree may be served at all.
    fn serves(&self, session: u64, tree: u32, is_keyed: bool) -> bool {
        !self.may_have_channels(session, is_keyed) && self.disks.contains(&(session, tree))
    }

    /// Whether another connection may work on a session's opens, as far as is known now. With a key of
    /// the session's, it is a user's.
    pub(crate) fn may_have_channels(&self, session: u64, is_keyed: bool) -> bool {
        let (Some(agreed), Some(without_key)) = (&self.negotiated, self.sessions.get(&session))
        else {
            return true;
        };
        // With several channels another connection could write to the same open, but sessions of
        // guests and of nobody have one ([MS-SMB2] §3.3.5.5.2, Receiving a SMB2 SESSION_SETUP
        // Request for session binding). In SMB 3.1.1 an unsigned TREE_CONNECT shows that a session
        // is such (§3.3.5.7); a signed one without a key has made us let go. A user's client asks
        // for the server's interfaces before it opens another channel (§3.2.4.20.10).
        let is_alone = agreed.dialect < dialect::SMB_3_0
            || *without_key
            || !agreed.is_multichannel()
            || match is_keyed {
                true => !self.may_have_channels.contains(&session),
                false => agreed.dialect >= dialect::SMB_3_1_1,
            };
        !is_alone
    }

    /// What to do with the oplock of a request to open a file.
    pub(crate) fn judge(
        &self,
        header: &Smb2Header,
        request: &CreateRequest<'_>,
        is_keyed: bool,
    ) -> OplockRequester {
        let may_transfer = request.may_read() || request.may_write();
        let is_bare = request.is_directory() || !may_transfer;
        let is_served = self.serves(header.session, header.tree, is_keyed)
            && match is_bare {
                true => request.options & OPTIONS_NOT_BARE == 0,
                false => request.options & OPTIONS_NOT_SERVED == 0,
            };
        let Ok(names) = request.context_names() else {
            return OplockRequester::NotServed;
        };
        let fits = names.iter().all(|name| CONTEXTS_SERVED.contains(name));
        let fits_its_own = names
            .iter()
            .all(|name| CONTEXTS_SERVED.contains(name) || CONTEXTS_OF_ITS_OWN.contains(name));
        match request.oplock_level {
            _ if !is_served => OplockRequester::NotServed,
            oplock_level::NONE if !fits => OplockRequester::NotServed,
            oplock_level::NONE if is_bare => OplockRequester::ForNobody,
            _ if is_bare => OplockRequester::NotServed,
            oplock_level::NONE => OplockRequester::ForUs,
            oplock_level::EXCLUSIVE | oplock_level::BATCH | oplock_level::LEASE if fits_its_own => {
                OplockRequester::ForItself
            }
            _ => OplockRequester::NotServed,
        }
    }
}

/// Who asks for an open's oplock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OplockRequester {
    /// Nobody, or in a way that gives no licence.
    NotServed,
    /// The client.
    ForItself,
    /// We, in a request of the client's that asks for none.
    ForUs,
    /// Nobody, and it needs none for what may be answered: a directory, or for attributes alone.
    ForNobody,
}
