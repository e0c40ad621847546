//! Start of a session: the greeting, and the proofs that both ends hold the same key.
//!
//! ```text
//!  client ◄── Hello (nonce) ────────────── server
//!         ─── Authenticate (nonce, proof) ─►        or Join, on a connection of a run
//!         ◄── Welcome (proof, limits) ─────         or Refused
//! ```

use std::time::Duration;

use thiserror::Error;

use super::error::message_name;
use crate::wire::{
    ControlMessage, JoinMessage, KeyProof, ServerLimits, ServerRefusal, SessionKey, SessionNonce,
    SessionRole, SharedKey, VERSION,
};

/// Why a client does not begin a session.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GreetingError {
    /// The first message is no greeting.
    #[error("it is not a `trunkline measure server`")]
    Foreign,
    /// No common version.
    #[error(
        "the server supports versions {oldest} to {newest} of the protocol, and this program supports \
         version {VERSION}; use the same release at both ends"
    )]
    Version {
        /// The server's oldest version.
        oldest: u16,
        /// The server's newest version.
        newest: u16,
    },
    /// The server's proof is wrong.
    #[error("the server does not have the same key as this program")]
    WrongKey,
    /// The server refuses, with its text.
    #[error("the server refuses the test: {0}")]
    Refused(String),
    /// The server refuses for a while, with its text.
    #[error("the server refuses the test: {0}; try again after this time")]
    Later(String),
    /// The server sent this message instead of an answer.
    #[error("the server said `{0}` where it should not")]
    Unexpected(String),
}

/// Facts that a client learns in the greeting.
#[derive(Clone, Debug)]
pub struct GreetedServer {
    /// Number of the session.
    pub session: u64,
    /// Key of the session.
    pub key: SessionKey,
    /// Limits of the server.
    pub limits: ServerLimits,
    /// Remarks about the server's host.
    pub remarks: String,
}

/// Client's part in the greeting.
#[derive(Debug)]
pub struct ClientGreeting {
    key: SharedKey,
    nonce: SessionNonce,
    dscp: u8,
    server_nonce: SessionNonce,
}

impl ClientGreeting {
    /// A greeting with the key of these words; `nonce` is fresh random bytes.
    #[must_use]
    pub fn new(words: &str, nonce: SessionNonce, dscp: u8) -> Self {
        Self {
            key: SharedKey::from_words(words),
            nonce,
            dscp,
            server_nonce: SessionNonce::default(),
        }
    }

    /// The answer to the server's first message.
    ///
    /// # Errors
    /// Fails when it is not the greeting of a server that speaks this version.
    pub fn answer(&mut self, hello: &ControlMessage) -> Result<ControlMessage, GreetingError> {
        let ControlMessage::Hello {
            oldest,
            newest,
            nonce,
        } = hello
        else {
            return Err(GreetingError::Foreign);
        };
        if !(*oldest..=*newest).contains(&VERSION) {
            return Err(GreetingError::Version {
                oldest: *oldest,
                newest: *newest,
            });
        }
        self.server_nonce = *nonce;
        Ok(ControlMessage::Authenticate {
            version: VERSION,
            dscp: self.dscp,
            nonce: self.nonce,
            proof: self
                .key
                .prove(SessionRole::Client, VERSION, &self.nonce, nonce),
        })
    }

    /// Checks the server's second message.
    ///
    /// # Errors
    /// Fails when the server refuses, or does not hold the key.
    pub fn finish(self, answer: ControlMessage) -> Result<GreetedServer, GreetingError> {
        match answer {
            ControlMessage::Welcome {
                proof,
                session,
                limits,
                remarks,
            } => {
                let (own, theirs) = (&self.nonce, &self.server_nonce);
                if !self
                    .key
                    .verify(&proof, SessionRole::Server, VERSION, own, theirs)
                {
                    return Err(GreetingError::WrongKey);
                }
                Ok(GreetedServer {
                    session,
                    key: self.key.session(own, theirs),
                    limits,
                    remarks,
                })
            }
            ControlMessage::Refused { text, retry, .. } if !retry.is_zero() => {
                Err(GreetingError::Later(text))
            }
            ControlMessage::Refused { text, .. } => Err(GreetingError::Refused(text)),
            other => Err(GreetingError::Unexpected(message_name(&other))),
        }
    }
}

/// Client that has shown that it holds the key.
#[derive(Clone, Debug)]
pub struct AuthenticatedClient {
    /// Code point of the server's packets.
    pub dscp: u8,
    /// Key of the session.
    pub key: SessionKey,
    /// The server's own proof.
    pub proof: KeyProof,
}

/// Purpose of a connection that a server accepted.
#[derive(Clone, Debug)]
pub enum GreetingOutcome {
    /// The connection belongs to a run.
    Join(JoinMessage),
    /// The connection is the control connection of a client with the key.
    Session(AuthenticatedClient),
    /// The client is refused: the answer for it, and the reason.
    Refused(ControlMessage, String),
    /// The connection speaks something else.
    Foreign,
}

/// Server's part in the greeting of one connection.
#[derive(Debug)]
pub struct ServerGreeting {
    nonce: SessionNonce,
}

impl ServerGreeting {
    /// A greeting; `nonce` is fresh random bytes.
    #[must_use]
    pub fn new(nonce: SessionNonce) -> Self {
        Self { nonce }
    }

    /// The first message on the connection.
    #[must_use]
    pub fn hello(&self) -> ControlMessage {
        ControlMessage::Hello {
            oldest: VERSION,
            newest: VERSION,
            nonce: self.nonce,
        }
    }

    /// The nonce that the connection was greeted with.
    #[must_use]
    pub fn nonce(&self) -> &SessionNonce {
        &self.nonce
    }

    /// Judges the first message of the other end.
    #[must_use]
    pub fn handle(&self, message: ControlMessage, key: &SharedKey) -> GreetingOutcome {
        match message {
            ControlMessage::Join(joining) => GreetingOutcome::Join(joining),
            ControlMessage::Authenticate {
                version,
                dscp,
                nonce,
                proof,
            } => {
                if version != VERSION {
                    let text = format!("this server speaks version {VERSION}, not {version}");
                    return refused(ServerRefusal::Version, Duration::ZERO, text);
                }
                let own = &self.nonce;
                if !key.verify(&proof, SessionRole::Client, version, &nonce, own) {
                    let text = "the key is not this server's".to_owned();
                    return refused(ServerRefusal::Key, Duration::ZERO, text);
                }
                GreetingOutcome::Session(AuthenticatedClient {
                    dscp,
                    key: key.session(&nonce, own),
                    proof: key.prove(SessionRole::Server, version, &nonce, own),
                })
            }
            _ => GreetingOutcome::Foreign,
        }
    }

    /// Refuses a client while another test runs, for `left` at most.
    #[must_use]
    pub fn busy(left: Duration) -> GreetingOutcome {
        let seconds = left.as_secs();
        let text = format!("another test is running, for at most {seconds} more seconds");
        refused(ServerRefusal::Busy, left, text)
    }
}

fn refused(reason: ServerRefusal, retry: Duration, text: String) -> GreetingOutcome {
    let message = ControlMessage::Refused {
        reason,
        retry,
        text: text.clone(),
    };
    GreetingOutcome::Refused(message, text)
}
