//! What operators have accelerators remove, until it is removed.

use std::collections::BTreeMap;

use accelerate::shared::PurgeCount;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Who waits for which purge.
#[derive(Debug, Default)]
pub(super) struct PendingPurges {
    waiting: BTreeMap<u64, oneshot::Sender<Value>>,
    next: u64,
}

impl PendingPurges {
    /// Begins a purge; the engine is to know it by this number. Those that nobody waits for any more are
    /// forgotten, so that there are no more than askers at the administration socket.
    pub(super) fn begin(&mut self, answer: oneshot::Sender<Value>) -> u64 {
        self.waiting.retain(|_, answer| !answer.is_closed());
        self.next += 1;
        self.waiting.insert(self.next, answer);
        self.next
    }

    /// Tells who waits what became of it.
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
