//! Waiting for SIGTERM or SIGINT without a handler: the signals are blocked and fetched.

use std::io;
use std::time::Duration;

use host::packets::system;

/// SIGTERM, SIGINT and SIGHUP, blocked in this thread and in every thread that it starts later.
#[derive(Debug)]
pub struct StopSignals(());

impl StopSignals {
    /// Blocks them; call it before any other thread starts.
    ///
    /// # Errors
    /// When the kernel refuses, which it does not for these.
    pub fn block() -> io::Result<Self> {
        system::block_stop_signals().map(|()| Self(()))
    }

    /// Waits up to `span` for one of them; says whether one came.
    #[must_use]
    pub fn wait(&self, span: Duration) -> bool {
        system::wait_for_stop_signal(span)
    }
}
