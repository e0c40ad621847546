//! Keys of a path: their derivation and renewal.
//!
//! ```text
//!  TLS exporter(label, KeyContext) = PathSecret
//!    └─ "wan dir" (direction, path id) = secret 0 ─┬─ "wan hp"  header key, for all epochs
//!                                                  ├─ "wan key", "wan iv"  packet key of epoch 0
//!                                                  └─ "wan ku" = secret 1 ─┬─ "wan key", "wan iv"
//!                                                                          └─ "wan ku" = secret 2 …
//! ```
//!
//! Each arrow is HKDF-Expand-Label of RFC 8446 §7.1 (Key Schedule) with SHA-256. The tree below a
//! secret is that of RFC 9001 §5.1 and §6.1, so its published test vectors apply. A secret is
//! erased as soon as the next one is derived: whoever compromises a node later cannot decrypt
//! earlier packets. `protection.rs` describes the limits of erasing memory.
//!
//! The exporter belongs to one TLS connection whose two Finished messages and two identities were
//! verified. The shell guarantees that, because only the shell knows TLS.

use std::time::Duration;

use ring::hkdf;
use thiserror::Error;
use vocab::{NodeId, Time};
use zeroize::{Zeroize, Zeroizing};

use super::header::ConnectionId;
use super::opener::PacketOpener;
use super::replay::WindowWidth;
use super::sealer::PacketSealer;

/// Label that a shell passes to the TLS exporter (RFC 8446 §7.5, Exporters).
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-trunkline-wan-1";

/// Length of every secret of the tree: the output of SHA-256, and the key of both suites.
pub(super) const SECRET_LENGTH: usize = 32;

/// Number of probe timeouts for which the receiver keeps a key after an update, and for which the
/// sender waits after an update has arrived before it makes another (RFC 9001 §6.5).
pub(super) const KEPT_PROBE_TIMEOUTS: u32 = 3;

/// The probe timeout before one is measured: RFC 9002 §6.2.2 begins with a round trip of 333 ms,
/// which makes 999 ms by its §6.2.1.
pub(super) const INITIAL_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// An AEAD with its header protection; which one, the two nodes agree inside TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CipherSuite {
    /// AES-256-GCM, where the processor knows AES.
    Aes256Gcm,
    /// ChaCha20-Poly1305, where it does not.
    ChaCha20Poly1305,
}

impl CipherSuite {
    /// Its number on the wire and in [`KeyContext`].
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Aes256Gcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }

    /// The suite of that number; `None` when this version does not know it.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Aes256Gcm),
            2 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }
}

/// This node's end of the TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRole {
    /// This node made the connection.
    Dialler,
    /// This node accepted the connection.
    Listener,
}

/// Context that two nodes must agree on to derive the same keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyContext {
    /// Version of the datagram path.
    pub version: u16,
    /// The agreed suite.
    pub suite: CipherSuite,
    /// The verified identity of the dialling node.
    pub dialler: NodeId,
    /// The verified identity of the accepting node.
    pub listener: NodeId,
    /// Random, from the dialling node, and never used before.
    pub dialler_nonce: [u8; 16],
    /// Random, from the accepting node, and never used before.
    pub listener_nonce: [u8; 16],
}

impl KeyContext {
    /// Length of [`KeyContext::encode`].
    pub const LENGTH: usize = 2 + 2 + 32 + 32 + 16 + 16;

    /// The exporter's context value: the fields in order, integers big-endian. All have a fixed
    /// length, so no two contexts are written alike.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let fields: [&[u8]; 6] = [
            &self.version.to_be_bytes(),
            &self.suite.number().to_be_bytes(),
            &self.dialler.0,
            &self.listener.0,
            &self.dialler_nonce,
            &self.listener_nonce,
        ];
        let mut encoded = [0; Self::LENGTH];
        let mut at = 0;
        for field in fields {
            encoded[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        encoded
    }
}

