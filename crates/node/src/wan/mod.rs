//! Links to peers, TLS 1.3 over TCP, accepted or dialled, and the UDP sockets beside them. This
//! module does not know the content of a link.
//!
//! ```text
//!   listener ─► handshake (pinned, or a token) ─┐
//!   dialler  ─► handshake (pinned) ─────────────┴► link: reader ─► LinkReceived ─► engine
//!                                                        writer ◄─ Send ◄─ transmit ◄┘
//! ```

mod dialer;
mod known_sources;
mod link;
mod listener;
mod socket;
mod udp;

pub(crate) use dialer::{DialerContext, PeerLinks, dial_while_needed};
pub(crate) use known_sources::KnownSources;
pub(crate) use link::{KeyExporter, LinkAddresses, LinkCommand, LinkNumbers};
pub(crate) use listener::{ListenerContext, listen};
pub use socket::known_congestion_controls;
pub(crate) use udp::{LinkPaths, PacketTrain, SendRefusal, WanSocket, bind, receive};
