//! Per-message tokens of a Kerberos session (RFC 4121 §4.2, Per-Message Tokens), in the form that
//! DCE/RPC uses: the token stands apart from the text, and the text keeps its place and its length
//! ([MS-KILE] §3.4.5.4.1, Kerberos Binding of GSS_WrapEx()).
//!
//! ```text
//!  wrapped   05 04 flags FF EC RRC number   AES(filler ‖ header) ‖ tag ‖ AES(confounder)    AES(text)
//!            └───────── token header ─────┘ └──────── the rest of the token ────────────┘   in place
//!  signed    04 04 flags FF FF FF FF FF number   tag
//!  tag       over confounder ‖ before ‖ text ‖ after ‖ filler ‖ header, in the clear or encrypted
//! ```
//! The filler has EC bytes, and the ciphertext is rotated by RRC + EC bytes: the sum is a deviation
//! of Windows that all implementations follow in this style. `before` and `after` are authenticated
//! and not encrypted: the rest of the PDU, where the hosts sign headers.
//!
//! Each direction has its own keys and counts its tokens. A token is valid once, in its turn, so a
//! repeated or missing one is found. Tokens with RC4 (RFC 4757) are not read.
//!
//! The confounder must be new for each token. It is computed from the key and the token's number,
//! so that no source of chance is needed here.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::encryption::{AUTHENTICATES, CHECKS, CONFOUNDER, ENCRYPTS, EncryptionType, KerberosKey};

/// The length of a token's header (RFC 4121 §4.2.6).
const HEADER: usize = 16;
/// The length of the initial vector that RFC 8009 §5 authenticates before the ciphertext.
const VECTOR: [u8; 16] = [0; 16];
/// The filler of tokens that are made here, as Windows and MIT Kerberos have it: a block of AES.
const FILLER: usize = 16;

/// Identifiers of tokens (RFC 4121 §4.2.6.1, MIC Tokens; §4.2.6.2, Wrap Tokens).
const SIGNED: [u8; 2] = [4, 4];
const WRAPPED: [u8; 2] = [5, 4];

/// Bits of a token's flags (RFC 4121 §4.2.2, Flags Field).
mod flag {
    pub(super) const SENT_BY_ACCEPTOR: u8 = 1;
    pub(super) const SEALED: u8 = 2;
    pub(super) const ACCEPTOR_SUBKEY: u8 = 4;
}

/// The sender of the tokens of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSender {
    /// The client.
    Initiator,
    /// The server.
    Acceptor,
}

impl TokenSender {
    /// The uses of a key for encrypted and for signed texts (RFC 4121 §2, Key Derivation for
    /// Per-Message Tokens).
    const fn usages(self) -> (u32, u32) {
        match self {
            Self::Acceptor => (22, 23),
            Self::Initiator => (24, 25),
        }
    }
}

/// The key of a session's tokens, and where each host begins to count.
#[derive(Clone, PartialEq, Eq)]
pub struct MessageSecret {
    key: KerberosKey,
    is_of_acceptor: bool,
    /// The numbers of the first token of the client and of the server.
    first: [u32; 2],
}

impl std::fmt::Debug for MessageSecret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("MessageSecret(not shown)")
    }
}

impl MessageSecret {
    /// Takes a key, which the server may have chosen, and the numbers of the first token of the
    /// client and of the server. `None` for RC4.
    pub fn new(key: KerberosKey, is_of_acceptor: bool, first: [u32; 2]) -> Option<Self> {
        (key.encryption() != EncryptionType::Rc4).then_some(Self {
            key,
            is_of_acceptor,
            first,
        })
    }

    /// The key.
    pub fn key(&self) -> &KerberosKey {
        &self.key
    }

    /// True if the server has chosen the key.
    pub fn is_of_acceptor(&self) -> bool {
        self.is_of_acceptor
    }

    /// The numbers of the first token of the client and of the server.
    pub fn first_sequences(&self) -> [u32; 2] {
        self.first
    }

    /// The same secret where each host has used as many numbers before its first message.
    #[must_use]
    pub fn later(&self, count: u32) -> Self {
        Self {
            first: self.first.map(|first| first.wrapping_add(count)),
            ..self.clone()
        }
    }

