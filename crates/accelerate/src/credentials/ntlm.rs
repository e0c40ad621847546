//! NTLM version 2 for a listener ([MS-NLMP]): reads the server's challenge and the client's
//! response, and derives the common session key with the account's hash.
//!
//! The tokens are wrapped in SPNEGO (RFC 4178), or bare. They are found by their first eight bytes,
//! and each field by its own offset, so that the wrapping need not be parsed. Other data with these
//! eight bytes leads to a key that proves nothing.

use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use rc4::{Rc4, StreamCipher};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::accounts::{NtHash, upper_character};

/// The signature at the beginning of every NTLM message ([MS-NLMP] §2.2.1, NTLM Messages).
const SIGNATURE: &[u8; 8] = b"NTLMSSP\0";
/// Strings are UTF-16 ([MS-NLMP] §2.2.2.5, NEGOTIATE).
const UNICODE: u32 = 0x0000_0001;
/// The client chose the session key and has sent it encrypted ([MS-NLMP] §2.2.2.5).
const KEY_EXCHANGE: u32 = 0x4000_0000;
/// An answer of version 1 has this length, one of version 2 is longer ([MS-NLMP] §2.2.2.6 and
/// §2.2.2.8).
const VERSION_1_LENGTH: usize = 24;
/// The proof at the front of an answer of version 2.
const PROOF_LENGTH: usize = 16;
/// The longest answer that is kept: target information of a few kilobytes is far more than servers
/// send.
const RESPONSE_MAX: usize = 16 << 10;
/// The longest domain and user, in bytes: 256 characters ([MS-ADA3], sAMAccountName).
const NAME_MAX: usize = 512;

/// The server's CHALLENGE ([MS-NLMP] §2.2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NtlmChallenge {
    /// The eight bytes that the client answers.
    pub challenge: [u8; 8],
}

impl NtlmChallenge {
    /// Finds one in a security token.
    pub fn find(token: &[u8]) -> Option<Self> {
        let message = find(token, 2)?;
        let challenge = array(message, 24)?;
        Some(Self { challenge })
    }
}

/// The client's AUTHENTICATE ([MS-NLMP] §2.2.1.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NtlmAuthenticate {
    /// As they were sent: in UTF-16.
    domain: Vec<u16>,
    user: Vec<u16>,
    response: Vec<u8>,
    encrypted_key: Option<[u8; 16]>,
    flags: u32,
}

/// The result of an AUTHENTICATE and an account.
pub enum DerivedKeys {
    /// The session key: usually the first; some clients announce a key exchange and do not perform
    /// it.
    Keys(Vec<Zeroizing<[u8; 16]>>),
    /// The proof was not made with this account's password.
    WrongPassword,
}

impl NtlmAuthenticate {
    /// Finds one in a security token.
    pub fn find(token: &[u8]) -> Option<Self> {
        Self::parse(find(token, 3)?)
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let flags = u32_at(message, 60)?;
        let is_unicode = flags & UNICODE != 0;
        let response = field(message, 20)?;
        if response.len() > RESPONSE_MAX {
            return None;
        }
        let encrypted_key = match flags & KEY_EXCHANGE {
            0 => None,
            _ => Some(array(field(message, 52)?, 0)?),
        };
        Some(Self {
            domain: name(field(message, 28)?, is_unicode)?,
            user: name(field(message, 36)?, is_unicode)?,
            response: response.to_vec(),
            encrypted_key,
            flags,
        })
    }

    /// Returns true if the login is anonymous.
    pub fn is_anonymous(&self) -> bool {
        self.user.is_empty() && self.response.len() <= VERSION_1_LENGTH
    }

    /// Returns true if the response has the older, unsupported version.
    pub fn is_version_1(&self) -> bool {
        self.response.len() <= VERSION_1_LENGTH
    }

    /// The flags that hold for the session ([MS-NLMP] §2.2.2.5).
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The client's domain.
    pub fn domain(&self) -> String {
        String::from_utf16_lossy(&self.domain)
    }

    /// The client's name.
    pub fn user(&self) -> String {
        String::from_utf16_lossy(&self.user)
    }

    /// Derives the server's session key, if this is the account's hash.
    pub fn derive(&self, hash: &NtHash, challenge: &NtlmChallenge) -> DerivedKeys {
        let Some((proof, rest)) = self.response.split_first_chunk::<PROOF_LENGTH>() else {
            return DerivedKeys::WrongPassword;
        };
        // [MS-NLMP] §3.3.2 (NTLM v2 Authentication): NTOWFv2, NTProofStr, SessionBaseKey.
        let response_key = keyed(&hash.0, &[&upper_bytes(&self.user), &bytes(&self.domain)]);
        let own = keyed(&response_key, &[&challenge.challenge, rest]);
        if !bool::from(own.ct_eq(proof)) {
            return DerivedKeys::WrongPassword;
        }
        let base = keyed(&response_key, &[proof]);
        let mut keys = Vec::with_capacity(2);
        if let Some(encrypted) = self.encrypted_key {
            // [MS-NLMP] §3.1.5.1.2: ExportedSessionKey, under the KeyExchangeKey of §3.4.5.1.
            let mut exported = Zeroizing::new(encrypted);
            let mut cipher =
                <Rc4 as rc4::KeyInit>::new_from_slice(&*base).expect("RC4 takes keys of 16 bytes");
            cipher.apply_keystream(&mut *exported);
            keys.push(exported);
        }
        keys.push(base);
        DerivedKeys::Keys(keys)
    }
}

