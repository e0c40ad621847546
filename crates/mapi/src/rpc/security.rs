//! Derives the key of a session from the tokens that both hosts exchange, with delegated secrets.
//!
//! ```text
//!  bind            NTLM: NEGOTIATE        Kerberos: the client's ticket
//!  bind_ack        NTLM: CHALLENGE        Kerberos: the server's subkey
//!  auth3, or       NTLM: AUTHENTICATE
//!  alter_context
//!  request         its signature shows which key the session has
//! ```
//! Nothing is acted upon before a signature of the client has proved a key.

use accelerate::ReasonCode;
use accelerate::credentials::DelegatedKeys;
use accelerate::credentials::kerberos::{self, ApReqError};
use accelerate::credentials::ntlm::{DerivedKeys, NtlmAuthenticate, NtlmChallenge};
use zeroize::Zeroizing;

use super::ntlm::{MessageOrigin, NtlmProtector, SIGNATURE, flag};
use super::splitter::{RawPdu, SecurityTrailer};

/// Characters of a name that are shown.
const SHOWN_MAX: usize = 120;

/// The secret of a session and what else its keys depend on.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret {
    /// The key that both hosts have.
    pub key: Zeroizing<[u8; 16]>,
    /// The flags that they have agreed on.
    pub flags: u32,
    /// The sequence number of each host's first PDU: 1 where SPNEGO has used 0 for its own
    /// signature.
    pub first_sequence: u32,
}

impl std::fmt::Debug for SessionSecret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("SessionSecret(not shown)")
    }
}

impl SessionSecret {
    /// The protection of one direction, at its begin.
    #[must_use]
    pub fn protector(&self, origin: MessageOrigin) -> NtlmProtector {
        NtlmProtector::new(&self.key, self.flags, origin, self.first_sequence)
    }
}

/// The reason why a session has no key here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKey {
    /// The code, for the operator and the peer.
    pub reason: ReasonCode,
    /// The account or service, as the client has named it.
    pub account: Option<String>,
}

impl MissingKey {
    fn new(reason: ReasonCode) -> Self {
        Self {
            reason,
            account: None,
        }
    }

    fn of(reason: ReasonCode, account: &str) -> Self {
        Self {
            reason,
            account: Some(shown(account)),
        }
    }
}

/// Possible secrets of a session, and its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretCandidates {
    /// The account.
    pub account: String,
    /// The secrets, the likeliest first.
    pub secrets: Vec<SessionSecret>,
}

/// Follows the set-up of the security contexts of one connection, one at a time.
#[derive(Debug)]
pub struct SecuritySetUp {
    delegated: DelegatedKeys,
    challenge: Option<NtlmChallenge>,
    outcome: Result<SecretCandidates, MissingKey>,
}

impl SecuritySetUp {
    /// Begins without any token.
    #[must_use]
    pub fn new(delegated: DelegatedKeys) -> Self {
        let none = match delegated.accounts.is_some() || delegated.keytab.is_some() {
            true => ReasonCode::MECHANISM,
            false => ReasonCode::ENCRYPTED,
        };
        Self {
            delegated,
            challenge: None,
            outcome: Err(MissingKey::new(none)),
        }
    }

    /// Reads a client's token.
    pub fn client_token(&mut self, token: &[u8]) {
        if let Some(authenticate) = NtlmAuthenticate::find(token) {
            self.outcome = self.by_ntlm(&authenticate);
        } else if let Some(accepted) = kerberos::accept(token, self.delegated.keytab.as_deref()) {
            self.outcome = Err(match accepted {
                // Its PDUs are protected by tokens of RFC 4121, which are not read here.
                Ok(accepted) => MissingKey::of(ReasonCode::MECHANISM, &accepted.client),
                Err(ApReqError::NoKeytab(service)) => {
                    MissingKey::of(ReasonCode::NO_KEYTAB, &service)
                }
                Err(ApReqError::NoKey(ticket)) => {
                    MissingKey::of(ReasonCode::UNKNOWN_TICKET, &ticket)
                }
                Err(ApReqError::Encryption(ticket)) => {
                    MissingKey::of(ReasonCode::MECHANISM, &ticket)
                }
                Err(ApReqError::Broken(whose)) => MissingKey::of(ReasonCode::WRONG_KEY, &whose),
                Err(ApReqError::Mechanism) => MissingKey::new(ReasonCode::MECHANISM),
            });
        }
    }