/// Limits for key updates and for the end of a path; the defaults are the rule, tests use less.
#[derive(Clone, Copy, Debug)]
pub struct KeyLimits {
    /// Packets sealed with one key before the next takes over; 2^22 by default, half of what
    /// RFC 9001 §6.6 allows for AES-GCM. At twice this number the sealer stops.
    pub packets_per_key: u64,
    /// Age of a key at which the next takes over.
    pub key_age: Duration,
    /// Packets without a valid tag, over all keys of a direction, after which it is closed
    /// (RFC 9001 §6.6, Limits on AEAD Usage); the suite's by default.
    pub forgeries: u64,
    /// Numbers that are remembered against replay.
    pub window: WindowWidth,
}

impl KeyLimits {
    /// The rule for a suite.
    #[must_use]
    pub fn of(suite: CipherSuite) -> Self {
        Self {
            packets_per_key: 1 << 22,
            key_age: Duration::from_secs(3600),
            forgeries: match suite {
                CipherSuite::Aes256Gcm => 1 << 52,
                CipherSuite::ChaCha20Poly1305 => 1 << 36,
            },
            window: WindowWidth::default(),
        }
    }
}

/// The names of a path in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionIds {
    /// Chosen by this node; at the start of the packets it receives.
    pub ours: ConnectionId,
    /// Chosen by the peer; at the start of the packets this node sends.
    pub theirs: ConnectionId,
}

/// A path id that is not above all those used before; its keys have been given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("path id {0} is not new under this secret; path ids only rise")]
pub struct PathIdUsed(pub u32);

/// Secret that a TLS session has exported for the datagram paths of two nodes.
///
/// It gives out the keys of each path id once and cannot be copied:
///
/// ```compile_fail
/// fn twice(secret: tunnel::packet::PathSecret) {
///     let _ = secret.clone();
/// }
/// ```
pub struct PathSecret {
    secret: HkdfSecret,
    suite: CipherSuite,
    role: TlsRole,
    /// Path ids from here on have not been given out.
    next_path: u32,
}

impl PathSecret {
    /// Has `export` fill a secret, given room for it, the label and the context: with rustls,
    /// `|room, label, context| connection.export_keying_material(room, label, Some(context)).map(drop)`.
    ///
    /// To be called once for a pair of nonces; the context is consumed for that reason.
    ///
    /// # Errors
    /// What `export` returns.
    pub fn export<E>(
        role: TlsRole,
        context: KeyContext,
        export: impl FnOnce(&mut [u8], &'static [u8], &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let secret = HkdfSecret::filled(|room| export(room, EXPORTER_LABEL, &context.encode()))?;
        Ok(Self {
            secret,
            suite: context.suite,
            role,
            next_path: 0,
        })
    }

    /// Makes the two ends of path `id` on this node, with keys that no other path on this node has.
    ///
    /// # Errors
    /// [`PathIdUsed`] when `id` or a later one was requested before.
    pub fn path(
        &mut self,
        now: Time,
        id: u32,
        connection_ids: ConnectionIds,
        limits: KeyLimits,
    ) -> Result<(PacketSealer, PacketOpener), PathIdUsed> {
        if id < self.next_path || id == u32::MAX {
            return Err(PathIdUsed(id));
        }
        self.next_path = id + 1;
        let (sending, receiving) = match self.role {
            TlsRole::Dialler => (DIALLER_SENDS, LISTENER_SENDS),
            TlsRole::Listener => (LISTENER_SENDS, DIALLER_SENDS),
        };
        let sending = self.direction(sending, id);
        let receiving = self.direction(receiving, id);
        Ok((
            PacketSealer::new(now, self.suite, &sending, connection_ids.theirs, limits),
            PacketOpener::new(self.suite, &receiving, connection_ids.ours, limits),
        ))
    }

    fn direction(&self, direction: u8, path: u32) -> HkdfSecret {
        let [a, b, c, d] = path.to_be_bytes();
        self.secret.derive(b"wan dir", &[direction, a, b, c, d])
    }
}

impl std::fmt::Debug for PathSecret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PathSecret")
            .field("suite", &self.suite)
            .field("role", &self.role)
            .field("next_path", &self.next_path)
            .finish_non_exhaustive()
    }
}

/// Packets from the dialling node.
const DIALLER_SENDS: u8 = 0;
/// Packets from the accepting node.
const LISTENER_SENDS: u8 = 1;

