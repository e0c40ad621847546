//! Signs and seals PDUs as Kerberos does, by tokens of RFC 4121 in the place of the signature
//! ([MS-RPCE] §3.3.1.5.2.2, Kerberos and SPNEGO with it).
//!
//! ```text
//!  header of the PDU │ stub │ security trailer │ token
//!  ───── before ─────┘ text └───── after ──────┘
//! ```
//! `before` and `after` are part of what a token covers only where the hosts have agreed to sign
//! headers (PFC_SUPPORT_HEADER_SIGN, [MS-RPCE] §2.2.2.3). A token has no state besides its number,
//! and its confounder is new, so a PDU that is opened and sealed again has other bytes than before,
//! of the same length.

use std::ops::Range;

use accelerate::credentials::kerberos::{MessageSecret, TokenProtector, TokenSender};

use super::protector::MessageOrigin;
use super::splitter::level;

/// The secret of a session with Kerberos.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KerberosSecret {
    /// The key of its tokens, and their first numbers.
    pub messages: MessageSecret,
    /// True if tokens cover the whole PDU.
    pub signs_headers: bool,
}

/// Signs and seals the PDUs of one direction, or verifies and opens them.
#[derive(Debug)]
pub struct KerberosProtector {
    tokens: TokenProtector,
    signs_headers: bool,
}

impl KerberosProtector {
    /// The protection of one direction, at its beginning.
    #[must_use]
    pub fn new(secret: &KerberosSecret, origin: MessageOrigin) -> Self {
        let sender = match origin {
            MessageOrigin::Client => TokenSender::Initiator,
            MessageOrigin::Server => TokenSender::Acceptor,
        };
        Self {
            tokens: secret.messages.protector(sender),
            signs_headers: secret.signs_headers,
        }
    }

    /// The length of the tokens of this half's own PDUs.
    #[must_use]
    pub fn signature_length(&self, level: u8) -> usize {
        match level {
            level::PRIVACY => self.tokens.wrapping_length(),
            _ => self.tokens.signature_length(),
        }
    }

    /// Verifies a PDU, and opens its stub at the level of privacy. `signed` bytes stand before the
    /// token. Nothing changes where it returns false.
    #[must_use]
    pub fn open(&mut self, level: u8, pdu: &mut [u8], stub: Range<usize>, signed: usize) -> bool {
        let [before, text, after, token] = self.parts(pdu, stub, signed);
        match level {
            level::PRIVACY => self.tokens.unwrap([before, after], text, token),
            _ => self.tokens.verify(&[before, text, after], token),
        }
    }

    /// Signs a PDU, and seals its stub at the level of privacy. Its last bytes, behind those
    /// `signed`, are overwritten by the token. Returns false where they have a length that no token
    /// has.
    #[must_use]
    pub fn seal(&mut self, level: u8, pdu: &mut [u8], stub: Range<usize>, signed: usize) -> bool {
        let [before, text, after, token] = self.parts(pdu, stub, signed);
        match level {
            level::PRIVACY => self.tokens.wrap([before, after], text, token),
            _ => self.tokens.sign(&[before, text, after], token),
        }
    }

    /// Goes on as after so many PDUs.
    pub fn skip(&mut self, pdus: u32) {
        self.tokens.skip(pdus.into());
    }

    /// The parts of a PDU: what is signed before the stub, the stub, what is signed behind it, and
    /// the token.
    fn parts<'a>(&self, pdu: &'a mut [u8], stub: Range<usize>, signed: usize) -> [&'a mut [u8]; 4] {
        let (rest, token) = pdu.split_at_mut(signed);
        let (rest, after) = rest.split_at_mut(stub.end);
        let (before, text) = rest.split_at_mut(stub.start);
        match self.signs_headers {
            true => [before, text, after, token],
            false => [&mut [], text, &mut [], token],
        }
    }
}
