//! From a session key to the keys that messages are signed and encrypted with ([MS-SMB2] §3.1.4.2, Generating
//! Cryptographic Keys).

use hmac::digest::CtOutput;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::preauth::PREAUTH_LENGTH;
use super::sealing::{EncryptionCipher, SealingKey, SealingKeys};
use super::signature::{SigningAlgorithm, SigningKey};
use crate::credentials::SessionKey;
use crate::smb::wire::set_up::dialect;

/// Derives the signing key of a session of this dialect, from the first 16 bytes of the
/// authentication's result ([MS-SMB2] §3.2.5.3.1 and §3.3.5.5.3, Session.SessionKey).
pub(crate) fn signing_key(
    dialect: u16,
    algorithm: SigningAlgorithm,
    session_key: &[u8; 16],
    preauth: &[u8; PREAUTH_LENGTH],
) -> SigningKey {
    let block = match dialect {
        ..dialect::SMB_3_0 => return SigningKey::new(algorithm, session_key),
        dialect::SMB_3_0..dialect::SMB_3_1_1 => {
            derive(session_key, b"SMB2AESCMAC\0", b"SmbSign\0", 16)
        }
        dialect::SMB_3_1_1.. => derive(session_key, b"SMBSigningKey\0", preauth, 16),
    };
    let key = block.as_bytes().first_chunk();
    SigningKey::new(algorithm, key.expect("a block has 32 bytes"))
}

/// Derives the encryption keys of a session of this dialect, which is one of SMB 3. Those of 256
/// bits come from the full session key, the others from the key for signing ([MS-SMB2] §3.2.5.3.1,
/// Session.FullSessionKey).
pub(crate) fn sealing_keys(
    dialect: u16,
    cipher: EncryptionCipher,
    session_key: &SessionKey,
    preauth: &[u8; PREAUTH_LENGTH],
) -> SealingKeys {
    let length = cipher.key_length();
    let first = session_key.first();
    let session_key = match cipher {
        EncryptionCipher::Aes128Ccm | EncryptionCipher::Aes128Gcm => &first[..],
        EncryptionCipher::Aes256Ccm | EncryptionCipher::Aes256Gcm => session_key.full(),
    };
    let (client, server) = match dialect {
        dialect::SMB_3_1_1.. => (
            derive(session_key, b"SMBC2SCipherKey\0", preauth, length),
            derive(session_key, b"SMBS2CCipherKey\0", preauth, length),
        ),
        _ => (
            derive(session_key, b"SMB2AESCCM\0", b"ServerIn \0", length),
            derive(session_key, b"SMB2AESCCM\0", b"ServerOut\0", length),
        ),
    };
    SealingKeys {
        client: SealingKey::new(cipher, client.as_bytes()),
        server: SealingKey::new(cipher, server.as_bytes()),
    }
}

/// NIST SP 800-108 §5.1 (KDF in Counter Mode) with HMAC-SHA256 and a counter of 32 bits: the block
/// whose first `length` bytes, of 32, are the output. It is overwritten when it is dropped.
fn derive(
    session_key: &[u8],
    label: &[u8],
    context: &[u8],
    length: usize,
) -> CtOutput<Hmac<Sha256>> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(session_key)
        .expect("HMAC takes keys of any length");
    mac.update(&1u32.to_be_bytes());
    mac.update(label);
    mac.update(&[0]);
    mac.update(context);
    mac.update(&(8 * length as u32).to_be_bytes());
    mac.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::testing::hexadecimal;

    /// The examples of the protocol's owner: Microsoft Open Specifications, "SMB 2 and SMB 3 security
    /// in Windows 10: the anatomy of signing and cryptographic keys".
    #[test]
    fn published_smb_3_keys_are_derived() {
        let key = |text: &str| <[u8; 16]>::try_from(hexadecimal(text)).unwrap();
        let session = key("7CD451825D0450D235424E44BA6E78CC");
        let wanted = SigningKey::new(
            SigningAlgorithm::AesCmac,
            &key("0B7E9C5CAC36C0F6EA9AB275298CEDCE"),
        );
        let none = [0; PREAUTH_LENGTH];
        let found = signing_key(0x0300, SigningAlgorithm::AesCmac, &session, &none);
        assert!(found == wanted);

        let session = key("270E1BA896585EEB7AF3472D3B4C75A7");
        let preauth = hexadecimal(
            "0DD13628CC3ED218EF9DF9772D436D0887AB9814BFAE63A80AA845F36909DB79\
             28622DDDAD522D9751640A459762C5A9D6BB084CBB3CE6BDADEF5D5BCE3C6C01",
        );
        let preauth = preauth.try_into().unwrap();
        let wanted = SigningKey::new(
            SigningAlgorithm::AesCmac,
            &key("73FE7A9A77BEF0BDE49C650D8CCB5F76"),
        );
        let found = signing_key(0x0311, SigningAlgorithm::AesCmac, &session, &preauth);
        assert!(found == wanted);
    }

    /// Vectors of the same publisher: "Encryption in SMB 3.0: a protocol perspective", and "SMB
    /// 3.1.1 Encryption in Windows 10".
    #[test]
    fn the_published_keys_for_encryption_come_out() {
        let cases = [
            (
                0x0300,
                EncryptionCipher::Aes128Ccm,
                "B4546771B515F766A86735532DD6C4F0",
                "00".repeat(PREAUTH_LENGTH),
                "261B72350558F2E9DCF613070383EDBF",
                "8FE2B57EC34D2DB5B1A9727F526BBDB5",
            ),
            (
                0x0311,
                EncryptionCipher::Aes128Gcm,
                "419FDDF34C1E001909D362AE7FB6AF79",
                "B23F3CBFD69487D9832B79B1594A367CDD950909B774C3A4C412B4FCEA9EDDDB\
                 A7DB256BA2EA30E977F11F9B113247578E0E915C6D2A513B8F2FCA5707DC8770"
                    .to_owned(),
                "A2F5E80E5D59103034F32E52F698E5EC",
                "748C50868C90F302962A5C35F5F9A8BF",
            ),
        ];
        for (dialect, cipher, session, preauth, client, server) in cases {
            let session = SessionKey::new(&hexadecimal(session));
            let preauth = hexadecimal(&preauth).try_into().unwrap();
            let found = sealing_keys(dialect, cipher, &session, &preauth);
            assert!(found.client == SealingKey::new(cipher, &hexadecimal(client)));
            assert!(found.server == SealingKey::new(cipher, &hexadecimal(server)));
        }
    }
}
