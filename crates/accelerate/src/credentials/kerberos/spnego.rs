//! Finds the Kerberos message in a security token: in SPNEGO's wrapping (RFC 4178 §4.2), in that of
//! the GSS-API alone (RFC 2743 §3.1, RFC 4121 §4.1), or bare.
//!
//! ```text
//!  [APPLICATION 0] SPNEGO  [0] NegTokenInit { …, [2] mechToken }   the client's first token
//!                          [1] NegTokenResp { …, [2] responseToken }  all others, without the wrapping
//!  mechToken: [APPLICATION 0] Kerberos  01 00 AP-REQ | 02 00 AP-REP | 03 00 KRB-ERROR | …
//! ```
//! The list of offered mechanisms and the MIC over it are ignored: the server's answer shows the
//! mechanism in use.

use der::Tag;

use super::asn1::{SequenceFields, application, context, first, inside};

/// 1.3.6.1.5.5.2
const SPNEGO: &[u8] = &[0x2b, 6, 1, 5, 5, 2];
/// 1.2.840.113554.1.2.2, and the same with a bit less, as Windows 2000 wrote it ([MS-SPNG] §3.1.5.2,
/// mechTypes Identifier Values).
const KERBEROS: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2],
    &[0x2a, 0x86, 0x48, 0x82, 0xf7, 0x12, 1, 2, 2],
];
/// 1.2.840.113554.1.2.2.3, from user to user.
const USER_TO_USER: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x12, 1, 2, 2, 3];

/// The token id before a Kerberos message within the GSS-API (RFC 4121 §4.1, Context Establishment
/// Tokens).
const AP_REQ: &[u8] = &[1, 0];
const AP_REP: &[u8] = &[2, 0];

/// The content of a security token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpnegoToken<'a> {
    /// A client's request.
    ApReq(&'a [u8]),
    /// A server's answer.
    ApRep(&'a [u8]),
    /// Errors, and user-to-user messages.
    OtherKerberos,
}

/// Finds the Kerberos message in a token.
pub(crate) fn find(token: &[u8]) -> Option<SpnegoToken<'_>> {
    let (tag, value, _) = first(token)?;
    if tag != application(0) {
        return negotiated(token).or_else(|| bare(token));
    }
    let (_, mechanism, behind) = first(value).filter(|(tag, ..)| *tag == Tag::ObjectIdentifier)?;
    match mechanism == SPNEGO {
        true => negotiated(behind),
        false => of_mechanism(mechanism, behind),
    }
}

/// A NegotiationToken (RFC 4178 §4.2): a choice of two that have the mechanism's token at the same place.
fn negotiated(token: &[u8]) -> Option<SpnegoToken<'_>> {
    let (tag, value, _) = first(token)?;
    if tag != context(0) && tag != context(1) {
        return None;
    }
    let token = SequenceFields::of(value)?.octets(2)?;
    let Some(wrapped) = inside(token, application(0)) else {
        return bare(token);
    };
    let (_, mechanism, behind) = first(wrapped)?;
    of_mechanism(mechanism, behind)
}

/// Parses the bytes after a mechanism's name.
fn of_mechanism<'a>(mechanism: &[u8], token: &'a [u8]) -> Option<SpnegoToken<'a>> {
    if mechanism == USER_TO_USER {
        return Some(SpnegoToken::OtherKerberos);
    }
    if !KERBEROS.contains(&mechanism) {
        return None;
    }
    let (kind, message) = token.split_at_checked(2)?;
    Some(match kind {
        AP_REQ => SpnegoToken::ApReq(message),
        AP_REP => SpnegoToken::ApRep(message),
        _ => SpnegoToken::OtherKerberos,
    })
}

/// A message without any wrapping ([MS-KILE] §3.4.5.1, Three-Leg DCE-Style Mutual Authentication).
fn bare(token: &[u8]) -> Option<SpnegoToken<'_>> {
    let (tag, ..) = first(token)?;
    match tag {
        tag if tag == application(14) => Some(SpnegoToken::ApReq(token)),
        tag if tag == application(15) => Some(SpnegoToken::ApRep(token)),
        _ => None,
    }
}