/// A secret of the tree. It lies on the heap, so that moving it leaves no copies behind, and is
/// overwritten with zeros when it goes.
pub(super) struct HkdfSecret(Box<[u8; SECRET_LENGTH]>);

impl HkdfSecret {
    /// A secret that `fill` writes in its place.
    pub(super) fn filled<E>(fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut secret = Self(Box::new([0; SECRET_LENGTH]));
        fill(&mut secret.0[..])?;
        Ok(secret)
    }

    /// The secret below this one.
    pub(super) fn derive(&self, label: &[u8], context: &[u8]) -> Self {
        let mut below = Self(Box::new([0; SECRET_LENGTH]));
        self.expand(label, context, &mut below.0[..]);
        below
    }

    /// The secret of the epoch after this one's (RFC 9001 §6.1, Initiating a Key Update).
    pub(super) fn next_epoch(&self) -> Self {
        self.derive(b"wan ku", &[])
    }

    /// HKDF-Expand-Label of RFC 8446 §7.1.
    pub(super) fn expand(&self, label: &[u8], context: &[u8], out: &mut [u8]) {
        struct HkdfLength(usize);
        impl hkdf::KeyType for HkdfLength {
            fn len(&self) -> usize {
                self.0
            }
        }
        const PREFIX: &[u8] = b"tls13 ";
        let length = u16::try_from(out.len()).expect("keys are shorter than 64 KiB");
        let label_length = u8::try_from(PREFIX.len() + label.len()).expect("labels are short");
        let context_length = u8::try_from(context.len()).expect("contexts are short");
        let info: [&[u8]; 6] = [
            &length.to_be_bytes(),
            &[label_length],
            PREFIX,
            label,
            &[context_length],
            context,
        ];
        hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &self.0[..])
            .expand(&info, HkdfLength(out.len()))
            .and_then(|expanded| expanded.fill(out))
            .expect("HKDF gives up to 255 times the length of its hash");
    }

    /// A key of the length that both suites have.
    pub(super) fn key(&self, label: &[u8]) -> Zeroizing<[u8; SECRET_LENGTH]> {
        let mut key = Zeroizing::new([0; SECRET_LENGTH]);
        self.expand(label, &[], &mut key[..]);
        key
    }

    pub(super) fn wipe(&mut self) {
        self.0.as_mut_slice().zeroize();
    }
}

impl Drop for HkdfSecret {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        let digits: Vec<u8> = hex
            .chars()
            .filter_map(|c| c.to_digit(16))
            .map(|d| d as u8)
            .collect();
        let pairs: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect();
        pairs.try_into().unwrap()
    }

    #[test]
    fn labels_expand_as_in_rfc_9001_a5() {
        let secret = HkdfSecret(Box::new(bytes(
            "9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b",
        )));
        assert_eq!(
            *secret.key(b"quic key"),
            bytes("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8")
        );
        assert_eq!(
            *secret.key(b"quic hp"),
            bytes("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4")
        );
        let mut iv = [0; 12];
        secret.expand(b"quic iv", &[], &mut iv);
        assert_eq!(iv, bytes("e0459b3474bdd0e44a41c144"));
        assert_eq!(
            *secret.derive(b"quic ku", &[]).0,
            bytes("1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9")
        );
    }

    #[test]
    fn a_context_is_written_field_after_field() {
        let context = KeyContext {
            version: 0x0102,
            suite: CipherSuite::ChaCha20Poly1305,
            dialler: NodeId([3; 32]),
            listener: NodeId([4; 32]),
            dialler_nonce: [5; 16],
            listener_nonce: [6; 16],
        };
        let expected = [&[1, 2, 0, 2][..], &[3; 32], &[4; 32], &[5; 16], &[6; 16]].concat();
        assert_eq!(context.encode()[..], expected);
    }

    #[test]
    fn a_secret_that_is_wiped_holds_zeros() {
        let mut secret = HkdfSecret(Box::new([0xa5; SECRET_LENGTH]));
        secret.wipe();
        assert_eq!(*secret.0, [0; SECRET_LENGTH]);
    }
}
