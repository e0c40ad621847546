//! Decrypts Kerberos ciphertexts: AES with ciphertext stealing and HMAC-SHA1 (RFC 3961 §5.3 and RFC
//! 3962) or HMAC-SHA2 (RFC 8009), and RC4 with HMAC-MD5 of older domains (RFC 4757).
//!
//! ```text
//!  RFC 3961: AES-CTS(Ke, confounder ‖ text) ‖ HMAC(Ki, confounder ‖ text)   Ke, Ki = DK(key, usage ‖ AA, 55)
//!  RFC 8009: C = AES-CTS(Ke, confounder ‖ text);  C ‖ HMAC(Ki, 0^16 ‖ C)
//!  RFC 4757: checksum ‖ RC4(HMAC(K1, checksum), confounder ‖ text),  K1 = HMAC(key, usage)
//! ```
//! DES and DES3 are not supported: RFC 6649 and RFC 8429 took them out of use. Only tests encrypt
//! whole messages; `message_tokens.rs` encrypts with the keys that are derived here. Decrypted bytes and keys are overwritten when they are dropped.

use std::fmt;

use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt};
use aes::{Aes128, Aes256};
use cts::cipher::InnerIvInit;
use cts::{CbcCs3, Decrypt};
use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use rc4::{Rc4, StreamCipher};
use sha1::Sha1;
use sha2::{Sha256, Sha384};
use zeroize::Zeroizing;

use super::n_fold::n_fold;

/// Bytes of chance before every text that AES encrypts (RFC 3962 §6, RFC 8009 §5) ...
pub(super) const CONFOUNDER: usize = 16;
/// ... and that RC4 does (RFC 4757 §5).
const CONFOUNDER_RC4: usize = 8;
/// Bytes of an HMAC-MD5.
const CHECKSUM_RC4: usize = 16;
/// The byte after the usage number for the key that encrypts, and for the key that authenticates
/// (RFC 3961 §5.3).
pub(super) const ENCRYPTS: u8 = 0xaa;
pub(super) const AUTHENTICATES: u8 = 0x55;
/// The same byte for the key of a checksum over data that is not encrypted (RFC 3961 §5.3).
pub(super) const CHECKS: u8 = 0x99;

/// The encryption type (Kerberos Encryption Type Numbers, IANA).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncryptionType {
    /// RFC 3962, with 128 bits.
    Aes128Sha1,
    /// RFC 3962, with 256 bits.
    Aes256Sha1,
    /// RFC 8009, with 128 bits.
    Aes128Sha2,
    /// RFC 8009, with 256 bits.
    Aes256Sha2,
    /// RFC 4757.
    Rc4,
}

impl EncryptionType {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Aes128Sha1,
        Self::Aes256Sha1,
        Self::Aes128Sha2,
        Self::Aes256Sha2,
        Self::Rc4,
    ];

    /// IANA's number for it.
    pub fn number(self) -> i64 {
        match self {
            Self::Aes128Sha1 => 17,
            Self::Aes256Sha1 => 18,
            Self::Aes128Sha2 => 19,
            Self::Aes256Sha2 => 20,
            Self::Rc4 => 23,
        }
    }

    /// The one of this number.
    pub fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.number() == number)
    }

    /// IANA's name, as `klist -e` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Sha1 => "aes128-cts-hmac-sha1-96",
            Self::Aes256Sha1 => "aes256-cts-hmac-sha1-96",
            Self::Aes128Sha2 => "aes128-cts-hmac-sha256-128",
            Self::Aes256Sha2 => "aes256-cts-hmac-sha384-192",
            Self::Rc4 => "rc4-hmac",
        }
    }

    /// Bytes of a key.
    pub fn key_length(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes128Sha2 | Self::Rc4 => 16,
            Self::Aes256Sha1 | Self::Aes256Sha2 => 32,
        }
    }

    /// The length of the authentication tag in bytes.
    pub(super) fn tag_length(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes256Sha1 => 12,
            Self::Aes128Sha2 | Self::Rc4 => 16,
            Self::Aes256Sha2 => 24,
        }
    }

    /// True if the tag authenticates the ciphertext and not the text (RFC 8009 §5).
    pub(super) fn authenticates_ciphertext(self) -> bool {
        matches!(self, Self::Aes128Sha2 | Self::Aes256Sha2)
    }

    /// Decrypts a block or more in place, with a derived key of AES.
    ///
    /// # Panics
    /// When the text is shorter than a block.
    pub(super) fn decrypt(self, key: &[u8], text: &mut [u8]) {
        match key.len() {
            16 => unsteal::<Aes128>(key, text),
            _ => unsteal::<Aes256>(key, text),
        }
        .expect("the text fills a block");
    }

    /// Encrypts a block or more in place, with a derived key of AES.
    ///
    /// # Panics
    /// When the text is shorter than a block.
    pub(super) fn encrypt(self, key: &[u8], text: &mut [u8]) {
        match key.len() {
            16 => steal::<Aes128>(key, text),
            _ => steal::<Aes256>(key, text),
        }
        .expect("the text fills a block");
    }

    /// The tag over these parts, with a derived key.
    pub(super) fn tag(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        let mut tag = match self {
            Self::Aes128Sha1 | Self::Aes256Sha1 => {
                mac::<Hmac<Sha1>>(key, parts).finalize().as_bytes().to_vec()
            }
            Self::Aes128Sha2 => mac::<Hmac<Sha256>>(key, parts)
                .finalize()
                .as_bytes()
                .to_vec(),
            Self::Aes256Sha2 => mac::<Hmac<Sha384>>(key, parts)
                .finalize()
                .as_bytes()
                .to_vec(),
            Self::Rc4 => mac::<Hmac<Md5>>(key, parts).finalize().as_bytes().to_vec(),
        };
        tag.truncate(self.tag_length());
        tag
    }
}

