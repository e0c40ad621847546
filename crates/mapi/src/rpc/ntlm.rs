//! Signs and seals PDUs as NTLM version 2 does with extended session security ([MS-NLMP] §3.4).
//!
//! ```text
//!  checksum  = HMAC-MD5(signing key, sequence ‖ whole PDU without its signature, stub in the clear)[..8]
//!  stub      = RC4(stub)                                     at PRIVACY
//!  signature = 1 ‖ RC4(checksum) ‖ sequence                  RC4 only with a key exchange
//! ```
//! The whole PDU is signed whether the hosts have agreed to sign headers or not. RC4 is one stream
//! for each direction, so PDUs are processed in the order in which the hosts do. Without injected
//! calls a PDU that is opened and sealed again has the same bytes as before.

use std::ops::Range;

use hmac::{Hmac, KeyInit, Mac};
use md5::{Digest, Md5};
use rc4::{Rc4, StreamCipher};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::protector::MessageOrigin;
use super::splitter::level;

/// Flags of a session ([MS-NLMP] §2.2.2.5, NEGOTIATE).
pub mod flag {
    /// Version 2 of the session security.
    pub const EXTENDED_SECURITY: u32 = 0x0008_0000;
    /// Keys of 128 bits.
    pub const KEY_128: u32 = 0x2000_0000;
    /// The session's key was exchanged; checksums are encrypted.
    pub const KEY_EXCHANGE: u32 = 0x4000_0000;
    /// Keys of 56 bits.
    pub const KEY_56: u32 = 0x8000_0000;
}

/// The length of a signature ([MS-NLMP] §2.2.2.9.2).
pub const SIGNATURE: usize = 16;
/// The part of a signature that RC4 encrypts.
const CHECKSUM: usize = 8;

/// The secret of a session with NTLM and what else its keys depend on.
#[derive(Clone, PartialEq, Eq)]
pub struct NtlmSecret {
    /// The key that both hosts have.
    pub key: Zeroizing<[u8; 16]>,
    /// The flags that they have agreed on.
    pub flags: u32,
    /// The sequence number of each host's first PDU: 1 where SPNEGO has used 0 for its own
    /// signature.
    pub first_sequence: u32,
}

impl std::fmt::Debug for NtlmSecret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("NtlmSecret(not shown)")
    }
}

/// Signs and seals the PDUs of one direction, or verifies and opens them.
pub struct NtlmProtector {
    signing_key: Zeroizing<[u8; 16]>,
    stream: SealingKeystream,
    sequence: u32,
    encrypts_checksum: bool,
}

impl std::fmt::Debug for NtlmProtector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "NtlmProtector(at {}, keys not shown)", self.sequence)
    }
}

impl NtlmProtector {
    /// Derives the keys of one direction from the session's key. The first PDU has this sequence
    /// number.
    #[must_use]
    pub fn new(key: &[u8; 16], flags: u32, origin: MessageOrigin, sequence: u32) -> Self {
        let sealed = match flags {
            flags if flags & flag::KEY_128 != 0 => &key[..],
            flags if flags & flag::KEY_56 != 0 => &key[..7],
            _ => &key[..5],
        };
        let sealing_key = derived(sealed, origin, "sealing");
        Self {
            signing_key: derived(key, origin, "signing"),
            stream: SealingKeystream::new(&sealing_key),
            sequence,
            encrypts_checksum: flags & flag::KEY_EXCHANGE != 0,
        }
    }

    /// Verifies a PDU, and opens its stub at the level of privacy. `signed` bytes stand before the
    /// signature. Nothing changes but the PDU's bytes where it returns false.
    #[must_use]
    pub fn open(&mut self, level: u8, pdu: &mut [u8], stub: Range<usize>, signed: usize) -> bool {
        let mut used = 0;
        if level == level::PRIVACY {
            used = stub.len();
            xor(&mut pdu[stub], self.stream.peek(0..used));
        }
        let mut checksum = self.checksum(&pdu[..signed]);
        if self.encrypts_checksum {
            xor(&mut checksum, self.stream.peek(used..used + CHECKSUM));
            used += CHECKSUM;
        }
        let wanted = signature(checksum, self.sequence);
        let is_valid = bool::from(wanted[..].ct_eq(&pdu[signed..]));
        if is_valid {
            self.stream.advance(used);
            self.sequence = self.sequence.wrapping_add(1);
        }
        is_valid
    }

