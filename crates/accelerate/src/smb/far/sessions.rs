//! The sessions whose set-up has passed: with which keys they are signed and encrypted, or why there
//! are none.

use std::collections::BTreeMap;

use vocab::Time;

use crate::ReasonCode;
use crate::smb::config::{SESSION_ENDS_WITHIN, TREES_MAX};
use crate::smb::keys::{
    HostPair, MessageSealer, MissingKeyReason, NONCE_SEED_LENGTH, SealingKey, SealingKeys,
    SetUpOutcome, SigningAlgorithm, SigningKey,
};
use crate::smb::reasons;

/// A session whose keys are known.
#[derive(Debug)]
struct KeyedSession {
    key: HostPair<SigningKey>,
    /// The policy allows to sign with it.
    may_sign: bool,
    sealing: Option<SessionSealing>,
    account: String,
    /// The near half has the key.
    is_reported: bool,
    /// The end of its ticket, if it is known.
    ends: Option<Time>,
    /// The end is near.
    is_ending: bool,
    /// It was logged off, and answers to earlier requests may still arrive.
    has_ended: bool,
}

impl KeyedSession {
    /// The time from which no WRITE may be answered that the server could refuse.
    fn ending_from(&self) -> Option<Time> {
        let ends = self.ends?.as_nanos();
        let margin = SESSION_ENDS_WITHIN.as_nanos() as u64;
        Some(Time::from_nanos(ends.saturating_sub(margin)))
    }
}

/// The keys that open and seal the encrypted messages of a session.
#[derive(Debug)]
struct SessionSealing {
    keys: HostPair<SealingKeys>,
    /// The sealer of messages to the server in the client's place.
    sealer: MessageSealer,
    /// True if one of the keys has decrypted a message, which proves both: they follow from the
    /// same session key, and the server has proved itself.
    is_proved: bool,
    is_reported: bool,
}

/// The host that sent an encrypted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageSender {
    Client,
    Server,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct SessionTable {
    keyed: BTreeMap<u64, KeyedSession>,
    keyless: BTreeMap<u64, MissingKeyReason>,
}

impl SessionTable {
    /// Records an established session. Its earlier state remains: a reauthenticated session keeps
    /// its key ([MS-SMB2] §3.3.5.5.2, Reauthenticating an Existing Session).
    pub(super) fn insert(
        &mut self,
        session: u64,
        outcome: SetUpOutcome,
        chance: [u8; NONCE_SEED_LENGTH],
    ) {
        let count = self.keyed.len() + self.keyless.len();
        if self.stands(session) || count >= TREES_MAX {
            return;
        }
        match outcome {
            SetUpOutcome::Key {
                key,
                may_sign,
                sealing,
                account,
            } => {
                let keyed = KeyedSession {
                    key,
                    may_sign,
                    sealing: sealing.map(|keys| SessionSealing {
                        sealer: MessageSealer::new(keys.at_server.client.clone(), chance),
                        keys,
                        is_proved: false,
                        is_reported: false,
                    }),
                    account,
                    is_reported: false,
                    ends: None,
                    is_ending: false,
                    has_ended: false,
                };
                self.keyed.insert(session, keyed);
            }
            SetUpOutcome::NoKey(no_key) => {
                self.keyless.insert(session, no_key);
            }
        }
    }

    /// A session was set up, perhaps again, by a ticket with this end.
    pub(super) fn lasts_until(&mut self, session: u64, ends: Option<Time>) {
        if let Some(keyed) = self.keyed.get_mut(&session) {
            (keyed.ends, keyed.is_ending) = (ends, false);
        }
    }

    /// The time at which the next session is about to end.
    pub(super) fn next_ending(&self) -> Option<Time> {
        let lasting = self.keyed.values().filter(|keyed| !keyed.is_ending);
        lasting.filter_map(KeyedSession::ending_from).min()
    }

    /// The sessions that are about to end from now on.
    pub(super) fn take_ending(&mut self, now: Time) -> Vec<u64> {
        let mut ending = Vec::new();
        for (session, keyed) in &mut self.keyed {
            let is_due = keyed.ending_from().is_some_and(|from| from <= now);
            if is_due && !std::mem::replace(&mut keyed.is_ending, true) {
                ending.push(*session);
            }
        }
        ending
    }

    /// Returns true if the server will soon refuse the session's requests, or has begun to. One that still takes
    /// them later does not end sessions with their tickets.
    pub(super) fn is_ending(&self, now: Time, session: u64) -> bool {
        let keyed = self.keyed.get(&session);
        keyed.is_some_and(|keyed| {
            let is_near = keyed.ending_from().is_some_and(|from| from <= now);
            is_near
                && keyed
                    .ends
                    .is_some_and(|ends| now < ends + SESSION_ENDS_WITHIN)
        })
    }

    /// A session was logged off. Its key stays until it is forgotten.
    pub(super) fn end(&mut self, session: u64) {
        self.keyless.remove(&session);
        if let Some(keyed) = self.keyed.get_mut(&session) {
            keyed.has_ended = true;
        }
    }

    /// Returns true if the session's keys are known and it was not logged off.
    pub(super) fn stands(&self, session: u64) -> bool {
        self.keyed.get(&session).is_some_and(|of| !of.has_ended)
    }

    /// Returns true if a session was logged off, and its key is still here.
    pub(super) fn has_ended(&self, session: u64) -> bool {
        self.keyed
            .get(&session)
            .is_some_and(|keyed| keyed.has_ended)
    }

