//! The limit of bytes that are in flight ahead of the client: enough to keep the path busy, and
//! little more.
//!
//! Prefetched data shares the path with the answers to the client's next requests, and must not
//! delay them behind megabytes that may never be wanted. So the bytes between the server and the
//! near half stay within a window. The window grows while bytes arrive about as fast as the first
//! ones, and shrinks when they take longer, because they then stand in a queue. It begins with what fills the path,
//! where the node has measured that.
//!
//! ```text
//!   delay ≤ base + base / 4 + SLACK   →  window + 3 × what arrived
//!   delay ≥ base + base / 2 + 2·SLACK →  window × (base + base / 4 + SLACK) / delay, once for each window
//! ```
//! Data that the near half holds for the client does not count, because it delays nothing.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::Time;

/// The largest window: a link of 52 Mbit/s with 500 ms there and back has 3.2 MB in flight.
const WINDOW_MAX: u64 = 8 << 20;
/// The first window where the path is unknown, and the least first window: four reads of the largest size that SMB 2.0.2 knows.
const FIRST_WINDOW: u64 = 256 << 10;
/// The least window: two blocks, so that one can be in flight while one arrives.
const LEAST_WINDOW: u64 = 128 << 10;
/// Delay beyond the base that does not count as queueing: jitter of a busy path.
const SLACK: Duration = Duration::from_millis(100);
/// The time after which the base is measured again, because routes change.
const BASE_LASTS: Duration = Duration::from_secs(60);

/// The pace of the data that one half sends ahead.
#[derive(Debug)]
pub struct ReadAheadPace {
    window: u64,
    /// The bytes that were requested from the server and not yet answered.
    asked: u64,
    /// The bytes sent ahead, and those of them that have arrived.
    sent: u64,
    received: u64,
    /// The count after each block sent, and the time of its request.
    blocks: VecDeque<(u64, Time)>,
    base: Option<(Duration, Time)>,
    /// The window does not shrink again before this much has arrived.
    shrunk_until: u64,
}

impl Default for ReadAheadPace {
    fn default() -> Self {
        Self::over_path(0)
    }
}

impl ReadAheadPace {
    /// A pace that has seen nothing yet, for a path that `path_bytes` in flight fill (0: unknown).
    #[must_use]
    pub fn over_path(path_bytes: u64) -> Self {
        Self {
            window: path_bytes.clamp(FIRST_WINDOW, WINDOW_MAX),
            asked: 0,
            sent: 0,
            received: 0,
            blocks: VecDeque::new(),
            base: None,
            shrunk_until: 0,
        }
    }

    /// Returns true if `bytes` more may be requested.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        let under_way = self.asked + (self.sent - self.received);
        under_way == 0 || under_way + bytes <= self.window
    }

    /// Records a request for `bytes` from the server.
    pub fn asked(&mut self, bytes: u64) {
        self.asked += bytes;
    }

    /// Records the answer, of `bytes` bytes, to a request sent at `asked_at` (0: nothing was sent
    /// on).
    pub fn answered(&mut self, asked_at: Time, asked: u64, bytes: u64) {
        self.asked = self.asked.saturating_sub(asked);
        if bytes > 0 {
            self.sent += bytes;
            self.blocks.push_back((self.sent, asked_at));
        }
    }

    /// Records that the near half has `total` bytes of all bytes sent. An impossible value is
    /// ignored.
    pub fn received(&mut self, now: Time, total: u64) {
        if total <= self.received || total > self.sent {
            return;
        }
        let arrived = total - self.received;
        self.received = total;
        let mut delay = None;
        while let Some((end, asked_at)) = self.blocks.front() {
            if *end > total {
                break;
            }
            delay = Some(now.since(*asked_at));
            self.blocks.pop_front();
        }
        if let Some(delay) = delay {
            self.judge(now, delay, arrived);
        }
    }

    fn judge(&mut self, now: Time, delay: Duration, arrived: u64) {
        let base = match self.base {
            Some((base, since)) if delay >= base && now.since(since) < BASE_LASTS => base,
            _ => {
                self.base = Some((delay, now));
                return;
            }
        };
        let wanted = base + base / 4 + SLACK;
        if delay <= wanted {
            self.window = (self.window + 3 * arrived).min(WINDOW_MAX);
        } else if delay >= base + base / 2 + 2 * SLACK && self.received >= self.shrunk_until {
            let share = wanted.as_secs_f64() / delay.as_secs_f64();
            self.window = ((self.window as f64 * share) as u64).max(LEAST_WINDOW);
            self.shrunk_until = self.sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a path of `rate` bytes a second and `delay` there and back with blocks of 64 KiB for
    /// `seconds`. Returns the bytes that arrived, and the longest time that a block was in flight.
    fn run(rate: f64, delay: Duration, seconds: f64) -> (u64, Duration) {
        run_with(ReadAheadPace::default(), rate, delay, seconds)
    }

    fn run_with(
        mut pace: ReadAheadPace,
        rate: f64,
        delay: Duration,
        seconds: f64,
    ) -> (u64, Duration) {
        const BLOCK: u64 = 65_536;
        let mut now = Time::ZERO;
        let mut free_at = Time::ZERO;
        let mut under_way: VecDeque<(Time, Time)> = VecDeque::new();
        let (mut total, mut longest) = (0, Duration::ZERO);
        while now.since(Time::ZERO).as_secs_f64() < seconds {
            while pace.has_room(BLOCK) {
                pace.asked(BLOCK);
                pace.answered(now, BLOCK, BLOCK);
                free_at = free_at.max(now) + Duration::from_secs_f64(BLOCK as f64 / rate);
                under_way.push_back((free_at + delay, now));
            }
            let (arrives, asked_at) = under_way.pop_front().expect("there is always one");
            now = arrives;
            total += BLOCK;
            longest = longest.max(now.since(asked_at));
            pace.received(now, total);
        }
        (total, longest)
    }

    #[test]
    fn long_fat_path_fills_within_three_seconds() {
        let (bytes, _) = run(6_480_000.0, Duration::from_millis(500), 30.0);
        assert!(bytes as f64 > 0.93 * 30.0 * 6_480_000.0, "{bytes}");
    }

    #[test]
    fn known_path_is_full_from_the_first_block() {
        let (rate, delay) = (6_480_000.0, Duration::from_millis(500));
        let pace = ReadAheadPace::over_path((rate * delay.as_secs_f64()) as u64);
        // Nothing arrives in the first round trip, and the link is never idle after it.
        let (bytes, _) = run_with(pace, rate, delay, 5.0);
        assert!(bytes as f64 > 0.97 * 4.5 * rate, "{bytes}");
    }

    #[test]
    fn slow_path_stays_busy_with_two_blocks() {
        let (bytes, longest) = run(193_000.0, Duration::from_millis(60), 30.0);
        assert!(bytes as f64 > 0.97 * 30.0 * 193_000.0, "{bytes}");
        // Four blocks of the first window are the most that anything ever waits for.
        assert!(longest <= Duration::from_millis(60 + 1_400), "{longest:?}");
    }

    #[test]
    fn a_count_that_cannot_be_is_ignored() {
        let mut pace = ReadAheadPace::default();
        pace.asked(10);
        pace.answered(Time::ZERO, 10, 10);
        pace.received(Time::ZERO, 11);
        assert_eq!(pace.received, 0);
        pace.received(Time::ZERO, 10);
        pace.received(Time::ZERO, 4);
        assert_eq!(pace.received, 10);
    }
}
