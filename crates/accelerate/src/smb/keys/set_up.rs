//! Watches the set-up of connections and sessions, and derives their keys.
//!
//! ```text
//!  NEGOTIATE →  ← NEGOTIATE      what was agreed; the connection's hash
//!  SESSION_SETUP →               the session's hash goes on from there; Kerberos: the client's ticket
//!  ← SESSION_SETUP (more)        NTLM: the server's challenge
//!  SESSION_SETUP →               NTLM: the client's answer to it: whose account, which proof
//!  ← SESSION_SETUP (success)     Kerberos: the server's subkey; signed: this proves the key, or there is none
//! ```
//! The tokens show a session's mechanism: the answer to its last request decides. So a client that
//! offers Kerberos and falls back to NTLM is followed, and so is SPNEGO with an extra leg for the
//! MIC over its mechanisms, with the ticket in one request and success after another.
//!
//! The hosts may have seen different bytes: after a node has renumbered messages, the set-up of a
//! further session has other message ids at each end. In SMB 3.1.1 its keys then differ as well,
//! and both are derived ([`HostPair`]).
//!
//! Only the parts of requests that these steps need are kept, for a few sessions at a time: a
//! session that is set up beside too many others gets no key.

use std::collections::HashMap;
use std::sync::Arc;

use super::derivation::{sealing_keys, signing_key};
use super::preauth::PreauthHash;
use super::sealing::{EncryptionCipher, SealingKeys};
use super::signature::{SigningAlgorithm, SigningKey};
use crate::ReasonCode;
use crate::credentials::kerberos::{self, AcceptedClient, ApReqError};
use crate::credentials::ntlm::{DerivedKeys, NtlmAuthenticate, NtlmChallenge};
use crate::credentials::{DelegatedAccounts, Keytab, SessionKey};
use crate::smb::config::SmbSettings;
use crate::smb::reasons;
use crate::smb::wire::header::{LENGTH, Smb2Header, command, flag, status};
use crate::smb::wire::set_up::{
    NegotiateResponse, SessionSetupResponse, dialect, is_binding, security_token,
    session_setup_token,
};

/// Sessions that may be in the middle of their set-up on one connection: clients do one at a time.
const SET_UPS_MAX: usize = 16;

/// The number of characters of a domain and of a user that are shown: names for NTLM have up to 15
/// and 20 ([MS-ADA3], sAMAccountName; [MS-NBTE] §2.2.1), and as many distinguish the others.
const SHOWN_MAX: usize = 40;

/// The same limit for a Kerberos principal, which contains a host's name and a realm, and for its
/// ticket's encryption.
const SHOWN_PRINCIPAL_MAX: usize = 120;

/// The reason why a session that signs or encrypts has no key here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MissingKeyReason {
    /// The session signs nothing: its user is a guest or anonymous.
    Keyless,
    /// The node has neither an account file nor a keytab.
    NoSecrets,
    /// The session uses Kerberos for this service, and the node has no keytab.
    NoKeytab(String),
    /// No key of the keytab opens this service's ticket.
    UnknownTicket(String),
    /// This account is not in it.
    UnknownAccount(String),
    /// The account's secret is not the one that the client has.
    WrongSecret(String),
    /// It was set up in a way that no key is derived from here: NTLM version 1, from user to user, ...
    Mechanism,
    /// ... or by a ticket that is encrypted in a way which is not known here.
    Encryption(String),
    /// The derived key does not verify the server's last answer.
    Unproven(String),
    /// The key is known, and the policy does not allow signing with it.
    Gmac(String),
    /// It is another connection's, and this one a further channel of it.
    Channel,
    /// Too many are set up at a time.
    Limit,
}

