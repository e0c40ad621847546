//! Signatures of messages ([MS-SMB2] §3.1.4.1, Signing An Outgoing Message; §3.1.5.1, Verifying an
//! Incoming Message).
//!
//! A message is handed in in the pieces in which it arrives. The sixteen bytes of the signature
//! field count as zeros.

use std::fmt;

use aes::Aes128;
use aes::cipher::BlockCipherEncrypt;
use cmac::Cmac;
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use crate::smb::wire::header::{LENGTH, SIGNATURE_AT, Smb2Header, command, flag};

/// The algorithm that signs messages ([MS-SMB2] §2.2.3.1.7, SMB2_SIGNING_CAPABILITIES).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SigningAlgorithm {
    /// SMB 2.
    HmacSha256,
    /// SMB 3.
    AesCmac,
    /// SMB 3.1.1, where both ends have it. It takes the message id as its nonce.
    AesGmac,
}

impl SigningAlgorithm {
    /// The protocol's number for it.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::HmacSha256 => 0,
            Self::AesCmac => 1,
            Self::AesGmac => 2,
        }
    }

    /// The algorithm of this number.
    pub(crate) fn from_number(number: u16) -> Option<Self> {
        match number {
            0 => Some(Self::HmacSha256),
            1 => Some(Self::AesCmac),
            2 => Some(Self::AesGmac),
            _ => None,
        }
    }

    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HmacSha256 => "HMAC-SHA256",
            Self::AesCmac => "AES-CMAC",
            Self::AesGmac => "AES-GMAC",
        }
    }
}

/// A session's key for signing. It is overwritten when it is dropped, stays in one place however the
/// value is moved, and is shown by no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SigningKey {
    algorithm: SigningAlgorithm,
    key: Box<[u8; 16]>,
}

impl Drop for SigningKey {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SigningKey({}, not shown)", self.algorithm.name())
    }
}

/// The proof that a message bears the session's signature, without which it must not be acted upon.
/// Only the verifier makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedSignature(());

impl SigningKey {
    pub(crate) fn new(algorithm: SigningAlgorithm, key: &[u8; 16]) -> Self {
        let mut own = Self {
            algorithm,
            key: Box::default(),
        };
        own.key.copy_from_slice(key);
        own
    }

    pub(crate) fn algorithm(&self) -> SigningAlgorithm {
        self.algorithm
    }

    /// The key itself, for the other half.
    pub(crate) fn key(&self) -> &[u8; 16] {
        &self.key
    }

    /// Begins a message with its first bytes, the header among them.
    ///
    /// # Panics
    /// When they hold no whole header; the caller has parsed it.
    pub(crate) fn begin(&self, front: &[u8]) -> SignatureMac {
        let header = Smb2Header::parse(front).expect("the caller has parsed the header");
        let mut mac = SignatureMac {
            given: header.signature,
            inner: match self.algorithm {
                SigningAlgorithm::HmacSha256 => MacState::Hmac(Box::new(
                    <Hmac<Sha256> as KeyInit>::new_from_slice(&*self.key)
                        .expect("HMAC takes keys of any length"),
                )),
                SigningAlgorithm::AesCmac => {
                    MacState::Cmac(Box::new(Cmac::<Aes128>::new((&*self.key).into())))
                }
                SigningAlgorithm::AesGmac => {
                    MacState::Gmac(Box::new(AesGmac::new(&self.key, &header)))
                }
            },
        };
        mac.update(&front[..SIGNATURE_AT]);
        mac.update(&[0; 16]);
        mac.update(&front[LENGTH..]);
        mac
    }

    /// Verifies that a whole message bears this session's signature.
    pub(crate) fn verify(&self, message: &[u8]) -> Option<VerifiedSignature> {
        Smb2Header::parse(message).ok()?;
        self.begin(message).verify()
    }

    /// Signs a message whose parts follow one another; the first contains the header.
    pub(crate) fn sign<'a>(&self, front: &mut [u8], rest: impl IntoIterator<Item = &'a [u8]>) {
        let flags = u32::from_le_bytes([front[16], front[17], front[18], front[19]]);
        front[16..20].copy_from_slice(&(flags | flag::SIGNED).to_le_bytes());
        let mut mac = self.begin(front);
        for part in rest {
            mac.update(part);
        }
        front[SIGNATURE_AT..LENGTH].copy_from_slice(&mac.finish());
    }
}

