//! Key that both ends hold, and the proofs made with it.
//!
//! A key is derived from the words that a person gave both ends (BLAKE3's key derivation, one
//! context for each use). Each end proves that it holds the key by a keyed hash over both ends'
//! nonces and its own role, so that neither a recorded proof nor the other end's own can be reused.
//! The key of a session depends on both nonces too and authenticates datagrams and further
//! connections.
//!
//! An attacker who records a proof can try words against it offline, so the words must not be
//! guessable; the server therefore makes 128 random bits of its own when it is given none.
//! Comparison takes constant time (`blake3::Hash`).

use std::fmt;
use std::net::SocketAddr;

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// Length of a datagram's tag in bytes: as in AEADs, far more than can be tried against one server.
pub(super) const TAG_BYTES: usize = 16;

/// Fresh random bytes of one end.
pub type SessionNonce = [u8; 32];
/// Proof that its sender holds the key.
pub type KeyProof = [u8; PROOF_BYTES];

const KEY_CONTEXT: &str = "trunkline 2026 turn-up test, key of both ends";
const SESSION_CONTEXT: &str = "trunkline 2026 turn-up test, key of a session";

/// Role of an end in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    /// The one that began.
    Client,
    /// The one that was asked.
    Server,
}

impl SessionRole {
    fn byte(self) -> u8 {
        match self {
            SessionRole::Client => 1,
            SessionRole::Server => 2,
        }
    }
}

/// The key that both ends hold.
#[derive(Clone)]
pub struct SharedKey([u8; 32]);

impl fmt::Debug for SharedKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key(..)")
    }
}

impl SharedKey {
    /// Derives the key from these words; white space around them does not count.
    #[must_use]
    pub fn from_words(words: &str) -> Self {
        Self(blake3::derive_key(KEY_CONTEXT, words.trim().as_bytes()))
    }

    fn mac(
        &self,
        role: SessionRole,
        version: u16,
        client: &SessionNonce,
        server: &SessionNonce,
    ) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[role.byte()]);
        hasher.update(&version.to_be_bytes());
        hasher.update(client);
        hasher.update(server);
        hasher.finalize()
    }

    /// Shows that `role` holds the key.
    #[must_use]
    pub fn prove(
        &self,
        role: SessionRole,
        version: u16,
        client: &SessionNonce,
        server: &SessionNonce,
    ) -> KeyProof {
        *self.mac(role, version, client, server).as_bytes()
    }

    /// Verifies a proof for this role, these nonces and this key.
    #[must_use]
    pub fn verify(
        &self,
        proof: &KeyProof,
        role: SessionRole,
        version: u16,
        client: &SessionNonce,
        server: &SessionNonce,
    ) -> bool {
        self.mac(role, version, client, server) == blake3::Hash::from_bytes(*proof)
    }

    /// The key of the session with these nonces.
    #[must_use]
    pub fn session(&self, client: &SessionNonce, server: &SessionNonce) -> SessionKey {
        let mut hasher = blake3::Hasher::new_derive_key(SESSION_CONTEXT);
        hasher.update(&self.0);
        hasher.update(client);
        hasher.update(server);
        SessionKey(*hasher.finalize().as_bytes())
    }
}

/// The key of one session.
#[derive(Clone)]
pub struct SessionKey([u8; 32]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SessionKey(..)")
    }
}

impl SessionKey {
    /// The tag of a datagram's head, sent by `role`.
    pub(super) fn tag(&self, role: SessionRole, head: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[role.byte()]);
        hasher.update(head);
        let mut tag = [0; TAG_BYTES];
        hasher.finalize_xof().fill(&mut tag);
        tag
    }

    /// Verifies a datagram's tag in constant time.
    pub(super) fn is_tag(&self, role: SessionRole, head: &[u8], tag: &[u8; TAG_BYTES]) -> bool {
        let right = self.tag(role, head);
        let differences = right
            .iter()
            .zip(tag)
            .fold(0, |all, (one, other)| all | (one ^ other));
        differences == 0
    }

    /// Cookie that only the receiver at `address` can return, for a server with this secret.
    pub(crate) fn cookie(&self, secret: u64, address: SocketAddr) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"cookie");
        hasher.update(&secret.to_be_bytes());
        hasher.update(address.to_string().as_bytes());
        let mut cookie = [0; 8];
        hasher.finalize_xof().fill(&mut cookie);
        u64::from_be_bytes(cookie)
    }

    /// Shows that a further connection, greeted with `nonce`, is of this session.
    #[must_use]
    pub fn join(&self, nonce: &SessionNonce, order: u32, connection: u16) -> KeyProof {
        *self.join_mac(nonce, order, connection).as_bytes()
    }

    /// Verifies that a further connection belongs to this session.
    #[must_use]
    pub fn verify_join(
        &self,
        proof: &KeyProof,
        nonce: &SessionNonce,
        order: u32,
        connection: u16,
    ) -> bool {
        self.join_mac(nonce, order, connection) == blake3::Hash::from_bytes(*proof)
    }

    fn join_mac(&self, nonce: &SessionNonce, order: u32, connection: u16) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"join");
        hasher.update(nonce);
        hasher.update(&order.to_be_bytes());
        hasher.update(&connection.to_be_bytes());
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: SessionNonce = [1; 32];
    const SERVER: SessionNonce = [2; 32];

    #[test]
    fn proof_binds_key_role_version_and_nonces() {
        let key = SharedKey::from_words("red fox\n");
        let proof = key.prove(SessionRole::Client, 1, &CLIENT, &SERVER);
        let same = SharedKey::from_words("red fox");
        assert!(same.verify(&proof, SessionRole::Client, 1, &CLIENT, &SERVER));
        assert!(!same.verify(&proof, SessionRole::Server, 1, &CLIENT, &SERVER));
        assert!(!same.verify(&proof, SessionRole::Client, 2, &CLIENT, &SERVER));
        assert!(!same.verify(&proof, SessionRole::Client, 1, &SERVER, &CLIENT));
        let other = SharedKey::from_words("red foxes");
        assert!(!other.verify(&proof, SessionRole::Client, 1, &CLIENT, &SERVER));
    }

    #[test]
    fn connection_joins_the_session_of_its_greeting() {
        let key = SharedKey::from_words("red fox").session(&CLIENT, &SERVER);
        let proof = key.join(&SERVER, 7, 3);
        assert!(key.verify_join(&proof, &SERVER, 7, 3));
        assert!(!key.verify_join(&proof, &SERVER, 7, 4));
        assert!(!key.verify_join(&proof, &CLIENT, 7, 3));
        let later = SharedKey::from_words("red fox").session(&CLIENT, &CLIENT);
        assert!(!later.verify_join(&proof, &SERVER, 7, 3));
    }
}