impl MissingKeyReason {
    /// For the operator, and the peer.
    pub(crate) fn reason(&self) -> ReasonCode {
        match self {
            Self::Keyless | Self::NoSecrets => ReasonCode::SIGNED,
            Self::NoKeytab(_) => ReasonCode::NO_KEYTAB,
            Self::UnknownTicket(_) => ReasonCode::UNKNOWN_TICKET,
            Self::UnknownAccount(_) => ReasonCode::UNKNOWN_ACCOUNT,
            Self::WrongSecret(_) | Self::Unproven(_) => ReasonCode::WRONG_KEY,
            Self::Mechanism | Self::Encryption(_) => ReasonCode::MECHANISM,
            Self::Gmac(_) => reasons::GMAC,
            Self::Channel => reasons::CHANNEL,
            Self::Limit => ReasonCode::LIMIT,
        }
    }

    /// Returns the account of the session, or the service that it is for.
    pub(crate) fn account(&self) -> Option<&str> {
        match self {
            Self::NoKeytab(account)
            | Self::UnknownTicket(account)
            | Self::Encryption(account)
            | Self::UnknownAccount(account)
            | Self::WrongSecret(account)
            | Self::Unproven(account)
            | Self::Gmac(account) => Some(account),
            Self::Keyless | Self::NoSecrets | Self::Mechanism | Self::Channel | Self::Limit => None,
        }
    }
}

impl From<&ApReqError> for MissingKeyReason {
    fn from(refused: &ApReqError) -> Self {
        let cut = |name: &str| cut(name, SHOWN_PRINCIPAL_MAX);
        match refused {
            ApReqError::NoKeytab(service) => Self::NoKeytab(cut(service)),
            ApReqError::NoKey(ticket) => Self::UnknownTicket(cut(ticket)),
            ApReqError::Encryption(ticket) => Self::Encryption(cut(ticket)),
            ApReqError::Mechanism => Self::Mechanism,
            ApReqError::Broken(whose) => Self::Unproven(cut(whose)),
        }
    }
}

/// The result of a session's set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetUpOutcome {
    /// With keys that the server has proved, by its signature.
    Key {
        key: HostPair<SigningKey>,
        /// The policy allows to sign with it.
        may_sign: bool,
        /// Those for encryption, if a cipher was agreed.
        sealing: Option<HostPair<SealingKeys>>,
        /// The account of the session.
        account: String,
    },
    /// Without.
    NoKey(MissingKeyReason),
}

/// A value for each of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPair<T> {
    pub(crate) at_client: T,
    pub(crate) at_server: T,
}

impl<T: PartialEq> HostPair<T> {
    /// Returns true if the two values differ.
    pub(crate) fn differ(&self) -> bool {
        self.at_client != self.at_server
    }
}

/// The negotiated parameters that keys depend on.
#[derive(Clone, Copy, Debug)]
struct NegotiatedParameters {
    dialect: u16,
    algorithm: SigningAlgorithm,
    cipher: Option<EncryptionCipher>,
}

/// An outstanding SESSION_SETUP.
#[derive(Debug)]
struct PendingSessionSetup {
    /// Before and with this request.
    before: HostPair<PreauthHash>,
    preauth: HostPair<PreauthHash>,
    challenge: Option<NtlmChallenge>,
    authenticate: Option<NtlmAuthenticate>,
    ticket: TicketResult,
    is_binding: bool,
}

impl PendingSessionSetup {
    /// The end of its ticket, if the session is set up by one.
    fn ticket_ends(&self) -> Option<u64> {
        match (&self.authenticate, &self.ticket.accepted) {
            (None, Some(Ok(accepted))) => accepted.ends,
            _ => None,
        }
    }
}

/// The result of a client's ticket, and the server's subkey, if either was present.
#[derive(Debug, Default)]
struct TicketResult {
    accepted: Option<Result<AcceptedClient, ApReqError>>,
    of_server: Option<SessionKey>,
}

impl TicketResult {
    /// Reads the server's token, if there was a ticket.
    fn answered(&mut self, token: &[u8]) {
        if let Some(Ok(accepted)) = &self.accepted {
            let subkey = accepted.subkey_of_server(token);
            self.of_server = subkey.or(self.of_server.take());
        }
    }
}

