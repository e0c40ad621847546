//! The sessions whose set-up has passed: with which key they are signed, or why there is none.

use std::collections::HashMap;

use crate::LetGoReason;
use crate::smb::config::TREES_MAX;
use crate::smb::keys::{NoKey, Outcome, SigningKey};

/// A session that is signed with a key that is known.
#[derive(Debug)]
struct Keyed {
    key: SigningKey,
    account: String,
    /// The near half has the key.
    is_told: bool,
    /// It was logged off, and answers to what was asked before may still come.
    has_ended: bool,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    keyed: HashMap<u64, Keyed>,
    keyless: HashMap<u64, NoKey>,
}

impl Sessions {
    /// A session stands. What was known of it remains: who proves again who they are goes on with the
    /// session's key ([MS-SMB2] §3.3.5.5.2, Reauthenticating an Existing Session).
    pub(super) fn insert(&mut self, session: u64, outcome: Outcome) {
        let count = self.keyed.len() + self.keyless.len();
        let stands = self.keyed.get(&session).is_some_and(|of| !of.has_ended);
        if stands || count >= TREES_MAX {
            return;
        }
        match outcome {
            Outcome::Key { key, account } => {
                let keyed = Keyed {
                    key,
                    account,
                    is_told: false,
                    has_ended: false,
                };
                self.keyed.insert(session, keyed);
            }
            Outcome::NoKey(no_key) => {
                self.keyless.insert(session, no_key);
            }
        }
    }

    /// A session was logged off. Its key stays until it is forgotten.
    pub(super) fn end(&mut self, session: u64) {
        self.keyless.remove(&session);
        if let Some(keyed) = self.keyed.get_mut(&session) {
            keyed.has_ended = true;
        }
    }

    /// Whether a session was logged off, and its key is still here.
    pub(super) fn has_ended(&self, session: u64) -> bool {
        self.keyed
            .get(&session)
            .is_some_and(|keyed| keyed.has_ended)
    }

    /// Nothing signed by a session that has ended is to come; whether the near half has its key.
    pub(super) fn forget(&mut self, session: u64) -> bool {
        self.keyed
            .remove(&session)
            .is_some_and(|keyed| keyed.is_told)
    }

    /// The session's key.
    pub(super) fn key(&self, session: u64) -> Option<&SigningKey> {
        Some(&self.keyed.get(&session)?.key)
    }

    /// The session's key, if the near half must be told of it first.
    pub(super) fn key_to_tell(&mut self, session: u64) -> Option<SigningKey> {
        let keyed = self.keyed.get_mut(&session)?;
        let is_told = std::mem::replace(&mut keyed.is_told, true);
        (!is_told).then(|| keyed.key.clone())
    }

    /// Why there is no key, and whose session it is.
    pub(super) fn why_no_key(&self, session: u64) -> (LetGoReason, Option<String>) {
        match self.keyless.get(&session) {
            Some(no_key) => (no_key.reason(), no_key.account().map(str::to_owned)),
            None => (LetGoReason::Signed, None),
        }
    }

    /// For whom is signed, for people.
    pub(super) fn text(&self) -> Option<String> {
        let mut signed: Vec<String> = self
            .keyed
            .values()
            .map(|keyed| {
                let algorithm = keyed.key.algorithm().name();
                format!("{} ({algorithm})", keyed.account)
            })
            .collect();
        signed.sort();
        signed.dedup();
        (!signed.is_empty()).then(|| format!("signed for {}", signed.join(", ")))
    }
}