    /// Signs a PDU, and seals its stub at the level of privacy. Its last bytes, behind those
    /// `signed`, are overwritten by the signature.
    pub fn seal(&mut self, level: u8, pdu: &mut [u8], stub: Range<usize>, signed: usize) {
        let mut checksum = self.checksum(&pdu[..signed]);
        if level == level::PRIVACY {
            let used = stub.len();
            xor(&mut pdu[stub], self.stream.peek(0..used));
            self.stream.advance(used);
        }
        if self.encrypts_checksum {
            xor(&mut checksum, self.stream.peek(0..CHECKSUM));
            self.stream.advance(CHECKSUM);
        }
        pdu[signed..].copy_from_slice(&signature(checksum, self.sequence));
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Goes on as after so many PDUs with so many bytes of encrypted stubs.
    pub fn skip(&mut self, pdus: u32, stub_bytes: u64) {
        self.sequence = self.sequence.wrapping_add(pdus);
        let checksums = match self.encrypts_checksum {
            true => u64::from(pdus) * CHECKSUM as u64,
            false => 0,
        };
        self.stream.skip(stub_bytes + checksums);
    }

    fn checksum(&self, signed: &[u8]) -> [u8; CHECKSUM] {
        let mut mac = <Hmac<Md5> as KeyInit>::new_from_slice(&*self.signing_key)
            .expect("HMAC takes keys of any length");
        mac.update(&self.sequence.to_le_bytes());
        mac.update(signed);
        let whole = mac.finalize().into_bytes();
        let mut checksum = [0; CHECKSUM];
        checksum.copy_from_slice(&whole[..CHECKSUM]);
        checksum
    }
}

fn signature(checksum: [u8; CHECKSUM], sequence: u32) -> [u8; SIGNATURE] {
    let mut signature = [0; SIGNATURE];
    signature[0] = 1;
    signature[4..12].copy_from_slice(&checksum);
    signature[12..].copy_from_slice(&sequence.to_le_bytes());
    signature
}

/// [MS-NLMP] §3.4.5.2 (SIGNKEY) and §3.4.5.3 (SEALKEY).
fn derived(key: &[u8], origin: MessageOrigin, purpose: &str) -> Zeroizing<[u8; 16]> {
    let way = match origin {
        MessageOrigin::Client => "client-to-server",
        MessageOrigin::Server => "server-to-client",
    };
    let mut digest = Md5::new();
    digest.update(key);
    digest.update(format!(
        "session key to {way} {purpose} key magic constant\0"
    ));
    let mut derived = Zeroizing::new([0; 16]);
    derived.copy_from_slice(&digest.finalize());
    derived
}

fn xor(bytes: &mut [u8], stream: &[u8]) {
    for (byte, key) in bytes.iter_mut().zip(stream) {
        *byte ^= key;
    }
}

/// RC4's stream, whose next bytes can be seen before they are used.
struct SealingKeystream {
    cipher: Rc4,
    ahead: Zeroizing<Vec<u8>>,
}

impl SealingKeystream {
    fn new(key: &[u8; 16]) -> Self {
        let cipher = <Rc4 as rc4::KeyInit>::new_from_slice(key).expect("RC4 takes 16 bytes");
        Self {
            cipher,
            ahead: Zeroizing::default(),
        }
    }

    /// Bytes of the stream, counted from the next one. A PDU has at most 64 KiB.
    fn peek(&mut self, range: Range<usize>) -> &[u8] {
        let known = self.ahead.len();
        if known < range.end {
            self.ahead.resize(range.end, 0);
            self.cipher.apply_keystream(&mut self.ahead[known..]);
        }
        &self.ahead[range]
    }

    fn advance(&mut self, count: usize) {
        self.ahead.drain(..count);
    }

    fn skip(&mut self, mut count: u64) {
        const STEP: u64 = 1 << 16;
        while count > 0 {
            let step = count.min(STEP) as usize;
            self.peek(0..step);
            self.advance(step);
            count -= step as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and flags of [MS-NLMP] §4.2.4 (NTLMv2 Authentication).
    const KEY: [u8; 16] = [0x55; 16];
    const FLAGS: u32 = 0xe28a_8233;

    fn client(sequence: u32) -> NtlmProtector {
        NtlmProtector::new(&KEY, FLAGS, MessageOrigin::Client, sequence)
    }

    #[test]
    fn published_message_is_sealed_as_published() {
        // [MS-NLMP] §4.2.4.4 (GSS_WrapEx Examples): "Plaintext" in UTF-16, sequence number 0.
        let text: Vec<u8> = "Plaintext"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let mut pdu = text.clone();
        pdu.extend([0; SIGNATURE]);
        client(0).seal(level::PRIVACY, &mut pdu, 0..18, 18);
        let sealed = [
            0x54, 0xe5, 0x01, 0x65, 0xbf, 0x19, 0x36, 0xdc, 0x99, 0x60, 0x20, 0xc1, 0x81, 0x1b,
            0x0f, 0x06, 0xfb, 0x5f,
        ];
        assert_eq!(pdu[..18], sealed);
        let signed = [
            1, 0, 0, 0, 0x7f, 0xb3, 0x8e, 0xc5, 0xc5, 0x5d, 0x49, 0x76, 0, 0, 0, 0,
        ];
        assert_eq!(pdu[18..], signed);
        assert!(client(0).open(level::PRIVACY, &mut pdu, 0..18, 18));
        assert_eq!(pdu[..18], text);
    }

    #[test]
    fn pdus_are_opened_in_order_and_once() {
        let (mut sender, mut receiver) = (client(0), client(0));
        let mut seal = |text: &[u8]| {
            let mut pdu = [text, &[0; SIGNATURE]].concat();
            sender.seal(level::PRIVACY, &mut pdu, 2..text.len(), text.len());
            pdu
        };
        let pdus = [seal(b"hdone"), seal(b"hdtwo and more"), seal(b"hd3")];
        let mut open = |pdu: &[u8]| {
            let mut pdu = pdu.to_vec();
            let signed = pdu.len() - SIGNATURE;
            let is_valid = receiver.open(level::PRIVACY, &mut pdu, 2..signed, signed);
            is_valid.then(|| pdu[..signed].to_vec())
        };
        assert_eq!(open(&pdus[1]), None, "not its turn");
        assert_eq!(open(&pdus[0]).as_deref(), Some(&b"hdone"[..]));
        assert_eq!(open(&pdus[0]), None, "replayed");
        let mut altered = pdus[1].clone();
        altered[0] ^= 1;
        assert_eq!(open(&altered), None, "the header is signed");
        assert_eq!(open(&pdus[1]).as_deref(), Some(&b"hdtwo and more"[..]));
        let mut late = client(0);
        late.skip(2, 3 + 12);
        let mut third = pdus[2].clone();
        assert!(late.open(level::PRIVACY, &mut third, 2..3, 3));
    }
}
