//! The limit of bytes that are read ahead of the client: enough to keep the path busy, and little more.
//!
//! Prefetched data shares the path with the answers to the client's next requests, and must not
//! delay them behind megabytes that may never be wanted. So the bytes between the server and the WAN
//! stay within a window: those requested of the server, and those that wait in this node because the
//! session takes no more. The window grows while bytes leave about as fast as the first ones, and shrinks
//! when they take longer, because they then stand in a queue.
//!
//! ```text
//!   server ── asked ──► half ── sent ──► queue ── left ──► session ──► network ──► near half
//!           └────────── within the window ──────────┘
//!   delay ≤ base + base / 4 + SLACK   →  window + what left
//!   delay ≥ base + base / 2 + 2·SLACK →  window × (base + base / 4 + SLACK) / delay, once for each window
//! ```
//! Data in the network does not count. The session's congestion control limits it, and data behind a lost
//! packet arrives late without a queue. Data that the near half holds for the client delays nothing.

use std::collections::VecDeque;
use std::time::Duration;

use vocab::Time;

/// The largest window: a server that needs 100 ms for a request, at 640 Mbit/s.
const WINDOW_MAX: u64 = 8 << 20;
/// The first window: four reads of the largest size that SMB 2.0.2 knows.
const FIRST_WINDOW: u64 = 256 << 10;
/// The least window: two blocks, so that one can be read while one leaves.
const LEAST_WINDOW: u64 = 128 << 10;
/// Delay beyond the base that does not count as queueing: jitter of a busy server.
const SLACK: Duration = Duration::from_millis(100);
/// The time after which the base is measured again, because servers change.
const BASE_LASTS: Duration = Duration::from_secs(60);

/// The pace of the data that one half sends ahead.
#[derive(Debug)]
pub struct ReadAheadPace {
    window: u64,
    /// The bytes that were requested from the server and not yet answered.
    asked: u64,
    /// The bytes sent ahead, and those of them that have left for the WAN.
    sent: u64,
    left: u64,
    /// The count after each block sent, and the time of its request.
    blocks: VecDeque<(u64, Time)>,
    base: Option<(Duration, Time)>,
    /// The window does not shrink again before this much has left.
    shrunk_until: u64,
    /// True once the node has told what waits. Before it, nothing does.
    is_told: bool,
}

impl Default for ReadAheadPace {
    fn default() -> Self {
        Self {
            window: FIRST_WINDOW,
            asked: 0,
            sent: 0,
            left: 0,
            blocks: VecDeque::new(),
            base: None,
            shrunk_until: 0,
            is_told: false,
        }
    }
}

impl ReadAheadPace {
    /// Returns true if `bytes` more may be requested.
    #[must_use]
    pub fn has_room(&self, bytes: u64) -> bool {
        let under_way = self.asked + (self.sent - self.left);
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
        self.sent += bytes;
        if !self.is_told {
            self.left = self.sent;
        } else if bytes > 0 {
            self.blocks.push_back((self.sent, asked_at));
        }
    }

    /// Records that only the last `bytes` bytes of the half's output still wait in this node. Other output may be
    /// among them.
    pub fn set_backlog(&mut self, now: Time, bytes: u64) {
        self.is_told = true;
        let total = self.sent.saturating_sub(bytes);
        if total <= self.left {
            return;
        }
        let gone = total - self.left;
        self.left = total;
        let mut delay = None;
        while let Some((end, asked_at)) = self.blocks.front() {
            if *end > total {
                break;
            }
            delay = Some(now.since(*asked_at));
            self.blocks.pop_front();
        }
        if let Some(delay) = delay {
            self.judge(now, delay, gone);
        }
    }

