//! The key that a client and a server share after authentication.

use std::fmt;

use zeroize::Zeroizing;

/// Holds the secret that a mechanism of authentication gave both ends. It is overwritten when it is
/// dropped, and its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey(Zeroizing<Vec<u8>>);

impl fmt::Debug for SessionKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SessionKey(not shown)")
    }
}

impl SessionKey {
    /// Takes the key as the mechanism gives it, of any length.
    pub fn new(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// Returns the first 16 bytes, filled up with zeros, for protocols whose keys always have that
    /// length.
    pub fn first(&self) -> Zeroizing<[u8; 16]> {
        let mut first = Zeroizing::new([0; 16]);
        let length = self.0.len().min(16);
        first[..length].copy_from_slice(&self.0[..length]);
        first
    }

    /// Returns the whole key.
    pub fn full(&self) -> &[u8] {
        &self.0
    }
}
