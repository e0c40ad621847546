//! The far half's view of the connection while everything passes: dialect, sessions, trees.
//!
//! These facts decide whether an open may be served: the share must hold files, requests must be
//! unsigned, and no other connection may be able to work on the same open.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use vocab::Time;

use super::super::config::TREES_MAX;
use super::super::wire::create::{CreateRequest, oplock_level};
use super::super::wire::header::{Smb2Header, command, flag, status};
use super::super::wire::lease;
use super::super::wire::set_up::{
    NegotiateResponse, SessionSetupResponse, TreeConnectResponse, client_guid, dialect,
};
use super::super::wire::u32_at;
use crate::claims::ClaimKey;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Smb2Connection {
    /// The client's GUID; zeros until the client has sent it.
    client: [u8; 16],
    negotiated: Option<NegotiateResponse>,
    /// The arrival of the server's clock.
    negotiated_at: Time,
    /// The established sessions; true for one without a key.
    sessions: HashMap<u64, bool>,
    /// Trees of disk shares, by session.
    disks: HashSet<(u64, u32)>,
    /// The sessions whose client has queried the addresses for further channels.
    may_have_channels: HashSet<u64>,
}

/// Nobody waits for the end of a ticket that says to last longer.
const TICKET_LASTS_MAX: Duration = Duration::from_secs(400 * 24 * 3_600);

/// The control code of a client's query for a server's interfaces, before it opens a further
/// channel ([MS-SMB2] §2.2.31, FSCTL_QUERY_NETWORK_INTERFACE_INFO).
const QUERY_NETWORK_INTERFACE_INFO: u32 = 0x0014_01fc;

/// Returns true if a request asks for the server's network interfaces.
pub(crate) fn asks_for_interfaces(header: &Smb2Header, body: &[u8]) -> bool {
    header.command == command::IOCTL && u32_at(body, 4) == Ok(QUERY_NETWORK_INTERFACE_INFO)
}

/// The create options whose meaning an additional oplock would change, or that require more
/// durability than a cache gives ([MS-SMB2] §2.2.13, CreateOptions).
const OPTIONS_NOT_SERVED: u32 = 0x0000_0001 // FILE_DIRECTORY_FILE
    | 0x0000_0002 // FILE_WRITE_THROUGH
    | 0x0000_0008 // FILE_NO_INTERMEDIATE_BUFFERING
    | 0x0000_0100 // FILE_COMPLETE_IF_OPLOCKED
    | 0x0000_1000 // FILE_DELETE_ON_CLOSE
    | 0x0001_0000 // FILE_OPEN_REQUIRING_OPLOCK
    | 0x0010_0000 // FILE_RESERVE_OPFILTER
    | OPEN_REPARSE_POINT;

/// FILE_OPEN_REPARSE_POINT. The client's own oplock is as good with it, unless the file is one.
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;

/// The same for an open of a directory or for attributes alone, for which no oplock is requested:
/// options with an effect at its CLOSE, or a wait for an oplock.
const OPTIONS_NOT_BARE: u32 = 0x0000_0100 // FILE_COMPLETE_IF_OPLOCKED
    | 0x0000_1000 // FILE_DELETE_ON_CLOSE
    | 0x0001_0000 // FILE_OPEN_REQUIRING_OPLOCK
    | 0x0010_0000; // FILE_RESERVE_OPFILTER

/// The create contexts of opens for which an oplock is requested. Durable handles and leases are
/// not among them, because the state that the server stores with them would change ([MS-SMB2]
/// §3.3.5.9.6).
const CONTEXTS_SERVED: [&[u8]; 5] = [b"MxAc", b"QFid", b"AlSi", b"ExtA", b"SecD"];

/// The additional create contexts of an open whose client requests an oplock or lease itself. The
/// granted oplock remains the client's; a reconnected handle is not served.
const CONTEXTS_OF_ITS_OWN: [&[u8]; 3] = [b"DHnQ", b"DH2Q", lease::CONTEXT];

