//! The settings of the accelerator, and its limits.

use std::sync::Arc;
use std::time::Duration;

use crate::credentials::{DelegatedAccounts, Keytab};

/// The answers that the halves may give in the server's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConsistencyMode {
    /// None: flows to file servers are reduced and carried like any other.
    #[default]
    Off,
    /// Contents of files only under an oplock or a lease that makes every other client wait until it is given
    /// back. Listings, attributes and the absence of a name may be some milliseconds old as well
    /// (docs/decisions/0037, 0084 and 0088).
    Strict,
    /// Files that a client goes through may be opened ahead of it, and the server's answers are
    /// used for no longer than this; all else as under [`ConsistencyMode::Strict`]
    /// (docs/decisions/0042).
    Relaxed {
        /// The greatest age.
        staleness: Duration,
    },
}

impl ConsistencyMode {
    /// The default limit for the age of an answer.
    pub const STALENESS: Duration = Duration::from_secs(1);
}

/// The answer to a client that asks for the addresses of further channels (multichannel).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChannelPolicy {
    /// The server's own answer. Afterwards the halves answer nothing for that session.
    #[default]
    Several,
    /// An answer without addresses, where the session can be accelerated: all of its requests then
    /// pass here (docs/decisions/0046).
    One,
}

/// The handling of durable handles that clients request with their oplocks and leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DurablePolicy {
    /// Opens that the halves work for are not durable, as with a server that grants none: the far
    /// half takes the request out of the client's CREATE (docs/decisions/0078).
    #[default]
    Decline,
    /// The server decides. WRITEs and CLOSEs of an open that it makes durable go to it.
    Keep,
}

/// The operator's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmbSettings {
    /// See [`ConsistencyMode`].
    pub consistency: ConsistencyMode,
    /// The accounts whose signed and encrypted sessions the half beside the server may work on.
    pub accounts: Option<Arc<DelegatedAccounts>>,
    /// The keys of the services beside that half whose sessions by Kerberos it may work on.
    pub keytab: Option<Arc<Keytab>>,
    /// Sessions signed by AES-GMAC are worked on too, though a message that is signed again uses the
    /// client's nonce once more (docs/decisions/0040).
    pub may_resign_gmac: bool,
    /// True if decrypted content may enter the dictionaries (docs/decisions/0043).
    pub may_store_decrypted: bool,
    /// See [`ChannelPolicy`].
    pub channels: ChannelPolicy,
    /// See [`DurablePolicy`].
    pub durable: DurablePolicy,
    /// Bytes in flight that fill the path to the near half, as the engine has measured it; 0: unknown.
    pub path_bytes: u64,
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
        durable: DurablePolicy::Decline,
        path_bytes: 0,
    };
}

/// The time for which the near half may answer for the server without a confirmation that its
/// licences still hold. It is long enough for a path of 600 ms with full queues, and short enough
/// that a client which waits for an oplock gets it within the servers' 35 s (measured on Samba
/// 4.17).
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(10);

/// The time after which the far half gives an oplock back although the near half has not confirmed:
/// [`FRESH_FOR`] after it stopped confirming the licence, and two seconds of margin for clocks that
/// run at different speeds.
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_secs(12);

/// The time for which WRITEs are accepted without the near half's confirmation after a break of an
/// oplock of the client's own: a little less than servers wait before they revoke the oplock
/// themselves (35 s, as above).
pub(crate) const TAKEN_AFTER: Duration = Duration::from_secs(30);

/// The longest wait of a client's next connection, from its detection, for the server to execute
/// the requests answered on the previous one: longer than disks take to spin up, because unfinished
/// writes are then lost.
pub(crate) const TAKES_WITHIN: Duration = Duration::from_secs(30);

/// The same wait after the client has ended the previous connection, which is then only needed for
/// its unfinished writes: a thousand times the duration on a healthy LAN and disk.
pub(crate) const LAST_TAKES_WITHIN: Duration = Duration::from_secs(2);

/// The least interval at which the near half, while its client is active, checks that its licences
/// hold.
pub(crate) const BEAT_EVERY: Duration = Duration::from_millis(500);

/// The bytes of one flow that may be read ahead and not yet requested by the client. The fastest
/// link of the published tables (OC-1, 51.84 Mbit/s) holds 3.3 MB at a round trip of 500 ms. This
/// is five times as much, because data behind a lost packet waits for it for up to four round trips.
pub(crate) const AHEAD_MAX: u64 = 16 << 20;