/// A key of Kerberos. It is overwritten when it is dropped, and shown by no `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct KerberosKey {
    encryption: EncryptionType,
    bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for KerberosKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Key({}, not shown)", self.encryption.name())
    }
}

impl KerberosKey {
    /// Creates a key from these bytes, if the encryption type is known and has this key length.
    pub fn of(encryption: i64, bytes: &[u8]) -> Option<Self> {
        let encryption = EncryptionType::from_number(encryption)?;
        (bytes.len() == encryption.key_length()).then(|| Self {
            encryption,
            bytes: Zeroizing::new(bytes.to_vec()),
        })
    }

    /// The encryption type of the key.
    pub fn encryption(&self) -> EncryptionType {
        self.encryption
    }

    /// The key itself.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Derives the key of AES for one use and purpose; `None` of RC4, which has other rules.
    pub(super) fn derive(&self, usage: u32, purpose: u8) -> Option<Zeroizing<Vec<u8>>> {
        let length = match purpose {
            ENCRYPTS => self.bytes.len(),
            _ => self.encryption.tag_length(),
        };
        Some(match self.encryption {
            EncryptionType::Aes128Sha1 => self.derive_sha1::<Aes128>(usage, purpose),
            EncryptionType::Aes256Sha1 => self.derive_sha1::<Aes256>(usage, purpose),
            EncryptionType::Aes128Sha2 => self.derive_sha2::<Hmac<Sha256>>(usage, purpose, length),
            EncryptionType::Aes256Sha2 => self.derive_sha2::<Hmac<Sha384>>(usage, purpose, length),
            EncryptionType::Rc4 => return None,
        })
    }

    /// Decrypts bytes that were encrypted with this key for this use; `None` for all other bytes.
    pub fn open(&self, usage: u32, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let opened = match self.encryption {
            EncryptionType::Aes128Sha1 => self.open_sha1::<Aes128>(usage, sealed),
            EncryptionType::Aes256Sha1 => self.open_sha1::<Aes256>(usage, sealed),
            EncryptionType::Aes128Sha2 => self.open_sha2::<Aes128, Hmac<Sha256>>(usage, sealed),
            EncryptionType::Aes256Sha2 => self.open_sha2::<Aes256, Hmac<Sha384>>(usage, sealed),
            EncryptionType::Rc4 => self.open_rc4(usage, sealed),
        };
        opened.filter(|text| !text.is_empty())
    }