    /// Reads a server's token.
    pub fn server_token(&mut self, token: &[u8]) {
        if let Some(challenge) = NtlmChallenge::find(token) {
            self.challenge = Some(challenge);
        }
    }

    /// The possible secrets of the session that was set up last.
    ///
    /// # Errors
    /// The reason why there are none.
    pub fn candidates(&self) -> Result<&SecretCandidates, &MissingKey> {
        self.outcome.as_ref()
    }

    fn by_ntlm(&self, authenticate: &NtlmAuthenticate) -> Result<SecretCandidates, MissingKey> {
        let Some(accounts) = &self.delegated.accounts else {
            return Err(MissingKey::new(ReasonCode::ENCRYPTED));
        };
        let (domain, user) = (authenticate.domain(), authenticate.user());
        let account = shown(&format!("{domain}\\{user}"));
        let flags = authenticate.flags();
        let is_followed = flags & flag::EXTENDED_SECURITY != 0
            && !authenticate.is_anonymous()
            && !authenticate.is_version_1();
        let Some(challenge) = self.challenge.as_ref().filter(|_| is_followed) else {
            return Err(MissingKey::of(ReasonCode::MECHANISM, &account));
        };
        let mut is_known = false;
        for hash in accounts.find(&domain, &user) {
            is_known = true;
            if let DerivedKeys::Keys(keys) = authenticate.derive(hash, challenge) {
                let secrets = keys.iter().flat_map(|key| {
                    [0, 1].map(|first_sequence| SessionSecret {
                        key: key.clone(),
                        flags,
                        first_sequence,
                    })
                });
                return Ok(SecretCandidates {
                    account,
                    secrets: secrets.collect(),
                });
            }
        }
        let reason = match is_known {
            true => ReasonCode::WRONG_KEY,
            false => ReasonCode::UNKNOWN_ACCOUNT,
        };
        Err(MissingKey::of(reason, &account))
    }
}

/// A name for people. Any host may have sent it, and has proved nothing.
fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(SHOWN_MAX).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    vocab::printable(&shown)
}

/// The parts of a protected PDU that its receiver needs to protect it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPdu {
    /// The bytes before the stub.
    pub head: Vec<u8>,
    /// The stub with its padding.
    pub stub: Vec<u8>,
    /// The security trailer.
    pub trailer: SecurityTrailer,
}

impl OpenedPdu {
    /// The PDU as it would be without encryption, with zeros for its signature.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        bytes.extend(&self.stub);
        bytes.extend(self.trailer.emit());
        bytes.extend([0; SIGNATURE]);
        bytes
    }
}

/// Verifies and opens a PDU; `None` where its signature is not valid.
pub fn open(protector: &mut NtlmProtector, pdu: &RawPdu) -> Option<OpenedPdu> {
    let trailer = pdu.trailer()?;
    if pdu.auth_value().len() != SIGNATURE {
        return None;
    }
    let mut bytes = pdu.bytes.to_vec();
    let signed = bytes.len() - SIGNATURE;
    let stub = pdu.stub();
    protector
        .open(trailer.level, &mut bytes, stub.clone(), signed)
        .then(|| OpenedPdu {
            head: bytes[..stub.start].to_vec(),
            stub: bytes[stub].to_vec(),
            trailer,
        })
}

/// Protects a PDU again: its bytes as they go to the host.
pub fn seal(protector: &mut NtlmProtector, pdu: &OpenedPdu) -> Vec<u8> {
    let mut bytes = pdu.to_bytes();
    let begin = pdu.head.len();
    let stub = begin..begin + pdu.stub.len();
    let signed = bytes.len() - SIGNATURE;
    protector.seal(pdu.trailer.level, &mut bytes, stub, signed);
    bytes
}