/// A session between two SESSION_SETUPs.
#[derive(Debug)]
struct PartialSession {
    preauth: HostPair<PreauthHash>,
    challenge: Option<NtlmChallenge>,
    ticket: TicketResult,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct PendingSetUps {
    accounts: Option<Arc<DelegatedAccounts>>,
    keytab: Option<Arc<Keytab>>,
    may_sign_by_gmac: bool,
    connection: PreauthHash,
    agreed: Option<NegotiatedParameters>,
    asked: HashMap<u64, PendingSessionSetup>,
    halves: HashMap<u64, PartialSession>,
    /// See [`Self::ticket_ends`].
    ticket_ends: Option<u64>,
}

impl PendingSetUps {
    pub(crate) fn new(settings: &SmbSettings) -> Self {
        Self {
            accounts: settings.accounts.clone(),
            keytab: settings.keytab.clone(),
            may_sign_by_gmac: settings.may_resign_gmac,
            connection: PreauthHash::NOTHING,
            agreed: None,
            asked: HashMap::new(),
            halves: HashMap::new(),
            ticket_ends: None,
        }
    }

    /// The end of the ticket of the last session that was set up, or set up again, in seconds since 1970.
    pub(crate) fn ticket_ends(&self) -> Option<u64> {
        self.ticket_ends
    }

    /// Returns true if a message must be handed to it, whole and as the hosts sent it.
    pub(crate) fn wants(header: &Smb2Header) -> bool {
        matches!(header.command, command::NEGOTIATE | command::SESSION_SETUP)
    }

    /// A request, without its frame, as the client has sent it.
    pub(crate) fn request(&mut self, header: &Smb2Header, message: &[u8]) {
        match header.command {
            command::NEGOTIATE => {
                self.agreed = None;
                self.connection = PreauthHash::NOTHING.and(message);
            }
            command::SESSION_SETUP => {
                let half = self.halves.remove(&header.session);
                if self.asked.len() >= SET_UPS_MAX {
                    return;
                }
                let half = half.unwrap_or_else(|| PartialSession::before(self.connection));
                let token = session_setup_token(message).unwrap_or_default();
                let ticket = match kerberos::accept(token, self.keytab.as_deref()) {
                    None => half.ticket,
                    accepted => TicketResult {
                        accepted,
                        of_server: None,
                    },
                };
                let asked = PendingSessionSetup {
                    before: half.preauth,
                    preauth: half.preauth.and(message, message),
                    challenge: half.challenge,
                    authenticate: NtlmAuthenticate::find(token),
                    ticket,
                    is_binding: is_binding(message),
                };
                self.asked.insert(header.message_id, asked);
            }
            _ => {}
        }
    }

    /// The same request, which the client knows under this id, as the server gets it.
    pub(crate) fn sent(&mut self, message_id: u64, message: &[u8]) {
        if let Some(asked) = self.asked.get_mut(&message_id) {
            asked.preauth.at_server = asked.before.at_server.and(message);
        }
    }

