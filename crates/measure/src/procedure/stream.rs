//! Streams of datagrams at a constant rate, without any reaction to the network (RFC 6349 §3.2.2
//! wants stateless streams, not TCP), and the records of their arrivals.

use std::ops::Range;
use std::time::Duration;

use vocab::{Bitrate, ByteCount, Time};

use crate::wire::DatagramArrival;

/// Greatest difference of two consecutive seconds with the same rate, in thousandths.
pub const STEADY_PERMILLE: f64 = 1.0;

/// A stream to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// Rate of IP packets.
    pub rate: Bitrate,
    /// Duration.
    pub duration: Duration,
    /// Bytes of each IP packet.
    pub ip_bytes: u16,
}

/// Greatest relative difference of steady seconds from the whole second half, where others follow
/// them.
const LIKE_THE_REST: f64 = 0.02;
/// Greatest delay up to which a sender catches up, in time and in packets, whichever is longer. A
/// longer burst would test the burst and not the rate.
const BEHIND_MAX: Duration = Duration::from_millis(4);
const BEHIND_PACKETS_MAX: u32 = 4;
/// Arrivals that are kept of one stream, 24 bytes each, and departures, of 8: a minute at 400 Mbit/s.
pub const ARRIVALS_MAX: usize = 2_000_000;
/// Number of packets without room, or share of one hundredth, up to which a stream's losses keep
/// their pattern.
const FEW_WITHOUT_ROOM: u64 = 3;

/// Departure times of a stream's packets.
#[derive(Clone, Debug)]
pub struct DepartureSchedule {
    plan: StreamPlan,
    began: Time,
    /// Total time that the sender stopped.
    shifted: Duration,
    next: u64,
}

impl DepartureSchedule {
    /// A stream that begins now.
    #[must_use]
    pub fn new(now: Time, plan: StreamPlan) -> Self {
        Self {
            plan,
            began: now,
            shifted: Duration::ZERO,
            next: 0,
        }
    }

    /// Departure time of the next packet; [`None`] when the stream is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let bits = u128::from(self.next) * u128::from(self.plan.ip_bytes) * 8;
        let rate = u128::from(self.plan.rate.bits_per_second().max(1));
        let nanoseconds = u64::try_from(bits * 1_000_000_000 / rate).unwrap_or(u64::MAX);
        let after = Duration::from_nanos(nanoseconds) + self.shifted;
        (after < self.plan.duration).then(|| self.began + after)
    }

    /// Number and stamp of a packet that is to leave now; [`None`] while none is.
    pub fn poll_transmit(&mut self, now: Time) -> Option<(u64, u64)> {
        let due = self.poll_timeout().filter(|due| *due <= now)?;
        let behind = now.since(due);
        let bytes = ByteCount::new(u64::from(self.plan.ip_bytes));
        let gap = self.plan.rate.time_for(bytes);
        if behind > BEHIND_MAX.max(gap.saturating_mul(BEHIND_PACKETS_MAX)) {
            self.shifted += behind;
        }
        let number = self.next;
        self.next += 1;
        Some((number, now.since(self.began).as_nanos() as u64))
    }

    /// Packets that have left.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next
    }
}

/// Collector of a stream's arrivals.
#[derive(Clone, Debug)]
pub struct ArrivalLog {
    began: Time,
    arrivals: Vec<DatagramArrival>,
}

impl ArrivalLog {
    /// An empty log.
    #[must_use]
    pub fn new(now: Time) -> Self {
        Self {
            began: now,
            arrivals: Vec::new(),
        }
    }

    /// Notes an arrival; beyond two million they are not noted.
    pub fn arrived(&mut self, at: Time, number: u64, sent_ns: u64) {
        if self.arrivals.len() < ARRIVALS_MAX {
            self.arrivals.push(DatagramArrival {
                number,
                sent_ns,
                arrived_ns: at.since(self.began).as_nanos() as u64,
            });
        }
    }

    /// All collected arrivals.
    #[must_use]
    pub fn into_arrivals(self) -> Vec<DatagramArrival> {
        self.arrivals
    }

