//! The purges that operators have requested of accelerators, until they complete.

use std::collections::BTreeMap;

use accelerate::shared::PurgeCount;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// The requesters of the pending purges.
#[derive(Debug, Default)]
pub(super) struct PendingPurges {
    waiting: BTreeMap<u64, oneshot::Sender<Value>>,
    next: u64,
}

impl PendingPurges {
    /// Begins a purge; the engine knows it by this number. Purges without a waiting requester are
    /// forgotten, so that there are no more than connections at the administration socket.
    pub(super) fn begin(&mut self, answer: oneshot::Sender<Value>) -> u64 {
        self.waiting.retain(|_, answer| !answer.is_closed());
        self.next += 1;
        self.waiting.insert(self.next, answer);
        self.next
    }

    /// Reports the result to the requester.
    pub(super) fn ended(&mut self, id: u64, result: Result<PurgeCount, String>) {
        let Some(answer) = self.waiting.remove(&id) else {
            return;
        };
        let told = match result {
            Ok(PurgeCount { entries, bytes }) => json!({ "entries": entries, "bytes": bytes }),
            Err(error) => json!({ "error": error }),
        };
        // Whoever asked may have gone.
        let _ = answer.send(told);
    }
}
