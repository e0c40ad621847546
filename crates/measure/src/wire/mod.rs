//! What the two ends of a test say to each other: [`Message`]s on a TCP connection, [`Datagram`]s
//! over UDP, and the proof that they share a key. `docs/formats/turn-up.md` is the description.
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
    Arrival, Direction, FrameError, Joining, LONGEST_MESSAGE, Limits, Message, Refusal, RunOrder,
    RunSample, StreamOrder, VERSION, WireError, frame, next_frame,
};
pub use datagram::{DATAGRAM_HEADER, Datagram, DatagramError, Kind};
pub use key::{Key, Nonce, PROOF_BYTES, Proof, Role, SessionKey};
