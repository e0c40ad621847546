//! Encryption against published messages, and against itself.

use std::collections::HashSet;

use super::*;
use crate::credentials::testing::hexadecimal;

/// A published message of each direction: the key, the session, the message, and the ciphertext.
struct SealingVector {
    cipher: EncryptionCipher,
    key: &'static str,
    session: u64,
    plain: &'static str,
    sealed: &'static str,
}

/// Microsoft Open Specifications, "Encryption in SMB 3.0: a protocol perspective" (a WRITE, its answer,
/// and the answer to a READ, between Windows 8 and Server 2012), and "SMB 3.1.1 Encryption in Windows
/// 10" (a WRITE).
const PUBLISHED: [SealingVector; 4] = [
    SealingVector {
        cipher: EncryptionCipher::Aes128Ccm,
        key: "261B72350558F2E9DCF613070383EDBF",
        session: 0x0008_e400_1400_0011,
        plain: "FE534D4240000100000000000900400008000000000000000400000000000000\
                FFFE0000010000001100001400E4080000000000000000000000000000000000\
                3100700017000000000000000000000015010000390000020100000039020000\
                00000000000000007000000000000000536D623320656E6372797074696F6E20\
                74657374696E67",
        sealed: "FD534D4281A286535415445DAE393921E44FA42E66E69A111892584FB5ED524A\
                 744DA3EE87000000000001001100001400E4080025C8FEE16605A437832D1CD5\
                 2DA9F4645333482A175FE5384563F45FCDAFAEF38BC62BA4D5C62897996625A4\
                 4C29BE5658DE2E6117585779E7B59FFD971278D08580D7FA899E410E910EABF5\
                 AA1DB43050B33B49182637759AC15D84BFCDF5B6B238993C0F4CF4D6012023F6\
                 C627297075D84B7803912D0A9639634453595EF3E33FFE4E7AC2AB",
    },
    SealingVector {
        cipher: EncryptionCipher::Aes128Ccm,
        key: "8FE2B57EC34D2DB5B1A9727F526BBDB5",
        session: 0x0008_e400_1400_0011,
        plain: "FE534D4240000100000000000900210009000000000000000400000000000000\
                FFFE0000010000001100001400E4080000000000000000000000000000000000\
                11000000170000000000000000000000",
        sealed: "FD534D42A6015530A18F6D9AFFE22AFAE8E66484860000000000000011000014\
                 00E4080050000000000001001100001400E40800DBF46435C5F14169293CE079\
                 E344479BF670227E49873F458672C3098DAC467DD5809F369D67409166515787\
                 1483E01F7BECD02064EAC3E235F913668BBC2F097980D4B378F1993EFF6E60D1\
                 77309E5B",
    },
    SealingVector {
        cipher: EncryptionCipher::Aes128Ccm,
        key: "8FE2B57EC34D2DB5B1A9727F526BBDB5",
        session: 0x0008_e400_1400_0011,
        plain: "FE534D4240000100000000000800210009000000000000000500000000000000\
                FFFE0000010000001100001400E4080000000000000000000000000000000000\
                11005000170000000000000000000000536D623320656E6372797074696F6E20\
                74657374696E67",
        sealed: "FD534D42ABD518B68C2F04D7879F482B689EB83F870000000000000011000014\
                 00E4080067000000000001001100001400E40800493D6FE2BDBEB435CF5F5469\
                 70C7BB57BF20E713C75A3D045507E0D68E5C0346659D6FFB8AC1504A786CA2BB\
                 89C9E7FE4F313E910A04180D2D0EA7DF636329E5A3285984500EF86FE9D55DA4\
                 FAB9531CFDD4C551D47F3C73124BB4590A45052B694048B991CCF5",
    },
    SealingVector {
        cipher: EncryptionCipher::Aes128Gcm,
        key: "A2F5E80E5D59103034F32E52F698E5EC",
        session: 0x1000_0000_0025,
        plain: "FE534D4240000100000000000900010008000000000000000500000000000000\
                FFFE000001000000250000000010000000000000000000000000000000000000\
                3100700017000000000000000000000006000000040000000100000004000000\
                00000000000000007000000000000000536D623320656E6372797074696F6E20\
                74657374696E67",
        sealed: "FD534D42BD73D97D2BC9001BCAFAC0FDFF5FEEBCC7D6822D269CAF48904C664C\
                 0000000087000000000001002500000000100000\
                 6ECDD2A7AFC7B47763057A041B8FD4DAFFE990B70C9E09D36C084E02D14EF247\
                 F8BDE38ACF6256F8B1D3B56F77FBDEB312FEA5E92CBCC1ED8FB2EBBFAA75E49A\
                 4A394BB44576545567C24D4C014D47C9FBDFDAFD2C4F9B72F8D256452620A299\
                 F48E29E53D6B61D1C13A19E91AF013F00D17E3ABC2FC3D36C8C1B6B939732538\
                 52DBD442E46EE8",
    },
];

