//! Watches connections and sessions being set up, and comes to their keys.
//!
//! ```text
//!  NEGOTIATE →  ← NEGOTIATE      what was agreed; the connection's hash
//!  SESSION_SETUP →               the session's hash goes on from there
//!  ← SESSION_SETUP (more)        the server's challenge
//!  SESSION_SETUP →               the client's answer to it: whose account, which proof
//!  ← SESSION_SETUP (success)     signed: this proves the key, or there is none
//! ```
//! Of requests only what these steps need is kept, and of a few at a time: a session that is set up
//! beside too many others goes without a key.

use std::collections::HashMap;
use std::sync::Arc;

use super::accounts::Accounts;
use super::derivation::{sealing_keys, signing_key};
use super::ntlm::{Authenticate, Challenge, Derived};
use super::preauth::Preauth;
use super::sealing::{Cipher, SealingKeys};
use super::signature::{Algorithm, SigningKey};
use crate::LetGoReason;
use crate::smb::wire::header::{Header, LENGTH, command, flag, status};
use crate::smb::wire::set_up::{
    NegotiateAnswer, SessionSetupAnswer, dialect, is_binding, security_token, session_setup_token,
};

/// Sessions that may be in the middle of their set-up on one connection: clients do one at a time.
const SET_UPS_MAX: usize = 16;

/// Characters of a domain and of a user that are shown: names for NTLM have up to 15 and 20 ([MS-ADA3],
/// sAMAccountName; [MS-NBTE] §2.2.1), those of others are told apart by as many.
const SHOWN_MAX: usize = 40;

/// Why a session that signs or encrypts goes without a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// It signs nothing: its user is a guest or nobody.
    Keyless,
    /// The node has no account file.
    NoAccounts,
    /// This account is not in it.
    UnknownAccount(String),
    /// The account's secret is not the one that the client has.
    WrongSecret(String),
    /// It was set up in a way that no key is derived from here: Kerberos, NTLM version 1.
    Mechanism,
    /// What was derived does not verify the server's last answer.
    Unproven(String),
    /// The key is there, and the policy does not allow to sign with it.
    Gmac(String),
    /// It is another connection's, and this one a further channel of it.
    Channel,
    /// Too many are set up at a time.
    Limit,
}

impl NoKey {
    /// For the operator, and the peer.
    pub(crate) fn reason(&self) -> LetGoReason {
        match self {
            Self::Keyless | Self::NoAccounts => LetGoReason::Signed,
            Self::UnknownAccount(_) => LetGoReason::UnknownAccount,
            Self::WrongSecret(_) | Self::Unproven(_) => LetGoReason::WrongKey,
            Self::Mechanism => LetGoReason::Mechanism,
            Self::Gmac(_) => LetGoReason::Gmac,
            Self::Channel => LetGoReason::Unsupported,
            Self::Limit => LetGoReason::Limit,
        }
    }

    /// Whose session it is.
    pub(crate) fn account(&self) -> Option<&str> {
        match self {
            Self::UnknownAccount(account)
            | Self::WrongSecret(account)
            | Self::Unproven(account)
            | Self::Gmac(account) => Some(account),
            Self::Keyless | Self::NoAccounts | Self::Mechanism | Self::Channel | Self::Limit => {
                None
            }
        }
    }
}

/// How a session's set-up ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// With keys that the server has proved, by its signature.
    Key {
        key: SigningKey,
        /// The policy allows to sign with it.
        may_sign: bool,
        /// Those for encryption, if a cipher was agreed.
        sealing: Option<SealingKeys>,
        /// Whose they are.
        account: String,
    },
    /// Without.
    NoKey(NoKey),
}

/// What was agreed, as far as keys depend on it.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    dialect: u16,
    algorithm: Algorithm,
    cipher: Option<Cipher>,
}

/// A SESSION_SETUP under way.
#[derive(Debug)]
struct Asked {
    preauth: Preauth,
    challenge: Option<Challenge>,
    authenticate: Option<Authenticate>,
    is_binding: bool,
}

/// A session between two SESSION_SETUPs.
#[derive(Debug)]
struct Half {
    preauth: Preauth,
    challenge: Option<Challenge>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct SetUps {
    accounts: Option<Arc<Accounts>>,
    may_sign_by_gmac: bool,
    connection: Preauth,
    agreed: Option<Agreed>,
    asked: HashMap<u64, Asked>,
    halves: HashMap<u64, Half>,
}

impl SetUps {
    pub(crate) fn new(accounts: Option<Arc<Accounts>>, may_sign_by_gmac: bool) -> Self {
        Self {
            accounts,
            may_sign_by_gmac,
            connection: Preauth::NOTHING,
            agreed: None,
            asked: HashMap::new(),
            halves: HashMap::new(),
        }
    }

    /// Whether a message has to be shown to it, whole and as the hosts sent it.
    pub(crate) fn wants(header: &Header) -> bool {
        matches!(header.command, command::NEGOTIATE | command::SESSION_SETUP)
    }

    /// A request, without its frame.
    pub(crate) fn request(&mut self, header: &Header, message: &[u8]) {
        match header.command {
            command::NEGOTIATE => {
                self.agreed = None;
                self.connection = Preauth::NOTHING.and(message);
            }
            command::SESSION_SETUP => {
                let half = self.halves.remove(&header.session);
                if self.asked.len() >= SET_UPS_MAX {
                    return;
                }
                let before = half.as_ref().map_or(self.connection, |half| half.preauth);
                let token = session_setup_token(message).unwrap_or_default();
                let asked = Asked {
                    preauth: before.and(message),
                    challenge: half.and_then(|half| half.challenge),
                    authenticate: Authenticate::find(token),
                    is_binding: is_binding(message),
                };
                self.asked.insert(header.message_id, asked);
            }
            _ => {}
        }
    }

