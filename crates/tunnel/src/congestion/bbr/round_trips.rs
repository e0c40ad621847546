//! Round-trip times: the path's own, and the queue's share of recent ones.
//!
//! The minimum is kept as the draft keeps it ("BBR.min_rtt Min Filter"): over ten seconds, renewed
//! by samples taken while little is in flight, for which ProbeRTT is scheduled every five. One
//! departure: a sample within a small tolerance of the minimum renews it. The draft requires a
//! lower one. A path with an empty queue and some noise does not give one, and the draft then stops
//! sending every five seconds without need. Another departure: where others keep a deep queue, the
//! minimum is measured every nine seconds, just before it expires. Capacity given up for the
//! measurement is taken by the others for seconds.
//!
//! Where packets are reordered the minimum is the result of one lucky packet. The amount in flight
//! is then derived from the average time packets are in flight, between the minimum plus half the
//! spread of the round-trip times (`reordering`) and the minimum plus all of it
//! (docs/decisions/0017).

use std::time::Duration;

use vocab::Time;

use super::super::sample::RateBase;

/// Longest queue with which losses still measure the floor, as a share of the round-trip time. A
/// probe that builds less has built no queue.
pub(super) const FLOOR_QUEUE: f64 = 0.1;

/// Lifetime of a minimum (BBR.MinRTTFilterLen).
const MINIMUM_LASTS: Duration = Duration::from_secs(10);

/// Time without a sample near the minimum after which it is measured again (BBR.ProbeRTTInterval).
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Probe interval in a deep queue that other senders keep: they take the capacity that this sender
/// leaves, and BBR version 1 empties the queue itself every ten seconds. Less than
/// [`MINIMUM_LASTS`].
const PROBE_INTERVAL_IN_DEEP_QUEUE: Duration = Duration::from_secs(9);

/// A longer queue, as a share of the round-trip time, is not this sender's alone: its window is twice
/// what the path holds, so that it leaves one at most. The fiftieth is noise.
const DEEP_QUEUE: f64 = 1.02;

/// Window for rates on a path that reorders, in longest flights. Packets sent before the window
/// that arrive within it, or the reverse, are then a few per cent.
const WINDOW_FLIGHTS: u32 = 2;

/// Uncertainty of the base on a path that reorders, as a factor.
const BASE_DOUBT: f64 = 1.3;

/// Spread that counts as wide, as a divisor of the minimum.
const WIDE_SPREAD: u32 = 8;

/// A queue shorter than this is noise of the hosts at both ends.
const NOISE: Duration = Duration::from_millis(2);

/// Round-trip times of one path.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrips {
    minimum: Option<Duration>,
    minimum_at: Time,
    probed: Option<Duration>,
    probed_at: Time,
    is_probe_due: bool,
    spread: Duration,
    /// Minima over the present and the last bin of time, each a quarter of a round trip.
    bin_at: Time,
    bin: Option<Duration>,
    last_bin: Option<Duration>,
    in_flight_times: InFlightTimes,
}

/// Average time that packets are in flight: by Little's law the rate times that must be in flight.
/// Lost packets count until their loss is detected.
///
/// A queue lengthens all of them. So the least average of the last five to ten seconds counts, each
/// over a round of packets, as the minimum does for a single packet's round-trip time.
#[derive(Clone, Copy, Debug)]
struct InFlightTimes {
    /// The average under way.
    began_at: Time,
    sum: Duration,
    count: u32,
    /// The least of the present span of [`STAYS_SPAN`] and of the one before it.
    span_at: Time,
    least: Option<Duration>,
    last_least: Option<Duration>,
}

/// See [`InFlightTimes`]: half of what a minimum is believed for.
const STAYS_SPAN: Duration = Duration::from_secs(5);

/// Fewer packets make no average.
const STAYS_PACKETS: u32 = 64;

impl InFlightTimes {
    fn new(now: Time) -> Self {
        Self {
            began_at: now,
            sum: Duration::ZERO,
            count: 0,
            span_at: now,
            least: None,
            last_least: None,
        }
    }

    fn least(&self) -> Option<Duration> {
        match (self.least, self.last_least) {
            (Some(least), Some(last)) => Some(least.min(last)),
            (one, other) => one.or(other),
        }
    }

    fn add(&mut self, now: Time, sent: impl Iterator<Item = Time>, bin: Duration) {
        for sent_at in sent {
            self.sum += now.since(sent_at);
            self.count += 1;
        }
        if self.count < STAYS_PACKETS || now < self.began_at + bin {
            return;
        }
        if now > self.span_at + STAYS_SPAN {
            self.last_least = self.least.take();
            self.span_at = now;
        }
        let average = self.sum / self.count;
        self.least = Some(self.least.map_or(average, |least| least.min(average)));
        self.began_at = now;
        self.sum = Duration::ZERO;
        self.count = 0;
    }
}

