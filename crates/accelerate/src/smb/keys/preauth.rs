//! The hash over all that was said before a session stood ([MS-SMB2] §3.2.5.3 and §3.3.5.5,
//! PreauthIntegrityHashValue), from which SMB 3.1.1 derives its keys.

use sha2::{Digest, Sha512};

/// Bytes of a SHA-512.
pub(crate) const PREAUTH_LENGTH: usize = 64;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PreauthHash(pub(crate) [u8; PREAUTH_LENGTH]);

impl PreauthHash {
    /// The hash before the first message.
    pub(crate) const NOTHING: Self = Self([0; PREAUTH_LENGTH]);

    /// With a message more: the hash of the hash so far and the message, without its frame.
    pub(crate) fn and(self, message: &[u8]) -> Self {
        let mut hash = Sha512::new();
        hash.update(self.0);
        hash.update(message);
        Self(hash.finalize().into())
    }
}
