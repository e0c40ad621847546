//! Pairing: the single exchange in which two nodes learn each other's identities.
//!
//! The inviter prints a token; a node that has it may become a peer. A person carries the token,
//! the joiner reads it from standard input, and it never crosses the network:
//!
//! ```text
//! inviter                                             joiner
//!  invite: secret, id, key -> invitations/             (token by hand)
//!        <------------ TLS 1.3, trunkline-pair/1 ----   pins the server to the token's NodeId
//!        <------------ id, MAC(key, exporter, joiner) - proves the secret
//!  marks the invitation used (synced)
//!  pins the joiner (synced)
//!        ------------- MAC(key, exporter, inviter) -->  pins the inviter (synced)
//! ```
//!
//! The MACs cover the TLS exporter, both identities and the direction, so they are useless in any
//! other connection. An invitation is marked used before it is accepted: a crash between the two
//! costs an invitation and never allows a second use.

use crate::identity::NodeIdentity;

mod exchange;
mod invitations;
mod pins;
mod token;

pub use exchange::{ExchangeError, PairingRequest, PairingResult, accept, join};
pub use invitations::{InvitationDirectory, InvitationError};
pub use pins::{IdentityPin, LoadedPins, PinDirectory, PinError};
pub use token::{InvitationToken, TokenError};

/// [`join`] for programs without a runtime of their own.
///
/// # Errors
/// See [`ExchangeError`]; each says what to do.
pub fn join_blocking(
    identity: &NodeIdentity,
    pins: &PinDirectory,
    own_name: &str,
    name: &str,
    token: &InvitationToken,
) -> Result<PairingResult, ExchangeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ExchangeError::Broken)?;
    runtime.block_on(join(identity, pins, own_name, name, token))
}
