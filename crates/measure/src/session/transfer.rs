//! Order of a TCP transfer at one end: when counters are read, when writing stops, and when
//! everything has arrived.
//!
//! ```text
//!  Writing ─ time is up ─► LastReading ─► Stopping ─► Draining ─ at rest, or too late ─► Closing ─► Closed
//!     └ a sample every 100 ms                            └ a look every 5 ms
//! ```
//! When the time is up nothing more is written, data in flight is waited for, and the last sample
//! is of a connection at rest, so that its counters equal those of a capture.
//!
//! Where the window is bounded, data is written in small pieces that the kernel does not join
//! ([`SendPiece`]). By default it joins the data that a millisecond's acknowledgements release
//! into one burst (tcp_tso_should_defer, tcp_tso_autosize): with a window of 88 segments, ten then
//! wait for each other at both ends and on the line, and the run shows the host's habit, 5 % of the
//! rate, and not the path's.

use std::time::Duration;

use vocab::{ByteCount, Time};

use crate::tcp_info::TcpInfo;
use crate::wire::RunSample;

/// Interval between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Bytes of one write at most.
pub const PIECE_BYTES_MAX: usize = 64 * 1024;
/// Time limit at the end for data in flight.
const DRAIN_MAX: Duration = Duration::from_secs(3);
/// Interval of the checks for data in flight.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Share of a bounded window that is sent as one piece, which is also the share that bursts may
/// cost.
const PIECE_SHARE: f64 = 0.01;
/// ... or as much as the path carries in this time, where that is more: system calls are not free.
const PIECE_TIME: Duration = Duration::from_micros(50);

/// Action that a transfer wants done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferAction {
    /// Read the counters of all sending connections, then [`TransferMonitor::counters`].
    ReadCounters,
    /// Write no more, then [`TransferMonitor::written`].
    StopWriting,
    /// Shut down the sending halves; the transfer is over when everything of the other end has been
    /// read.
    CloseSending,
}

/// A transfer under way at one end.
#[derive(Debug)]
pub struct TransferMonitor {
    began: Time,
    until: Time,
    sample_at: Time,
    phase: TransferPhase,
    was_stopped: bool,
    samples: Vec<RunSample>,
}

#[derive(Debug)]
enum TransferPhase {
    Writing,
    LastReading,
    Stopping,
    Draining {
        until: Time,
        look_at: Time,
        /// Payload that each connection took.
        written: Vec<u64>,
    },
    Closing,
    Closed,
}

impl TransferMonitor {
    /// A transfer that begins now and sends for this time.
    #[must_use]
    pub fn new(now: Time, duration: Duration) -> Self {
        Self {
            began: now,
            until: now + duration,
            sample_at: now,
            phase: TransferPhase::Writing,
            was_stopped: false,
            samples: Vec::new(),
        }
    }

    /// Ends the transfer before its time.
    pub fn stop(&mut self) {
        self.was_stopped |= matches!(self.phase, TransferPhase::Writing);
        match &mut self.phase {
            TransferPhase::Writing => self.phase = TransferPhase::LastReading,
            TransferPhase::Draining { until, look_at, .. } => {
                (*until, *look_at) = (Time::ZERO, Time::ZERO);
            }
            TransferPhase::LastReading
            | TransferPhase::Stopping
            | TransferPhase::Closing
            | TransferPhase::Closed => {}
        }
    }

    /// Tells whether the transfer ended before its time.
    #[must_use]
    pub fn was_stopped(&self) -> bool {
        self.was_stopped
    }

