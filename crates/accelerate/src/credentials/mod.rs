//! Credentials that an operator delegates to the node beside a server.
//!
//! | file | holds |
//! | --- | --- |
//! | `accounts.rs` | NT hashes of users, from an account file |
//! | `ntlm.rs` | the session key of an NTLM version 2 exchange, by the user's hash ([MS-NLMP]) |
//! | `kerberos/` | a service's keys, from a keytab, and the session key of a Kerberos exchange by them, and the tokens of its messages (RFC 4120, RFC 4121) |
//! | `session_key.rs` | the key that both ends have afterwards |
//!
//! A half reads the tokens that a client and a server exchange, in any protocol, and derives the
//! key as the server does. It requests nothing from either of them. The protocol decides which keys
//! it derives from a session key, and how it signs and encrypts with them.
//!
//! Secrets are overwritten when they are dropped and appear in no `Debug` form. A token is
//! untrusted: a misleading one gives a key that the server's own signature does not verify.

mod accounts;
pub mod kerberos;
pub mod ntlm;
mod session_key;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::sync::Arc;

pub use accounts::{AccountsError, DelegatedAccounts, NtHash};
pub use kerberos::{Keytab, KeytabError};
pub use session_key::SessionKey;

/// The keys that an operator has delegated to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelegatedKeys {
    /// The accounts whose sessions this node may work on.
    pub accounts: Option<Arc<DelegatedAccounts>>,
    /// The keys of services behind this node.
    pub keytab: Option<Arc<Keytab>>,
}