/// The longest READ that is made ahead, and the longest client READ that causes one: a client that
/// requests more than a mebibyte at a time gains little.
pub(crate) const AHEAD_BLOCK_MAX: u32 = 1 << 20;

/// The number of bytes that are read ahead as a file is opened, before the client's first READ.
pub(crate) const FIRST_BLOCK: u32 = 64 << 10;

/// The same if the client reads less of such files first: as much as Windows' redirector reads at a time.
pub(crate) const FIRST_BLOCK_MIN: u32 = 32 << 10;

/// Kinds of opens of one flow whose first READs are remembered: programs have a few.
pub(crate) const READ_HABITS_MAX: usize = 32;

/// The unread bytes of a run that a READ elsewhere interrupts and that is kept for its continuation: an open has read
/// its first block and twice as much by the time a program looks elsewhere.
pub(crate) const ASIDE_MAX: u64 = 4 * FIRST_BLOCK as u64;

/// The bytes at a file's end that are read at once when a client looks there: the directory of a zip archive, or of a
/// compound document.
pub(crate) const TAIL_MAX: u64 = FIRST_BLOCK as u64;

/// The server's credits that READs ahead may use: the LAN's round trip needs few, and the client's
/// requests that arrive meanwhile wait for these at most.
pub(crate) const AHEAD_CREDITS: u32 = 16;

/// The bytes of a directory that are requested at a time, ahead of its client: some five hundred
/// names of the class that clients ask for, and no more than they take (Windows asks for as much).
pub(crate) const LISTING_BLOCK: u32 = 64 << 10;

/// Bytes of entries of one open that may be ahead of its client.
pub(crate) const LISTING_AHEAD: usize = 512 << 10;

/// The same limit for all opens of a flow: a client that begins many listings and continues none
/// could otherwise make it keep half a gibibyte.
pub(crate) const LISTINGS_AHEAD: usize = 8 << 20;

/// The same limit for one open before its client has requested any: more than a thousand names. If
/// they are unused, they cost a T1 a second.
pub(crate) const LISTING_FIRST: usize = 192 << 10;

/// The time for which the first entries of a directory, which are read as it is opened, may wait
/// for their request: as long as a client needs that requests them at once, and less than any round
/// trip that is worth saving (docs/decisions/0037).
pub(crate) const LISTING_WAITS: Duration = Duration::from_millis(20);

/// The time for which an open that was made ahead of a client under a lease may wait for its CREATE at
/// the near half, as [`LISTING_WAITS`] (docs/decisions/0086).
pub(crate) const LEASED_OFFER_WAITS: Duration = Duration::from_millis(20);

/// The time for which such an open stays at the server without the near half's word: a round trip of
/// a satellite, and as long as [`ConsistencyMode::STALENESS`].
pub(crate) const LEASED_OFFER_LASTS: Duration = Duration::from_secs(1);

/// Such opens of one flow that no client has: a program opens a file at once after it has looked at it,
/// so these are as many programs.
pub(crate) const LEASED_OFFERS_MAX: usize = 4;

/// The names of one flow that may be opened ahead after a change of a name: a save uses four, and the files beside it.
pub(crate) const USED_NAMES_MAX: usize = 8;

/// The changes of names of one flow after which the next open is remembered: programs have up to three for a save.
pub(crate) const CHANGE_HABITS_MAX: usize = 16;

/// Directories of one flow that were opened ahead of a client to be listed, and that it does not have, and
/// how many are as it begins to go from directory to directory: a client uses some up within
/// [`LISTING_WAITS`].
pub(crate) const LISTING_OFFERS_MAX: usize = 8;
pub(crate) const LISTING_OFFERS_FIRST: usize = 2;

/// Bytes of entries of one such directory, and of all of them: if they are unused, they cost a T1 a third of
/// a second.
pub(crate) const LISTING_OFFER_BYTES: usize = 32 << 10;
pub(crate) const LISTING_OFFERS_BYTES: usize = 64 << 10;

/// Directories whose subdirectories are remembered, and names of one, and their bytes: a client that goes
/// through a tree returns to the directories above, and trees are seldom deeper. The names are compared with each
/// listing, so they must be few enough to be sorted at once.
pub(crate) const WALKED_DIRECTORIES_MAX: usize = 16;
pub(crate) const WALKED_NAMES_MAX: usize = 1_024;
pub(crate) const WALKED_NAMES_KEPT: usize = 16 << 10;

