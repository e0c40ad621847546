//! Encrypting and decrypting messages ([MS-SMB2] §3.1.4.3, Encrypting the Message; §3.1.4.4,
//! Decrypting the Message).
//!
//! A session has a key for each direction. A half with a key decrypts the messages of that host. A
//! half that sends its own or altered messages in the host's place encrypts them with its own
//! nonces, never with the received one, because a nonce must not repeat under one key.
//!
//! ```text
//!  nonce = the first 11 or 12 bytes of SHA-256(label ‖ chance ‖ number)
//! ```
//! *Chance* is 128 bits from outside, new for each half of each flow, so that a flow which replays an
//! old session's set-up, and so has its keys, does not have its nonces. *Number* counts messages. The
//! host counts its own nonces from where it likes; [`EncryptionCipher::sealed_max`] says after how many of ours
//! one of both may no longer be taken for certain to differ (docs/decisions/0043).

use std::fmt;

use aes::{Aes128, Aes256};
use aes_gcm::aead::array::Array;
use aes_gcm::aead::consts::{U11, U12, U16};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use ccm::Ccm;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use crate::smb::wire::frame::{FRAME_HEADER, frame_header};
use crate::smb::wire::transform::{self, TransformHeader};

/// Bytes of the longest key.
const KEY_MAX: usize = 32;
/// The length of the random seed of nonces, in bytes.
pub(crate) const NONCE_SEED_LENGTH: usize = 16;
/// The label of the nonce derivation, used for nothing else.
const NONCE_LABEL: &[u8] = b"trunkline smb nonce\0";

/// The cipher that encrypts messages ([MS-SMB2] §2.2.3.1.2, SMB2_ENCRYPTION_CAPABILITIES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EncryptionCipher {
    /// The only one of SMB 3.0.
    Aes128Ccm,
    Aes128Gcm,
    Aes256Ccm,
    Aes256Gcm,
}

impl EncryptionCipher {
    /// Every one, in the order of their numbers, which begin with 1.
    pub(crate) const ALL: [Self; 4] = [
        Self::Aes128Ccm,
        Self::Aes128Gcm,
        Self::Aes256Ccm,
        Self::Aes256Gcm,
    ];

    /// The protocol's number for it.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Aes128Ccm => 1,
            Self::Aes128Gcm => 2,
            Self::Aes256Ccm => 3,
            Self::Aes256Gcm => 4,
        }
    }

    /// The cipher of this number.
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        let index = usize::from(number).checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "AES-128-CCM",
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Ccm => "AES-256-CCM",
            Self::Aes256Gcm => "AES-256-GCM",
        }
    }

    /// Bytes of a key.
    pub(crate) fn key_length(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes256Ccm | Self::Aes256Gcm => KEY_MAX,
        }
    }

    /// Bytes of a transform header's nonce that count ([MS-SMB2] §2.2.41).
    fn nonce_length(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes256Ccm => 11,
            Self::Aes128Gcm | Self::Aes256Gcm => 12,
        }
    }

    /// The number of messages that may be sealed here under one key. With as many messages of the
    /// host's own, the probability of two equal nonces is 2^-33. NIST SP 800-38D §8.3 asks for
    /// 2^-32 at most, and so allows 2^32 messages with 96 random bits in all; 88 bits allow 2^28.
    pub(crate) fn sealed_max(self) -> u64 {
        match self {
            Self::Aes128Ccm | Self::Aes256Ccm => 1 << 27,
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 31,
        }
    }
}

/// The key of one direction of a session. It is overwritten when it is dropped, stays in one place
/// however the value is moved, and is shown by no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SealingKey {
    cipher: EncryptionCipher,
    key: Box<[u8; KEY_MAX]>,
}

impl Drop for SealingKey {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SealingKey({}, not shown)", self.cipher.name())
    }
}

/// The keys of a session's two directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealingKeys {
    /// The key of the messages that the client sends.
    pub(crate) client: SealingKey,
    /// The key of the messages that the server sends.
    pub(crate) server: SealingKey,
}

impl SealingKey {
    /// A key for this cipher: the first bytes of `key`, as many as it takes.
    ///
    /// # Panics
    /// When there are fewer.
    pub(crate) fn new(cipher: EncryptionCipher, key: &[u8]) -> Self {
        let mut own = Self {
            cipher,
            key: Box::default(),
        };
        let length = cipher.key_length();
        own.key[..length].copy_from_slice(&key[..length]);
        own
    }

    pub(crate) fn cipher(&self) -> EncryptionCipher {
        self.cipher
    }