    /// Tells whether data is to be written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        matches!(self.phase, TransferPhase::Writing)
    }

    /// Tells whether this end has sent everything and closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, TransferPhase::Closed)
    }

    /// The next action; [`None`] until [`TransferMonitor::poll_timeout`].
    pub fn poll_action(&mut self, now: Time) -> Option<TransferAction> {
        if matches!(self.phase, TransferPhase::Writing) && now >= self.until {
            self.phase = TransferPhase::LastReading;
        }
        match &self.phase {
            TransferPhase::Writing if now >= self.sample_at => Some(TransferAction::ReadCounters),
            TransferPhase::LastReading => Some(TransferAction::ReadCounters),
            TransferPhase::Stopping => Some(TransferAction::StopWriting),
            TransferPhase::Draining { look_at, .. } if now >= *look_at => {
                Some(TransferAction::ReadCounters)
            }
            TransferPhase::Closing => {
                self.phase = TransferPhase::Closed;
                Some(TransferAction::CloseSending)
            }
            TransferPhase::Writing | TransferPhase::Draining { .. } | TransferPhase::Closed => None,
        }
    }

    /// Time of the next action; [`None`] when there is none any more.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.phase {
            TransferPhase::Writing => Some(self.sample_at.min(self.until)),
            TransferPhase::Draining { look_at, .. } => Some(*look_at),
            TransferPhase::LastReading | TransferPhase::Stopping | TransferPhase::Closing => {
                Some(Time::ZERO)
            }
            TransferPhase::Closed => None,
        }
    }

    /// Hands in the counters of all sending connections with their numbers; [`None`] for a
    /// connection that broke, whose last ones stand.
    pub fn counters(&mut self, now: Time, counters: &[(u16, Option<TcpInfo>)]) {
        match &mut self.phase {
            TransferPhase::Writing => {
                self.sample_at += SAMPLE_EVERY;
                self.keep(now, counters);
            }
            TransferPhase::LastReading => {
                self.phase = TransferPhase::Stopping;
                self.keep(now, counters);
            }
            TransferPhase::Draining {
                until,
                look_at,
                written,
            } => {
                let mut each = counters.iter().zip(written);
                let is_at_rest = each.all(|((_, info), written)| is_at_rest(*info, *written));
                if is_at_rest || now >= *until {
                    self.phase = TransferPhase::Closing;
                    self.keep(now, counters);
                } else {
                    *look_at = now + DRAIN_LOOK;
                }
            }
            TransferPhase::Stopping | TransferPhase::Closing | TransferPhase::Closed => {}
        }
    }

    /// Hands in the payload that each sending connection took, in the order of the counters.
    pub fn written(&mut self, now: Time, written: Vec<u64>) {
        self.phase = TransferPhase::Draining {
            until: now + DRAIN_MAX,
            look_at: now,
            written,
        };
    }

    /// All samples.
    #[must_use]
    pub fn into_samples(self) -> Vec<RunSample> {
        self.samples
    }

    fn keep(&mut self, now: Time, counters: &[(u16, Option<TcpInfo>)]) {
        let at = now.since(self.began);
        let known = counters.iter();
        let known = known.filter_map(|(connection, info)| Some((*connection, (*info)?)));
        self.samples
            .extend(known.map(|(connection, info)| RunSample {
                connection,
                at,
                info,
            }));
    }
}

/// Tells whether a connection has sent everything, and all of it is acknowledged.
fn is_at_rest(info: Option<TcpInfo>, written: u64) -> bool {
    info.is_none_or(|info| {
        let sent = info.bytes_sent.bytes();
        let fresh = sent.saturating_sub(info.bytes_retransmitted.bytes());
        info.unacknowledged == 0 && fresh >= written
    })
}

/// Bytes handed to the kernel at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendPiece {
    /// Their number.
    pub bytes: usize,
    /// Set if the kernel must not join them with what follows (MSG_EOR of send(2)).
    pub is_separate: bool,
}

impl Default for SendPiece {
    /// As much as the kernel takes, joined as it likes.
    fn default() -> Self {
        Self {
            bytes: PIECE_BYTES_MAX,
            is_separate: false,
        }
    }
}

