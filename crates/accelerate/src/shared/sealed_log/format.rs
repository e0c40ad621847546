//! The bytes of a sealed log's file: a head, and records that are sealed one by one (docs/formats/http-cache-index.md).
//!
//! ```text
//!  head    magic[8] version:u16 0[6] salt[16] tag[16]
//!  record  sealed{ length:u32 kind:u8 0[3] } sealed{ body[length] }      each with a tag of 16 bytes behind it
//! ```
//! The key of a file is derived from the accelerator's key, the log's name, the file's number and its salt, and the
//! nonce is the place in the file. No place is written twice under one salt, because only the process that began
//! a file appends to it, and it appends no more after a fault.

use std::fmt;

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::array::Array;
use aes_gcm::aead::consts::U12;
use aes_gcm::aead::{AeadInOut, KeyInit};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// The first bytes of each file.
const MAGIC: &[u8; 8] = b"TRNKLLOG";
/// The version of the format.
const VERSION: u16 = 1;
/// Bytes of a seal's tag.
pub(super) const TAG: usize = 16;
/// Bytes of a file's head.
pub(super) const HEAD: usize = 48;
/// Bytes of a record's sealed head.
pub(super) const RECORD_HEAD: usize = 8 + TAG;
/// Bytes of a record's body at most: the handle of a body of a gigabyte takes 3.6 MB.
pub(super) const BODY_MAX: usize = 4 << 20;

/// The key under which an accelerator seals its files. It follows from the dictionary's key, so that the
/// one file with that key guards both.
#[derive(Clone)]
pub struct StateKey(Zeroizing<[u8; 32]>);

impl StateKey {
    /// A key of these bytes, which are secret and belong to one accelerator.
    #[must_use]
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    /// The seal of one file of a log.
    pub(super) fn file(&self, name: &str, number: u32, salt: &[u8; 16]) -> FileSeal {
        let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(self.0.as_slice());
        let mut mac = mac.expect("HMAC takes a key of any length");
        mac.update(b"trunkline accelerator log 1\0");
        mac.update(&number.to_be_bytes());
        mac.update(salt);
        mac.update(name.as_bytes());
        let key: Zeroizing<[u8; 32]> = Zeroizing::new(mac.finalize().into_bytes().into());
        FileSeal(Box::new(Aes256Gcm::new(&Array(*key))))
    }
}

impl fmt::Debug for StateKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("StateKey(not shown)")
    }
}

/// The part of a file that a nonce belongs to.
#[derive(Clone, Copy)]
enum Part {
    FileHead,
    RecordHead,
    Body,
}

/// The seal of one file.
pub(super) struct FileSeal(Box<Aes256Gcm>);

impl fmt::Debug for FileSeal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("FileSeal(not shown)")
    }
}

/// Contents of a record's sealed head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// The kind, which is the owner's matter.
    pub(super) kind: u8,
    /// Bytes of the body, without its tag.
    pub(super) length: usize,
}

impl FileSeal {
    /// The head of the file with this salt.
    pub(super) fn head(&self, salt: &[u8; 16]) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..10].copy_from_slice(&VERSION.to_be_bytes());
        head[16..32].copy_from_slice(salt);
        let (clear, tag) = head.split_at_mut(32);
        tag.copy_from_slice(&self.seal(Part::FileHead, 0, clear, &mut []));
        head
    }

    /// A record for this place in the file.
    pub(super) fn record(&self, at: u64, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut record = Vec::with_capacity(RECORD_HEAD + body.len() + TAG);
        record.extend_from_slice(&(body.len() as u32).to_be_bytes());
        record.extend_from_slice(&[kind, 0, 0, 0]);
        let tag = self.seal(Part::RecordHead, at, &[], &mut record);
        record.extend_from_slice(&tag);
        record.extend_from_slice(body);
        let tag = self.seal(Part::Body, at, &[], &mut record[RECORD_HEAD..]);
        record.extend_from_slice(&tag);
        record
    }

    /// Opens the head of the record at this place; `None` if it is not as it was written.
    pub(super) fn open_record_head(&self, at: u64, sealed: &[u8]) -> Option<RecordHead> {
        let head = self.open(Part::RecordHead, at, &[], sealed)?;
        let length = u32::from_be_bytes(*head.first_chunk()?) as usize;
        let kind = *head.get(4)?;
        (length <= BODY_MAX).then_some(RecordHead { kind, length })
    }

    /// Opens the body of the record at this place; `None` if it is not as it was written.
    pub(super) fn open_body(&self, at: u64, sealed: &[u8]) -> Option<Vec<u8>> {
        self.open(Part::Body, at, &[], sealed)
    }

    fn seal(&self, part: Part, at: u64, beside: &[u8], bytes: &mut [u8]) -> [u8; TAG] {
        let tag = (self.0).encrypt_inout_detached(&nonce(part, at), beside, bytes.into());
        tag.expect("a record is shorter than the cipher's 64 GiB").0
    }

    fn open(&self, part: Part, at: u64, beside: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let (sealed, tag) = sealed.split_last_chunk::<TAG>()?;
        let mut clear = sealed.to_vec();
        let buffer = clear.as_mut_slice().into();
        let opened =
            (self.0).decrypt_inout_detached(&nonce(part, at), beside, buffer, &Array(*tag));
        opened.ok().map(|()| clear)
    }
}

/// The seal of the file with this head; `None` if the head is another key's, another number's, another version's, or
/// damaged.
pub(super) fn open_head(
    key: &StateKey,
    name: &str,
    number: u32,
    head: &[u8; HEAD],
) -> Option<FileSeal> {
    let (clear, tag) = head.split_at(32);
    let salt = clear.last_chunk::<16>()?;
    let is_known = clear[..8] == *MAGIC && clear[8..10] == VERSION.to_be_bytes();
    if !is_known {
        return None;
    }
    let seal = key.file(name, number, salt);
    seal.open(Part::FileHead, 0, clear, tag).map(|_| seal)
}

fn nonce(part: Part, at: u64) -> Array<u8, U12> {
    let mut nonce = [0; 12];
    nonce[3] = match part {
        Part::FileHead => 0,
        Part::RecordHead => 1,
        Part::Body => 2,
    };
    nonce[4..].copy_from_slice(&at.to_be_bytes());
    Array(nonce)
}