impl RoundTrips {
    pub(super) fn new(now: Time) -> Self {
        Self {
            minimum: None,
            minimum_at: now,
            probed: None,
            probed_at: now,
            is_probe_due: false,
            spread: Duration::ZERO,
            bin_at: now,
            bin: None,
            last_bin: None,
            in_flight_times: InFlightTimes::new(now),
        }
    }

    /// Shortest recent round-trip time.
    pub(super) fn minimum(&self) -> Option<Duration> {
        self.minimum
    }

    /// The time for which data must be in flight for the path to be full.
    pub(super) fn base(&self) -> Option<Duration> {
        let minimum = self.minimum?;
        if !self.is_reordering() {
            return Some(minimum);
        }
        let least = minimum + self.spread / 2;
        let usual = self.in_flight_times.least().unwrap_or(least);
        Some(usual.clamp(least, minimum + self.spread))
    }

    /// Takes note of packets that have left the path, acknowledged or lost.
    pub(super) fn left(&mut self, now: Time, packets: impl Iterator<Item = Time>) {
        let bin = self.minimum.unwrap_or_default() + self.spread;
        self.in_flight_times.add(now, packets, bin);
    }

    /// Returns `true` if packets are reordered. A queue shorter than their spread is then not
    /// visible.
    pub(super) fn is_reordering(&self) -> bool {
        !self.spread.is_zero()
    }

    /// Factor by which the path may hold more than the base: on a path that reorders, the least of
    /// many averages is below the usual one.
    pub(super) fn doubt(&self) -> f64 {
        match (self.minimum, self.base()) {
            // The path cannot hold more than its slowest packets make.
            (Some(minimum), Some(base)) if self.is_reordering() => {
                let most = (minimum + self.spread).as_secs_f64() / base.as_secs_f64().max(1e-6);
                BASE_DOUBT.min(most)
            }
            _ => 1.0,
        }
    }

    /// Returns `true` if packets are reordered so much that rates are measured over several rounds.
    pub(super) fn is_spread_wide(&self) -> bool {
        self.minimum
            .is_some_and(|minimum| self.spread > minimum / WIDE_SPREAD)
    }

    /// The intervals over which a delivery rate may be taken.
    pub(super) fn rate_base(&self) -> RateBase {
        match self.minimum {
            Some(minimum) if !self.spread.is_zero() => RateBase::Window {
                span: (minimum + self.spread) * WINDOW_FLIGHTS,
                flight: minimum + self.spread / 2,
            },
            Some(minimum) => RateBase::Flight { least: minimum },
            None => RateBase::Flight {
                least: Duration::ZERO,
            },
        }
    }

    /// Number of rounds after which a rate sample shows a change completely.
    pub(super) fn rounds_of_rate(&self) -> u32 {
        if self.spread.is_zero() {
            1
        } else {
            2 * WINDOW_FLIGHTS
        }
    }

    /// The shortest that a round may last.
    pub(super) fn round_least(&self) -> Duration {
        match self.minimum {
            Some(minimum) if !self.spread.is_zero() => minimum + self.spread / 2,
            _ => Duration::ZERO,
        }
    }

    /// "ProbeRTT Logic", UpdateMinRTT.
    pub(super) fn update(
        &mut self,
        now: Time,
        rtt: Option<Duration>,
        reordering: Option<Duration>,
    ) {
        self.spread = reordering.unwrap_or(Duration::ZERO);
        let interval = if self.has_deep_queue() {
            PROBE_INTERVAL_IN_DEEP_QUEUE
        } else {
            PROBE_INTERVAL
        };
        self.is_probe_due = now > self.probed_at + interval;
        let Some(rtt) = rtt else { return };
        if let Some(probed) = self.probed
            && rtt <= probed + tolerance(probed)
        {
            self.probed = Some(probed.min(rtt));
            self.probed(now);
        } else if self.probed.is_none() || self.is_probe_due {
            self.probed = Some(rtt);
            self.probed_at = now;
        }
        if let (Some(probed), Some(minimum)) = (self.probed, self.minimum) {
            if probed <= minimum + tolerance(minimum) {
                self.minimum = Some(minimum.min(probed));
                self.minimum_at = self.probed_at;
            } else if now > self.minimum_at + MINIMUM_LASTS {
                self.minimum = Some(probed);
                self.minimum_at = self.probed_at;
            }
        } else {
            self.minimum = self.probed;
            self.minimum_at = now;
        }
        self.note(now, rtt);
    }

    /// Returns `true` if the minimum round-trip time has to be measured again.
    pub(super) fn is_probe_due(&self) -> bool {
        self.is_probe_due
    }