    /// Forgets an ended session without outstanding signed answers. Returns true if the near half
    /// has its key.
    pub(super) fn forget(&mut self, session: u64) -> bool {
        self.keyed.remove(&session).is_some_and(|keyed| {
            keyed.is_reported || keyed.sealing.is_some_and(|sealing| sealing.is_reported)
        })
    }

    /// Returns true if the session's keys are known, which proves that it belongs to a user.
    pub(super) fn is_keyed(&self, session: u64) -> bool {
        self.keyed.contains_key(&session)
    }

    /// The key that the client signs the session's messages with, where that is allowed.
    pub(super) fn client_key(&self, session: u64) -> Option<&SigningKey> {
        let keyed = self.keyed.get(&session).filter(|keyed| keyed.may_sign)?;
        Some(&keyed.key.at_client)
    }

    /// Returns the same of the server.
    pub(super) fn server_key(&self, session: u64) -> Option<&SigningKey> {
        let keyed = self.keyed.get(&session).filter(|keyed| keyed.may_sign)?;
        Some(&keyed.key.at_server)
    }

    /// Returns the client's key, if the near half must receive it first.
    pub(super) fn key_to_tell(&mut self, session: u64) -> Option<SigningKey> {
        let keyed = self
            .keyed
            .get_mut(&session)
            .filter(|keyed| keyed.may_sign)?;
        let is_told = std::mem::replace(&mut keyed.is_reported, true);
        (!is_told).then(|| keyed.key.at_client.clone())
    }

    /// Returns the reason why nothing can be signed in a session, and its account.
    pub(super) fn why_no_key(&self, session: u64) -> (ReasonCode, Option<String>) {
        match (self.keyless.get(&session), self.keyed.get(&session)) {
            (Some(no_key), _) => (no_key.reason(), no_key.account().map(str::to_owned)),
            (None, Some(keyed)) => match keyed.key.at_server.algorithm() {
                SigningAlgorithm::AesGmac => (reasons::GMAC, Some(keyed.account.clone())),
                SigningAlgorithm::HmacSha256 | SigningAlgorithm::AesCmac => {
                    (ReasonCode::SIGNED, None)
                }
            },
            (None, None) => (ReasonCode::SIGNED, None),
        }
    }

    /// Decrypts a message, without its frame. The error gives the reason and the account.
    pub(super) fn open(
        &mut self,
        session: u64,
        sender: MessageSender,
        message: &[u8],
    ) -> Result<Vec<u8>, (ReasonCode, Option<String>)> {
        let keyed = self.keyed.get_mut(&session);
        let Some((account, sealing)) =
            keyed.and_then(|keyed| Some((&keyed.account, keyed.sealing.as_mut()?)))
        else {
            return Err(self.why_not_opened(session));
        };
        let key: &SealingKey = match sender {
            MessageSender::Client => &sealing.keys.at_client.client,
            MessageSender::Server => &sealing.keys.at_server.server,
        };
        match key.open(message) {
            Some(plain) => {
                sealing.is_proved = true;
                Ok(plain)
            }
            None if sealing.is_proved => Err((ReasonCode::FORGED, None)),
            None => Err((ReasonCode::WRONG_KEY, Some(account.clone()))),
        }
    }

    fn why_not_opened(&self, session: u64) -> (ReasonCode, Option<String>) {
        match self.keyless.get(&session) {
            Some(
                MissingKeyReason::Keyless | MissingKeyReason::NoSecrets | MissingKeyReason::Gmac(_),
            )
            | None => (ReasonCode::ENCRYPTED, None),
            Some(no_key) => (no_key.reason(), no_key.account().map(str::to_owned)),
        }
    }

    /// Returns true if the session's keys have decrypted a host's message.
    pub(super) fn is_proved(&self, session: u64) -> bool {
        let sealing = self.keyed.get(&session).and_then(|of| of.sealing.as_ref());
        sealing.is_some_and(|sealing| sealing.is_proved)
    }

    /// Encrypts a message in the client's place; `None` when the key may not be used any more.
    pub(super) fn seal<'a>(
        &mut self,
        session: u64,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Vec<u8>> {
        let sealing = self.keyed.get_mut(&session)?.sealing.as_mut()?;
        sealing.sealer.seal(session, parts)
    }

    /// The keys for encryption that are proved and that the near half has not.
    pub(super) fn sealing_to_tell(&mut self) -> Vec<(u64, SealingKeys)> {
        let mut untold = Vec::new();
        for (session, keyed) in &mut self.keyed {
            let sealing = keyed.sealing.as_mut();
            if let Some(sealing) = sealing.filter(|of| of.is_proved && !of.is_reported) {
                sealing.is_reported = true;
                untold.push((*session, sealing.keys.at_client.clone()));
            }
        }
        untold.sort_unstable_by_key(|(session, _)| *session);
        untold
    }

    /// For whom is signed and encrypted, for people.
    pub(super) fn text(&self) -> Option<String> {
        let (mut signed, mut sealed) = (Vec::new(), Vec::new());
        for keyed in self.keyed.values() {
            match &keyed.sealing {
                Some(sealing) if sealing.is_proved => {
                    let cipher = sealing.keys.at_server.client.cipher().name();
                    sealed.push(format!("{} ({cipher})", keyed.account));
                }
                _ if keyed.may_sign => {
                    let algorithm = keyed.key.at_server.algorithm().name();
                    signed.push(format!("{} ({algorithm})", keyed.account));
                }
                _ => {}
            }
        }
        let mut texts = Vec::new();
        for (what, mut whom) in [("signed", signed), ("encrypted", sealed)] {
            whom.sort();
            whom.dedup();
            if !whom.is_empty() {
                texts.push(format!("{what} for {}", whom.join(", ")));
            }
        }
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}
