//! The file of the accounts whose signed SMB sessions this node may work on
//! (`[policy] smb_accounts`, docs/formats/smb-accounts.md).
//!
//! It holds passwords, or what is as good: so it must be the node's own or root's, and open to nobody
//! else. A node that is told of a file which it cannot use does not start, and says why; what is in
//! the file appears in no message.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use accelerate::smb::{Accounts, AccountsError};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::config::NodeConfig;
use crate::sys;

/// A longer file is taken for another one: 100,000 accounts with long names fit.
const BYTES_MAX: u64 = 64 << 20;

/// Why the accounts cannot be used.
#[derive(Debug, Error)]
pub enum SmbAccountsError {
    /// The file cannot be read.
    #[error("cannot read {}: {cause}; write another smb_accounts under [policy], or leave it out", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Others can read or change it.
    #[error("{} is open to others (mode {mode:o}); run `chmod 600` on it, and renew its secrets if others may have read them", path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It is somebody else's.
    #[error("{} belongs to the user {owner}; it must be the node's own ({node}) or root's", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// The owner's number.
        owner: u32,
        /// The number of the user that the node runs as.
        node: u32,
    },
    /// It is none, or far too long.
    #[error("{} is no account file", .0.display())]
    NoFile(PathBuf),
    /// What is in it is wrong.
    #[error("{}: {cause}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What.
        cause: AccountsError,
    },
}

/// Reads the accounts that a configuration names into its policy.
///
/// # Errors
/// When the file cannot be read, is open to others, or holds something else.
pub fn delegate(config: &mut NodeConfig) -> Result<(), SmbAccountsError> {
    if let Some(path) = &config.smb_accounts {
        config.policy.accelerators.smb.accounts = Some(Arc::new(load(path)?));
    }
    Ok(())
}

fn load(path: &Path) -> Result<Accounts, SmbAccountsError> {
    let failed = |cause| SmbAccountsError::Io {
        path: path.to_owned(),
        cause,
    };
    // A pipe that nobody writes to would be waited for as it is opened; a regular file's bytes are
    // there whether or not one waits.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(failed)?;
    // Of what was opened, and not of what has the name a moment later.
    let metadata = file.metadata().map_err(failed)?;
    let (mode, owner, node) = (metadata.mode() & 0o777, metadata.uid(), sys::user());
    if !metadata.is_file() || metadata.len() > BYTES_MAX {
        return Err(SmbAccountsError::NoFile(path.to_owned()));
    }
    if mode & 0o077 != 0 {
        return Err(SmbAccountsError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    if owner != node && owner != 0 {
        return Err(SmbAccountsError::Foreign {
            path: path.to_owned(),
            owner,
            node,
        });
    }
    // As long as the file, so that it does not grow and leave copies behind.
    let mut text = Zeroizing::new(String::with_capacity(metadata.len() as usize + 1));
    file.take(BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(failed)?;
    Accounts::parse(&text).map_err(|cause| SmbAccountsError::Content {
        path: path.to_owned(),
        cause,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::process::Command;

    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("accounts");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    #[test]
    fn a_file_of_its_own_is_read() {
        for mode in [0o600, 0o400] {
            let (_directory, path) = file("CORP\\anna:password:secret\n", mode);
            assert_eq!(load(&path).unwrap().users(), 1);
        }
    }

    #[test]
    fn a_file_that_others_may_open_is_refused_with_what_to_do() {
        for mode in [0o640, 0o604, 0o620, 0o610] {
            let (_directory, path) = file("CORP\\anna:password:secret\n", mode);
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600"), "{error}");
            assert!(error.contains(&format!("mode {mode:o}")), "{error}");
        }
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let (_directory, path) = file("", 0o600);
        // Only root can give files away; others cannot be in this place.
        if chown(&path, Some(12_345), None).is_err() {
            return;
        }
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("the user 12345"), "{error}");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("accounts");
        let mut make = Command::new("mkfifo");
        make.args(["-m", "600"]).arg(&path);
        assert!(make.status().unwrap().success());
        assert!(matches!(load(&path), Err(SmbAccountsError::NoFile(_))));
    }

    #[test]
    fn what_is_wrong_in_it_is_told_without_its_secrets() {
        let (_directory, path) = file("# ok\nCORP\\anna secret\n", 0o600);
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("accounts: line 2 is no account"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        let missing = load(Path::new("/nowhere/accounts")).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/accounts"));
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(
            load(directory.path()),
            Err(SmbAccountsError::NoFile(_))
        ));
    }
}