/// The longest CREATE that an open made ahead may answer, with its header and without that of its frame:
/// a path of a thousand characters.
pub(crate) const OFFERED_MAX: usize = 64 + 56 + 2 * 1_024;

/// Leases of one flow that the server knows by another key than the client. The client closes its
/// files a second after their use, so a thousand are those of some thousand files in a second.
pub(crate) const LEASE_ALIASES_MAX: usize = 1_024;

/// Leases of one flow with opens that are not tracked: a client draws a new key for each file that it opens with
/// O_SYNC or O_DIRECT, for example. Their keys take a mebibyte.
pub(crate) const SHARED_LEASES_MAX: usize = 65_536;

/// Questions about one open that are asked ahead of its client: Windows' Explorer asks five.
pub(crate) const QUESTIONS_MAX: usize = 8;

/// Longest answer to such a question: the rights of a file with some hundred entries.
pub(crate) const INFORMATION_MAX: u32 = 4_096;

/// Kinds of opens of one flow whose questions are remembered: programs have a few.
pub(crate) const QUESTION_HABITS_MAX: usize = 32;

/// Names of one flow that are looked for ahead of its client and not used yet: a program looks for up to four
/// behind each file.
pub(crate) const LOOKS_MAX: usize = 64;

/// The client's last opens behind whose names it may look for others: the folder, the file, and the opens of each
/// for its attributes and its rights.
pub(crate) const LOOK_OPENS_MAX: usize = 8;

/// The forms of opens whose names are followed by others, and those others: programs have a few.
pub(crate) const LOOK_FORMS_MAX: usize = 32;
pub(crate) const LOOK_SUFFIXES_MAX: usize = 4;

/// The longest rest of such a name, in bytes, and the requests of a compound that looks for it.
pub(crate) const LOOK_SUFFIX_MAX: usize = 128;
pub(crate) const LOOK_MESSAGES_MAX: usize = 4;

/// A name is looked for so many times in vain, until the client does so again.
pub(crate) const LOOK_UNUSED_MAX: usize = 4;

/// Opens of one flow that may be ahead of its client, and how many are as it begins: at a round trip of
/// 100 ms and 5 ms for each file on its LAN a client uses up twenty.
pub(crate) const OPENS_AHEAD_MAX: usize = 64;
pub(crate) const OPENS_AHEAD_FIRST: usize = 4;

/// The bytes of those files that are read with them.
pub(crate) const OPENS_AHEAD_BYTES: u64 = 4 << 20;

/// The bytes of the names of one directory that are remembered: some thirty thousand names.
pub(crate) const NAMES_KEPT: usize = 1 << 20;

/// Bytes of WRITEs of one flow that were answered and that the server has not confirmed: as
/// [`AHEAD_MAX`].
pub(crate) const BEHIND_MAX: u64 = 8 << 20;

/// The least room in a tree for which WRITEs are answered early, in bytes: those under way, and what other clients
/// write on a gigabit network in half a second.
pub(crate) const ROOM_MIN: u64 = BEHIND_MAX + (64 << 20);

/// The age from which a WRITE calls for the room again: a question to a server beside the far half costs
/// nothing once a second.
pub(crate) const ROOM_REFRESH: Duration = Duration::from_secs(1);

/// The age up to which the known room allows an open's WRITEs to be answered before the next answer is there:
/// as long as the near half trusts a licence ([`FRESH_FOR`]).
pub(crate) const ROOM_LASTS: Duration = Duration::from_secs(10);

/// The time for which no WRITE in a tree is answered early after the server has refused one for want of
/// room: others may use up what is freed.
pub(crate) const FULL_LASTS: Duration = Duration::from_secs(60);

/// The time before the end of a session's ticket at which no more WRITEs of it are answered early: enough for
/// those under way, and for a clock that is some seconds wrong. As long after the end it is clear whether the
/// server ends sessions with their tickets.
pub(crate) const SESSION_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The longest WRITE that is answered early: as [`AHEAD_BLOCK_MAX`].
pub(crate) const BEHIND_BLOCK_MAX: u32 = 1 << 20;

/// Opens of one flow that may hold a licence; further ones are served by the server alone.
pub(crate) const OPENS_MAX: usize = 1_024;

/// The limit of outstanding requests of one flow: twice the credits that servers grant a client.
pub(crate) const OUTSTANDING_MAX: usize = 16_384;

/// Sessions and trees of one flow that are remembered.
pub(crate) const TREES_MAX: usize = 1_024;