    /// Handles an answer, without its frame, as the server has sent it and as the client gets it.
    /// Returns the outcome of a session, if its set-up ends with it.
    pub(crate) fn answer(
        &mut self,
        header: &Smb2Header,
        message: &[u8],
        passed: &[u8],
    ) -> Option<SetUpOutcome> {
        match (header.command, header.status) {
            (command::NEGOTIATE, status::SUCCESS) => {
                self.connection = self.connection.and(message);
                self.agreed = agreed(message);
                None
            }
            (command::SESSION_SETUP, status::MORE_PROCESSING_REQUIRED) => {
                let mut asked = self.asked.remove(&header.message_id)?;
                if self.halves.len() < SET_UPS_MAX {
                    let token = security_token(message).unwrap_or_default();
                    asked.ticket.answered(token);
                    let half = PartialSession {
                        preauth: asked.preauth.and(passed, message),
                        challenge: NtlmChallenge::find(token),
                        ticket: asked.ticket,
                    };
                    self.halves.insert(header.session, half);
                }
                None
            }
            (command::SESSION_SETUP, status::SUCCESS) => {
                let asked = self.asked.remove(&header.message_id);
                self.ticket_ends = asked.as_ref().and_then(PendingSessionSetup::ticket_ends);
                let is_keyless = SessionSetupResponse::parse(&message[LENGTH..])
                    .is_ok_and(SessionSetupResponse::is_without_key);
                Some(match (is_keyless, asked) {
                    (true, _) => SetUpOutcome::NoKey(MissingKeyReason::Keyless),
                    (false, None) => SetUpOutcome::NoKey(MissingKeyReason::Limit),
                    (false, Some(asked)) => self.outcome(asked, header, message),
                })
            }
            // [MS-SMB2] §3.3.4.2 (Sending an Interim Response): the answer is still to come.
            (command::SESSION_SETUP, status::PENDING) if header.has(flag::ASYNC) => None,
            (command::SESSION_SETUP, _) => {
                self.asked.remove(&header.message_id);
                None
            }
            _ => None,
        }
    }

    fn outcome(
        &self,
        mut asked: PendingSessionSetup,
        header: &Smb2Header,
        message: &[u8],
    ) -> SetUpOutcome {
        let token = security_token(message).unwrap_or_default();
        asked.ticket.answered(token);
        match self.find_key(&asked, header, message) {
            Ok(outcome) => outcome,
            Err(no_key) => SetUpOutcome::NoKey(no_key),
        }
    }

    fn find_key(
        &self,
        asked: &PendingSessionSetup,
        header: &Smb2Header,
        message: &[u8],
    ) -> Result<SetUpOutcome, MissingKeyReason> {
        if asked.is_binding && self.has_secrets() {
            return Err(MissingKeyReason::Channel);
        }
        let (account, keys) = self.candidates(asked)?;
        let agreed = self.agreed.ok_or(MissingKeyReason::Mechanism)?;
        let (dialect, preauth) = (agreed.dialect, asked.preauth);
        let proved = keys
            .iter()
            .map(|key| {
                let signing = preauth.map(|preauth| {
                    signing_key(dialect, agreed.algorithm, &key.first(), &preauth.0)
                });
                (key, signing)
            })
            .find(|(_, signing)| {
                header.has(flag::SIGNED) && signing.at_server.verify(message).is_some()
            });
        let Some((session_key, key)) = proved else {
            return Err(MissingKeyReason::Unproven(account));
        };
        let sealing = agreed.cipher.map(|cipher| {
            preauth.map(|preauth| sealing_keys(dialect, cipher, session_key, &preauth.0))
        });
        let is_gmac = key.at_server.algorithm() == SigningAlgorithm::AesGmac;
        let may_sign = !is_gmac || self.may_sign_by_gmac;
        match may_sign || sealing.is_some() {
            false => Err(MissingKeyReason::Gmac(account)),
            true => Ok(SetUpOutcome::Key {
                key,
                may_sign,
                sealing,
                account,
            }),
        }
    }

    /// Returns the possible session keys of the exchange, the likeliest first, and its account.
    fn candidates(
        &self,
        asked: &PendingSessionSetup,
    ) -> Result<(String, Vec<SessionKey>), MissingKeyReason> {
        match (
            &asked.authenticate,
            &asked.challenge,
            &asked.ticket.accepted,
        ) {
            (Some(authenticate), Some(challenge), _) => self.by_ntlm(authenticate, challenge),
            (_, _, Some(Ok(accepted))) => {
                let client = cut(&accepted.client, SHOWN_PRINCIPAL_MAX);
                let keys = accepted.candidates(asked.ticket.of_server.as_ref());
                Ok((client, keys))
            }
            (_, _, Some(Err(refused))) => Err(refused.into()),
            (_, _, None) if self.has_secrets() => Err(MissingKeyReason::Mechanism),
            (_, _, None) => Err(MissingKeyReason::NoSecrets),
        }
    }

