//! Two sessions with a WAN between them, in virtual time: the link (a byte pipe, as TLS over TCP
//! is), the datagram path (packets over [`emulate`]'s model), and scripted hosts at both ends.
//!
//! ```text
//!  Work ◄──► Session ══ Pipe (link) ════════════ Session ◄──► Work
//!                    ══ emulate::Link (packets) ═
//! ```
//!
//! The same sessions as in a node, without sockets: what is measured here is what the protocol can
//! do, however little the machine can. A world is a function of its [`Plan`] and its seed.

mod cells;
mod pipe;
mod work;
mod world;

pub use cells::{Cell, CellResult, Shape, all_cells, run_cell};
pub use work::{Transfer, Work};
pub use world::{Datagrams, Plan, World};
