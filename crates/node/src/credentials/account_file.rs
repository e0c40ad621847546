//! The file of the accounts whose signed and encrypted sessions this node may work on
//! (`[credentials] accounts`, docs/formats/accounts.md).
//!
//! It contains passwords or their hashes. No message contains any part of the file.

use std::path::{Path, PathBuf};

use accelerate::credentials::{AccountsError, DelegatedAccounts};
use thiserror::Error;

use crate::private_file::{self, PrivateFileError};

/// A longer file is taken for another one: 100,000 accounts with long names fit.
const BYTES_MAX: u64 = 64 << 20;

/// The reason why the accounts cannot be used.
#[derive(Debug, Error)]
pub enum AccountFileError {
    /// The file cannot be read, or others can.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// It is no text.
    #[error("{} is not an account file, because it is not UTF-8 text", .0.display())]
    NoText(PathBuf),
    /// The content is invalid.
    #[error("{}: {cause}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: AccountsError,
    },
}

/// Reads an account file for a node that runs as this user.
///
/// # Errors
/// When the file cannot be read, is open to others, or holds something else.
pub(crate) fn load_for(path: &Path, node: u32) -> Result<DelegatedAccounts, AccountFileError> {
    let bytes = private_file::read(path, "accounts under [credentials]", BYTES_MAX, node)?;
    let text =
        std::str::from_utf8(&bytes).map_err(|_| AccountFileError::NoText(path.to_owned()))?;
    DelegatedAccounts::parse(text).map_err(|cause| AccountFileError::Content {
        path: path.to_owned(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(path: &Path) -> Result<DelegatedAccounts, AccountFileError> {
        load_for(path, crate::sys::user())
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("accounts");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        (directory, path)
    }

    #[test]
    fn accounts_are_read() {
        let (_directory, path) = file(b"CORP\\anna:password:secret\n");
        assert_eq!(load(&path).unwrap().users(), 1);
    }

    #[test]
    fn errors_do_not_reveal_secrets() {
        let (_directory, path) = file(b"# ok\nCORP\\anna secret\n");
        let error = load(&path).unwrap_err().to_string();
        assert!(
            error.contains("accounts: line 2 is not an account"),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
        let (_directory, path) = file(b"secret\xff");
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("not UTF-8"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        let missing = load(Path::new("/nowhere/accounts")).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/accounts"));
    }
}
