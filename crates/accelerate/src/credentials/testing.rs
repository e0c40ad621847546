//! For tests: the NTLM messages of a client with a password to a server, and the tokens of one with
//! a ticket.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use rc4::{Rc4, StreamCipher};

use super::Keytab;
use super::accounts::{NtHash, upper};
use super::kerberos::testing::{CLIENT_NAME, KerberosExchange};
use super::kerberos::{EncryptionType, MessageSecret, accept, read_tokens, token_samples};

/// Bytes from hexadecimal digits; white space between them counts as nothing.
#[cfg(test)]
pub fn hexadecimal(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .map(|digit| digit.to_digit(16).expect("a hexadecimal digit"))
        .collect();
    let pairs = digits.chunks(2);
    pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn unicode(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// A CHALLENGE without target information.
pub fn challenge(challenge: [u8; 8]) -> Vec<u8> {
    let mut message = b"NTLMSSP\0\x02\0\0\0".to_vec();
    message.extend([0; 8]);
    message.extend(0x6000_8205u32.to_le_bytes());
    message.extend(challenge);
    message.extend([0; 16]);
    message
}

/// An AUTHENTICATE with this answer to the challenge.
pub fn authenticate(
    domain: &str,
    user: &str,
    response: &[u8],
    encrypted_key: Option<[u8; 16]>,
) -> Vec<u8> {
    const FIXED: usize = 72;
    let encrypted = encrypted_key.map_or(Vec::new(), |key| key.to_vec());
    // In the order of their descriptions: LM, NT, domain, user, workstation, key.
    let (domain, user) = (unicode(domain), unicode(user));
    let payloads: [&[u8]; 6] = [&[], response, &domain, &user, &[], &encrypted];
    let mut message = b"NTLMSSP\0\x03\0\0\0".to_vec();
    let mut offset = FIXED;
    for payload in payloads {
        let length = (payload.len() as u16).to_le_bytes();
        message.extend(length);
        message.extend(length);
        message.extend((offset as u32).to_le_bytes());
        offset += payload.len();
    }
    let exchange = if encrypted_key.is_some() {
        0x4000_0000
    } else {
        0u32
    };
    message.extend((exchange | 0x2000_8205).to_le_bytes());
    message.extend([0; FIXED - 64]);
    message.extend(payloads.concat());
    message
}

/// An AUTHENTICATE of a user with this password, and the resulting session key.
pub fn log_in(
    domain: &str,
    user: &str,
    password: &str,
    challenge: [u8; 8],
    exchanged: Option<[u8; 16]>,
) -> (Vec<u8>, [u8; 16]) {
    let mac = |key: &[u8], parts: &[&[u8]]| -> [u8; 16] {
        let mut mac = <Hmac<Md5> as KeyInit>::new_from_slice(key).expect("any length");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    };
    let hash = NtHash::of_password(password);
    let response_key = mac(&*hash.0, &[&unicode(&upper(user)), &unicode(domain)]);
    // Version, time, the client's challenge, and no target information.
    let temp = [&[1, 1, 0, 0, 0, 0, 0, 0][..], &[7; 8], &[9; 8], &[0; 8]].concat();
    let proof = mac(&response_key, &[&challenge, &temp]);
    let base = mac(&response_key, &[&proof]);
    let encrypted = exchanged.map(|mut key| {
        let mut cipher = <Rc4 as rc4::KeyInit>::new_from_slice(&base).expect("16 bytes");
        cipher.apply_keystream(&mut key);
        key
    });
    let response = [&proof[..], &temp].concat();
    let message = authenticate(domain, user, &response, encrypted);
    (message, exchanged.unwrap_or(base))
}

/// Reads any bytes as per-message tokens of Kerberos, and texts behind them.
///
/// # Panics
/// When a token is valid twice, or a refused text is altered.
pub fn message_tokens(bytes: &[u8]) {
    read_tokens(bytes);
}

/// Good inputs for [`message_tokens`], with their names.
#[must_use]
pub fn sample_message_tokens() -> Vec<(&'static str, Vec<u8>)> {
    token_samples()
}

/// The tokens of a client with a ticket and of its server.
pub struct KerberosTokens {
    /// The keys of the service.
    pub keytab: Arc<Keytab>,
    /// The client's first token.
    pub request: Vec<u8>,
    /// The server's answer.
    pub reply: Vec<u8>,
    /// The key of their messages; `None` with RC4.
    pub secret: Option<MessageSecret>,
    /// The client's name.
    pub client: String,
}

impl KerberosTokens {
    /// With keys of this encryption.
    ///
    /// # Panics
    /// When the tokens are not read as they were written.
    #[must_use]
    pub fn new(encryption: EncryptionType) -> Self {
        let exchange = KerberosExchange::with(encryption);
        let (keytab, request, reply) = (exchange.keytab(), exchange.token(), exchange.answer());
        let accepted = accept(&request, Some(&keytab)).expect("it is Kerberos");
        let accepted = accepted.expect("the keytab has the key");
        let answer = accepted.reply_of_server(&reply);
        let mut secrets = accepted.message_secrets(answer.as_ref()).into_iter();
        Self {
            secret: secrets.next(),
            client: CLIENT_NAME.to_owned(),
            keytab: Arc::new(keytab),
            request,
            reply,
        }
    }
}