/// A signature in the making.
pub(crate) struct SignatureMac {
    given: [u8; 16],
    inner: MacState,
}

enum MacState {
    Hmac(Box<Hmac<Sha256>>),
    Cmac(Box<Cmac<Aes128>>),
    Gmac(Box<AesGmac>),
}

impl fmt::Debug for SignatureMac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Mac(not shown)")
    }
}

impl SignatureMac {
    /// Takes more of the message.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match &mut self.inner {
            MacState::Hmac(mac) => mac.update(bytes),
            MacState::Cmac(mac) => mac.update(bytes),
            MacState::Gmac(mac) => mac.update(bytes),
        }
    }

    /// The message's signature.
    pub(crate) fn finish(self) -> [u8; 16] {
        match self.inner {
            MacState::Hmac(mac) => {
                let whole: [u8; 32] = mac.finalize().into_bytes().into();
                *whole.first_chunk().expect("an HMAC-SHA256 has 32 bytes")
            }
            MacState::Cmac(mac) => mac.finalize().into_bytes().into(),
            MacState::Gmac(mac) => mac.finish(),
        }
    }

    /// Verifies that the message, now whole, bears the signature in its header.
    pub(crate) fn verify(self) -> Option<VerifiedSignature> {
        let given = self.given;
        bool::from(self.finish().ct_eq(&given)).then_some(VerifiedSignature(()))
    }
}

/// AES-GCM without plaintext, with the message as the additional authenticated data (NIST SP
/// 800-38D §7.1).
struct AesGmac {
    hash: GHash,
    /// The cipher's first block, which hides the hash.
    mask: [u8; 16],
    /// Bytes that fill no block yet.
    held: [u8; 16],
    length: u64,
}

impl AesGmac {
    fn new(key: &[u8; 16], header: &Smb2Header) -> Self {
        let cipher = Aes128::new(key.into());
        let mut hash_key = [0; 16];
        cipher.encrypt_block((&mut hash_key).into());
        // [MS-SMB2] §3.1.4.1: the message id, whether a server sends, whether it is a CANCEL; behind
        // them GCM's counter, which starts at 1.
        let mut mask = [0; 16];
        mask[..8].copy_from_slice(&header.message_id.to_le_bytes());
        mask[8] = u8::from(header.has(flag::FROM_SERVER))
            | u8::from(header.command == command::CANCEL) << 1;
        mask[15] = 1;
        cipher.encrypt_block((&mut mask).into());
        let hash = GHash::new((&hash_key).into());
        hash_key.zeroize();
        Self {
            hash,
            mask,
            held: [0; 16],
            length: 0,
        }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        let held = (self.length % 16) as usize;
        self.length += bytes.len() as u64;
        if held > 0 {
            let take = bytes.len().min(16 - held);
            self.held[held..held + take].copy_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if held + take < 16 {
                return;
            }
            self.hash.update(&[self.held.into()]);
        }
        let (blocks, left) = bytes.as_chunks::<16>();
        for block in blocks.chunks(8) {
            let mut whole = [ghash::Block::default(); 8];
            for (to, from) in whole.iter_mut().zip(block) {
                *to = (*from).into();
            }
            self.hash.update(&whole[..block.len()]);
        }
        self.held[..left.len()].copy_from_slice(left);
    }

    fn finish(mut self) -> [u8; 16] {
        let held = (self.length % 16) as usize;
        if held > 0 {
            self.held[held..].fill(0);
            self.hash.update(&[self.held.into()]);
        }
        // Bits authenticated, and bits enciphered: none.
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&(self.length * 8).to_be_bytes());
        self.hash.update(&[lengths.into()]);
        let mut tag: [u8; 16] = self.hash.clone().finalize().into();
        for (byte, mask) in tag.iter_mut().zip(self.mask) {
            *byte ^= mask;
        }
        tag
    }
}

impl Drop for AesGmac {
    fn drop(&mut self) {
        self.mask.zeroize();
    }
}

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
