//! Links to peers: TLS 1.3 over TCP, accepted or dialled, and nothing known of what they carry.
//!
//! ```text
//!   listener ─► handshake (pinned, or a token) ─┐
//!   dialler  ─► handshake (pinned) ─────────────┴► link: reader ─► LinkReceived ─► engine
//!                                                        writer ◄─ Send ◄─ transmit ◄┘
//! ```

mod dialer;
mod link;
mod listener;
mod socket;

pub(crate) use dialer::{Dialing, PeerLinks, dial_while_needed};
pub(crate) use link::{LinkCommand, LinkNumbers};
pub(crate) use listener::{Listening, listen};
pub use socket::known_congestion_controls;
