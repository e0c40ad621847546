//! The window that a receiver offers: it grows with the data that arrive, as Linux's does.
//!
//! ```text
//!   a segment arrives ─► the window grows by two segments, up to the limit (tcp_grow_window)
//!   an RTT has passed ─► the limit is twice what was read in it, or more while that grows
//!                        (dynamic right-sizing, tcp_rcv_space_adjust)
//! ```
//!
//! As long as the window grows, each segment is acknowledged at once: the sender is probably in slow
//! start. A slow path needs a small window, so there the growth ends soon, however large the buffer is.

use std::time::Duration;

use vocab::{ByteCount, Time};

/// Segments by which a segment that arrives enlarges the window (tcp_grow_window).
const GROWTH_SEGMENTS: u64 = 2;
/// Smallest payload that enlarges the window (tcp_event_data_recv).
const GROWTH_PAYLOAD_LEAST: usize = 128;
/// Segments of the first round trip to compare with (tcp_init_buffer_space).
const ROUND_SEGMENTS_INITIAL: u64 = 10;

/// Window of one receiver.
#[derive(Clone, Debug)]
pub(crate) struct OfferedWindow {
    offered: u64,
    /// Largest window at present.
    limit: u64,
    capacity: u64,
    segment: u64,
    rtt: Option<Duration>,
    latest_echo: Option<u32>,
    /// Start of the current round trip, and the position that was read then.
    round: Option<(Time, u64)>,
    /// Bytes that were read in the largest round trip.
    round_most: u64,
}

impl OfferedWindow {
    /// A window of `initial` bytes that grows up to `capacity`, for segments of `mss` bytes.
    pub(crate) fn new(initial: ByteCount, capacity: u64, mss: u32) -> Self {
        let offered = initial.bytes().clamp(1, capacity);
        let segment = u64::from(mss);
        Self {
            offered,
            // Linux counts a half of the buffer as payload until the first packet shows its overhead.
            // A packet of 1,500 bytes leaves 5/8 of the memory that it takes for payload.
            limit: (offered + offered / 4).min(capacity),
            capacity,
            segment,
            rtt: None,
            latest_echo: None,
            round: None,
            round_most: (ROUND_SEGMENTS_INITIAL * segment).min(offered).max(1),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.offered
    }

    /// Takes the age of the time stamp that a segment echoes: the RTT as the receiver sees it
    /// (tcp_rcv_rtt_measure_ts). One sample counts for each time stamp.
    pub(crate) fn take_echo(&mut self, echo: u32, age: Duration) {
        if self.latest_echo.replace(echo) != Some(echo) {
            self.take_rtt(age.max(Duration::from_millis(1)));
        }
    }

    fn take_rtt(&mut self, sample: Duration) {
        self.rtt = Some(match self.rtt {
            Some(rtt) if sample > rtt => rtt + (sample - rtt) / 8,
            _ => sample,
        });
    }

    /// Takes a segment with payload; `true` if the window grows.
    pub(crate) fn grow(&mut self, payload: usize) -> bool {
        if self.offered >= self.limit || payload < GROWTH_PAYLOAD_LEAST {
            return false;
        }
        self.offered = (self.offered + GROWTH_SEGMENTS * self.segment).min(self.limit);
        true
    }

    /// Sets the limit after each round trip. The application has read everything before `read`, and
    /// the data behind a gap end `behind_gap` bytes after the next expected byte.
    pub(crate) fn adjust(&mut self, now: Time, read: u64, behind_gap: u64) {
        if behind_gap > 0 {
            self.raise_limit(2 * self.round_most + behind_gap);
        }
        let Some((start, position)) = self.round else {
            self.round = Some((now, read));
            return;
        };
        if self.rtt.is_none_or(|rtt| now.since(start) < rtt) {
            return;
        }
        self.round = Some((now, read));
        let count = read - position;
        let before = self.round_most;
        if count <= before {
            return;
        }
        self.round_most = count;
        // A sender in slow start doubles its rate in each round trip.
        let growth = count.saturating_mul(2).saturating_mul(count - before) / before;
        let limit = growth.saturating_mul(2).saturating_add(2 * count);
        self.raise_limit(limit.saturating_add(behind_gap));
    }

    fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit.min(self.capacity));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 1_000;

    fn window(initial: u64, capacity: u64) -> OfferedWindow {
        OfferedWindow::new(ByteCount::new(initial), capacity, SEGMENT)
    }

    fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    /// Reads the given numbers of segments in round trips of 100 ms; returns the window in segments.
    fn after_rounds(window: &mut OfferedWindow, rounds: &[u64]) -> u64 {
        let mut read = 0;
        window.take_echo(1, Duration::from_millis(100));
        window.adjust(at(0), read, 0);
        for (index, segments) in rounds.iter().enumerate() {
            for _ in 0..*segments {
                window.grow(SEGMENT as usize);
            }
            read += segments * u64::from(SEGMENT);
            window.adjust(at(100 * (index as u64 + 1)), read, 0);
        }
        while window.grow(SEGMENT as usize) {}
        window.bytes() / u64::from(SEGMENT)
    }

    #[test]
    fn slow_path_needs_a_small_window() {
        // 20 segments after the ten to begin with: 2 * 20, and 2 * 40 for the growth by the double.
        assert_eq!(after_rounds(&mut window(64_000, 4_000_000), &[20; 50]), 120);
    }

    #[test]
    fn window_is_ahead_of_slow_start() {
        let mut window = window(64_000, 4_000_000);
        // 80 segments after 40: 2 * 80, and 2 * 160 for the growth by the double.
        assert_eq!(after_rounds(&mut window, &[10, 20, 40, 80]), 480);
    }

    #[test]
    fn buffer_bounds_the_window() {
        let mut window = window(64_000, 100_000);
        assert_eq!(after_rounds(&mut window, &[20, 40, 80, 160]), 100);
    }

    #[test]
    fn data_behind_a_gap_needs_room() {
        let mut window = window(64_000, 4_000_000);
        window.adjust(at(0), 0, 100_000);
        assert_eq!(after_rounds(&mut window, &[]), 120);
    }

    #[test]
    fn echo_counts_once() {
        let mut window = window(64_000, 4_000_000);
        window.take_echo(1, Duration::from_millis(80));
        window.take_echo(1, Duration::from_millis(160));
        assert_eq!(window.rtt, Some(Duration::from_millis(80)));
        window.take_echo(2, Duration::from_millis(160));
        assert_eq!(window.rtt, Some(Duration::from_millis(90)));
    }
}
