//! The clock that the engine is driven by: monotonic, from the moment the node started.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;
use tokio::time::Instant;
use vocab::Time;

use crate::sys;

/// Turns the system's monotonic clock into the engine's time and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineClock {
    epoch: Instant,
}

impl EngineClock {
    pub(crate) fn start() -> Self {
        Self {
            epoch: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_epoch(self.epoch.elapsed())
    }

    /// The instant of `time`; `None` when it never comes.
    pub(crate) fn instant(&self, time: Time) -> Option<Instant> {
        self.epoch.checked_add(time.since(Time::ZERO))
    }
}

/// An alarm to the microsecond: the runtime's own timers end on whole milliseconds, which is the
/// time of several packets.
#[derive(Debug)]
pub(crate) struct PreciseAlarm {
    timer: AsyncFd<OwnedFd>,
    set_for: Option<Instant>,
}

impl PreciseAlarm {
    /// An alarm that is not set; to be made inside the runtime that waits for it.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            timer: sys::timer()?,
            set_for: None,
        })
    }

    /// Returns at this moment, or soon after it.
    pub(crate) async fn at(&mut self, moment: Instant) {
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if self.set_for != Some(moment) {
            if sys::set_timer(self.timer.get_ref(), left).is_err() {
                return tokio::time::sleep(left).await;
            }
            self.set_for = Some(moment);
        }
        if let Ok(mut ready) = self.timer.readable().await {
            sys::silence_timer(self.timer.get_ref());
            ready.clear_ready();
            self.set_for = None;
        }
    }
}
