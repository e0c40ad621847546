//! SMB 2 and 3: file shares at the speed of the link instead of one block each round trip.
//!
//! A client that requests one block and waits for it before the next is limited to one block each
//! round trip. Here the half beside the server reads ahead of such a client, and the half beside
//! the client answers its READs and WRITEs as fast as the path carries the data. Specification:
//! [MS-SMB2]; the consistency rules are in docs/decisions/0029.
//!
//! ```text
//!  client ── near half ═════════ WAN ═════════ far half ── server
//!            answers READ      all of the        window of message ids,
//!            and WRITE under   client's          oplocks, READs ahead
//!            a licence         messages
//! ```
//! A *licence* allows this: an exclusive or batch oplock that the server granted to the open, or a
//! lease with READ and WRITE caching (docs/decisions/0050). Where the client requests none, the far
//! half does, in the client's CREATE, and handles its break without the client's knowledge. While
//! it is held, the server lets no other client read or write the file. It is given back only when
//! the near half has stopped and all answered requests are complete at the server.
//!
//! A CLOSE is answered near the client, too, where its answer cannot fail (docs/decisions/0035); so
//! are CLOSEs of directories and of opens for attributes. Directories are listed ahead of the
//! client (docs/decisions/0037).
//!
//! Signed sessions are accelerated where their key is delegated (`keys`): a signed message is
//! verified before it is used, and altered or local messages are signed as the other host would. A
//! message is signed exactly where the original was. The same holds for encrypted sessions and
//! shares: both halves decrypt, messages cross between them in the clear within the tunnel, and
//! leave encrypted exactly where they arrived so (docs/decisions/0043).
//!
//! While it has altered nothing, it lets go of flows that are compressed, not SMB, or signed or
//! encrypted without a key; afterwards such a message closes the flow (see `far`). Opens that it
//! may not serve (directories, pipes, leases that others share, write-through) pass among those
//! that it does.
//!
//! Files whose attributes a client has asked for are opened ahead of it under a lease
//! (docs/decisions/0086). Under the policy `relaxed`, files of a directory are opened ahead without that
//! (docs/decisions/0042).
//!
//! Flows of SMB 1 are accelerated, too, by halves of their own (`nt1`).

mod config;
mod entry;
mod far;
mod frames;
mod keys;
mod listing;
mod near;
pub(crate) mod nt1;
mod offer;
pub(crate) mod reasons;
mod sealed;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use config::{ChannelPolicy, ConsistencyMode, DurablePolicy, SmbSettings};
pub use entry::ENTRY;

use far::Smb2FarHalf;
use near::Smb2NearHalf;
use nt1::choice::{DialectSelector, Smb1Alternative};

use vocab::SeededRandom;

use crate::{AcceleratorHalf, WanEnd};

/// One half, for one flow, with chance that no other flow has.
#[must_use]
pub fn build(
    half: WanEnd,
    settings: SmbSettings,
    chance: SeededRandom,
) -> Box<dyn AcceleratorHalf> {
    let choice = match half {
        WanEnd::Near => DialectSelector::new(Box::new(Smb2NearHalf::new()), Smb1Alternative::Near),
        WanEnd::Far => {
            let other = Smb1Alternative::Far(settings.clone());
            DialectSelector::new(Box::new(Smb2FarHalf::new(settings, chance)), other)
        }
    };
    Box::new(choice)
}