    /// The key itself, for the other half.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_length()]
    }

    /// Decrypts a complete message, without its frame; `None` when it is not sealed with this key,
    /// or cannot be a message.
    pub(crate) fn open(&self, message: &[u8]) -> Option<Vec<u8>> {
        let transform = TransformHeader::parse(message).ok()?;
        let (header, sealed) = message.split_at(transform::LENGTH);
        let mut plain = sealed.to_vec();
        let beside = &header[transform::NONCE_AT..];
        let tag = Array(transform.signature);
        let key = &self.key;
        let short: Array<u8, U11> = Array(first(&transform.nonce));
        let long: Array<u8, U12> = Array(first(&transform.nonce));
        let buffer = plain.as_mut_slice().into();
        let opened = match self.cipher {
            EncryptionCipher::Aes128Ccm => {
                ccm_128(key).decrypt_inout_detached(&short, beside, buffer, &tag)
            }
            EncryptionCipher::Aes256Ccm => {
                ccm_256(key).decrypt_inout_detached(&short, beside, buffer, &tag)
            }
            EncryptionCipher::Aes128Gcm => {
                gcm_128(key).decrypt_inout_detached(&long, beside, buffer, &tag)
            }
            EncryptionCipher::Aes256Gcm => {
                gcm_256(key).decrypt_inout_detached(&long, beside, buffer, &tag)
            }
        };
        opened.ok().map(|()| plain)
    }

    /// Encrypts a message in its place; the header that goes before it.
    fn seal(&self, session: u64, nonce: [u8; 16], message: &mut [u8]) -> [u8; transform::LENGTH] {
        let mut transform = TransformHeader {
            signature: [0; 16],
            nonce,
            size: message.len() as u32,
            reserved: 0,
            session,
        };
        let header = transform.emit();
        let beside = &header[transform::NONCE_AT..];
        let key = &self.key;
        let short: Array<u8, U11> = Array(first(&nonce));
        let long: Array<u8, U12> = Array(first(&nonce));
        let buffer = message.into();
        let tag = match self.cipher {
            EncryptionCipher::Aes128Ccm => {
                ccm_128(key).encrypt_inout_detached(&short, beside, buffer)
            }
            EncryptionCipher::Aes256Ccm => {
                ccm_256(key).encrypt_inout_detached(&short, beside, buffer)
            }
            EncryptionCipher::Aes128Gcm => {
                gcm_128(key).encrypt_inout_detached(&long, beside, buffer)
            }
            EncryptionCipher::Aes256Gcm => {
                gcm_256(key).encrypt_inout_detached(&long, beside, buffer)
            }
        };
        let tag = tag.expect("a frame is far shorter than any cipher's longest message");
        transform.signature = tag.into();
        transform.emit()
    }
}

type Aes128Ccm = Ccm<Aes128, U16, U11>;
type Aes256Ccm = Ccm<Aes256, U16, U11>;

fn ccm_128(key: &[u8; KEY_MAX]) -> Aes128Ccm {
    Aes128Ccm::new((&first::<16>(key)).into())
}

fn ccm_256(key: &[u8; KEY_MAX]) -> Aes256Ccm {
    Aes256Ccm::new(key.into())
}

fn gcm_128(key: &[u8; KEY_MAX]) -> Aes128Gcm {
    Aes128Gcm::new((&first::<16>(key)).into())
}

fn gcm_256(key: &[u8; KEY_MAX]) -> Aes256Gcm {
    Aes256Gcm::new(key.into())
}

/// Returns the first bytes of a slice that is long enough.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("the caller has as many bytes")
}

/// Seals messages in a host's place.
#[derive(Debug)]
pub(crate) struct MessageSealer {
    key: SealingKey,
    nonce_seed: [u8; NONCE_SEED_LENGTH],
    sealed: u64,
}

impl MessageSealer {
    /// Creates a sealer that draws its nonces from `nonce_seed`, which no other sealer uses.
    pub(crate) fn new(key: SealingKey, chance: [u8; NONCE_SEED_LENGTH]) -> Self {
        Self {
            key,
            nonce_seed: chance,
            sealed: 0,
        }
    }

    /// For people: whether it has sealed anything, and how.
    pub(crate) fn used(&self) -> Option<&'static str> {
        (self.sealed > 0).then(|| self.key.cipher.name())
    }

    /// A frame with this message, whose parts follow one another, encrypted; `None` when the key has
    /// been used as often as it may be.
    pub(crate) fn seal<'a>(
        &mut self,
        session: u64,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Vec<u8>> {
        if self.sealed >= self.key.cipher.sealed_max() {
            return None;
        }
        let nonce = self.next_nonce();
        let mut frame = vec![0; FRAME_HEADER + transform::LENGTH];
        parts
            .into_iter()
            .for_each(|part| frame.extend_from_slice(part));
        let (front, message) = frame.split_at_mut(FRAME_HEADER + transform::LENGTH);
        front[..FRAME_HEADER].copy_from_slice(&frame_header(transform::LENGTH + message.len()));
        let header = self.key.seal(session, nonce, message);
        front[FRAME_HEADER..].copy_from_slice(&header);
        Some(frame)
    }

    fn next_nonce(&mut self) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(NONCE_LABEL);
        hash.update(self.nonce_seed);
        hash.update(self.sealed.to_be_bytes());
        self.sealed += 1;
        let mut nonce = first::<16>(&hash.finalize());
        // What does not count is zero ([MS-SMB2] §2.2.41).
        nonce[self.key.cipher.nonce_length()..].fill(0);
        nonce
    }

    /// As if so many messages had been sealed.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, sealed: u64) {
        self.sealed = sealed;
    }
}

#[cfg(test)]
#[path = "sealing_tests.rs"]
mod tests;