    /// The minimum has just been sought.
    pub(super) fn probed(&mut self, now: Time) {
        self.probed_at = now;
        self.is_probe_due = false;
    }

    /// The shortest time of the last quarter to half of a round trip.
    pub(super) fn recent(&self) -> Option<Duration> {
        match (self.bin, self.last_bin) {
            (Some(bin), Some(last)) => Some(bin.min(last)),
            (one, other) => one.or(other),
        }
    }

    /// Queue beyond `reference`, as a share of the base. Noise counts as no queue, and on a path
    /// that reorders so does the delay of the fastest of a few packets.
    pub(super) fn queue_beyond(&self, reference: Duration) -> f64 {
        let (Some(recent), Some(base)) = (self.recent(), self.base()) else {
            return 0.0;
        };
        let queue = recent.saturating_sub(reference + self.spread / 4);
        if queue <= NOISE {
            return 0.0;
        }
        queue.as_secs_f64() / base.as_secs_f64().max(1e-6)
    }

    /// Queue as a share of the base.
    pub(super) fn queue(&self) -> f64 {
        self.minimum
            .map_or(0.0, |minimum| self.queue_beyond(minimum))
    }

    /// Returns `true` if other senders keep a queue that is too long for this sender to drain.
    pub(super) fn has_deep_queue(&self) -> bool {
        self.queue() > DEEP_QUEUE
    }

    fn note(&mut self, now: Time, rtt: Duration) {
        let width = self.base().unwrap_or(rtt) / 4;
        if now > self.bin_at + width {
            self.last_bin = self.bin.take();
            self.bin_at = now;
        }
        self.bin = Some(self.bin.map_or(rtt, |bin| bin.min(rtt)));
    }
}

/// Tolerance within which a sample counts as the minimum: 1/64, for clocks and schedulers of busy
/// hosts, and a quarter of a millisecond.
fn tolerance(minimum: Duration) -> Duration {
    minimum / 64 + Duration::from_micros(250)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn millis(count: u64) -> Option<Duration> {
        Some(Duration::from_millis(count))
    }

    #[test]
    fn samples_near_the_minimum_keep_it_fresh() {
        let mut times = RoundTrips::new(at(0));
        for tick in 0..600 {
            times.update(at(100 * tick), millis(100 + tick % 2), None);
            assert!(!times.is_probe_due(), "at tick {tick}");
        }
        assert_eq!(times.minimum(), millis(100));
    }

    #[test]
    fn standing_queue_causes_limited_minimum_probes() {
        let mut times = RoundTrips::new(at(0));
        times.update(at(0), millis(100), None);
        times.update(at(4900), millis(150), None);
        assert!(!times.is_probe_due());
        times.update(at(5100), millis(150), None);
        assert!(times.is_probe_due());
        assert_eq!(times.minimum(), millis(100));
        times.update(at(10_100), millis(160), None);
        assert_eq!(times.minimum(), millis(150));
    }

    #[test]
    fn minimum_probes_are_rare_in_others_queue() {
        let mut times = RoundTrips::new(at(0));
        times.update(at(0), millis(100), None);
        for tick in 1..=89 {
            times.update(at(100 * tick), millis(220), None);
            assert!(!times.is_probe_due(), "at tick {tick}");
        }
        times.update(at(9_100), millis(220), None);
        assert!(times.is_probe_due());
        assert_eq!(times.minimum(), millis(100));
    }

    #[test]
    fn reordering_spread_is_part_of_the_base() {
        let mut times = RoundTrips::new(at(0));
        times.update(at(0), millis(20), millis(150));
        assert_eq!(times.base(), millis(95));
        times.update(at(1), millis(20), None);
        assert_eq!(times.base(), millis(20));
    }

    #[test]
    fn reordering_path_base_is_the_least_recent_average() {
        let mut times = RoundTrips::new(at(0));
        // A round each 100 ms: first packets that take 120 ms, then some that wait in a queue.
        for tick in 10..200 {
            let now = at(100 * tick);
            times.update(now, millis(20), millis(150));
            let took = if tick < 30 { 120 } else { 140 };
            let sent = Time::ZERO + now.since(at(took));
            times.left(now, std::iter::repeat_n(sent, 100));
            // An average is under way in the first round, and half forgotten while the queue is new.
            let expected = match tick {
                12..80 => 120,
                150.. => 140,
                _ => continue,
            };
            assert_eq!(times.base(), millis(expected), "at tick {tick}");
        }
    }

    #[test]
    fn queue_is_recent_delay_above_the_minimum() {
        let mut times = RoundTrips::new(at(0));
        times.update(at(0), millis(100), None);
        assert_eq!(times.queue(), 0.0);
        for tick in 1..100 {
            times.update(at(tick), millis(150), None);
        }
        assert!((times.queue() - 0.5).abs() < 0.01, "{}", times.queue());
    }
}