impl SendPiece {
    /// Few segments at once, so that their bursts do not matter, and enough pieces to fill the
    /// window: with whole segments alone, up to one would not fit.
    #[must_use]
    pub fn of(window: ByteCount, info: &TcpInfo) -> Self {
        let segment = info.segment_bytes.max(1) as usize;
        let round_trip = info.rtt_min.max(Duration::from_micros(1));
        let share = PIECE_SHARE.max(PIECE_TIME.as_secs_f64() / round_trip.as_secs_f64());
        let segments = (window.bytes() as f64 * share / segment as f64).max(1.0) as usize;
        let most = segments.saturating_mul(segment);
        if window.bytes() == 0 || most >= PIECE_BYTES_MAX {
            return Self::default();
        }
        let count = window.bytes().div_ceil(most as u64);
        Self {
            bytes: (window.bytes() / count).max(1) as usize,
            is_separate: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(segment_bytes: u32, rtt_min: Duration) -> TcpInfo {
        TcpInfo {
            segment_bytes,
            rtt_min,
            ..TcpInfo::default()
        }
    }

    #[test]
    fn bounded_window_is_sent_in_small_pieces() {
        let long = path(1_448, Duration::from_millis(20));
        let piece = |window, info: &TcpInfo| SendPiece::of(ByteCount::new(window), info);
        // 23 pieces of 1,391 bytes fill 32,000; 22 full segments would leave 144 over.
        assert_eq!(piece(32_000, &long).bytes, 1_391);
        assert_eq!(piece(128_000, &long).bytes, 1_438);
        assert_eq!(piece(1_000_000, &long).bytes, 8_620);
        assert_eq!(piece(1_000, &long).bytes, 1_000);
        assert!(piece(1_000_000, &long).is_separate);
        assert_eq!(piece(0, &long), SendPiece::default());
        assert_eq!(piece(100_000_000, &long), SendPiece::default());
        // A short path: 50 us of 500 us are a tenth.
        let short = path(1_448, Duration::from_micros(500));
        assert_eq!(piece(100_000, &short).bytes, 8_333);
    }

    fn counters(sent: u64, unacknowledged: u32) -> [(u16, Option<TcpInfo>); 1] {
        let info = TcpInfo {
            bytes_sent: ByteCount::new(sent),
            unacknowledged,
            ..TcpInfo::default()
        };
        [(0, Some(info))]
    }

    fn at(milliseconds: u64) -> Time {
        Time::from_epoch(Duration::from_millis(milliseconds))
    }

    #[test]
    fn last_sample_is_of_a_connection_at_rest() {
        let mut monitor = TransferMonitor::new(at(0), Duration::from_millis(150));
        for (now, sent) in [(0, 0), (100, 10), (150, 15)] {
            assert_eq!(
                monitor.poll_action(at(now)),
                Some(TransferAction::ReadCounters)
            );
            monitor.counters(at(now), &counters(sent, 5));
        }
        assert_eq!(
            monitor.poll_action(at(150)),
            Some(TransferAction::StopWriting)
        );
        monitor.written(at(150), vec![20]);
        // Still under way; then sent, but not acknowledged; then at rest.
        for (now, sent, under_way) in [(150, 15, 5), (155, 20, 2), (160, 20, 0)] {
            assert_eq!(
                monitor.poll_action(at(now)),
                Some(TransferAction::ReadCounters)
            );
            monitor.counters(at(now), &counters(sent, under_way));
        }
        assert_eq!(
            monitor.poll_action(at(160)),
            Some(TransferAction::CloseSending)
        );
        assert!(monitor.is_closed() && monitor.poll_timeout().is_none());
        let times: Vec<u128> = monitor
            .into_samples()
            .iter()
            .map(|sample| sample.at.as_millis())
            .collect();
        assert_eq!(times, [0, 100, 150, 160]);
    }

    #[test]
    fn stopped_transfer_writes_no_more() {
        let mut monitor = TransferMonitor::new(at(0), Duration::from_secs(9));
        monitor.stop();
        assert!(!monitor.is_writing() && monitor.was_stopped());
        assert_eq!(
            monitor.poll_action(at(1)),
            Some(TransferAction::ReadCounters)
        );
        monitor.counters(at(1), &counters(1, 1));
        monitor.written(at(1), vec![20]);
        monitor.stop();
        monitor.counters(at(2), &counters(1, 1));
        assert_eq!(
            monitor.poll_action(at(2)),
            Some(TransferAction::CloseSending)
        );
    }
}
