//! Users with passwords and with tickets, on both sides: the client's login, and the server's
//! check.
//!
//! Client and server derive their key from their own view of the messages. The messages may differ
//! between the two, and then the keys differ as real ones do.

use super::seal::{SessionEncryption, SessionEndpoint};
use crate::credentials::kerberos::EncryptionType;
use crate::credentials::kerberos::testing::KerberosExchange;
use crate::credentials::testing::{challenge, log_in};
use crate::smb::keys::{PreauthHash, SigningAlgorithm, SigningKey, signing_key};
use crate::smb::wire::header::{Smb2Header, command, flag};

/// The server's challenge: always the same, because chance has no place in these tests.
const CHALLENGE: [u8; 8] = [3, 1, 4, 1, 5, 9, 2, 6];
/// The session key that the client chooses.
const CHOSEN: [u8; 16] = [0xc5; 16];

/// A user, as client and server know them.
#[derive(Clone, Debug)]
pub(crate) enum UserLogin {
    /// By NTLM, in two steps.
    Password {
        domain: &'static str,
        user: &'static str,
        password: &'static str,
    },
    /// By Kerberos, in one: the client and the service of [`exchange`].
    Ticket,
}

/// Anna of CORP, whose password is "secret".
pub(crate) const ANNA: UserLogin = UserLogin::Password {
    domain: "CORP",
    user: "anna",
    password: "secret",
};

/// The keys and choices of the client and the service of [`UserLogin::Ticket`].
pub(crate) fn exchange() -> KerberosExchange {
    KerberosExchange::with(EncryptionType::Aes256Sha1)
}

/// A client's proof of its identity.
pub(crate) struct LoginProof {
    /// Its last token.
    pub(crate) token: Vec<u8>,
    /// The server's answer to the token.
    pub(crate) answer: Vec<u8>,
    /// The key that both use for signing afterwards.
    pub(crate) session_key: [u8; 16],
}

impl UserLogin {
    /// Returns true if a step precedes the proof.
    pub(crate) fn has_two_steps(&self) -> bool {
        matches!(self, Self::Password { .. })
    }

    /// The first token, which is empty.
    pub(crate) fn begins() -> Vec<u8> {
        b"wrapped NTLMSSP\0\x01\0\0\0".to_vec()
    }

    /// The server's answer to it.
    pub(crate) fn asks() -> Vec<u8> {
        [b"wrapped ", &challenge(CHALLENGE)[..]].concat()
    }

    /// The client's answer to that, or its only token.
    pub(crate) fn proves(&self) -> LoginProof {
        match self {
            Self::Password {
                domain,
                user,
                password,
            } => {
                let (token, session_key) = log_in(domain, user, password, CHALLENGE, Some(CHOSEN));
                LoginProof {
                    token: [b"wrapped ", &token[..]].concat(),
                    answer: b"welcome".to_vec(),
                    session_key,
                }
            }
            Self::Ticket => {
                let exchange = exchange();
                let agreed = exchange.agreed();
                LoginProof {
                    token: exchange.token(),
                    answer: exchange.answer(),
                    session_key: *agreed.first_chunk().expect("keys have 16 bytes or more"),
                }
            }
        }
    }
}

/// One end's hashes of the messages before its session was established.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreauthHashes {
    connection: PreauthHash,
    session: PreauthHash,
}

impl PreauthHashes {
    pub(crate) const NOTHING: Self = Self {
        connection: PreauthHash::NOTHING,
        session: PreauthHash::NOTHING,
    };

    /// With a message more, if it counts.
    pub(crate) fn and(self, header: &Smb2Header, message: &[u8]) -> Self {
        let is_last = header.has(flag::FROM_SERVER)
            && header.command == command::SESSION_SETUP
            && header.status == 0;
        let connection = self.connection;
        match header.command {
            command::NEGOTIATE => {
                let both = connection.and(message);
                Self {
                    connection: both,
                    session: both,
                }
            }
            // A session begins.
            command::SESSION_SETUP if header.session == 0 => Self {
                connection,
                session: connection.and(message),
            },
            command::SESSION_SETUP if !is_last => Self {
                connection,
                session: self.session.and(message),
            },
            _ => self,
        }
    }

    /// The key of a session that was set up so.
    pub(crate) fn key(
        self,
        dialect: u16,
        algorithm: SigningAlgorithm,
        key: &[u8; 16],
    ) -> SigningKey {
        signing_key(dialect, algorithm, key, &self.session.0)
    }

    /// Returns the encryption of a session that was set up so.
    pub(crate) fn seal(
        self,
        end: SessionEndpoint,
        (dialect, cipher): (u16, u16),
        key: &[u8; 16],
        session: u64,
    ) -> SessionEncryption {
        SessionEncryption::new(end, dialect, cipher, key, &self.session.0, session)
    }
}