impl Smb2Connection {
    /// Learns from an answer, in the order of arrival.
    pub(crate) fn learn(&mut self, now: Time, header: &Smb2Header, body: &[u8]) {
        // An answer that was pending does not name its tree.
        if header.status != status::SUCCESS || header.has(flag::ASYNC) {
            return;
        }
        match header.command {
            command::NEGOTIATE => {
                self.negotiated_at = now;
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

    /// Records the properties that a client states in its request.
    pub(crate) fn note_client(&mut self, header: &Smb2Header, body: &[u8]) {
        if header.command == command::NEGOTIATE
            && let Ok(client) = client_guid(body)
        {
            self.client = client;
        }
    }

    /// Returns the time of an event that the server's clock shows at so many seconds since 1970, if it has shown
    /// its clock.
    pub(crate) fn at_server(&self, seconds: u64) -> Option<Time> {
        let clock = self.negotiated.as_ref()?.system_time?;
        let until = Duration::from_secs(seconds.saturating_sub(clock));
        (until <= TICKET_LASTS_MAX).then(|| self.negotiated_at + until)
    }

    /// Between whom the connection is, once that is agreed; `None` where leases are unknown.
    pub(crate) fn ends(&self) -> Option<ClaimKey> {
        let agreed = self.negotiated.as_ref()?;
        let mut ends = [0; 32];
        ends[..16].copy_from_slice(&self.client);
        ends[16..].copy_from_slice(&agreed.server_guid);
        (agreed.dialect >= dialect::SMB_2_1).then_some(ClaimKey(ends))
    }

    /// The result of NEGOTIATE.
    pub(crate) fn negotiated(&self) -> Option<&NegotiateResponse> {
        self.negotiated.as_ref()
    }

    /// Returns true if a session that is set up now derives its keys from the bytes of its
    /// messages, which must then not be altered ([MS-SMB2] §3.2.5.3, pre-authentication integrity).
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

    /// Returns true if an established session signs nothing: a guest's, or an anonymous one.
    pub(crate) fn is_without_key(&self, session: u64) -> bool {
        self.sessions.get(&session) == Some(&true)
    }

    /// Returns true if opens in this tree may be served.
    fn serves(&self, session: u64, tree: u32, is_keyed: bool) -> bool {
        !self.may_have_channels(session, is_keyed) && self.disks.contains(&(session, tree))
    }

    /// Returns true if another connection may work on a session's opens, as far as is known now. A
    /// session with a key belongs to a user.
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

    /// Returns true if the tree of a request is a disk, and no other connection may work in its session.
    pub(crate) fn serves_tree(&self, header: &Smb2Header, is_keyed: bool) -> bool {
        self.serves(header.session, header.tree, is_keyed)
    }

    /// Returns true if a request that opens a directory in a compound with requests for its names
    /// changes nothing that its answers depend on, and asks for no oplock.
    pub(crate) fn serves_listing(
        &self,
        header: &Smb2Header,
        request: &CreateRequest<'_>,
        is_keyed: bool,
    ) -> bool {
        let names = request.context_names();
        self.serves(header.session, header.tree, is_keyed)
            && request.options & OPTIONS_NOT_BARE == 0
            && request.oplock_level == oplock_level::NONE
            && names.is_ok_and(|names| names.iter().all(|name| CONTEXTS_SERVED.contains(name)))
    }

    /// Decides how to handle the oplock of a request to open a file.
    pub(crate) fn judge(
        &self,
        header: &Smb2Header,
        request: &CreateRequest<'_>,
        is_keyed: bool,
    ) -> OplockRequester {
        let may_transfer = request.may_read() || request.may_write();
        let is_bare = request.is_directory() || !may_transfer;
        let is_for_itself = request.oplock_level != oplock_level::NONE;
        let not_served = match (is_bare, is_for_itself) {
            (true, _) => OPTIONS_NOT_BARE,
            (false, true) => OPTIONS_NOT_SERVED & !OPEN_REPARSE_POINT,
            (false, false) => OPTIONS_NOT_SERVED,
        };
        let is_served =
            self.serves(header.session, header.tree, is_keyed) && request.options & not_served == 0;
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
            // The lease stays the client's own, and nothing is answered under it.
            oplock_level::LEASE if is_bare && request.is_for_attributes() && fits_its_own => {
                OplockRequester::ForNobody
            }
            _ if is_bare => OplockRequester::NotServed,
            oplock_level::NONE => OplockRequester::ForUs,
            oplock_level::EXCLUSIVE | oplock_level::BATCH | oplock_level::LEASE if fits_its_own => {
                OplockRequester::ForItself
            }
            _ => OplockRequester::NotServed,
        }
    }
}

/// The side that requests an open's oplock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OplockRequester {
    /// None, or one that gives no licence.
    NotServed,
    /// The client.
    ForItself,
    /// This half, in a client's request without one.
    ForUs,
    /// None, and none is needed for the possible answers: a directory, or for attributes alone.
    ForNobody,
}
