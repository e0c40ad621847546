//! The token that the inviter prints and the joiner reads.
//!
//! ```text
//! tlk1-<base32>     u8 version | 16 secret | 32 inviter's NodeId | u64 expiry (Unix seconds)
//!                   | prefixed address | prefixed inviter's name | 4 checksum
//! ```
//!
//! Base32 (RFC 4648 §6, lower case, no padding) survives reading aloud, line breaks and terminals
//! that select words. The checksum distinguishes a typing error from a wrong token.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use vocab::{ByteReader, ByteWriter, NodeId};

/// The lifetime of an invitation: long enough to walk to another console, short enough that a token
/// left in a scroll-back is worthless.
pub(super) const LIFETIME: Duration = Duration::from_secs(15 * 60);

const PREFIX: &str = "tlk1-";
const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
/// The longest text that is looked at; a real token has about 170 characters.
const LONGEST_TEXT: usize = 1024;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The reason why a text is not a usable token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// The text is not a token.
    #[error(
        "this is not a pairing token; paste the whole line that `trunkline peer invite` printed, from tlk1- to its end"
    )]
    Form,
    /// A token with a slip in it.
    #[error("the token is incomplete or mistyped (its checksum does not fit); copy it again")]
    Checksum,
    /// A token of a later version.
    #[error("the token was made by a newer Trunkline (version {0}); update this node")]
    Version(u8),
    /// Too late.
    #[error(
        "the token has expired; run `trunkline peer invite` on the other node again and join within 15 minutes"
    )]
    Expired,
}

/// An invitation as its joiner holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct InvitationToken {
    /// 128 random bits.
    pub secret: [u8; 16],
    /// The inviting node.
    pub inviter: NodeId,
    /// The inviter's own name.
    pub inviter_name: String,
    /// The inviter's listening address, as HOST:PORT.
    pub address: String,
    /// The expiry, in seconds since the Unix epoch.
    pub expires: u64,
}

impl fmt::Debug for InvitationToken {
    /// Leaves the secret out, so that no log can hold it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Token")
            .field("inviter", &self.inviter)
            .field("address", &self.address)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl InvitationToken {
    /// The name of the invitation. It reveals nothing of the secret.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        let derived = blake3::derive_key("trunkline 2026 pairing v1 invitation id", &self.secret);
        let mut id = [0; 16];
        id.copy_from_slice(&derived[..16]);
        id
    }

    /// The key that proves possession of the secret.
    #[must_use]
    pub fn key(&self) -> [u8; 32] {
        blake3::derive_key("trunkline 2026 pairing v1 proof key", &self.secret)
    }

    /// Parses a pasted token: blanks and line breaks anywhere, either case.
    ///
    /// # Errors
    /// When it is not a token, or has a slip in it.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        if text.len() > LONGEST_TEXT {
            return Err(TokenError::Form);
        }
        let text: String = text
            .chars()
            .filter(|c| !c.is_whitespace())
            .map(|c| c.to_ascii_lowercase())
            .collect();
        let digits = text.strip_prefix(PREFIX).ok_or(TokenError::Form)?;
        let bytes = decode(digits).ok_or(TokenError::Form)?;
        let (body, checksum) = bytes
            .split_last_chunk::<CHECKSUM_BYTES>()
            .ok_or(TokenError::Checksum)?;
        if checksum_of(body) != *checksum {
            return Err(TokenError::Checksum);
        }
        let mut reader = ByteReader::new(body);
        let version = reader.u8().map_err(|_| TokenError::Form)?;
        if version != VERSION {
            return Err(TokenError::Version(version));
        }
        Self::fields(&mut reader).ok_or(TokenError::Form)
    }

    fn fields(reader: &mut ByteReader<'_>) -> Option<Self> {
        let secret = reader.array().ok()?;
        let inviter = NodeId(reader.array().ok()?);
        let expires = reader.u64().ok()?;
        let address = String::from_utf8(reader.prefixed().ok()?.to_vec()).ok()?;
        let inviter_name = String::from_utf8(reader.prefixed().ok()?.to_vec()).ok()?;
        let sound = reader.is_empty()
            && crate::config::is_host_and_port(&address)
            && crate::config::is_name(&inviter_name);
        sound.then_some(Self {
            secret,
            inviter,
            inviter_name,
            address,
            expires,
        })
    }

    /// Refuses a token that is out of date.
    ///
    /// # Errors
    /// [`TokenError::Expired`].
    pub fn check_expiry(&self, now: SystemTime) -> Result<(), TokenError> {
        if unix_seconds(now) >= self.expires {
            return Err(TokenError::Expired);
        }
        Ok(())
    }
}

