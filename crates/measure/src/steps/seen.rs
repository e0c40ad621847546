//! Results of a stream of frames: information rate, frame loss, and delay as far as two
//! unsynchronised clocks show it.
//!
//! A frame's stamp and its arrival are of different clocks, so only differences between frames of
//! one stream are valid. The earliest frame of a stream, by arrival minus stamp, counts as one
//! without a wait; the wait of every other is its delay after that. The round trip under load is
//! the baseline RTT of small probes plus the frame's wait in the one direction that was loaded.
//!
//! Clocks that drift apart by 10 millionths make a wait of 0.1 ms at the end of ten seconds.

use std::time::Duration;

use vocab::Bitrate;

use super::of_frames;
use crate::procedure::StreamRecord;

/// Share of its rate below which a sender did not do as requested.
const KEPT: f64 = 0.95;
/// Greatest share of frames without room in the tester's socket; beyond it, the arrivals show the
/// receiving host's capacity.
const WITHOUT_ROOM_MAX: f64 = 0.001;

/// Results of a stream. Rates count whole frames.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamResult {
    /// Rate that the sender kept; [`None`] where fewer than two frames arrived.
    pub offered: Option<Bitrate>,
    /// Rate that arrived, from the first frame to the last.
    pub received: Option<Bitrate>,
    /// Rate that arrived once buckets were empty and queues full: in the steady seconds at the end,
    /// or otherwise in the second half.
    pub received_late: Option<Bitrate>,
    /// Frames sent.
    pub sent: u64,
    /// Frames that the path lost.
    pub lost: u64,
    /// Frames that came to the receiving host and found no room in the tester's socket.
    pub no_room: u64,
    /// Round trip with this direction loaded, of the mean frame: baseline RTT and its wait.
    pub round_trip: Option<Duration>,
    /// The same of the frame that waited longest.
    pub round_trip_max: Option<Duration>,
    /// Frame delay variation: the wait that one frame in a thousand exceeds (ITU-T Y.1540 §6.2.2, Y.1563: the
    /// 1 - 10^-3 quantile less the least).
    pub variation: Option<Duration>,
    /// Set if the sender kept its rate.
    pub is_kept: bool,
}

impl StreamResult {
    /// Results of a stream of frames of this size on a path with this baseline RTT.
    #[must_use]
    pub fn of(record: &StreamRecord, frame: u16, baseline_rtt: Option<Duration>) -> Self {
        let frames = |rate: Option<Bitrate>| rate.map(|rate| of_frames(rate, frame));
        let waits = waits(record);
        let nanoseconds: u128 = waits.iter().map(|wait| u128::from(*wait)).sum();
        let mean = nanoseconds.checked_div(waits.len() as u128);
        let trip = |wait: Option<u64>| Some(baseline_rtt? + Duration::from_nanos(wait?));
        let place = (waits.len().saturating_sub(1) as f64 * 0.999).ceil() as usize;
        let offered = record.offered();
        Self {
            offered: frames(offered),
            received: frames(record.delivered()),
            received_late: frames(record.steady().or_else(|| record.delivered_late())),
            sent: record.sent,
            lost: record.lost(),
            no_room: record.no_room,
            round_trip: trip(mean.and_then(|mean| u64::try_from(mean).ok())),
            round_trip_max: trip(waits.last().copied()),
            variation: waits.get(place).copied().map(Duration::from_nanos),
            is_kept: is_kept(record, offered),
        }
    }

    /// Tells whether the receiving host was too slow; the results then describe that host and not
    /// the path.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.no_room as f64 > WITHOUT_ROOM_MAX * self.sent as f64
    }

    /// Frame loss ratio, of the path.
    #[must_use]
    pub fn loss_ratio(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }

    /// Both, one after the other: counts add up, delays are of the worse.
    pub(super) fn join(&mut self, other: &Self) {
        let (before, more) = (self.sent, other.sent);
        let mean = |one: Option<Bitrate>, two: Option<Bitrate>| match (one, two) {
            (Some(one), Some(two)) => {
                let sum = u128::from(one.bits_per_second()) * u128::from(before)
                    + u128::from(two.bits_per_second()) * u128::from(more);
                let mean = sum.checked_div(u128::from(before + more)).unwrap_or(0);
                Some(Bitrate::from_bits_per_second(
                    u64::try_from(mean).unwrap_or(u64::MAX),
                ))
            }
            (one, two) => one.or(two),
        };
        self.offered = mean(self.offered, other.offered);
        self.received = mean(self.received, other.received);
        self.received_late = mean(self.received_late, other.received_late);
        self.sent += other.sent;
        self.lost += other.lost;
        self.no_room += other.no_room;
        self.round_trip = self.round_trip.max(other.round_trip);
        self.round_trip_max = self.round_trip_max.max(other.round_trip_max);
        self.variation = self.variation.max(other.variation);
        self.is_kept &= other.is_kept;
    }
}

/// Delay of each frame after the earliest, in nanoseconds, sorted.
fn waits(record: &StreamRecord) -> Vec<u64> {
    let delay = |arrival: &crate::wire::DatagramArrival| {
        i128::from(arrival.arrived_ns) - i128::from(arrival.sent_ns)
    };
    let Some(least) = record.arrivals.iter().map(delay).min() else {
        return Vec::new();
    };
    let mut waits: Vec<u64> = record
        .arrivals
        .iter()
        .map(|arrival| u64::try_from(delay(arrival) - least).unwrap_or(u64::MAX))
        .collect();
    waits.sort_unstable();
    waits
}

/// Tells whether the sender kept its rate, by the stamps of arrivals or, where hardly any arrived,
/// by the number sent.
fn is_kept(record: &StreamRecord, offered: Option<Bitrate>) -> bool {
    let asked = record.plan.rate.bits_per_second() as f64;
    match offered {
        Some(offered) => offered.bits_per_second() as f64 >= KEPT * asked,
        None => {
            let bits = record.sent as f64 * f64::from(record.plan.ip_bytes) * 8.0;
            bits >= KEPT * asked * record.plan.duration.as_secs_f64()
                - f64::from(record.plan.ip_bytes) * 8.0
        }
    }
}
