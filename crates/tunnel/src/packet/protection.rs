//! The two keys of a direction: one seals payloads (RFC 9001 §5.3, AEAD Usage), one hides numbers
//! (§5.4, Header Protection).
//!
//! Keys of ring do not clear themselves. Each lies in a box of its own, so that it is not copied
//! about, and when it goes a key of zeros is written over it in place. That is as much as can be
//! done without unsafe code: what ring leaves in registers and on the stack while it derives or
//! uses a key stays until it is overwritten by other work.

use std::hint::black_box;

use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey, quic};
use zeroize::Zeroize;

use super::header::{FORM, HIDDEN_MASK, LENGTH_MASK, VISIBLE_MASK};
use super::keys::{CipherSuite, HkdfSecret, SECRET_LENGTH};

/// Bytes that prove a packet, behind its payload.
pub const TAG_LENGTH: usize = 16;

/// The sample of sealed bytes from which a header's mask is made, and how far behind the start of
/// the number it begins: as if the number had four bytes (RFC 9001 §5.4.2, Header Protection
/// Sample).
const SAMPLE_LENGTH: usize = 16;
const SAMPLE_OFFSET: usize = 4;

/// Seals and opens payloads in one epoch of one direction.
pub(super) struct PacketKey {
    key: Box<LessSafeKey>,
    iv: Box<[u8; aead::NONCE_LEN]>,
    suite: CipherSuite,
}

impl PacketKey {
    pub(super) fn new(suite: CipherSuite, secret: &HkdfSecret) -> Self {
        let mut iv = Box::new([0; aead::NONCE_LEN]);
        secret.expand(b"wan iv", &[], &mut iv[..]);
        Self {
            key: Box::new(aead_key(suite, &secret.key(b"wan key"))),
            iv,
            suite,
        }
    }

    /// Encrypts `payload` in place and gives the tag that follows it.
    pub(super) fn seal(&self, number: u64, header: &[u8], payload: &mut [u8]) -> [u8; TAG_LENGTH] {
        let tag = self
            .key
            .seal_in_place_separate_tag(self.nonce(number), Aad::from(header), payload)
            .expect("a payload is far shorter than the AEAD's limit");
        tag.as_ref()
            .try_into()
            .expect("the tags of both suites have this length")
    }

    /// Decrypts `sealed`, which ends in the tag, in place. Returns `false` when the tag does not
    /// match; `sealed` then holds no valid data.
    pub(super) fn open(&self, number: u64, header: &[u8], sealed: &mut [u8]) -> bool {
        self.key
            .open_in_place(self.nonce(number), Aad::from(header), sealed)
            .is_ok()
    }

    /// RFC 9001 §5.3: the number, padded on the left, XOR the initialization vector.
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = *self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    fn wipe(&mut self) {
        self.iv.as_mut_slice().zeroize();
        *self.key = aead_key(self.suite, &[0; SECRET_LENGTH]);
        // Otherwise the compiler may see that nobody reads it again.
        black_box(&self.key);
    }
}

impl Drop for PacketKey {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Hides and shows the flags and the number of a header, in all epochs of one direction.
pub(super) struct HeaderKey {
    key: Box<quic::HeaderProtectionKey>,
    suite: CipherSuite,
}

impl HeaderKey {
    pub(super) fn new(suite: CipherSuite, secret: &HkdfSecret) -> Self {
        Self {
            key: Box::new(header_key(suite, &secret.key(b"wan hp"))),
            suite,
        }
    }

    /// Hides what the header of a sealed packet says. The packet is as long as a sample needs.
    pub(super) fn hide(&self, packet: &mut [u8], number_at: usize) {
        let number_length = usize::from(packet[0] & LENGTH_MASK) + 1;
        let mask = self
            .mask(packet, number_at)
            .expect("a packet that is sealed has a sample");
        apply(mask, packet, number_at, number_length);
    }

    /// Shows what the header says, and gives the number's length; `None`, with nothing changed,
    /// when the packet is too short to have a sample or has not the form of a packet.
    pub(super) fn show(&self, packet: &mut [u8], number_at: usize) -> Option<usize> {
        if packet.first()? & VISIBLE_MASK != FORM {
            return None;
        }
        let mask = self.mask(packet, number_at)?;
        let number_length = usize::from((packet[0] ^ mask[0]) & LENGTH_MASK) + 1;
        apply(mask, packet, number_at, number_length);
        Some(number_length)
    }

    fn mask(&self, packet: &[u8], number_at: usize) -> Option<[u8; 5]> {
        let sample = packet
            .get(number_at + SAMPLE_OFFSET..)?
            .first_chunk::<SAMPLE_LENGTH>()?;
        self.key.new_mask(sample).ok()
    }

