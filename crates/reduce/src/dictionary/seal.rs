//! Encryption of the dictionary on disk: AES-256-GCM with keys derived from the dictionary's key,
//! and a new key whenever a segment or its contents are written from the start.
//!
//! ```text
//! dictionary's key ─┬─ number, generation, salt of a segment ─► its records   nonce: offset, part
//!                   ├─ the same and another salt             ─► its contents  nonce: zero
//!                   └─ (a key of its own)                    ─► tags of heads and trailers
//! ```
//! A nonce is never used twice under one key. A segment's salt is drawn when the segment is begun,
//! and each byte of a segment is written once: after a failed append, a failed sync or a restart
//! nothing is appended to it any more. Its contents may be written again after a torn attempt, with
//! another salt. `docs/decisions` has the full argument and its limits.

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

/// Bytes that sealing adds.
pub(super) const TAG: usize = 16;

/// The key under which a dictionary keeps everything on disk. It belongs in a place of its own.
#[derive(Clone)]
pub struct DictionaryKey(Zeroizing<[u8; 32]>);

impl DictionaryKey {
    /// A key of these bytes, which have to be random and secret.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The key for files that the accelerator of this number keeps beside the dictionary.
    #[must_use]
    pub fn for_accelerator(&self, number: u8) -> Zeroizing<[u8; 32]> {
        self.derive("trunkline accelerator files 1", &[&[number]])
    }

    /// Seals the records of a segment.
    pub(super) fn records(&self, name: &SegmentName) -> SealKey {
        SealKey::new(&self.derive("trunkline dictionary 2 records", &[&name.bytes()]))
    }

    /// Derives the key that seals the contents of a segment.
    pub(super) fn contents(&self, name: &SegmentName, salt: &[u8; 16]) -> SealKey {
        SealKey::new(&self.derive("trunkline dictionary 2 contents", &[&name.bytes(), salt]))
    }

    /// Computes the tag of cleartext bytes.
    pub(super) fn tag(&self, bytes: &[u8]) -> [u8; TAG] {
        let key = self.derive("trunkline dictionary 2 tags", &[]);
        let hash = blake3::keyed_hash(&key, bytes);
        let mut tag = [0; TAG];
        tag.copy_from_slice(&hash.as_bytes()[..TAG]);
        tag
    }

    fn derive(&self, context: &str, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(self.0.as_slice());
        for part in parts {
            hasher.update(part);
        }
        Zeroizing::new(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for DictionaryKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("DictionaryKey(..)")
    }
}

/// Unique name of a segment among all segments ever written under the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentName {
    pub(super) number: u32,
    pub(super) generation: [u8; 16],
    /// Random, drawn when the segment is begun.
    pub(super) salt: [u8; 16],
}

impl SegmentName {
    pub(super) fn bytes(&self) -> [u8; 36] {
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(&self.number.to_be_bytes());
        bytes[4..20].copy_from_slice(&self.generation);
        bytes[20..].copy_from_slice(&self.salt);
        bytes
    }
}

/// Part of the data at one offset that is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealedPart {
    Head,
    Body,
}

/// One derived key, ready for use.
pub(super) struct SealKey(LessSafeKey);

impl SealKey {
    fn new(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, key);
        Self(LessSafeKey::new(
            key.expect("the key has the cipher's length"),
        ))
    }

    /// Encrypts in place; the result is to be followed by the tag.
    pub(super) fn seal(&self, part: SealedPart, offset: u64, bytes: &mut [u8]) -> [u8; TAG] {
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce(part, offset), Aad::empty(), bytes);
        let mut out = [0; TAG];
        out.copy_from_slice(tag.expect("less than the cipher's 64 GiB").as_ref());
        out
    }

    /// Decrypts in place what ends in its tag; `None` if anything about it is not as it was.
    pub(super) fn open<'a>(
        &self,
        part: SealedPart,
        offset: u64,
        sealed: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        self.0
            .open_in_place(nonce(part, offset), Aad::empty(), sealed)
            .ok()
    }
}

fn nonce(part: SealedPart, offset: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[3] = match part {
        SealedPart::Head => 0,
        SealedPart::Body => 1,
    };
    nonce[4..].copy_from_slice(&offset.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: SegmentName = SegmentName {
        number: 7,
        generation: [1; 16],
        salt: [2; 16],
    };

    #[test]
    fn seal_opens_only_at_its_own_place() {
        let key = DictionaryKey::new([9; 32]);
        let mut sealed = b"some bytes".to_vec();
        let tag = key.records(&NAME).seal(SealedPart::Body, 64, &mut sealed);
        sealed.extend_from_slice(&tag);
        assert!(!sealed.windows(4).any(|window| window == b"some"));
        let open = |seal: SealKey, part, offset| {
            let mut bytes = sealed.clone();
            seal.open(part, offset, &mut bytes)
                .map(|bytes| bytes.to_vec())
        };
        let opened = open(key.records(&NAME), SealedPart::Body, 64);
        assert_eq!(opened.as_deref(), Some(&b"some bytes"[..]));
        assert_eq!(open(key.records(&NAME), SealedPart::Body, 65), None);
        assert_eq!(open(key.records(&NAME), SealedPart::Head, 64), None);
        assert_eq!(
            open(key.contents(&NAME, &[2; 16]), SealedPart::Body, 64),
            None
        );
        for other in [
            SegmentName { number: 8, ..NAME },
            SegmentName {
                generation: [3; 16],
                ..NAME
            },
            SegmentName {
                salt: [3; 16],
                ..NAME
            },
        ] {
            assert_eq!(open(key.records(&other), SealedPart::Body, 64), None);
        }
        assert_ne!(key.for_accelerator(1), key.for_accelerator(2));
        let other = DictionaryKey::new([8; 32]);
        assert_ne!(key.for_accelerator(1), other.for_accelerator(1));
        assert_eq!(open(other.records(&NAME), SealedPart::Body, 64), None);
        assert_ne!(key.tag(b"x"), other.tag(b"x"));
    }

    #[test]
    fn a_key_is_not_printed() {
        let key = DictionaryKey::new([171; 32]);
        assert_eq!(format!("{key:?}"), "DictionaryKey(..)");
    }
}