impl fmt::Display for InvitationToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = ByteWriter::new();
        writer
            .u8(VERSION)
            .bytes(&self.secret)
            .bytes(&self.inviter.0)
            .u64(self.expires)
            .prefixed(self.address.as_bytes())
            .prefixed(self.inviter_name.as_bytes());
        let mut bytes = writer.finish().to_vec();
        let checksum = checksum_of(&bytes);
        bytes.extend_from_slice(&checksum);
        write!(out, "{PREFIX}{}", encode(&bytes))
    }
}

/// Whole seconds since the Unix epoch; zero before it.
pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn checksum_of(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = blake3::hash(bytes);
    let mut checksum = [0; CHECKSUM_BYTES];
    checksum.copy_from_slice(&hash.as_bytes()[..CHECKSUM_BYTES]);
    checksum
}

fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(5) * 8);
    let (mut held, mut bits) = (0_u32, 0);
    for byte in bytes {
        held = (held << 8) | u32::from(*byte);
        bits += 8;
        while bits >= 5 {
            bits -= 5;
            text.push(char::from(ALPHABET[(held >> bits) as usize & 31]));
        }
    }
    if bits > 0 {
        text.push(char::from(ALPHABET[(held << (5 - bits)) as usize & 31]));
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut held, mut bits) = (0_u32, 0);
    for character in text.bytes() {
        let value = match character {
            b'a'..=b'z' => character - b'a',
            b'2'..=b'7' => character - b'2' + 26,
            _ => return None,
        };
        held = (held << 5) | u32::from(value);
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token() -> InvitationToken {
        InvitationToken {
            secret: [7; 16],
            inviter: NodeId([9; 32]),
            inviter_name: "hub".to_owned(),
            address: "198.18.12.2:4433".to_owned(),
            expires: 1_800_000_000,
        }
    }

    #[test]
    fn base32_matches_rfc_4648_section_10() {
        for (bytes, text) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foobar", "mzxw6ytboi"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
    }

    #[test]
    fn token_survives_line_breaks_and_capitals() {
        let text = token().to_string();
        let (left, right) = text.split_at(40);
        let pasted = format!("  {}\n {right}\n", left.to_uppercase());
        assert_eq!(InvitationToken::parse(&pasted), Ok(token()));
    }

    #[test]
    fn a_slip_is_told_from_something_else() {
        let text = token().to_string();
        let slipped = text.replacen("tlk1-ae", "tlk1-ai", 1);
        assert_ne!(text, slipped);
        assert_eq!(InvitationToken::parse(&slipped), Err(TokenError::Checksum));
        assert_eq!(
            InvitationToken::parse(&text[..60]),
            Err(TokenError::Checksum)
        );
        assert_eq!(InvitationToken::parse("hello"), Err(TokenError::Form));
    }

    #[test]
    fn a_token_ends_after_its_time() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(token().check_expiry(at(1_799_999_999)), Ok(()));
        assert_eq!(
            token().check_expiry(at(1_800_000_000)),
            Err(TokenError::Expired)
        );
    }

    #[test]
    fn nothing_printed_for_debugging_holds_the_secret() {
        assert!(!format!("{:?}", token()).contains('7'));
    }

    proptest! {
        #[test]
        fn any_text_is_answered_without_a_panic(text in ".{0,300}") {
            let _ = InvitationToken::parse(&text);
            let _ = InvitationToken::parse(&format!("tlk1-{text}"));
        }
    }
}
