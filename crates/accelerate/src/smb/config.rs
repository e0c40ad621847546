//! What can be set of the accelerator, and its limits.

use std::sync::Arc;
use std::time::Duration;

use crate::credentials::{DelegatedAccounts, Keytab};

/// Which answers may be given in the server's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConsistencyMode {
    /// None: flows to file servers are reduced and carried like any other.
    #[default]
    Off,
    /// Only such that a client beside the server could have got at the same moment: under an
    /// oplock that makes every other client wait until it is given back.
    Strict,
    /// Files that a client goes through may be opened ahead of it, and what the server said to that is
    /// told for no longer than this; all else as under [`ConsistencyMode::Strict`] (docs/decisions/0061).
    Relaxed {
        /// How old at most.
        staleness: Duration,
    },
}

impl ConsistencyMode {
    /// How old what is told may be where the operator says nothing else.
    pub const STALENESS: Duration = Duration::from_secs(1);
}

/// What a client is told that asks over which addresses it could have further channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChannelPolicy {
    /// What the server says. From then on nothing is answered here for that session.
    #[default]
    Several,
    /// That there are none, where its session can be helped: all of it passes here then
    /// (docs/decisions/0065).
    One,
}

/// What the operator decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmbSettings {
    /// See [`ConsistencyMode`].
    pub consistency: ConsistencyMode,
    /// The accounts whose signed and encrypted sessions the half beside the server may work on.
    pub accounts: Option<Arc<DelegatedAccounts>>,
    /// The keys of the services beside that half whose sessions by Kerberos it may work on.
    pub keytab: Option<Arc<Keytab>>,
    /// Sessions signed by AES-GMAC are worked on too, though a message that is signed again uses the
    /// client's nonce once more (docs/decisions/0059).
    pub may_resign_gmac: bool,
    /// What came encrypted and was opened may enter the dictionaries (docs/decisions/0062).
    pub may_store_decrypted: bool,
    /// See [`ChannelPolicy`].
    pub channels: ChannelPolicy,
}

impl SmbSettings {
    /// Switched on, as it is meant to be used.
    pub const STRICT: Self = Self {
        consistency: ConsistencyMode::Strict,
        accounts: None,
        keytab: None,
        may_resign_gmac: false,
        may_store_decrypted: false,
        channels: ChannelPolicy::Several,
    };
}

/// For how long the near half may answer for the server without having heard that its licences
/// still hold. Long enough for a path of 600 ms with full queues, short enough that a client which
/// waits for an oplock gets it before servers' 35 s are over (measured on Samba 4.17).
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(10);

/// When the far half gives an oplock back though the near half has not confirmed: no earlier than
/// [`FRESH_FOR`] after it stopped saying that the licence holds, and two seconds of margin for
/// clocks that do not run alike.
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_secs(12);

/// For how long after a break of an oplock of the client's own its WRITEs are taken without the near
/// half's word: a little less than servers wait before they take the oplock themselves (35 s, as
/// above).
pub(crate) const TAKEN_AFTER: Duration = Duration::from_secs(30);

/// For how long a client's next connection waits, from when it is known, for the server to take what was answered
/// on the one before: longer than disks take to wake up, for what is given up then is lost.
pub(crate) const TAKES_WITHIN: Duration = Duration::from_secs(30);

/// The same from when the client has ended the one before, which is then of no more use than what it still brings
/// to the server: a thousand times what a LAN and a disk take that are well.
pub(crate) const LAST_TAKES_WITHIN: Duration = Duration::from_secs(2);

/// How often the near half asks at most, while its client is active, whether its licences hold.
pub(crate) const BEAT_EVERY: Duration = Duration::from_millis(500);

/// Bytes of one flow that may be read ahead and not yet asked for by the client. The fastest link
/// of the published tables (OC-1, 51.84 Mbit/s) holds 3.3 MB at a round trip of 500 ms; this is
/// 2.5 times as much.
pub(crate) const AHEAD_MAX: u64 = 8 << 20;

/// The longest READ that is made ahead, and the longest of the client's that one is made after:
/// who asks for more than a mebibyte at a time gains little.
pub(crate) const AHEAD_BLOCK_MAX: u32 = 1 << 20;

/// What is read of a file as it is opened, before the client has asked.
pub(crate) const FIRST_BLOCK: u32 = 64 << 10;

/// Credits of the server's that may be out for READs ahead: the LAN's round trip needs few, and
/// requests of the client's that arrive meanwhile wait for these at most.
pub(crate) const AHEAD_CREDITS: u32 = 16;

/// How much is asked of a directory at a time, ahead of its client: some five hundred names of the
/// class that clients ask for, and no more than they take (Windows asks for as much).
pub(crate) const LISTING_BLOCK: u32 = 64 << 10;

/// Bytes of entries of one open that may be ahead of its client.
pub(crate) const LISTING_AHEAD: usize = 512 << 10;

/// The same of all opens of a flow: a client that begins many listings and goes on with none
/// would else have half a gibibyte kept for it.
pub(crate) const LISTINGS_AHEAD: usize = 8 << 20;

/// The same of one open before its client has asked for any: more than a thousand names. In vain it costs a T1 a second.
pub(crate) const LISTING_FIRST: usize = 192 << 10;

/// For how long the first entries of a directory, which are read as it is opened, may wait for the
/// request that they answer: as long as a client takes that asks for them at once, and less than
/// any round trip that is worth saving (docs/decisions/0056).
pub(crate) const LISTING_WAITS: Duration = Duration::from_millis(20);

/// Opens of one flow that may be ahead of its client, and how many are as it begins: at a round trip of
/// 100 ms and 5 ms for each file on its LAN a client uses up twenty.
pub(crate) const OPENS_AHEAD_MAX: usize = 64;
pub(crate) const OPENS_AHEAD_FIRST: usize = 4;

/// Bytes of those files that are read with them.
pub(crate) const OPENS_AHEAD_BYTES: u64 = 4 << 20;

/// Bytes of the names of one directory that are remembered: some thirty thousand of them.
pub(crate) const NAMES_KEPT: usize = 1 << 20;

/// Bytes of WRITEs of one flow that were answered and that the server has not confirmed: as
/// [`AHEAD_MAX`].
pub(crate) const BEHIND_MAX: u64 = 8 << 20;

/// The longest WRITE that is answered early: as [`AHEAD_BLOCK_MAX`].
pub(crate) const BEHIND_BLOCK_MAX: u32 = 1 << 20;

/// Opens of one flow that may hold a licence; further ones are served by the server alone.
pub(crate) const OPENS_MAX: usize = 1_024;

/// Requests of one flow that may be under way: twice the credits that servers give a client.
pub(crate) const OUTSTANDING_MAX: usize = 16_384;

/// Sessions and trees of one flow that are remembered.
pub(crate) const TREES_MAX: usize = 1_024;
