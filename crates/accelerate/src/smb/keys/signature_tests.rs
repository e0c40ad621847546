//! Signatures against published ones, and against themselves however a message is cut.

use super::*;
use crate::credentials::testing::hexadecimal;

fn key(text: &str) -> [u8; 16] {
    hexadecimal(text).try_into().unwrap()
}

/// The last SESSION_SETUP answer of the example that [`super::super::derivation`] cites.
fn published() -> Vec<u8> {
    hexadecimal(
        "FE534D4240000100000000000100800009000000000000000300000000000000FFFE000000000000\
         1900000000100000EBE146DA120BA25FC3376A49DFE31BC10900000048001D00A11B3019A0030A01\
         00A3120410010000003B453CDC3524164200000000",
    )
}

#[test]
fn a_published_answer_is_verified_and_no_other() {
    let message = published();
    let right = SigningKey::new(
        SigningAlgorithm::AesCmac,
        &key("73FE7A9A77BEF0BDE49C650D8CCB5F76"),
    );
    assert!(right.verify(&message).is_some());
    let wrong = SigningKey::new(
        SigningAlgorithm::AesCmac,
        &key("73FE7A9A77BEF0BDE49C650D8CCB5F77"),
    );
    assert!(wrong.verify(&message).is_none());
    for bit in 0..message.len() * 8 {
        let mut altered = message.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert!(right.verify(&altered).is_none(), "bit {bit}");
    }
}

#[test]
fn signature_is_independent_of_fragmentation() {
    for algorithm in [
        SigningAlgorithm::HmacSha256,
        SigningAlgorithm::AesCmac,
        SigningAlgorithm::AesGmac,
    ] {
        let key = SigningKey::new(algorithm, &[7; 16]);
        for length in [0, 1, 15, 16, 17, 127, 128, 129, 1_000] {
            let body: Vec<u8> = (0..length as u32).map(|index| index as u8).collect();
            let mut front = Smb2Header::request(command::WRITE, 99, 1, 2)
                .emit()
                .to_vec();
            front.extend_from_slice(&body[..length.min(7)]);
            key.sign(&mut front, body[length.min(7)..].chunks(11));
            let header = Smb2Header::parse(&front).unwrap();
            assert!(header.has(flag::SIGNED));
            let mut whole = header.emit().to_vec();
            whole.extend_from_slice(&body);
            assert!(key.verify(&whole).is_some());
            for cut in [64, 65, 70, whole.len()] {
                let cut = cut.min(whole.len());
                let mut mac = key.begin(&whole[..cut]);
                whole[cut..].chunks(5).for_each(|piece| mac.update(piece));
                assert!(mac.verify().is_some());
            }
        }
    }
}

#[test]
fn gmac_is_galois_counter_mode_without_text() {
    // The tag that an independent implementation gives (OpenSSL's AES-128-GCM, by Python's
    // cryptography): key 00…0f, nonce as [MS-SMB2] §3.1.4.1 says for message 5 of a server, the 64
    // bytes of its header as data beside.
    let key: [u8; 16] = std::array::from_fn(|index| index as u8);
    let key = SigningKey::new(SigningAlgorithm::AesGmac, &key);
    let mut header = Smb2Header::request(command::ECHO, 5, 1, 2);
    header.flags = flag::FROM_SERVER | flag::SIGNED;
    let mac = key.begin(&header.emit());
    assert_eq!(mac.finish()[..], hexadecimal(GMAC_OF_AN_ECHO)[..]);
    header.flags = flag::SIGNED;
    let mac = key.begin(&header.emit());
    assert_ne!(mac.finish()[..], hexadecimal(GMAC_OF_AN_ECHO)[..]);
}

const GMAC_OF_AN_ECHO: &str = "5ac8f64dc3b3a3cbe0adef02eeccaae5";
