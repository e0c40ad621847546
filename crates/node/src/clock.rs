//! The clock that the engine is driven by: monotonic, from the moment the node started.

use tokio::time::Instant;
use vocab::Time;

/// Turns the system's monotonic clock into the engine's time and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            epoch: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_epoch(self.epoch.elapsed())
    }

    /// When `time` comes; `None` when it never does.
    pub(crate) fn instant(&self, time: Time) -> Option<Instant> {
        self.epoch.checked_add(time.since(Time::ZERO))
    }
}
