//! Invitations on disk: `invitations/ID.json` in the state directory, for the owner alone.
//!
//! A file contains the proof key (derived from the secret, which is not kept), the name to pin and
//! the expiry. Its state is in the file: `open` or `used`; the change is synced before anything is
//! accepted. Used and expired ones are kept for a day, so that a late joiner gets the reason, and
//! then removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vocab::NodeId;

use super::token::{InvitationToken, LIFETIME, unix_seconds};
use crate::private_directory::{make_private_directory, open_or_make, write_durably};

/// The time for which an expired invitation is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// Open invitations at a time; a person hands out a few.
const MOST_INVITATIONS: usize = 1000;

/// The reason why an invitation could not be made or used.
#[derive(Debug, Error)]
pub enum InvitationError {
    /// A file could not be used.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: io::Error,
    },
    /// The system gave no random numbers.
    #[error("the operating system returned no random numbers for a secret")]
    NoRandomness,
    /// Too many are remembered.
    #[error(
        "{MOST_INVITATIONS} invitations exist already, and this is the limit; remove old files from the \
         invitations directory"
    )]
    TooMany,
    /// No such invitation.
    #[error("the inviting node does not know this invitation")]
    Unknown,
    /// The proof is wrong.
    #[error("the proof of the token is wrong")]
    WrongProof,
    /// Used before.
    #[error("the invitation has been used")]
    Used,
    /// Too late.
    #[error("the invitation has expired")]
    Expired,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredInvitation {
    key: String,
    name: Option<String>,
    expires_unix_s: u64,
    used: bool,
}

/// An invitation that was found open; marks itself used.
#[derive(Debug)]
pub struct OpenInvitation {
    path: PathBuf,
    stored: StoredInvitation,
    /// Held until the invitation has been dealt with, so that of two joiners one is first.
    _lock: File,
}

impl OpenInvitation {
    /// The name to pin the joiner under, if the inviter chose one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.stored.name.as_deref()
    }

    /// Marks it used, durably; call before any answer to the joiner.
    ///
    /// # Errors
    /// When the change cannot be written: then nothing may be accepted.
    pub fn mark_used(mut self) -> Result<(), InvitationError> {
        self.stored.used = true;
        write(&self.path, &self.stored)
    }
}

/// The directory of invitations.
#[derive(Clone, Debug)]
pub struct InvitationDirectory {
    directory: PathBuf,
}

impl InvitationDirectory {
    /// The invitations of the node whose state directory this is.
    #[must_use]
    pub fn new(state_directory: &Path) -> Self {
        Self {
            directory: state_directory.join("invitations"),
        }
    }

    /// Makes an invitation that lasts 15 minutes from `now`, stored durably, and its token.
    /// The joiner will be pinned as `name`, or as it calls itself.
    ///
    /// # Errors
    /// When it cannot be stored.
    pub fn invite(
        &self,
        now: SystemTime,
        inviter: NodeId,
        inviter_name: &str,
        address: &str,
        name: Option<&str>,
    ) -> Result<InvitationToken, InvitationError> {
        make_private_directory(&self.directory).map_err(|error| InvitationError::Io {
            action: "write",
            path: self.directory.clone(),
            cause: error,
        })?;
        if self.sweep(now)? >= MOST_INVITATIONS {
            return Err(InvitationError::TooMany);
        }
        let mut secret = [0; 16];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut secret)
            .map_err(|_| InvitationError::NoRandomness)?;
        let token = InvitationToken {
            secret,
            inviter,
            inviter_name: inviter_name.to_owned(),
            address: address.to_owned(),
            expires: unix_seconds(now + LIFETIME),
        };
        let stored = StoredInvitation {
            key: hexadecimal(&token.key()),
            name: name.map(str::to_owned),
            expires_unix_s: token.expires,
            used: false,
        };
        write(&self.path(&token.id()), &stored)?;
        Ok(token)
    }

    /// Finds the invitation that `proof` over `message` proves, if it may still be used.
    ///
    /// # Errors
    /// When it is unknown, used or out of date, or the proof is wrong.
    pub fn find(
        &self,
        now: SystemTime,
        id: &[u8; 16],
        proof: &[u8; 32],
        message: &[u8],
    ) -> Result<(OpenInvitation, [u8; 32]), InvitationError> {
        let path = self.path(id);
        if !path.exists() {
            return Err(InvitationError::Unknown);
        }
        let lock = self.lock()?;
        let stored = read(&path)?;
        let key = key_of(&stored).ok_or(InvitationError::Unknown)?;
        // The proof comes first: only who holds the token learns what became of it. `Hash`
        // compares in constant time.
        if blake3::keyed_hash(&key, message) != *proof {
            return Err(InvitationError::WrongProof);
        }
        if stored.used {
            return Err(InvitationError::Used);
        }
        if unix_seconds(now) >= stored.expires_unix_s {
            return Err(InvitationError::Expired);
        }
        let open = OpenInvitation {
            path,
            stored,
            _lock: lock,
        };
        Ok((open, key))
    }

    /// Removes expired invitations. Returns the number of the remaining ones.
    fn sweep(&self, now: SystemTime) -> Result<usize, InvitationError> {
        let entries = fs::read_dir(&self.directory).map_err(|cause| InvitationError::Io {
            action: "read",
            path: self.directory.clone(),
            cause,
        })?;
        let mut left = 0;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let over = read(&path).map_or(true, |stored| {
                stored.expires_unix_s + REMEMBERED.as_secs() < unix_seconds(now)
            });
            if over {
                let _ = fs::remove_file(&path);
            } else {
                left += 1;
            }
        }
        Ok(left)
    }

    /// One joiner at a time, across processes.
    fn lock(&self) -> Result<File, InvitationError> {
        let path = self.directory.join("lock");
        open_or_make(&path)
            .and_then(|file| {
                file.lock()?;
                Ok(file)
            })
            .map_err(|cause| InvitationError::Io {
                action: "lock",
                path,
                cause,
            })
    }

    fn path(&self, id: &[u8; 16]) -> PathBuf {
        self.directory.join(format!("{}.json", hexadecimal(id)))
    }
}

