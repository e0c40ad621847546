//! Protocol between the two ends of a test: [`ControlMessage`]s on a TCP connection,
//! [`DatagramHeader`]s over UDP, and the proof that both share a key. `docs/formats/turn-up.md`
//! describes it.
//!
//! ```text
//!  client                                    server
//!    ◄──────────────────────────── Hello (nonce)        TCP, control
//!    Authenticate (nonce, proof) ───────────►
//!    ◄──────────────────────────── Welcome (proof, session, limits)
//!    Open ─────────────────────────────────►            UDP, every one with a tag
//!    ◄──────────────────────────── Cookie
//!    Confirm (cookie) ─────────────────────►            now the address is believed
//! ```
//! The key itself never travels. Whoever has not shown that it holds the key, and that it receives at
//! the address it sends from, gets no answer over UDP larger than its question.

mod control;
mod datagram;
mod key;

pub use control::{
    ControlMessage, DatagramArrival, FrameError, JoinMessage, LONGEST_MESSAGE, RunOrder, RunSample,
    ServerLimits, ServerRefusal, StreamOrder, TestDirection, VERSION, WireError, frame, next_frame,
};
pub use datagram::{DATAGRAM_HEADER, DatagramError, DatagramHeader, DatagramKind};
pub use key::{KeyProof, PROOF_BYTES, SessionKey, SessionNonce, SessionRole, SharedKey};
