//! Derives the key of a session from the tokens that both hosts exchange, with delegated secrets.
//!
//! ```text
//!  bind            NTLM: NEGOTIATE        Kerberos: the client's ticket
//!  bind_ack        NTLM: CHALLENGE        Kerberos: the server's subkey, and its first number
//!  auth3, or       NTLM: AUTHENTICATE     Kerberos: nothing new ([MS-KILE] §3.4.5.1)
//!  alter_context
//!  request         its signature shows which key the session has
//! ```
//! Nothing is acted upon before a signature of the client has proved a key.

use accelerate::ReasonCode;
use accelerate::credentials::DelegatedKeys;
use accelerate::credentials::kerberos::{self, AcceptedClient, AcceptorReply, ApReqError};
use accelerate::credentials::ntlm::{DerivedKeys, NtlmAuthenticate, NtlmChallenge};

use super::kerberos::KerberosSecret;
use super::ntlm::{NtlmSecret, flag};
use super::protector::SessionSecret;
use super::splitter::SecurityTrailer;

/// Characters of a name that are shown.
const SHOWN_MAX: usize = 120;
/// The place of the signature's length in a PDU (C706 §12.6.3.1, Common fields: auth_length).
const AUTH_LENGTH: usize = 10;

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
    /// The client that the last ticket speaks for.
    accepted: Option<AcceptedClient>,
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
            accepted: None,
            outcome: Err(MissingKey::new(none)),
        }
    }

    /// Reads a client's token.
    pub fn client_token(&mut self, token: &[u8]) {
        if let Some(authenticate) = NtlmAuthenticate::find(token) {
            self.outcome = self.by_ntlm(&authenticate);
        } else if let Some(accepted) = kerberos::accept(token, self.delegated.keytab.as_deref()) {
            self.outcome = match &accepted {
                Ok(accepted) => by_kerberos(accepted, None),
                Err(error) => Err(missing_key(error)),
            };
            self.accepted = accepted.ok();
        }
    }

    /// Reads a server's token.
    pub fn server_token(&mut self, token: &[u8]) {
        if let Some(challenge) = NtlmChallenge::find(token) {
            self.challenge = Some(challenge);
        } else if let Some(accepted) = &self.accepted
            && let Some(reply) = accepted.reply_of_server(token)
        {
            self.outcome = by_kerberos(accepted, Some(&reply));
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
                    [0, 1].map(|first_sequence| {
                        SessionSecret::Ntlm(NtlmSecret {
                            key: key.clone(),
                            flags,
                            first_sequence,
                        })
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

/// The secrets of a session with Kerberos. Whether the hosts sign headers, and whether SPNEGO has
/// used a number for its own signature, the first PDU shows.
fn by_kerberos(
    accepted: &AcceptedClient,
    reply: Option<&AcceptorReply>,
) -> Result<SecretCandidates, MissingKey> {
    let mut secrets = Vec::new();
    for messages in accepted.message_secrets(reply) {
        for later in [0, 1] {
            for signs_headers in [true, false] {
                secrets.push(SessionSecret::Kerberos(KerberosSecret {
                    messages: messages.later(later),
                    signs_headers,
                }));
            }
        }
    }
    match secrets.is_empty() {
        // Tokens with RC4 are not read here.
        true => Err(MissingKey::of(ReasonCode::MECHANISM, &accepted.client)),
        false => Ok(SecretCandidates {
            account: shown(&accepted.client),
            secrets,
        }),
    }
}

fn missing_key(error: &ApReqError) -> MissingKey {
    match error {
        ApReqError::NoKeytab(service) => MissingKey::of(ReasonCode::NO_KEYTAB, service),
        ApReqError::NoKey(ticket) => MissingKey::of(ReasonCode::UNKNOWN_TICKET, ticket),
        ApReqError::Encryption(ticket) => MissingKey::of(ReasonCode::MECHANISM, ticket),
        ApReqError::Broken(whose) => MissingKey::of(ReasonCode::WRONG_KEY, whose),
        ApReqError::Mechanism => MissingKey::new(ReasonCode::MECHANISM),
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
    /// The length of the signature that its header announces.
    #[must_use]
    pub fn signature_length(&self) -> usize {
        match self.head.get(AUTH_LENGTH..).and_then(<[u8]>::first_chunk) {
            Some(length) => u16::from_le_bytes(*length).into(),
            None => 0,
        }
    }

    /// The PDU as it would be without encryption, with zeros for its signature.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        bytes.extend(&self.stub);
        bytes.extend(self.trailer.emit());
        bytes.resize(bytes.len() + self.signature_length(), 0);
        bytes
    }
}