/// The NTLM message of this type in a token, to the token's end.
fn find(token: &[u8], kind: u32) -> Option<&[u8]> {
    let at = token
        .windows(SIGNATURE.len())
        .position(|window| window == SIGNATURE)?;
    let message = &token[at..];
    (u32_at(message, 8) == Some(kind)).then_some(message)
}

/// Returns the bytes that a field of a message refers to: its length, the same again, and an
/// offset.
fn field(message: &[u8], at: usize) -> Option<&[u8]> {
    let length = usize::from(u16_at(message, at)?);
    let offset = u32_at(message, at + 4)? as usize;
    message.get(offset..)?.get(..length)
}

fn name(bytes: &[u8], is_unicode: bool) -> Option<Vec<u16>> {
    if bytes.len() > NAME_MAX {
        return None;
    }
    Some(match is_unicode {
        true => bytes
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect(),
        // The OEM character set, whichever it is, agrees with ASCII.
        false => bytes.iter().copied().map(u16::from).collect(),
    })
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn bytes(units: &[u16]) -> Vec<u8> {
    units.iter().flat_map(|unit| unit.to_le_bytes()).collect()
}

fn upper_bytes(units: &[u16]) -> Vec<u8> {
    let mut upper = Vec::with_capacity(units.len());
    for character in char::decode_utf16(units.iter().copied()) {
        match character {
            Ok(character) => {
                upper.extend_from_slice(upper_character(character).encode_utf16(&mut [0; 2]));
            }
            Err(half) => upper.push(half.unpaired_surrogate()),
        }
    }
    bytes(&upper)
}

fn keyed(key: &[u8; 16], parts: &[&[u8]]) -> Zeroizing<[u8; 16]> {
    let mut mac =
        <Hmac<Md5> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    let mut key = Zeroizing::new([0; 16]);
    key.copy_from_slice(mac.finalize().as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::super::testing::{authenticate, hexadecimal};
    use super::*;

    /// The example of [MS-NLMP] §4.2.4 (NTLMv2 Authentication): user, domain, password, challenges
    /// and results.
    fn example() -> (NtlmAuthenticate, NtlmChallenge) {
        let temp = hexadecimal(
            "01010000000000000000000000000000aaaaaaaaaaaaaaaa00000000\
             02000c0044006f006d00610069006e0001000c005300650072007600650072000000000000000000",
        );
        let mut response = hexadecimal("68cd0ab851e51c96aabc927bebef6a1c");
        response.extend(temp);
        let message = NtlmAuthenticate {
            domain: "Domain".encode_utf16().collect(),
            user: "User".encode_utf16().collect(),
            response,
            encrypted_key: Some(
                hexadecimal("c5dad2544fc9799094ce1ce90bc9d03e")
                    .try_into()
                    .unwrap(),
            ),
            flags: 0xe288_8233,
        };
        let challenge = NtlmChallenge {
            challenge: [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef],
        };
        (message, challenge)
    }

    #[test]
    fn the_published_session_keys_come_out() {
        let (message, challenge) = example();
        let DerivedKeys::Keys(keys) = message.derive(&NtHash::of_password("Password"), &challenge)
        else {
            panic!("the password is right");
        };
        // RandomSessionKey and SessionBaseKey.
        assert_eq!(*keys[0], [0x55; 16]);
        let base = hexadecimal("8de40ccadbc14a82f15cb0ad0de95ca3");
        assert_eq!(keys[1][..], base[..]);
    }

    #[test]
    fn another_password_proves_nothing() {
        let (message, challenge) = example();
        for password in ["password", "Password ", ""] {
            let derived = message.derive(&NtHash::of_password(password), &challenge);
            assert!(matches!(derived, DerivedKeys::WrongPassword));
        }
    }

    #[test]
    fn wrapped_message_is_found_and_truncation_refused() {
        let message = authenticate("CORP", "anna", &[9; 40], Some([3; 16]));
        let mut token = b"\xa1\x82\x01\xcb0\x82 wrapping ".to_vec();
        token.extend(&message);
        let found = NtlmAuthenticate::find(&token).unwrap();
        assert_eq!(
            (found.domain(), found.user()),
            ("CORP".into(), "anna".into())
        );
        assert_eq!(found.encrypted_key, Some([3; 16]));
        for cut in 0..token.len() {
            // Its fields lie to the end, so no beginning of it is one.
            assert_eq!(NtlmAuthenticate::find(&token[..cut]), None);
        }
        assert_eq!(NtlmChallenge::find(&token), None);
    }
}
