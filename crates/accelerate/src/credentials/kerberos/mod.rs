//! Kerberos for a listener that has the service's keytab (RFC 4120, RFC 4121): derives the key of a
//! client and a server from the tokens that they exchange.
//!
//! ```text
//!  AP-REQ:  ticket ──── keytab ───────────────► session key, client
//!           authenticator ── session key ─────► the client's subkey, if it chose one
//!  AP-REP:  encrypted part ── session key ────► the server's subkey, if it chose one
//! ```
//! The server's subkey takes precedence over the client's, and that over the session key ([MS-KILE]
//! §3.1.1.2, Cryptographic Material; RFC 4121 §2, Key Derivation for Per-Message Tokens). The
//! choice is not made here: all are candidates, and the server's signature shows which one a
//! session uses.
//!
//! Protocols that wrap their messages in tokens of the GSS-API, as DCE/RPC does, use
//! [`TokenProtector`] with one of these keys (`message_tokens.rs`).
//!
//! Messages are read as they pass, and only keys, names and the ends of tickets are kept. PACs, checksums and
//! flags are not read; the server judges them, and the lifetimes.

mod asn1;
mod encryption;
mod keytab;
mod message_tokens;
mod messages;
mod n_fold;
mod spnego;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

pub use encryption::{EncryptionType, KerberosKey};
pub use keytab::{Keytab, KeytabError};
pub use message_tokens::{MessageSecret, TokenProtector, TokenSender};
#[cfg(any(test, feature = "testing"))]
pub(crate) use message_tokens::{read_any as read_tokens, samples as token_samples};
use messages::{ApRep, ApReq, EncApRepPart, EncTicketPart, KerberosAuthenticator};
use spnego::SpnegoToken;

use super::SessionKey;

/// The uses of a Kerberos key (RFC 4120 §7.5.1, Key Usage Numbers).
pub(crate) mod usage {
    /// A ticket's encrypted part, by the service's key.
    pub(crate) const TICKET: u32 = 2;
    /// The Authenticator of an AP-REQ, by the session key.
    pub(crate) const AUTHENTICATOR: u32 = 11;
    /// The encrypted part of an AP-REP, by the session key.
    pub(crate) const AP_REP: u32 = 12;
}

/// The reason why an AP-REQ was not accepted. Each variant names the service, because anybody may
/// have sent the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApReqError {
    /// There is no keytab.
    NoKeytab(String),
    /// No key of the keytab opens the ticket.
    NoKey(String),
    /// It is encrypted in a way that is not known here.
    Encryption(String),
    /// It is for a key that no keytab holds, or is no AP-REQ after all.
    Mechanism,
    /// The ticket can be decrypted, but the data beside it is invalid.
    Broken(String),
}

/// A client that a ticket speaks for, and the keys that it brought.
pub struct AcceptedClient {
    /// `anna@CORP.EXAMPLE`.
    pub client: String,
    /// The time at which the ticket ends, in seconds since 1970.
    pub ends: Option<u64>,
    session: KerberosKey,
    subkey: Option<ChosenSubkey>,
    /// The number of the client's first message.
    sequence: u32,
}

/// A key that one of the two hosts has chosen.
#[derive(Clone)]
struct ChosenSubkey {
    encryption: i64,
    key: SessionKey,
}

impl ChosenSubkey {
    fn new((encryption, bytes): (i64, &[u8])) -> Self {
        Self {
            encryption,
            key: SessionKey::new(bytes),
        }
    }
}

/// The server's answer to a ticket.
#[derive(Clone)]
pub struct AcceptorReply {
    subkey: Option<ChosenSubkey>,
    /// The number of the server's first message.
    sequence: u32,
}

impl std::fmt::Debug for AcceptorReply {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("AcceptorReply(not shown)")
    }
}

impl std::fmt::Debug for AcceptedClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Accepted(of {}, keys not shown)", self.client)
    }
}

/// Reads a client's token, if it is a Kerberos AP-REQ, bare or in SPNEGO's wrapping.
pub fn accept(token: &[u8], keytab: Option<&Keytab>) -> Option<Result<AcceptedClient, ApReqError>> {
    match spnego::find(token)? {
        SpnegoToken::ApReq(message) => Some(accepted(message, keytab)),
        SpnegoToken::OtherKerberos => Some(Err(ApReqError::Mechanism)),
        SpnegoToken::ApRep(_) => None,
    }
}

