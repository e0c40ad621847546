//! The errors that keep a node from starting or running, and their remedies.

use std::io;

use thiserror::Error;

use crate::config::ConfigError;
use crate::credentials::CredentialsError;
use crate::dictionary_key::DictionaryKeyError;
use crate::disk::DiskError;
use crate::identity::IdentityError;
use crate::private_directory::StateDirectoryError;

/// The error that keeps a node from starting or running.
#[derive(Debug, Error)]
pub enum RunError {
    /// Interception is wanted and not allowed.
    #[error(
        "transparent interception needs CAP_NET_ADMIN; run the node as root or by the systemd unit, or set \
         mode = \"off\" in [intercept] and use [proxy]"
    )]
    Privileges,
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The state directory cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The dictionary's key cannot be used.
    #[error(transparent)]
    DictionaryKey(#[from] DictionaryKeyError),
    /// The delegated accounts or keys cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The state directory is not this node's alone.
    #[error(transparent)]
    StateDirectory(#[from] StateDirectoryError),
    /// A listener cannot be opened.
    #[error("cannot listen on {what} {address}: {cause}{}", hint(cause))]
    Listen {
        /// The purpose.
        what: &'static str,
        /// The address.
        address: String,
        /// The cause.
        cause: io::Error,
    },
    /// A step of the start failed.
    #[error("cannot {what}: {cause}")]
    Step {
        /// The subject.
        what: &'static str,
        /// The cause.
        cause: io::Error,
    },
    /// TLS cannot be set up.
    #[error("cannot set TLS up")]
    Tls(#[from] rustls::Error),
    /// The engine's thread ended by itself.
    #[error(
        "the engine's loop ended unexpectedly, which is a bug; please report it together with the log"
    )]
    LoopEnded,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program or node uses this port, and `ss -ltnp` shows which program"
        }
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        io::ErrorKind::PermissionDenied => {
            "; this needs privileges (CAP_NET_ADMIN for interception, CAP_NET_BIND_SERVICE for ports below 1024)"
        }
        _ => "",
    }
}