    /// The protection of one direction, at its beginning.
    pub fn protector(&self, sender: TokenSender) -> TokenProtector {
        let [initiator, acceptor] = self.first;
        let sequence = match sender {
            TokenSender::Initiator => initiator,
            TokenSender::Acceptor => acceptor,
        };
        TokenProtector::new(&self.key, sender, self.is_of_acceptor, sequence.into())
    }
}

/// Makes the tokens of one direction, or verifies them.
pub struct TokenProtector {
    encryption: EncryptionType,
    /// Flags of every token.
    flags: u8,
    encrypts: Zeroizing<Vec<u8>>,
    authenticates: Zeroizing<Vec<u8>>,
    checks: Zeroizing<Vec<u8>>,
    confounds: Zeroizing<Vec<u8>>,
    sequence: u64,
}

impl std::fmt::Debug for TokenProtector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TokenProtector(at {}, keys not shown)", self.sequence)
    }
}

impl TokenProtector {
    fn new(key: &KerberosKey, sender: TokenSender, is_of_acceptor: bool, sequence: u64) -> Self {
        let (seals, signs) = sender.usages();
        let derive = |usage, purpose| {
            let derived = key.derive(usage, purpose);
            derived.expect("a secret has a key of AES")
        };
        let mut flags = 0;
        if sender == TokenSender::Acceptor {
            flags |= flag::SENT_BY_ACCEPTOR;
        }
        if is_of_acceptor {
            flags |= flag::ACCEPTOR_SUBKEY;
        }
        let mut mac = hmac_sha256(key.bytes());
        mac.update(b"confounder");
        mac.update(&[flags]);
        Self {
            encryption: key.encryption(),
            flags,
            encrypts: derive(seals, ENCRYPTS),
            authenticates: derive(seals, AUTHENTICATES),
            checks: derive(signs, CHECKS),
            confounds: Zeroizing::new(mac.finalize().as_bytes().to_vec()),
            sequence,
        }
    }

    /// The length of a signed text's token.
    pub fn signature_length(&self) -> usize {
        HEADER + self.encryption.tag_length()
    }

    /// The length of a wrapped text's token, with the usual filler.
    pub fn wrapping_length(&self) -> usize {
        self.wrapping_least() + FILLER
    }

    /// The same without filler.
    fn wrapping_least(&self) -> usize {
        2 * HEADER + CONFOUNDER + self.encryption.tag_length()
    }

    /// Encrypts a text in place, and fills its token. The filler has the length that the token has
    /// room for. Nothing changes where it returns false: where no token has that length.
    #[must_use]
    pub fn wrap(&mut self, around: [&[u8]; 2], text: &mut [u8], token: &mut [u8]) -> bool {
        let confounder = self.confounder();
        self.wrap_with(confounder, around, text, token)
    }

    fn wrap_with(
        &mut self,
        confounder: [u8; CONFOUNDER],
        [before, after]: [&[u8]; 2],
        text: &mut [u8],
        token: &mut [u8],
    ) -> bool {
        let filler = token.len().checked_sub(self.wrapping_least());
        let Some(filler) = filler.and_then(|filler| u16::try_from(filler).ok()) else {
            return false;
        };
        let tag_length = self.encryption.tag_length();
        let rotation = (HEADER + tag_length) as u16;
        let sealed_flags = self.flags | flag::SEALED;
        let plain = wrap_header(sealed_flags, filler, 0, self.sequence);
        let mut whole = Zeroizing::new(Vec::with_capacity(text.len() + token.len()));
        whole.extend_from_slice(&confounder);
        whole.extend_from_slice(text);
        let end = CONFOUNDER + text.len();
        whole.resize(end + usize::from(filler), 0xff);
        whole.extend_from_slice(&plain);
        let tag = match self.encryption.authenticates_ciphertext() {
            false => {
                let tag = self.tag(&whole, end, before, after);
                self.encryption.encrypt(&self.encrypts, &mut whole);
                tag
            }
            true => {
                self.encryption.encrypt(&self.encrypts, &mut whole);
                self.tag(&whole, end, before, after)
            }
        };
        text.copy_from_slice(&whole[CONFOUNDER..end]);
        let header = wrap_header(sealed_flags, filler, rotation, self.sequence);
        let parts: [&[u8]; 4] = [&header, &whole[end..], &tag, &whole[..CONFOUNDER]];
        token.copy_from_slice(&parts.concat());
        self.sequence = self.sequence.wrapping_add(1);
        true
    }