fn accepted(message: &[u8], keytab: Option<&Keytab>) -> Result<AcceptedClient, ApReqError> {
    let request = ApReq::parse(message).ok_or(ApReqError::Mechanism)?;
    // The ticket is encrypted for a session of the service's own (RFC 4120 §2.6), whose key is in no file.
    if request.uses_session_key {
        return Err(ApReqError::Mechanism);
    }
    let service = request.ticket.service();
    let sealed = &request.ticket.part;
    let Some(encryption) = EncryptionType::from_number(sealed.encryption) else {
        return Err(ApReqError::Encryption(format!(
            "{service}, encryption type {}",
            sealed.encryption
        )));
    };
    let described = || match sealed.version {
        Some(version) => format!("{service}, key version {version}, {}", encryption.name()),
        None => format!("{service}, {}", encryption.name()),
    };
    let keytab = keytab.ok_or_else(|| ApReqError::NoKeytab(service.clone()))?;
    let opened = keytab
        .find(&service, sealed.version, encryption)
        .find_map(|key| key.open(usage::TICKET, sealed.bytes))
        .ok_or_else(|| ApReqError::NoKey(described()))?;
    let ticket = EncTicketPart::parse(&opened).ok_or_else(|| ApReqError::Broken(described()))?;
    let client = ticket.client();
    // From here on the names are those of the one who issues tickets.
    let broken = || ApReqError::Broken(client.clone());
    let session = KerberosKey::of(ticket.key.0, ticket.key.1).ok_or_else(broken)?;
    let opened = session
        .open(usage::AUTHENTICATOR, request.authenticator.bytes)
        .ok_or_else(broken)?;
    let authenticator = KerberosAuthenticator::parse(&opened).ok_or_else(broken)?;
    Ok(AcceptedClient {
        subkey: authenticator.subkey.map(ChosenSubkey::new),
        sequence: authenticator.sequence.unwrap_or_default(),
        ends: ticket.ends,
        client,
        session,
    })
}

impl AcceptedClient {
    /// The server's subkey, if its token holds an AP-REP with one.
    pub fn subkey_of_server(&self, token: &[u8]) -> Option<SessionKey> {
        Some(self.reply_of_server(token)?.subkey?.key)
    }

    /// The server's answer, if its token holds an AP-REP.
    pub fn reply_of_server(&self, token: &[u8]) -> Option<AcceptorReply> {
        let SpnegoToken::ApRep(message) = spnego::find(token)? else {
            return None;
        };
        let part = ApRep::parse(message)?.part;
        let opened = self.session.open(usage::AP_REP, part.bytes)?;
        let part = EncApRepPart::parse(&opened)?;
        Some(AcceptorReply {
            subkey: part.subkey.map(ChosenSubkey::new),
            sequence: part.sequence.unwrap_or_default(),
        })
    }

    /// The keys that the session may have, the likeliest first.
    pub fn candidates(&self, of_server: Option<&SessionKey>) -> Vec<SessionKey> {
        let session = SessionKey::new(self.session.bytes());
        let subkeys = [of_server, self.subkey.as_ref().map(|subkey| &subkey.key)];
        let subkeys = subkeys.into_iter().flatten().cloned();
        subkeys.chain([session]).collect()
    }

    /// The secrets that per-message tokens of the session may have, the likeliest first. There are
    /// none where the hosts use RC4, whose tokens are not read here.
    pub fn message_secrets(&self, reply: Option<&AcceptorReply>) -> Vec<MessageSecret> {
        let of_server = reply.and_then(|reply| reply.subkey.as_ref());
        let subkeys = [(of_server, true), (self.subkey.as_ref(), false)];
        let subkeys = subkeys.into_iter().filter_map(|(subkey, is_of_acceptor)| {
            let subkey = subkey?;
            let key = KerberosKey::of(subkey.encryption, subkey.key.full())?;
            Some((key, is_of_acceptor))
        });
        let keys = subkeys.chain([(self.session.clone(), false)]);
        // Without an AP-REP both hosts count from the client's number, as MIT Kerberos does.
        let of_acceptor = reply.map_or(self.sequence, |reply| reply.sequence);
        keys.filter_map(|(key, is_of_acceptor)| {
            MessageSecret::new(key, is_of_acceptor, [self.sequence, of_acceptor])
        })
        .collect()
    }
}

/// Reads any bytes as each of the structures, including the encrypted ones.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn read_all(bytes: &[u8]) {
    let _ = spnego::find(bytes);
    let _ = ApReq::parse(bytes).map(|request| request.ticket.service());
    let _ = ApRep::parse(bytes);
    let _ = EncTicketPart::parse(bytes).map(|part| part.client());
    let _ = KerberosAuthenticator::parse(bytes);
    let _ = EncApRepPart::parse(bytes);
    for encryption in EncryptionType::ALL {
        let key = KerberosKey::of(encryption.number(), &vec![0x5a; encryption.key_length()]);
        let opened = key.expect("the length is right").open(usage::TICKET, bytes);
        assert!(
            opened.is_none(),
            "{encryption:?} opened what it has not sealed"
        );
    }
}

#[cfg(test)]
mod tests;