    /// RFC 3961 §5.3 (Cryptosystem Profile Based on Simplified Profile), decryption.
    fn open_sha1<C: AesBlockCipher>(
        &self,
        usage: u32,
        sealed: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let at = sealed.len().checked_sub(self.encryption.tag_length())?;
        let (ciphertext, tag) = sealed.split_at(at);
        let mut text = Zeroizing::new(ciphertext.to_vec());
        unsteal::<C>(&self.derive_sha1::<C>(usage, ENCRYPTS), &mut text)?;
        let authenticates = self.derive_sha1::<C>(usage, AUTHENTICATES);
        let mac = mac::<Hmac<Sha1>>(&authenticates, &[&text]);
        mac.verify_truncated_left(tag).ok()?;
        without(text, CONFOUNDER)
    }

    /// RFC 3961 §5.1: DK, with random-to-key as AES has it, which changes nothing (RFC 3962 §6).
    fn derive_sha1<C: AesBlockCipher>(&self, usage: u32, purpose: u8) -> Zeroizing<Vec<u8>> {
        let cipher = C::new_from_slice(&self.bytes).expect("a key has its cipher's length");
        let mut block = Zeroizing::new(n_fold(&constant(usage, purpose)));
        let mut derived = Zeroizing::new(Vec::with_capacity(self.bytes.len()));
        while derived.len() < self.bytes.len() {
            C::encrypt(&cipher, &mut block);
            derived.extend_from_slice(&*block);
        }
        derived
    }

    /// RFC 8009 §5 (Kerberos Algorithm Protocol Parameters), decryption.
    fn open_sha2<C: AesBlockCipher, M: Mac + KeyInit>(
        &self,
        usage: u32,
        sealed: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let tag_length = self.encryption.tag_length();
        let at = sealed.len().checked_sub(tag_length)?;
        let (ciphertext, tag) = sealed.split_at(at);
        let authenticates = self.derive_sha2::<M>(usage, AUTHENTICATES, tag_length);
        let mac = mac::<M>(&authenticates, &[&[0; 16], ciphertext]);
        mac.verify_truncated_left(tag).ok()?;
        let encrypts = self.derive_sha2::<M>(usage, ENCRYPTS, self.bytes.len());
        let mut text = Zeroizing::new(ciphertext.to_vec());
        unsteal::<C>(&encrypts, &mut text)?;
        without(text, CONFOUNDER)
    }

    /// RFC 8009 §3: KDF-HMAC-SHA2; one block is always enough.
    fn derive_sha2<M: Mac + KeyInit>(
        &self,
        usage: u32,
        purpose: u8,
        length: usize,
    ) -> Zeroizing<Vec<u8>> {
        let bits = 8 * length as u32;
        let parts: [&[u8]; 4] = [
            &1u32.to_be_bytes(),
            &constant(usage, purpose),
            &[0],
            &bits.to_be_bytes(),
        ];
        let block: CtOutput<M> = mac::<M>(&self.bytes, &parts).finalize();
        Zeroizing::new(block.as_bytes()[..length].to_vec())
    }

    /// RFC 4757 §5 (Encryption Types), DECRYPT.
    fn open_rc4(&self, usage: u32, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (checksum, ciphertext) = sealed.split_at_checked(CHECKSUM_RC4)?;
        let key = self.derive_rc4(usage);
        let mut text = Zeroizing::new(ciphertext.to_vec());
        rc4(key.as_bytes(), checksum, &mut text);
        let mac = mac::<Hmac<Md5>>(key.as_bytes(), &[&text]);
        mac.verify_truncated_left(checksum).ok()?;
        without(text, CONFOUNDER_RC4)
    }

    fn derive_rc4(&self, usage: u32) -> CtOutput<Hmac<Md5>> {
        mac::<Hmac<Md5>>(&self.bytes, &[&usage.to_le_bytes()]).finalize()
    }
}

/// RC4 with the key of this checksum.
fn rc4(key: &[u8], checksum: &[u8], text: &mut [u8]) {
    let key = mac::<Hmac<Md5>>(key, &[checksum]).finalize();
    let mut cipher =
        <Rc4 as rc4::KeyInit>::new_from_slice(key.as_bytes()).expect("RC4 takes keys of 16 bytes");
    cipher.apply_keystream(text);
}