    /// Number of collected arrivals.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Tells whether nothing has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }
}

/// Delivery in one second of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeliveredSecond {
    /// End of the second, since the first arrival.
    pub at: Duration,
    /// Rate of IP packets, from the last arrival before the second to the last one in it.
    pub rate: Bitrate,
    /// Packets that arrived in it.
    pub packets: u64,
}

/// A stream with the fates of its packets.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamRecord {
    /// Plan of the stream.
    pub plan: StreamPlan,
    /// Packets that left.
    pub sent: u64,
    /// Arrivals in their order; the two clocks are independent.
    pub arrivals: Vec<DatagramArrival>,
    /// Departure times of the first packets, by the sender's clock and in nanoseconds of its
    /// stamps; empty where only the stamps of arrived packets are known.
    pub left_ns: Vec<u64>,
    /// Packets that came to the receiving host and found no room in the tester's socket.
    pub no_room: u64,
}

impl StreamRecord {
    /// Packets that the tester did not take in, wherever they were lost.
    fn missing(&self) -> u64 {
        self.sent.saturating_sub(self.arrivals.len() as u64)
    }

    /// Packets that the path lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.missing().saturating_sub(self.no_room)
    }

    /// Packets that came to the receiving host.
    #[must_use]
    pub fn came(&self) -> u64 {
        self.arrivals.len() as u64 + self.no_room
    }

    /// Tells whether so many packets found no room in the tester's socket that missing packets say
    /// nothing about the path, because they cannot be told from path losses.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.no_room > FEW_WITHOUT_ROOM && self.no_room * 100 > self.missing()
    }

    /// The share of packets that the path lost.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost() as f64 / (self.sent.max(1)) as f64
    }

    /// Rate that the sender kept, by the stamps of arrived packets.
    #[must_use]
    pub fn offered(&self) -> Option<Bitrate> {
        let first = self.arrivals.iter().min_by_key(|arrival| arrival.number)?;
        let last = self.arrivals.iter().max_by_key(|arrival| arrival.number)?;
        let span = last.sent_ns.checked_sub(first.sent_ns)?;
        self.rate(last.number.checked_sub(first.number)?, span)
    }

    /// Rate of the second half of the arrivals; buckets and queues are past their initial effects
    /// then.
    #[must_use]
    pub fn delivered_late(&self) -> Option<Bitrate> {
        let late = &self.arrivals[self.arrivals.len() / 2..];
        let (first, last) = (late.first()?, late.last()?);
        let span = last.arrived_ns.checked_sub(first.arrived_ns)?;
        self.rate(late.len() as u64 - 1, span)
    }

    /// The rate at which everything came in, from the first arrival to the last.
    #[must_use]
    pub fn delivered(&self) -> Option<Bitrate> {
        let (first, last) = (self.arrivals.first()?, self.arrivals.last()?);
        let span = last.arrived_ns.checked_sub(first.arrived_ns)?;
        self.rate(self.arrivals.len() as u64 - 1, span)
    }

    fn rate(&self, packets: u64, nanoseconds: u64) -> Option<Bitrate> {
        let bits = u128::from(packets) * u128::from(self.plan.ip_bytes) * 8 * 1_000_000_000;
        let rate = bits.checked_div(u128::from(nanoseconds))?;
        Some(Bitrate::from_bits_per_second(u64::try_from(rate).ok()?))
    }

    /// Deliveries second by second, without an incomplete second. Each second is measured from
    /// arrival to arrival, so that on a slow link it is not a packet too many or too few.
    #[must_use]
    pub fn seconds(&self) -> Vec<DeliveredSecond> {
        let spans = self.spans().into_iter();
        let delivered = |(end, of): (u64, Range<usize>)| {
            let since = |place: usize| self.arrivals[place].arrived_ns;
            let span = since(of.end).saturating_sub(since(of.start));
            let packets = of.len() as u64;
            DeliveredSecond {
                at: Duration::from_nanos(end),
                rate: self.rate(packets, span).unwrap_or_default(),
                packets,
            }
        };
        spans.map(delivered).collect()
    }

    /// The whole seconds: where each ends, since the first arrival, and its arrivals, from the last one
    /// before it to the last one in it, that one included.
    fn spans(&self) -> Vec<(u64, Range<usize>)> {
        const SECOND: u64 = 1_000_000_000;
        let Some(first) = self.arrivals.first() else {
            return Vec::new();
        };
        let since = |arrival: &DatagramArrival| arrival.arrived_ns.saturating_sub(first.arrived_ns);
        let mut spans = Vec::new();
        let (mut from, mut end) = (0, SECOND);
        for (place, arrival) in self.arrivals.iter().enumerate() {
            while since(arrival) > end && place > 0 {
                let until = place - 1;
                spans.push((end, from..until));
                from = until;
                end += SECOND;
            }
        }
        spans
    }

    /// Steady rate: over the last seconds, at least two, that differ from their neighbours by no
    /// more than 0.1 % or a single packet. [`None`] where it never became steady.
    ///
    /// Seconds are compared by the straight line through all of their arrivals: a host that hands
    /// on one packet half a millisecond late has not changed a rate. After them a host may stop for
    /// a moment, as long as about as much arrived in the second half.
    #[must_use]
    pub fn steady(&self) -> Option<Bitrate> {
        let spans = self.spans();
        let slopes: Vec<Option<f64>> = spans.iter().map(|(_, of)| self.slope(of)).collect();
        let is_like = |place: usize| {
            let (Some(one), Some(other)) = (slopes[place], slopes[place + 1]) else {
                return false;
            };
            let least = spans[place].1.len().min(spans[place + 1].1.len());
            let tolerance = (STEADY_PERMILLE / 1_000.0).max(1.01 / least.max(1) as f64);
            (one - other).abs() <= tolerance * one.max(other)
        };
        let last = (0..spans.len().saturating_sub(1))
            .rev()
            .find(|place| is_like(*place))?;
        let alike = (0..=last).rev().take_while(|place| is_like(*place)).count();
        let of = spans[last + 1 - alike].1.start..spans[last + 1].1.end;
        let bits = self.slope(&of)? * f64::from(self.plan.ip_bytes) * 8.0;
        let rate = Bitrate::from_bits_per_second((bits * 1e9).round() as u64);
        // A bucket that is not empty yet lets pass more than what comes later.
        let is_like_the_rest = self.delivered_late().is_some_and(|late| {
            let (rate, late) = (rate.bits_per_second() as f64, late.bits_per_second() as f64);
            (rate / late - 1.0).abs() < LIKE_THE_REST
        });
        (last + 2 == spans.len() || is_like_the_rest).then_some(rate)
    }

    /// Packets per nanosecond along the least-squares line of all arrivals of a span; [`None`]
    /// where there are too few.
    fn slope(&self, of: &Range<usize>) -> Option<f64> {
        let arrivals = self.arrivals.get(of.start..=of.end)?;
        let (first, count) = (arrivals.first()?.arrived_ns, arrivals.len() as f64);
        // Stamps are read off two clocks, one after the other: a later arrival may seem earlier than the first.
        let at = |arrival: &DatagramArrival| arrival.arrived_ns as f64 - first as f64;
        let mean_at = arrivals.iter().map(at).sum::<f64>() / count;
        let mean_place = (count - 1.0) / 2.0;
        let (mut square, mut product) = (0.0, 0.0);
        for (place, arrival) in arrivals.iter().enumerate() {
            let (beside, above) = (at(arrival) - mean_at, place as f64 - mean_place);
            square += above * above;
            product += beside * above;
        }
        // Times err, numbers do not.
        let gap = product / square;
        (gap.is_finite() && gap > 0.0).then(|| 1.0 / gap)
    }

    /// IP bytes that arrived.
    #[must_use]
    pub fn delivered_bytes(&self) -> ByteCount {
        ByteCount::new(self.arrivals.len() as u64 * u64::from(self.plan.ip_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of which so many packets of 1,500 bytes per second arrive for ten seconds, each
    /// delayed by `late` of its number, and none before the one sent before it.
    fn arriving(per_second: f64, late: impl Fn(u64) -> u64) -> StreamRecord {
        let mut last = 0;
        let arrival = |number: u64| {
            let sent_ns = (number as f64 * 1e9 / per_second) as u64;
            last = last.max(sent_ns + late(number));
            DatagramArrival {
                number,
                sent_ns,
                arrived_ns: last,
            }
        };
        let sent = (per_second * 10.0) as u64 + 2;
        StreamRecord {
            plan: StreamPlan {
                rate: Bitrate::from_bits_per_second((per_second * 12_000.0) as u64),
                duration: Duration::from_secs(10),
                ip_bytes: 1_500,
            },
            sent,
            arrivals: (0..sent).map(arrival).collect(),
            left_ns: Vec::new(),
            no_room: 0,
        }
    }

    fn error_of(record: &StreamRecord, per_second: f64) -> f64 {
        let found = record.steady().map_or(0, Bitrate::bits_per_second) as f64;
        found / (per_second * 12_000.0) - 1.0
    }

    #[test]
    fn packets_handed_on_late_keep_the_rate_steady() {
        // 10 and 0.5 Mbit/s; up to 0.9 ms late, as on a host that others keep busy.
        for per_second in [833.3, 42.0] {
            let record = arriving(per_second, |number| number * 7_919 % 900_000);
            let error = error_of(&record, per_second);
            assert!(error.abs() < 0.000_2, "{per_second} a second: {error}");
        }
    }

    #[test]
    fn host_stall_at_the_end_keeps_steady_rate() {
        // From 9.2 s on nothing for 30 ms, and what was to come meanwhile never comes back.
        let record = arriving(833.3, |number| if number > 7_666 { 30_000_000 } else { 0 });
        let error = error_of(&record, 833.3);
        assert!(error.abs() < 0.000_1, "{error}");
    }

    #[test]
    fn apparently_earlier_arrival_is_kept() {
        let mut record = arriving(833.3, |_| 0);
        // Each whole second begins with a packet that seems later than the next.
        for place in (0..record.arrivals.len()).step_by(7) {
            record.arrivals[place].arrived_ns += 1_300_000;
        }
        let error = error_of(&record, 833.3);
        assert!(error.abs() < 0.000_2, "{error}");
    }

    #[test]
    fn changing_rate_is_not_steady() {
        // A bucket's refill that slows down all the way: 1 % a second.
        let record = arriving(833.3, |number| number * number * 6);
        assert_eq!(record.steady(), None);
    }

    #[test]
    fn packets_without_room_are_not_path_losses() {
        let mut record = arriving(100.0, |_| 0);
        record.arrivals.truncate(602);
        assert_eq!((record.sent, record.lost()), (1_002, 400));
        record.no_room = 300;
        assert_eq!((record.lost(), record.came()), (100, 902));
        assert!((record.loss() - 100.0 / 1_002.0).abs() < 1e-9);
        // More than is missing is no fewer than none.
        record.no_room = 500;
        assert_eq!((record.lost(), record.loss()), (0, 0.0));
    }

    #[test]
    fn stream_is_overrun_above_a_loss_share() {
        let of = |missing: usize, no_room| {
            let mut record = arriving(100.0, |_| 0);
            record.arrivals.truncate(1_002 - missing);
            record.no_room = no_room;
            record.is_overrun()
        };
        assert!(!of(3, 3) && of(4, 4));
        assert!(!of(400, 4) && of(400, 5));
        assert!(!of(0, 0) && !of(400, 0));
    }

    #[test]
    fn burst_through_a_bucket_is_no_steady_rate() {
        // Twice as fast up to 8.5 s.
        let late = |number: u64| number.saturating_sub(7_083) * 1_200_000;
        let record = arriving(833.3, late);
        let found = record.steady();
        assert!(
            found.is_none_or(|rate| rate.bits_per_second() < 9_000_000),
            "{found:?}"
        );
    }
}
