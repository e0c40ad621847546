//! The secrets that let this node work on signed and encrypted SMB sessions, as its configuration names
//! them: read at the start and with the configuration.

use std::sync::Arc;

use thiserror::Error;

use crate::config::NodeConfig;
use crate::private_directory::node_user;
use crate::smb_accounts::{self, SmbAccountsError};
use crate::smb_keytab::{self, SmbKeytabError};

/// Why they cannot be used.
#[derive(Debug, Error)]
pub enum DelegatedError {
    /// The accounts.
    #[error(transparent)]
    Accounts(#[from] SmbAccountsError),
    /// The keytab.
    #[error(transparent)]
    Keytab(#[from] SmbKeytabError),
}

/// Reads the secrets that a configuration names into its policy.
///
/// # Errors
/// When a file cannot be read, is open to others, or holds something else.
pub fn delegate(config: &mut NodeConfig) -> Result<(), DelegatedError> {
    let node = node_user(&config.state_directory);
    let delegated = &mut config.policy.accelerators.delegated;
    if let Some(path) = &config.smb_accounts {
        delegated.accounts = Some(Arc::new(smb_accounts::load_for(path, node)?));
    }
    if let Some(path) = &config.smb_keytab {
        delegated.keytab = Some(Arc::new(smb_keytab::load_for(path, node)?));
    }
    Ok(())
}