    fn judge(&mut self, now: Time, delay: Duration, gone: u64) {
        let base = match self.base {
            Some((base, since)) if delay >= base && now.since(since) < BASE_LASTS => base,
            _ => {
                self.base = Some((delay, now));
                return;
            }
        };
        let wanted = base + base / 4 + SLACK;
        if delay <= wanted {
            self.window = (self.window + gone).min(WINDOW_MAX);
        } else if delay >= base + base / 2 + 2 * SLACK && self.left >= self.shrunk_until {
            let share = wanted.as_secs_f64() / delay.as_secs_f64();
            self.window = ((self.window as f64 * share) as u64).max(LEAST_WINDOW);
            self.shrunk_until = self.sent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 65_536;

    /// Reads blocks of 64 KiB ahead for `seconds`, from a server that answers after `latency`, into a WAN that
    /// takes `rate` bytes a second. Returns the bytes that left, and the longest time from a request to that.
    fn run(rate: f64, latency: Duration, seconds: f64) -> (u64, Duration) {
        let mut pace = ReadAheadPace::default();
        pace.set_backlog(Time::ZERO, 0);
        let mut now = Time::ZERO;
        let mut free_at = Time::ZERO;
        let mut under_way: VecDeque<(Time, Time, Time)> = VecDeque::new();
        let (mut total, mut sent, mut longest) = (0, 0, Duration::ZERO);
        while now.since(Time::ZERO).as_secs_f64() < seconds {
            while pace.has_room(BLOCK) {
                pace.asked(BLOCK);
                let answered = now + latency;
                free_at = free_at.max(answered) + Duration::from_secs_f64(BLOCK as f64 / rate);
                under_way.push_back((now, answered, free_at));
            }
            let (asked_at, _, leaves) = *under_way.front().expect("there is always one");
            // All answers that came before this moment.
            while let Some((asked_at, answered, _)) = under_way.get(sent) {
                if *answered > leaves {
                    break;
                }
                pace.answered(*asked_at, BLOCK, BLOCK);
                sent += 1;
            }
            now = now.max(leaves);
            under_way.pop_front();
            sent -= 1;
            total += BLOCK;
            longest = longest.max(now.since(asked_at));
            pace.set_backlog(now, sent as u64 * BLOCK);
        }
        (total, longest)
    }

    #[test]
    fn slow_server_and_fast_path_fill_within_a_second() {
        let (bytes, _) = run(6_480_000.0, Duration::from_millis(100), 30.0);
        assert!(bytes as f64 > 0.96 * 30.0 * 6_480_000.0, "{bytes}");
    }

    #[test]
    fn fast_path_has_a_short_queue() {
        let (bytes, longest) = run(6_480_000.0, Duration::from_millis(1), 30.0);
        assert!(bytes as f64 > 0.99 * 30.0 * 6_480_000.0, "{bytes}");
        assert!(longest <= Duration::from_millis(400), "{longest:?}");
    }

    #[test]
    fn slow_path_stays_busy_with_two_blocks() {
        let (bytes, longest) = run(193_000.0, Duration::from_millis(1), 30.0);
        assert!(bytes as f64 > 0.97 * 30.0 * 193_000.0, "{bytes}");
        // Four blocks of the first window are the most that anything ever waits for.
        assert!(longest <= Duration::from_millis(1_400), "{longest:?}");
    }

    #[test]
    fn output_that_waits_keeps_its_place_in_the_window() {
        let mut pace = ReadAheadPace::default();
        pace.set_backlog(Time::ZERO, 0);
        for _ in 0..4 {
            assert!(pace.has_room(BLOCK));
            pace.asked(BLOCK);
            pace.answered(Time::ZERO, BLOCK, BLOCK);
        }
        assert!(!pace.has_room(BLOCK));
        // Of 300,000 bytes that wait, more than the sent ones are others'.
        pace.set_backlog(Time::ZERO, 300_000);
        assert!(!pace.has_room(BLOCK));
        pace.set_backlog(Time::ZERO, 3 * BLOCK);
        assert!(pace.has_room(BLOCK));
        // What has left does not come back.
        pace.set_backlog(Time::ZERO, 4 * BLOCK);
        assert!(pace.has_room(BLOCK));
    }
}
