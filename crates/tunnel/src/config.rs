//! Settings of a session.

use std::time::Duration;

use vocab::ByteCount;

use crate::credit::{FLOW_WINDOW, FLOW_WINDOW_LIMIT, TOTAL_WINDOW};
use crate::limits::FLOW_LIMIT;

/// Settings of a session. The defaults suit most networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Credit that each new flow of the peer starts with.
    pub flow_window: ByteCount,
    /// Upper limit of a flow's window, which grows while the reader keeps up on a long fat path.
    ///
    /// Where packets are lost twice in a row a flow needs 3.3 round trips of data: one to detect
    /// each loss, half a one for the last copy and for the credit, and the queue. 32 MiB are 500
    /// Mbit/s at 160 ms, or at 500 ms without loss.
    pub flow_window_limit: ByteCount,
    /// Bytes of all flows together that the peer may have sent and we not consumed.
    pub total_window: ByteCount,
    /// Encoded bytes of one flow that wait to be sent for the first time, at most.
    pub unsent_limit: ByteCount,
    /// Silence after which the peer is pinged.
    pub ping_interval: Duration,
    /// Silence after which the peer counts as silent.
    pub silent_after: Duration,
    /// Silence after which all flows are reset: the outage of 30 s that flows must survive, and
    /// time to notice its end and to dial again.
    pub give_up_after: Duration,
    /// Lets data move from packets to the link when the link delivers more.
    pub compare_paths: bool,
    /// Flows that the peer may have open towards us; further ones are reset.
    pub flow_limit: usize,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            flow_window: ByteCount::new(FLOW_WINDOW),
            flow_window_limit: ByteCount::new(FLOW_WINDOW_LIMIT),
            total_window: ByteCount::new(TOTAL_WINDOW),
            unsent_limit: ByteCount::kibibytes(64),
            ping_interval: Duration::from_secs(1),
            silent_after: Duration::from_secs(5),
            give_up_after: Duration::from_secs(45),
            compare_paths: true,
            flow_limit: FLOW_LIMIT,
        }
    }
}