/// The constant that derives the keys for one use and purpose (RFC 3961 §5.3, RFC 8009 §5).
fn constant(usage: u32, purpose: u8) -> [u8; 5] {
    let [a, b, c, d] = usage.to_be_bytes();
    [a, b, c, d, purpose]
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// AES in CBC with ciphertext stealing, the last two blocks always swapped, and no initial vector (RFC 3962
/// §5, RFC 8009 §4).
/// `None` if the bytes do not fill a block.
fn unsteal<C: AesBlockCipher>(key: &[u8], text: &mut [u8]) -> Option<()> {
    let cipher = C::new_from_slice(key).expect("a derived key has its cipher's length");
    let mode = CbcCs3::inner_iv_init(cipher, &Default::default());
    mode.decrypt(text).ok()
}

/// The reverse of [`unsteal`].
fn steal<C: AesBlockCipher>(key: &[u8], text: &mut [u8]) -> Option<()> {
    let cipher = C::new_from_slice(key).expect("a derived key has its cipher's length");
    let mode = CbcCs3::inner_iv_init(cipher, &Default::default());
    cts::Encrypt::encrypt(mode, text).ok()
}

/// The text behind its confounder.
fn without(mut text: Zeroizing<Vec<u8>>, confounder: usize) -> Option<Zeroizing<Vec<u8>>> {
    let length = text.len().checked_sub(confounder)?;
    text.copy_within(confounder.., 0);
    // What is cut off stays in the allocation, which is overwritten whole.
    text.truncate(length);
    Some(text)
}

/// AES with a key of one length.
trait AesBlockCipher: BlockCipherEncrypt + BlockCipherDecrypt + KeyInit {
    /// One block.
    fn encrypt(&self, block: &mut [u8; 16]);
}

impl AesBlockCipher for Aes128 {
    fn encrypt(&self, block: &mut [u8; 16]) {
        self.encrypt_block(block.into());
    }
}

impl AesBlockCipher for Aes256 {
    fn encrypt(&self, block: &mut [u8; 16]) {
        self.encrypt_block(block.into());
    }
}

/// Encryption, for tests that write the messages that are read here.
#[cfg(any(test, feature = "testing"))]
impl KerberosKey {
    /// Encrypts a text for this use, behind a confounder of zeros.
    pub(crate) fn seal(&self, usage: u32, text: &[u8]) -> Vec<u8> {
        match self.encryption {
            EncryptionType::Aes128Sha1 => self.seal_sha1::<Aes128>(usage, text),
            EncryptionType::Aes256Sha1 => self.seal_sha1::<Aes256>(usage, text),
            EncryptionType::Aes128Sha2 => self.seal_sha2::<Aes128, Hmac<Sha256>>(usage, text),
            EncryptionType::Aes256Sha2 => self.seal_sha2::<Aes256, Hmac<Sha384>>(usage, text),
            EncryptionType::Rc4 => {
                let mut whole = [&[0; CONFOUNDER_RC4], text].concat();
                let key = self.derive_rc4(usage);
                let checksum = mac::<Hmac<Md5>>(key.as_bytes(), &[&whole]).finalize();
                rc4(key.as_bytes(), checksum.as_bytes(), &mut whole);
                [checksum.as_bytes(), &whole[..]].concat()
            }
        }
    }

    fn seal_sha1<C: AesBlockCipher>(&self, usage: u32, text: &[u8]) -> Vec<u8> {
        let text = [&[0; CONFOUNDER], text].concat();
        let mut sealed = text.clone();
        steal::<C>(&self.derive_sha1::<C>(usage, ENCRYPTS), &mut sealed).expect("a block");
        let authenticates = self.derive_sha1::<C>(usage, AUTHENTICATES);
        let tag = mac::<Hmac<Sha1>>(&authenticates, &[&text]).finalize();
        [&sealed, &tag.as_bytes()[..self.encryption.tag_length()]].concat()
    }

    fn seal_sha2<C: AesBlockCipher, M: Mac + KeyInit>(&self, usage: u32, text: &[u8]) -> Vec<u8> {
        let mut sealed = [&[0; CONFOUNDER], text].concat();
        let length = self.encryption.tag_length();
        let encrypts = self.derive_sha2::<M>(usage, ENCRYPTS, self.bytes.len());
        steal::<C>(&encrypts, &mut sealed).expect("a block");
        let authenticates = self.derive_sha2::<M>(usage, AUTHENTICATES, length);
        let tag = mac::<M>(&authenticates, &[&[0; 16], &sealed]).finalize();
        [&sealed, &tag.as_bytes()[..length]].concat()
    }
}

#[cfg(test)]
#[path = "encryption_tests.rs"]
mod tests;
