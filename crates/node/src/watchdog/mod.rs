//! The watchdog: a small process beside the node that removes the rules when the node cannot.
//!
//! ```text
//!   node: engine's loop ── beat each 250 ms ──►  watchdog (same binary, own session)
//!                       ◄─ reinstall ──────────  no beat for 1.5 s: removes the table;
//!                                                beats again: asks for it back
//!                       ── (end of stream) ───►  the node is dead: removes the table and,
//!                                                unless it said goodbye, starts it again
//! ```
//!
//! A dead node's listener is gone as well, but its table must not stay. A node that hangs (SIGSTOP,
//! a loop that never returns) needs help with both: the kernel keeps handing connections to its
//! listener. Under a service manager (systemd) the manager restarts the node.

mod child;
mod parent;

pub use child::{WatchdogOptions, watch};
pub(crate) use parent::{RunningWatchdog, WatchdogHeartbeat, WatchdogSupervision};

/// The node's loop is alive.
const BEAT: u8 = b'b';
/// The node stops in good order and is not to be started again.
const GOODBYE: u8 = b'g';
/// The watchdog removed the table and the node should put it in place again.
const REINSTALL: u8 = b'r';