    fn has_secrets(&self) -> bool {
        self.accounts.is_some() || self.keytab.is_some()
    }

    fn by_ntlm(
        &self,
        authenticate: &NtlmAuthenticate,
        challenge: &NtlmChallenge,
    ) -> Result<(String, Vec<SessionKey>), MissingKeyReason> {
        if !self.has_secrets() {
            return Err(MissingKeyReason::NoSecrets);
        }
        if authenticate.is_anonymous() {
            return Err(MissingKeyReason::Keyless);
        }
        if authenticate.is_version_1() {
            return Err(MissingKeyReason::Mechanism);
        }
        let (domain, user) = (authenticate.domain(), authenticate.user());
        let account = shown(&domain, &user);
        let mut is_known = false;
        for hash in self.accounts.iter().flat_map(|of| of.find(&domain, &user)) {
            is_known = true;
            if let DerivedKeys::Keys(keys) = authenticate.derive(hash, challenge) {
                let keys = keys.iter().map(|key| SessionKey::new(&key[..]));
                return Ok((account, keys.collect()));
            }
        }
        Err(match is_known {
            true => MissingKeyReason::WrongSecret(account),
            false => MissingKeyReason::UnknownAccount(account),
        })
    }
}

impl PartialSession {
    /// The hashes before a session that begins on this connection.
    fn before(connection: PreauthHash) -> Self {
        Self {
            preauth: HostPair {
                at_client: connection,
                at_server: connection,
            },
            challenge: None,
            ticket: TicketResult::default(),
        }
    }
}

impl HostPair<PreauthHash> {
    /// With a message more, as client and server have it.
    fn and(self, at_client: &[u8], at_server: &[u8]) -> Self {
        Self {
            at_client: self.at_client.and(at_client),
            at_server: self.at_server.and(at_server),
        }
    }

    /// Maps the value at each end.
    fn map<T>(&self, follow: impl Fn(&PreauthHash) -> T) -> HostPair<T> {
        HostPair {
            at_client: follow(&self.at_client),
            at_server: follow(&self.at_server),
        }
    }
}

/// An account for people. Any host may have sent it, and has proved nothing.
fn shown(domain: &str, user: &str) -> String {
    format!("{}\\{}", cut(domain, SHOWN_MAX), cut(user, SHOWN_MAX))
}

/// So many characters of a name.
fn cut(name: &str, count: usize) -> String {
    let mut shown: String = name.chars().take(count).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    vocab::printable(&shown)
}

fn agreed(message: &[u8]) -> Option<NegotiatedParameters> {
    let answer = NegotiateResponse::parse(&message[LENGTH..]).ok()?;
    let algorithm = match answer.dialect {
        dialect::WILDCARD => return None,
        ..dialect::SMB_3_0 => SigningAlgorithm::HmacSha256,
        dialect::SMB_3_0..dialect::SMB_3_1_1 => SigningAlgorithm::AesCmac,
        // [MS-SMB2] §3.2.5.2: AES-CMAC where the server says nothing.
        dialect::SMB_3_1_1.. => match NegotiateResponse::signing_algorithm(message).ok()? {
            None => SigningAlgorithm::AesCmac,
            Some(number) => SigningAlgorithm::from_number(number)?,
        },
    };
    let cipher = match answer.dialect {
        ..dialect::SMB_3_0 => None,
        dialect::SMB_3_0..dialect::SMB_3_1_1 => Some(EncryptionCipher::Aes128Ccm),
        dialect::SMB_3_1_1.. => NegotiateResponse::cipher(message)
            .ok()?
            .and_then(EncryptionCipher::from_number),
    };
    Some(NegotiatedParameters {
        dialect: answer.dialect,
        algorithm,
        cipher,
    })
}

#[cfg(test)]
#[path = "set_up_tests.rs"]
mod tests;