    /// Verifies a token, and decrypts its text in place. Nothing changes where it returns false.
    #[must_use]
    pub fn unwrap(&mut self, around: [&[u8]; 2], text: &mut [u8], token: &[u8]) -> bool {
        let Some(whole) = self.unwrapped(around, text, token) else {
            return false;
        };
        text.copy_from_slice(&whole[CONFOUNDER..CONFOUNDER + text.len()]);
        self.sequence = self.sequence.wrapping_add(1);
        true
    }

    /// Confounder, text, filler and header of a valid token.
    fn unwrapped(
        &self,
        [before, after]: [&[u8]; 2],
        text: &[u8],
        token: &[u8],
    ) -> Option<Zeroizing<Vec<u8>>> {
        let (header, rest) = token.split_first_chunk::<HEADER>()?;
        let flags = header[2];
        let filler = u16::from_be_bytes([header[4], header[5]]);
        let rotation = u16::from_be_bytes([header[6], header[7]]);
        // Some hosts set the bit of the server's subkey in any case.
        let judged = flag::SENT_BY_ACCEPTOR | flag::SEALED;
        if *header != wrap_header(flags, filler, rotation, self.sequence)
            || flags & judged != (self.flags | flag::SEALED) & judged
            || token.len() != self.wrapping_least() + usize::from(filler)
        {
            return None;
        }
        let mut whole = Zeroizing::new([rest, text].concat());
        let turn = (usize::from(rotation) + usize::from(filler)) % whole.len();
        whole.rotate_left(turn);
        let tag_at = whole.len() - self.encryption.tag_length();
        let tag = whole.split_off(tag_at);
        let end = CONFOUNDER + text.len();
        let own = match self.encryption.authenticates_ciphertext() {
            true => {
                let own = self.tag(&whole, end, before, after);
                self.encryption.decrypt(&self.encrypts, &mut whole);
                own
            }
            false => {
                self.encryption.decrypt(&self.encrypts, &mut whole);
                self.tag(&whole, end, before, after)
            }
        };
        let plain = wrap_header(flags, filler, 0, self.sequence);
        let inner = &whole[whole.len() - HEADER..];
        let is_valid = bool::from(own.ct_eq(&tag) & inner.ct_eq(&plain));
        is_valid.then_some(whole)
    }

    /// Fills the token of a text that is signed only. Nothing changes where it returns false: where
    /// the token has another length.
    #[must_use]
    pub fn sign(&mut self, parts: &[&[u8]], token: &mut [u8]) -> bool {
        if token.len() != self.signature_length() {
            return false;
        }
        let own = self.signature(self.flags, parts);
        token.copy_from_slice(&own);
        self.sequence = self.sequence.wrapping_add(1);
        true
    }

    /// Verifies the token of a text that is signed only. Nothing changes where it returns false.
    #[must_use]
    pub fn verify(&mut self, parts: &[&[u8]], token: &[u8]) -> bool {
        let Some(flags) = token.get(2).copied() else {
            return false;
        };
        let judged = flag::SENT_BY_ACCEPTOR | flag::SEALED;
        let own = self.signature(flags, parts);
        let is_valid = flags & judged == self.flags & judged && bool::from(own.ct_eq(token));
        if is_valid {
            self.sequence = self.sequence.wrapping_add(1);
        }
        is_valid
    }

    /// Goes on as after so many tokens.
    pub fn skip(&mut self, tokens: u64) {
        self.sequence = self.sequence.wrapping_add(tokens);
    }

    fn signature(&self, flags: u8, parts: &[&[u8]]) -> Vec<u8> {
        let mut token = Vec::with_capacity(self.signature_length());
        token.extend(SIGNED);
        token.push(flags);
        token.extend([0xff; 5]);
        token.extend(self.sequence.to_be_bytes());
        let parts = [parts, &[&token[..]]].concat();
        let tag = self.encryption.tag(&self.checks, &parts);
        token.extend(tag);
        token
    }

