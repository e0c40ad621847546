//! The tactics: two machines, one beside the client and one beside the server.
//!
//! ```text
//!  client call ─► TacticsNear ─ Stub, Batch, Delivered, Declined, Left ─► TacticsFar ─► server call
//!  answer     ◄─             ◄─ StubAnswer, BatchAnswer, Confirmed               ─            ◄─ answer
//!                            ◄─ Promise, Follow, Ahead, Cancel, Revoke           ─
//!                            ◄─ MayWrite, MustForward, Leave                     ─
//! ```
//! - **Lanes** read ahead. A client reads a stream, the rows of a table and a fast transfer by the
//!   same request again and again. The far machine repeats that request at the server and sends the
//!   answers ahead. The near machine gives each of them to the client's next request of the same
//!   bytes, so every answer is the server's own. When the client does something else with the
//!   object, the far machine first moves the server's cursor back over the answers that the client
//!   did not take. A fast transfer has no way back: its answers are kept until the client takes
//!   them.
//! - **Scripts** are lanes with a request of their own for each answer: the calls that this client
//!   usually makes behind the one that it made, such as those that open an attachment
//!   (`far/anticipation.rs`, `history.rs`).
//! - **Write-behind** answers RopWriteStream and RopFastTransferDestinationPutBuffer at once. If
//!   the server refuses one of them, every later ROP on that object and on the objects around it
//!   (Commit, SaveChanges) fails with the server's error, which may be a fault PDU.
//! - **Events** (RopNotify, RopPending) that arrive with an answer of a lane are appended to the
//!   client's next answer, in the server's order. An answer with a response that is not known keeps
//!   its own events in front of them, because the place where they begin is not known either.
//!
//! - **One connection**: tactics are for sessions that one connection uses. [`SessionTable`] knows the
//!   connections of each session, and has the first one end its tactics before the second one's first
//!   call is at the server.
//!
//! The client's calls of one session are handled one at a time. The far machine has one call at the
//! server at a time, and prefers the client's calls to its own.

mod far;
mod history;
mod message;
mod near;
mod objects;
#[cfg(any(test, feature = "testing"))]
pub mod samples;
mod sessions;
#[cfg(test)]
pub(crate) mod tests;

pub use far::{FarOutput, TacticsFar};
pub use near::{NearOutput, TacticsNear};
pub use sessions::{SessionPlace, SessionTable};

use bytes::Bytes;

use super::buffer::NO_HANDLE;

/// The result of a call at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The stub of its answer.
    Response(Bytes),
    /// The status of a fault PDU.
    Fault(u32),
}

/// The failure of a write that the client believes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteFailure {
    /// The result of a ROP.
    Result(u32),
    /// The status of a fault PDU.
    Fault(u32),
}

/// The most bytes that wait for a client ahead of its requests, for one object. A link of 52 Mbit/s
/// with 500 ms there and back has 3.2 MB in flight. Data behind a lost packet waits for it for up to four
/// round trips.
const LANE_MAX: u64 = 16 << 20;
/// The bytes that a lane sends ahead before the client has taken any of them.
const LANE_FIRST: u64 = 256 << 10;
/// Objects of one session that are read ahead at a time.
const LANES_MAX: usize = 8;
/// The most bytes that were written by the client and not yet confirmed by the server.
const WRITE_BEHIND_MAX: usize = 8 << 20;
/// The handle in the name of a script, which belongs to a session and to no object.
const SCRIPT_HANDLE: u32 = NO_HANDLE;
/// Sessions of one connection that tactics follow. Clients open a few.
const CONTEXTS_MAX: usize = 64;
/// Calls of one session that wait for their turn. A client without multiplexing has one.
const QUEUED_MAX: usize = 256;
/// Handles in the table of a request that is read: an index has eight bits.
const HANDLES_MAX: usize = 256;
/// MAPI_E_CALL_FAILED, for a write that failed without a code of its own.
const CALL_FAILED: u32 = 0x8000_4005;