#[test]
fn published_messages_are_opened_and_sealed_alike() {
    for published in PUBLISHED {
        let key = SealingKey::new(published.cipher, &hexadecimal(published.key));
        let (plain, sealed) = (hexadecimal(published.plain), hexadecimal(published.sealed));
        assert_eq!(key.open(&sealed).as_deref(), Some(&plain[..]));
        let transform = TransformHeader::parse(&sealed).unwrap();
        assert_eq!(transform.session, published.session);
        let mut message = plain.clone();
        let header = key.seal(published.session, transform.nonce, &mut message);
        assert!([&header[..], &message].concat() == sealed);
    }
}

#[test]
fn no_bit_of_an_encrypted_message_may_differ() {
    let published = &PUBLISHED[1];
    let sealed = hexadecimal(published.sealed);
    let key = SealingKey::new(published.cipher, &hexadecimal(published.key));
    for bit in 0..sealed.len() * 8 {
        let mut altered = sealed.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(key.open(&altered), None, "bit {bit}");
    }
    for length in 0..sealed.len() {
        assert_eq!(key.open(&sealed[..length]), None);
    }
    let other = SealingKey::new(EncryptionCipher::Aes128Gcm, &hexadecimal(published.key));
    assert_eq!(other.open(&sealed), None);
}

/// Sealed by another implementation (OpenSSL, through Python's cryptography): key 00…1f, nonce 00…0a
/// or 00…0b, session 7, a message of 64 bytes 00…3f.
#[test]
fn long_keys_seal_as_another_implementation_does() {
    let cases = [
        (EncryptionCipher::Aes256Ccm, OTHERS_CCM_256),
        (EncryptionCipher::Aes256Gcm, OTHERS_GCM_256),
    ];
    let bytes: Vec<u8> = (0..64).collect();
    for (cipher, wanted) in cases {
        let key = SealingKey::new(cipher, &bytes[..32]);
        let mut nonce = first::<16>(&bytes);
        nonce[cipher.nonce_length()..].fill(0);
        let mut message = bytes.clone();
        let header = key.seal(7, nonce, &mut message);
        let sealed = [&header[4..20], &message].concat();
        assert_eq!(sealed, hexadecimal(wanted), "{cipher:?}");
    }
}

const OTHERS_CCM_256: &str = "aa968997de5554d619041d1b85d26ca0\
     73c113655e45b593b7fd1cbe14cad2d44cf59209b34ebc3232ef2369c9f9e276\
     04466b5ca043e6e6d8a5cd2b60c44758e4565b6bfe0aa17744ed163dcea8a617";
const OTHERS_GCM_256: &str = "d5a2804ea3544d0614a535bce37b4fb8\
     4703d418c1e0c41c85489d80bde4766293c79527e46e496b207eff9e01741ead\
     21318cdf8be434bf5c8d55c6a4aa0617de6852be6ee395ed07ae102224decbd1";

#[test]
fn sealed_messages_open_and_nonces_are_unique() {
    for cipher in EncryptionCipher::ALL {
        assert_eq!(
            EncryptionCipher::from_number(cipher.number().into()),
            Some(cipher)
        );
        let key = SealingKey::new(cipher, &[7; 32]);
        let mut nonces = HashSet::new();
        for chance in 0..3 {
            let mut sealer = MessageSealer::new(key.clone(), [chance; NONCE_SEED_LENGTH]);
            assert_eq!(sealer.used(), None);
            for length in 64..200 {
                let message: Vec<u8> = (0..length).collect();
                let frame = sealer.seal(3, message.chunks(50)).unwrap();
                assert_eq!(frame[..4], frame_header(frame.len() - 4));
                let transform = TransformHeader::parse(&frame[4..]).unwrap();
                assert!(nonces.insert(transform.nonce));
                assert!(
                    transform.nonce[cipher.nonce_length()..]
                        .iter()
                        .all(|byte| *byte == 0)
                );
                assert_eq!(key.open(&frame[4..]), Some(message));
            }
            assert_eq!(sealer.used(), Some(cipher.name()));
        }
    }
    assert_eq!(EncryptionCipher::from_number(0), None);
    assert_eq!(EncryptionCipher::from_number(5), None);
}

#[test]
fn key_use_is_limited() {
    for cipher in EncryptionCipher::ALL {
        let mut sealer =
            MessageSealer::new(SealingKey::new(cipher, &[7; 32]), [1; NONCE_SEED_LENGTH]);
        sealer.skip_to(cipher.sealed_max() - 1);
        assert!(sealer.seal(1, [&[0; 64][..]]).is_some());
        assert_eq!(sealer.seal(1, [&[0; 64][..]]), None);
    }
}
