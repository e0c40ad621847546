//! SMB 2 and 3: file shares at the speed of the link instead of one block each round trip.
//!
//! What it saves: a client that asks for one block and waits for it before it asks for the next is
//! limited to a block each round trip. Here the half beside the server asks ahead of such a client,
//! and the half beside the client answers its READs, and its WRITEs, as fast as the path carries
//! the data. Specification: [MS-SMB2]; the consistency it keeps is docs/decisions/0044.
//!
//! ```text
//!  client ── near half ═════════ WAN ═════════ far half ── server
//!            answers READ      all of the        window of message ids,
//!            and WRITE under   client's          oplocks, READs ahead
//!            a licence         messages
//! ```
//! A *licence* is what allows it: an exclusive or batch oplock that the server gave to the open, or a
//! lease with READ and WRITE caching (docs/decisions/0069).
//! Where the client does not ask for one, the far half does, in the client's CREATE, and takes
//! back what breaks it without the client's knowing. As long as it is held, the server lets no
//! other client read or write the file before it was given back; and it is given back only when
//! the near half has stopped and all it has answered stands at the server.
//!
//! A CLOSE is answered near the client, too, where nothing is left that it could tell
//! (docs/decisions/0054); of directories, and of what was opened for its attributes, as well. Directories
//! are listed ahead of the client (docs/decisions/0056).
//!
//! Sessions that are signed are worked on where their key is delegated (`keys`): what a host has signed
//! is verified before it is acted upon, and what is altered or answered here is signed as the other
//! host would have. Nothing is ever signed that was not, nor the other way round. The same holds of
//! sessions and shares that are encrypted: both halves decrypt, messages cross between them in the
//! clear within the tunnel, and leave encrypted exactly where they came so (docs/decisions/0062).
//!
//! It lets go, while it has altered nothing, of what is signed or encrypted without a key, compressed
//! or not SMB; afterwards such a thing closes the flow (see `far`). Opens that it may not serve
//! (directories, pipes, leases that others share, write-through) pass among those that it does.
//!
//! Under the policy `relaxed`, files of a directory are opened ahead as well (docs/decisions/0061).
//!
//! Flows of SMB 1 are helped, too, by halves of their own (`nt1`).

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

pub use config::{ChannelPolicy, ConsistencyMode, SmbSettings};
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
