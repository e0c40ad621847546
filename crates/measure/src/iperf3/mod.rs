//! Client side of the control connection to an ordinary iperf3 server, which lets a circuit be
//! tested without Trunkline at the far end.
//!
//! ```text
//!  Greeting ─PARAM_EXCHANGE─► Proposed ─CREATE_STREAMS─► Opening ─TEST_START─► Starting ─TEST_RUNNING─► Running
//!   cookie                     JSON out                   the shell connects                              │ end()
//!  Done ◄─DISPLAY_RESULTS── Reporting ◄──────EXCHANGE_RESULTS────── Ending ◄──────────TEST_END────────────┘
//!   IPERF_DONE out           JSON out, JSON in
//!  anywhere: ACCESS_DENIED, SERVER_ERROR, SERVER_TERMINATE, anything else, silence, the end ─► Failed
//! ```
//! A state is one byte; what the two know of a test is a JSON object behind its length. The source is iperf3's
//! own, 3.12 (src/iperf_api.h, iperf_client_api.c, iperf_api.c of github.com/esnet/iperf); the tests hold
//! recorded exchanges with its server. Data connections are the shell's: each begins with the same cookie.
//! A stream of UDP packets has a socket of its own, at which server and client greet each other with four
//! bytes before any of [`StampedHeader`] travels.
//!
//! It does not speak iperf3's SCTP, authentication or both directions at once.

mod datagram;
mod report;
mod session;

pub use datagram::{HELLO, STAMP_BYTES, StampedHeader};
pub use report::{ConnectionCount, ServerReport, StreamCount};
pub use session::{
    COOKIE_BYTES, ClientSession, SILENCE_MAX, SessionOutput, TestFailure, TestOrder, TestProtocol,
};

/// Default port (iperf3(1), `-p`).
pub const PORT: u16 = 5201;

#[cfg(test)]
mod tests;