    /// The tag of confounder, text, filler and header, which stand in `whole` as they are
    /// authenticated. The text ends at `end`.
    fn tag(&self, whole: &[u8], end: usize, before: &[u8], after: &[u8]) -> Vec<u8> {
        let vector: &[u8] = match self.encryption.authenticates_ciphertext() {
            true => &VECTOR,
            false => &[],
        };
        let (confounder, text) = whole[..end].split_at(CONFOUNDER);
        let parts = [vector, confounder, before, text, after, &whole[end..]];
        self.encryption.tag(&self.authenticates, &parts)
    }

    fn confounder(&self) -> [u8; CONFOUNDER] {
        let mut mac = hmac_sha256(&self.confounds);
        mac.update(&self.sequence.to_be_bytes());
        let block = mac.finalize();
        let mut confounder = [0; CONFOUNDER];
        confounder.copy_from_slice(&block.as_bytes()[..CONFOUNDER]);
        confounder
    }
}

fn hmac_sha256(key: &[u8]) -> Hmac<Sha256> {
    <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn wrap_header(flags: u8, filler: u16, rotation: u16, sequence: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&WRAPPED);
    header[2] = flags;
    header[3] = 0xff;
    header[4..6].copy_from_slice(&filler.to_be_bytes());
    header[6..8].copy_from_slice(&rotation.to_be_bytes());
    header[8..].copy_from_slice(&sequence.to_be_bytes());
    header
}

/// The key that reads the tokens of [`read_any`] and makes those of [`samples`].
#[cfg(any(test, feature = "testing"))]
fn sample_secret(encryption: EncryptionType) -> Option<MessageSecret> {
    let bytes = vec![0x5a; encryption.key_length()];
    MessageSecret::new(KerberosKey::of(encryption.number(), &bytes)?, true, [0, 0])
}

/// Reads any bytes as tokens and the texts behind them: none is valid twice.
///
/// # Panics
/// When one is.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn read_any(bytes: &[u8]) {
    for secret in EncryptionType::ALL.into_iter().filter_map(sample_secret) {
        for sender in [TokenSender::Initiator, TokenSender::Acceptor] {
            let mut protector = secret.protector(sender);
            let (token, text) = bytes.split_at(protector.signature_length().min(bytes.len()));
            if protector.verify(&[text], token) {
                assert!(
                    !protector.verify(&[text], token),
                    "a signature is valid twice"
                );
            }
            let mut protector = secret.protector(sender);
            let filler = bytes.get(4..6).map_or(0, |filler| {
                usize::from(u16::from_be_bytes([filler[0], filler[1]]))
            });
            for length in [protector.wrapping_least() + filler, bytes.len()] {
                let (token, text) = bytes.split_at(length.min(bytes.len()));
                let mut opened = text.to_vec();
                let is_valid = protector.unwrap([&[], &[]], &mut opened, token);
                assert!(is_valid || opened == text, "a refused text is altered");
                if is_valid {
                    let mut again = text.to_vec();
                    let is_valid = protector.unwrap([&[], &[]], &mut again, token);
                    assert!(!is_valid, "a token is valid twice");
                }
            }
        }
    }
}

/// Good inputs for [`read_any`], with their names.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let mut samples = Vec::new();
    for secret in EncryptionType::ALL.into_iter().filter_map(sample_secret) {
        let [wrapped, signed] = match secret.key.encryption() {
            EncryptionType::Aes128Sha1 => ["wrapped-aes128-sha1", "signed-aes128-sha1"],
            EncryptionType::Aes256Sha1 => ["wrapped-aes256-sha1", "signed-aes256-sha1"],
            EncryptionType::Aes128Sha2 => ["wrapped-aes128-sha2", "signed-aes128-sha2"],
            EncryptionType::Aes256Sha2 => ["wrapped-aes256-sha2", "signed-aes256-sha2"],
            EncryptionType::Rc4 => continue,
        };
        let mut text = *b"a text of more than one block";
        let mut protector = secret.protector(TokenSender::Acceptor);
        let mut token = vec![0; protector.signature_length()];
        assert!(protector.sign(&[&text], &mut token));
        samples.push((signed, [&token[..], &text].concat()));
        let mut protector = secret.protector(TokenSender::Initiator);
        let mut token = vec![0; protector.wrapping_length()];
        assert!(protector.wrap([&[], &[]], &mut text, &mut token));
        samples.push((wrapped, [&token[..], &text].concat()));
    }
    samples
}

#[cfg(test)]
#[path = "message_tokens_tests.rs"]
mod tests;