fn write(path: &Path, stored: &StoredInvitation) -> Result<(), InvitationError> {
    let text = serde_json::to_string(stored).expect("an invitation is plain data");
    write_durably(path, text.as_bytes()).map_err(|cause| InvitationError::Io {
        action: "write",
        path: path.to_owned(),
        cause,
    })
}

fn read(path: &Path) -> Result<StoredInvitation, InvitationError> {
    let failed = |cause| InvitationError::Io {
        action: "read",
        path: path.to_owned(),
        cause,
    };
    let text = fs::read_to_string(path).map_err(failed)?;
    serde_json::from_str(&text).map_err(|error| failed(io::Error::other(error)))
}

fn key_of(stored: &StoredInvitation) -> Option<[u8; 32]> {
    // A NodeId is 32 bytes in hexadecimal too; its reader serves.
    stored.key.parse::<NodeId>().ok().map(|key| key.0)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting() -> (
        tempfile::TempDir,
        InvitationDirectory,
        SystemTime,
        InvitationToken,
    ) {
        let state = tempfile::tempdir().unwrap();
        let invitations = InvitationDirectory::new(state.path());
        let now = SystemTime::now();
        let token = invitations
            .invite(
                now,
                NodeId([1; 32]),
                "hub",
                "127.0.0.1:4433",
                Some("branch"),
            )
            .unwrap();
        (state, invitations, now, token)
    }

    fn proof(token: &InvitationToken) -> [u8; 32] {
        *blake3::keyed_hash(&token.key(), b"message").as_bytes()
    }

    #[test]
    fn an_invitation_is_good_once() {
        let (_state, invitations, now, token) = setting();
        let (open, _) = invitations
            .find(now, &token.id(), &proof(&token), b"message")
            .unwrap();
        assert_eq!(open.name(), Some("branch"));
        open.mark_used().unwrap();
        let again = invitations.find(now, &token.id(), &proof(&token), b"message");
        assert!(matches!(again, Err(InvitationError::Used)));
    }

    #[test]
    fn invitation_expires_and_is_removed_later() {
        let (_state, invitations, now, token) = setting();
        let late = now + LIFETIME;
        let found = invitations.find(late, &token.id(), &proof(&token), b"message");
        assert!(matches!(found, Err(InvitationError::Expired)));
        assert_eq!(invitations.sweep(late).unwrap(), 1);
        assert_eq!(invitations.sweep(late + REMEMBERED * 2).unwrap(), 0);
    }

    #[test]
    fn wrong_proof_or_id_leaves_invitation_valid() {
        let (_state, invitations, now, token) = setting();
        let wrong = invitations.find(now, &token.id(), &[0; 32], b"message");
        assert!(matches!(wrong, Err(InvitationError::WrongProof)));
        let unknown = invitations.find(now, &[0; 16], &proof(&token), b"message");
        assert!(matches!(unknown, Err(InvitationError::Unknown)));
        assert!(
            invitations
                .find(now, &token.id(), &proof(&token), b"message")
                .is_ok()
        );
    }

    #[test]
    fn the_secret_itself_is_not_kept() {
        let (state, _, _, token) = setting();
        let path = state
            .path()
            .join("invitations")
            .join(format!("{}.json", hexadecimal(&token.id())));
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains(&hexadecimal(&token.secret)));
    }
}