    fn wipe(&mut self) {
        *self.key = header_key(self.suite, &[0; SECRET_LENGTH]);
        black_box(&self.key);
    }
}

impl Drop for HeaderKey {
    fn drop(&mut self) {
        self.wipe();
    }
}

fn apply(mask: [u8; 5], packet: &mut [u8], number_at: usize, number_length: usize) {
    packet[0] ^= mask[0] & HIDDEN_MASK;
    let number = &mut packet[number_at..number_at + number_length];
    for (byte, mask) in number.iter_mut().zip(&mask[1..]) {
        *byte ^= mask;
    }
}

fn aead_key(suite: CipherSuite, key: &[u8; SECRET_LENGTH]) -> LessSafeKey {
    let algorithm = match suite {
        CipherSuite::Aes256Gcm => &aead::AES_256_GCM,
        CipherSuite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
    };
    let key = UnboundKey::new(algorithm, key).expect("both suites have keys of this length");
    LessSafeKey::new(key)
}

fn header_key(suite: CipherSuite, key: &[u8; SECRET_LENGTH]) -> quic::HeaderProtectionKey {
    let algorithm = match suite {
        CipherSuite::Aes256Gcm => &quic::AES_256,
        CipherSuite::ChaCha20Poly1305 => &quic::CHACHA20,
    };
    quic::HeaderProtectionKey::new(algorithm, key).expect("both suites have keys of this length")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex
            .chars()
            .filter_map(|c| c.to_digit(16))
            .map(|d| d as u8)
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }

    fn key(hex: &str) -> [u8; SECRET_LENGTH] {
        bytes(hex).try_into().unwrap()
    }

    /// The keys of RFC 9001 §A.5 (ChaCha20-Poly1305 Short Header Packet).
    fn appendix_a_5() -> (PacketKey, HeaderKey) {
        let suite = CipherSuite::ChaCha20Poly1305;
        let packet_key = PacketKey {
            key: Box::new(aead_key(
                suite,
                &key("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8"),
            )),
            iv: Box::new(bytes("e0459b3474bdd0e44a41c144").try_into().unwrap()),
            suite,
        };
        let hp = key("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4");
        let header_key = HeaderKey {
            key: Box::new(header_key(suite, &hp)),
            suite,
        };
        (packet_key, header_key)
    }

    #[test]
    fn short_packet_seals_as_in_rfc_9001_a5() {
        let (packet_key, header_key) = appendix_a_5();
        // A short header without a connection id, number 654360564 in three bytes; one PING.
        let mut packet = bytes("4200bff4 01");
        let (header, payload) = packet.split_at_mut(4);
        let tag = packet_key.seal(654_360_564, header, payload);
        packet.extend(tag);
        header_key.hide(&mut packet, 1);
        assert_eq!(packet, bytes("4cfe4189655e5cd55c41f69080575d7999c25a5bfb"));
    }

    #[test]
    fn short_packet_of_rfc_9001_a5_is_opened() {
        let (packet_key, header_key) = appendix_a_5();
        let mut packet = bytes("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
        assert_eq!(header_key.show(&mut packet, 1), Some(3));
        let (header, sealed) = packet.split_at_mut(4);
        assert_eq!(header, bytes("4200bff4"));
        assert!(packet_key.open(654_360_564, header, sealed));
        assert_eq!(sealed[0], 0x01);
    }

    #[test]
    fn nonces_match_rfc_9001_a5() {
        let (packet_key, _) = appendix_a_5();
        let nonce = packet_key.nonce(654_360_564);
        assert_eq!(nonce.as_ref()[..], bytes("e0459b3474bdd0e46d417eb0"));
    }

    #[test]
    fn short_or_foreign_datagrams_are_unchanged() {
        let (_, header_key) = appendix_a_5();
        for packet in ["", "40", "4cfe4189655e5cd55c41f69080575d7999c25a5b"] {
            let mut shown = bytes(packet);
            assert_eq!(header_key.show(&mut shown, 1), None);
            assert_eq!(shown, bytes(packet));
        }
        let mut long_header = vec![0xc0; 60];
        assert_eq!(header_key.show(&mut long_header, 1), None);
    }

    #[test]
    fn wiped_key_equals_the_zero_key() {
        let zero = [0; SECRET_LENGTH];
        for suite in [CipherSuite::Aes256Gcm, CipherSuite::ChaCha20Poly1305] {
            let Ok(secret) = HkdfSecret::filled(|_| Ok::<(), std::convert::Infallible>(()));
            let mut packet_key = PacketKey::new(suite, &secret);
            let mut sealed = *b"a payload of sixteen bytes, or so";
            let of_zeros = {
                let mut sealed = sealed;
                let nonce = Nonce::assume_unique_for_key([0; aead::NONCE_LEN]);
                let _tag = aead_key(suite, &zero)
                    .seal_in_place_separate_tag(nonce, Aad::empty(), &mut sealed)
                    .unwrap();
                sealed
            };
            let mut before = sealed;
            packet_key.seal(0, &[], &mut before);
            packet_key.wipe();
            packet_key.seal(0, &[], &mut sealed);
            assert_ne!(before, of_zeros);
            assert_eq!(sealed, of_zeros);

            let mut own = HeaderKey::new(suite, &secret);
            let sample = [7; SAMPLE_LENGTH];
            let mask_of_zeros = header_key(suite, &zero).new_mask(&sample).unwrap();
            assert_ne!(own.key.new_mask(&sample).unwrap(), mask_of_zeros);
            own.wipe();
            assert_eq!(own.key.new_mask(&sample).unwrap(), mask_of_zeros);
        }
    }
}
