//! Delegated keys, with which the accelerator works on signed or encrypted sessions.
//!
//! The operator gives the node beside the server the accounts of its users ([`crate::credentials::DelegatedAccounts`]), or the
//! server's own key of Kerberos ([`crate::credentials::Keytab`]). From it and from the messages that pass while a session is set up, the far
//! half derives the keys with which client and server sign and encrypt ([`PendingSetUps`]), as the server does. Nothing is asked of either,
//! and NEGOTIATE and SESSION_SETUP pass byte for byte, because keys of SMB 3.1.1 hang on every one
//! of their bytes. (A session that is set up beside one that is served has other message ids at either end,
//! and so other keys; both are known here.)
//!
//! ```text
//!  NEGOTIATE ──► dialect, algorithm ────────────────────────────┐
//!       └─ SHA-512 ─► SESSION_SETUP … ─ SHA-512 ─► context ──────┤
//!  NTLM CHALLENGE, AUTHENTICATE + account ─► session key ────────┤
//!  Kerberos AP-REQ, AP-REP + keytab ───────► session key ────────┴─► signing key, sealing keys
//!                                                                     │ proved by the server's
//!  the last SESSION_SETUP answer, which the server has signed ────────┘ own signature
//! ```
//! A key is used only if it verifies the server's own last answer. So the token parsers need not be
//! trusted: a misled parser derives a key that proves nothing, and the session passes untouched.
//!
//! It does not support NTLM before version 2, Kerberos from user to user, and other mechanisms.

mod derivation;
mod preauth;
mod sealing;
mod set_up;
mod signature;

pub(crate) use sealing::{
    EncryptionCipher, MessageSealer, NONCE_SEED_LENGTH, SealingKey, SealingKeys,
};
pub(crate) use set_up::{HostPair, MissingKeyReason, PendingSetUps, SetUpOutcome};
pub(crate) use signature::{SignatureMac, SigningAlgorithm, SigningKey, VerifiedSignature};

#[cfg(any(test, feature = "testing"))]
pub(crate) use derivation::signing_key;
#[cfg(any(test, feature = "testing"))]
pub(crate) use preauth::PreauthHash;