    /// An answer, without its frame; what became of a session, if its set-up ends with it.
    pub(crate) fn answer(&mut self, header: &Header, message: &[u8]) -> Option<Outcome> {
        match (header.command, header.status) {
            (command::NEGOTIATE, status::SUCCESS) => {
                self.connection = self.connection.and(message);
                self.agreed = agreed(message);
                None
            }
            (command::SESSION_SETUP, status::MORE_PROCESSING_REQUIRED) => {
                let asked = self.asked.remove(&header.message_id)?;
                if self.halves.len() < SET_UPS_MAX {
                    let token = security_token(message).unwrap_or_default();
                    let half = Half {
                        preauth: asked.preauth.and(message),
                        challenge: Challenge::find(token),
                    };
                    self.halves.insert(header.session, half);
                }
                None
            }
            (command::SESSION_SETUP, status::SUCCESS) => {
                let asked = self.asked.remove(&header.message_id);
                let is_keyless = SessionSetupAnswer::parse(&message[LENGTH..])
                    .is_ok_and(SessionSetupAnswer::is_without_key);
                Some(match (is_keyless, asked) {
                    (true, _) => Outcome::NoKey(NoKey::Keyless),
                    (false, None) => Outcome::NoKey(NoKey::Limit),
                    (false, Some(asked)) => self.find_key(&asked, header, message),
                })
            }
            (command::SESSION_SETUP, _) => {
                self.asked.remove(&header.message_id);
                None
            }
            _ => None,
        }
    }

    fn find_key(&self, asked: &Asked, header: &Header, message: &[u8]) -> Outcome {
        let Some(accounts) = &self.accounts else {
            return Outcome::NoKey(NoKey::NoAccounts);
        };
        let (Some(authenticate), Some(challenge), Some(agreed)) =
            (&asked.authenticate, &asked.challenge, self.agreed)
        else {
            return Outcome::NoKey(NoKey::Mechanism);
        };
        if asked.is_binding {
            return Outcome::NoKey(NoKey::Channel);
        }
        if authenticate.is_anonymous() {
            return Outcome::NoKey(NoKey::Keyless);
        }
        if authenticate.is_version_1() {
            return Outcome::NoKey(NoKey::Mechanism);
        }
        let account = shown(&authenticate.domain(), &authenticate.user());
        let mut is_known = false;
        for hash in accounts.find(&authenticate.domain(), &authenticate.user()) {
            is_known = true;
            let Derived::Keys(keys) = authenticate.derive(hash, challenge) else {
                continue;
            };
            let proved = keys
                .iter()
                .map(|key| {
                    let (dialect, preauth) = (agreed.dialect, &asked.preauth.0);
                    let signing = signing_key(dialect, agreed.algorithm, key, preauth);
                    (key, signing)
                })
                .find(|(_, signing)| header.has(flag::SIGNED) && signing.verify(message).is_some());
            let Some((session_key, key)) = proved else {
                return Outcome::NoKey(NoKey::Unproven(account));
            };
            let sealing = agreed
                .cipher
                .map(|cipher| sealing_keys(agreed.dialect, cipher, session_key, &asked.preauth.0));
            let may_sign = key.algorithm() != Algorithm::AesGmac || self.may_sign_by_gmac;
            return match may_sign || sealing.is_some() {
                false => Outcome::NoKey(NoKey::Gmac(account)),
                true => Outcome::Key {
                    key,
                    may_sign,
                    sealing,
                    account,
                },
            };
        }
        Outcome::NoKey(match is_known {
            true => NoKey::WrongSecret(account),
            false => NoKey::UnknownAccount(account),
        })
    }
}

/// An account for people. Any host may have sent it, and has proved nothing.
fn shown(domain: &str, user: &str) -> String {
    let cut = |name: &str| {
        let mut shown: String = name.chars().take(SHOWN_MAX).collect();
        if shown.len() < name.len() {
            shown.push('…');
        }
        vocab::printable(&shown)
    };
    format!("{}\\{}", cut(domain), cut(user))
}

fn agreed(message: &[u8]) -> Option<Agreed> {
    let answer = NegotiateAnswer::parse(&message[LENGTH..]).ok()?;
    let algorithm = match answer.dialect {
        dialect::WILDCARD => return None,
        ..dialect::SMB_3_0 => Algorithm::HmacSha256,
        dialect::SMB_3_0..dialect::SMB_3_1_1 => Algorithm::AesCmac,
        // [MS-SMB2] §3.2.5.2: AES-CMAC where the server says nothing.
        dialect::SMB_3_1_1.. => match NegotiateAnswer::signing_algorithm(message).ok()? {
            None => Algorithm::AesCmac,
            Some(number) => Algorithm::from_number(number)?,
        },
    };
    let cipher = match answer.dialect {
        ..dialect::SMB_3_0 => None,
        dialect::SMB_3_0..dialect::SMB_3_1_1 => Some(Cipher::Aes128Ccm),
        dialect::SMB_3_1_1.. => NegotiateAnswer::cipher(message)
            .ok()?
            .and_then(Cipher::from_number),
    };
    Some(Agreed {
        dialect: answer.dialect,
        algorithm,
        cipher,
    })
}

#[cfg(test)]
#[path = "set_up_tests.rs"]
mod tests;
