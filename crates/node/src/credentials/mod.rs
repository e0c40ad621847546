//! The secrets that let this node work on signed and encrypted sessions of its hosts, as `[credentials]`
//! names them: read at the start and with the configuration.

mod account_file;
pub(crate) mod keytab_file;
mod setting_files;

use std::sync::Arc;

pub use account_file::AccountFileError;
pub use keytab_file::KeytabFileError;
pub use setting_files::SettingFileError;
use thiserror::Error;

use crate::config::NodeConfig;
use crate::private_directory::node_user;

/// The reason why the credentials cannot be used.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// The accounts.
    #[error(transparent)]
    Accounts(#[from] AccountFileError),
    /// The keytab.
    #[error(transparent)]
    Keytab(#[from] KeytabFileError),
    /// A file that an accelerator's table names.
    #[error(transparent)]
    SettingFile(#[from] SettingFileError),
}

/// Reads the secrets that a configuration names into its policy.
///
/// # Errors
/// When a file cannot be read, is open to others, or holds something else.
pub fn load(config: &mut NodeConfig) -> Result<(), CredentialsError> {
    let node = node_user(&config.state_directory);
    let delegated = &mut config.policy.accelerators.delegated;
    if let Some(path) = &config.credentials.accounts {
        delegated.accounts = Some(Arc::new(account_file::load_for(path, node)?));
    }
    if let Some(path) = &config.credentials.keytab {
        delegated.keytab = Some(Arc::new(keytab_file::load_for(path, node)?));
    }
    setting_files::load(&mut config.policy.accelerators, node)?;
    Ok(())
}
