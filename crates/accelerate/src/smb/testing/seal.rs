//! The encryption of the hosts of these tests: written independently of the tested code ([MS-SMB2]
//! §3.1.4.2 to §3.1.4.4), with nonces that count up, as real hosts' do.

use std::collections::BTreeSet;

use aes::{Aes128, Aes256};
use aes_gcm::aead::consts::{U11, U16};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use ccm::Ccm;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The end of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEndpoint {
    Client,
    Server,
}

/// One end's encryption.
#[derive(Clone, Debug)]
pub(crate) struct SessionEncryption {
    cipher: u16,
    /// The key of the messages that this end sends, and of those that arrive.
    out: Vec<u8>,
    into: Vec<u8>,
    next: u64,
    session: u64,
    /// The nonces of all received messages.
    pub(crate) nonces: BTreeSet<Vec<u8>>,
    /// The number of messages that could not be decrypted, or had a repeated nonce.
    pub(crate) refused: usize,
}

impl SessionEncryption {
    /// For a session of this dialect, whose set-up gave this key and hash.
    pub(crate) fn new(
        end: SessionEndpoint,
        dialect: u16,
        cipher: u16,
        session_key: &[u8],
        hash: &[u8],
        session: u64,
    ) -> Self {
        let length: usize = if cipher > 2 { 32 } else { 16 };
        let derive = |label: &[u8], context: &[u8]| {
            let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(session_key).expect("any");
            for part in [&[0, 0, 0, 1], label, &[0], context] {
                mac.update(part);
            }
            mac.update(&[0, 0, ((length * 8) >> 8) as u8, (length * 8) as u8]);
            mac.finalize().into_bytes()[..length].to_vec()
        };
        let (up, down) = match dialect {
            0x0311 => (
                derive(b"SMBC2SCipherKey\0", hash),
                derive(b"SMBS2CCipherKey\0", hash),
            ),
            _ => (
                derive(b"SMB2AESCCM\0", b"ServerIn \0"),
                derive(b"SMB2AESCCM\0", b"ServerOut\0"),
            ),
        };
        let (out, into) = match end {
            SessionEndpoint::Client => (up, down),
            SessionEndpoint::Server => (down, up),
        };
        Self {
            cipher,
            out,
            into,
            next: 1,
            session,
            nonces: BTreeSet::new(),
            refused: 0,
        }
    }

    /// A frame with these messages encrypted.
    pub(crate) fn seal(&mut self, messages: &[u8]) -> Vec<u8> {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        let mut beside = nonce.to_vec();
        beside.extend((messages.len() as u32).to_le_bytes());
        beside.extend([0, 0, 1, 0]);
        beside.extend(self.session.to_le_bytes());
        let mut text = messages.to_vec();
        let tag = run(self.cipher, &self.out, &nonce, &beside, &mut text, None).expect("it seals");
        let length = 52 + text.len();
        let mut frame = vec![0, (length >> 16) as u8, (length >> 8) as u8, length as u8];
        frame.extend(b"\xfdSMB");
        frame.extend(tag);
        frame.extend(beside);
        frame.extend(text);
        frame
    }

    /// The messages of an encrypted frame, here without the frame's header.
    pub(crate) fn open(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let (header, text) = message.split_at(52);
        let nonce: [u8; 16] = header[20..36].try_into().unwrap();
        let size = u32::from_le_bytes(header[36..40].try_into().unwrap());
        let session = u64::from_le_bytes(header[44..52].try_into().unwrap());
        let is_right = size as usize == text.len()
            && session == self.session
            && header[40..44] == [0, 0, 1, 0];
        let is_new = self.nonces.insert(nonce.to_vec());
        let mut text = text.to_vec();
        let tag = Some(header[4..20].try_into().unwrap());
        let opened = run(
            self.cipher,
            &self.into,
            &nonce,
            &header[20..],
            &mut text,
            tag,
        );
        if !is_right || !is_new || opened.is_none() {
            self.refused += 1;
            return None;
        }
        Some(text)
    }
}

/// Runs a cipher one way or the other, as a tag is given or not; the tag.
fn run(
    cipher: u16,
    key: &[u8],
    nonce: &[u8; 16],
    beside: &[u8],
    text: &mut [u8],
    tag: Option<[u8; 16]>,
) -> Option<[u8; 16]> {
    fn with<A: AeadInOut<TagSize = U16>>(
        aead: &A,
        nonce: &[u8],
        beside: &[u8],
        text: &mut [u8],
        tag: Option<[u8; 16]>,
    ) -> Option<[u8; 16]> {
        let nonce = nonce.try_into().expect("as long as the cipher says");
        match tag {
            None => {
                let tag = aead.encrypt_inout_detached(nonce, beside, text.into());
                Some(tag.ok()?.into())
            }
            Some(tag) => {
                let opened = aead.decrypt_inout_detached(nonce, beside, text.into(), &tag.into());
                opened.ok().map(|()| tag)
            }
        }
    }
    let long = "a key of 32 bytes";
    match cipher {
        1 => {
            let aead = Ccm::<Aes128, U16, U11>::new_from_slice(key).expect("a key of 16 bytes");
            with(&aead, &nonce[..11], beside, text, tag)
        }
        2 => {
            let aead = Aes128Gcm::new_from_slice(key).expect("a key of 16 bytes");
            with(&aead, &nonce[..12], beside, text, tag)
        }
        3 => {
            let aead = Ccm::<Aes256, U16, U11>::new_from_slice(key).expect(long);
            with(&aead, &nonce[..11], beside, text, tag)
        }
        _ => {
            let aead = Aes256Gcm::new_from_slice(key).expect(long);
            with(&aead, &nonce[..12], beside, text, tag)
        }
    }
}
