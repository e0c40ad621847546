//! The formulas of RFC 6349 (Framework for TCP Throughput Testing) and the loss budget of RFC 8337
//! (Model-Based Metrics for Bulk Transport Capacity).
//!
//! ```text
//!  bottleneck rate, baseline RTT ─► BDP ─► windows ─► ideal throughput ─┐
//!                                       a run: payload, time ───────────┴► transfer time ratio
//!                                              bytes sent, resent ───────► TCP efficiency
//!                                              RTT of every second ──────► buffer delay
//! ```
//! Throughput is of TCP payload. The tests hold every formula to the RFCs' own examples and tables.

use std::time::Duration;

use vocab::{Bitrate, ByteCount};

/// Bytes of an IPv4 and a TCP header without options, which RFC 6349 §4.1.1 takes off the MTU.
pub const HEADERS_IPV4: u64 = 40;
/// The same with an IPv6 header (RFC 8200 §3: 40 bytes).
pub const HEADERS_IPV6: u64 = 60;
/// Bytes that Ethernet adds to an IP packet on the wire: header 14, check sum 4, gap 12, preamble 7
/// and start of frame 1 (RFC 6349 §4.1.1).
pub const ETHERNET_OVERHEAD: u64 = 38;
/// Bytes that PPP adds on a T3 line: header 4, flags 2, check sum 2 (RFC 6349 §4.1.1).
pub const T3_PPP_OVERHEAD: u64 = 8;

/// The shares of the BDP that a window walk takes, in percent. RFC 6349 §3.3.1 asks for several below
/// and one above it without saying which; testers of circuits take quarters.
pub const WALK_PERCENT: [u64; 5] = [25, 50, 75, 100, 150];

/// Bandwidth-delay product in bits (RFC 6349 §3.3.1): the data that fills the path.
#[must_use]
pub fn bandwidth_delay_bits(bottleneck: Bitrate, baseline_rtt: Duration) -> u64 {
    let bits =
        u128::from(bottleneck.bits_per_second()) * baseline_rtt.as_nanos() / NANOSECONDS_A_SECOND;
    u64::try_from(bits).unwrap_or(u64::MAX)
}

/// The least receive window that lets one connection fill the path: BDP / 8, rounded up to a whole
/// byte (RFC 6349 §3.3.1, "minimum required TCP RWND").
#[must_use]
pub fn minimum_window(bottleneck: Bitrate, baseline_rtt: Duration) -> ByteCount {
    let bit_nanoseconds = u128::from(bottleneck.bits_per_second()) * baseline_rtt.as_nanos();
    let bytes = bit_nanoseconds.div_ceil(8 * NANOSECONDS_A_SECOND);
    ByteCount::new(u64::try_from(bytes).unwrap_or(u64::MAX))
}

/// The windows of a walk: `percent` of the BDP each, then those of `also`, without repetition.
#[must_use]
pub fn walk(bdp: ByteCount, percent: &[u64], also: &[ByteCount]) -> Vec<ByteCount> {
    let shares = percent
        .iter()
        .map(|share| ByteCount::new(bdp.bytes().saturating_mul(*share).div_ceil(100)));
    let mut windows: Vec<ByteCount> = Vec::new();
    for window in shares.chain(also.iter().copied()) {
        if window.bytes() > 0 && !windows.contains(&window) {
            windows.push(window);
        }
    }
    windows
}

/// Number of connections of this window that fill the path (RFC 6349 §3.3.2, "Multiple TCP
/// Connection Throughput": BDP / window, rounded up); at least one.
#[must_use]
pub fn connections_to_fill(bdp: ByteCount, window: ByteCount) -> u64 {
    bdp.bytes().div_ceil(window.bytes().max(1)).max(1)
}

/// Throughput of a connection whose window is smaller than the BDP (RFC 6349 §3.3.1: window × 8 /
/// RTT). [`None`] without a round-trip time.
#[must_use]
pub fn window_limited(window: ByteCount, rtt: Duration) -> Option<Bitrate> {
    let bits = u128::from(window.bytes()) * 8 * NANOSECONDS_A_SECOND;
    let rate = bits.checked_div(rtt.as_nanos())?;
    Some(Bitrate::from_bits_per_second(
        u64::try_from(rate).unwrap_or(u64::MAX),
    ))
}

/// Full packets a second on a line whose rate counts `overhead` bytes around each (RFC 6349 §4.1.1,
/// "FPS"). The RFC's examples drop the fraction.
#[must_use]
pub fn packets_per_second(line: Bitrate, mtu: u64, overhead: u64) -> f64 {
    line.bits_per_second() as f64 / ((mtu + overhead) * 8) as f64
}

/// The most payload that TCP carries over a line (RFC 6349 §4.1.1: (MTU − headers) × 8 × FPS). For a
/// rate of IP packets the overhead is zero.
#[must_use]
pub fn maximum_throughput(line: Bitrate, mtu: u64, headers: u64, overhead: u64) -> Bitrate {
    let payload_bits = mtu.saturating_sub(headers) * 8;
    let rate = payload_bits as f64 * packets_per_second(line, mtu, overhead);
    Bitrate::from_bits_per_second(rate as u64)
}

/// Ideal throughput of a run with this window: one window per round trip, limited to the payload
/// that the bottleneck carries.
#[must_use]
pub fn ideal_throughput(window: ByteCount, baseline_rtt: Duration, maximum: Bitrate) -> Bitrate {
    window_limited(window, baseline_rtt).map_or(maximum, |limited| limited.min(maximum))
}

/// Time that `payload` takes at a throughput (RFC 6349 §4.1, "Ideal TCP Transfer Time").
#[must_use]
pub fn transfer_time(payload: ByteCount, throughput: Bitrate) -> Duration {
    throughput.time_for(payload)
}

/// TCP transfer time ratio (RFC 6349 §4.1): 1 is ideal, 2 is twice as long. [`None`] where the
/// ideal time is zero.
#[must_use]
pub fn transfer_time_ratio(actual: Duration, ideal: Duration) -> Option<f64> {
    (!ideal.is_zero()).then(|| actual.as_secs_f64() / ideal.as_secs_f64())
}

/// TCP efficiency in percent (RFC 6349 §4.2): the share of the transmitted bytes that were not
/// retransmissions. `transmitted` includes every retransmission; [`None`] where it is zero.
#[must_use]
pub fn efficiency_percent(transmitted: ByteCount, retransmitted: ByteCount) -> Option<f64> {
    let sent = transmitted.bytes();
    (sent > 0).then(|| {
        let fresh = sent.saturating_sub(retransmitted.bytes());
        fresh as f64 / sent as f64 * 100.0
    })
}

/// The mean of the RTTs that were sampled once a second (RFC 6349 §4.3).
#[must_use]
pub fn average_rtt(samples: &[Duration]) -> Option<Duration> {
    let count = u32::try_from(samples.len())
        .ok()
        .filter(|count| *count > 0)?;
    Some(samples.iter().sum::<Duration>() / count)
}

/// Buffer delay in percent (RFC 6349 §4.3): the increase of the round trip by queues. Negative
/// where the path became shorter; [`None`] without a baseline.
#[must_use]
pub fn buffer_delay_percent(average_rtt: Duration, baseline_rtt: Duration) -> Option<f64> {
    let baseline = baseline_rtt.as_secs_f64();
    (baseline > 0.0).then(|| (average_rtt.as_secs_f64() - baseline) / baseline * 100.0)
}

/// The loss that a path may have if TCP is to reach a rate over it (RFC 8337 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossBudget {
    /// Packets that must be under way (RFC 8337 §5.2, target_window_size).
    pub window_packets: u64,
    /// Packets that must pass from one loss to the next (RFC 8337 §5.2, target_run_length).
    pub run_length_packets: u64,
}

impl LossBudget {
    /// The budget for a target: ceil(rate × RTT / (MTU − headers)) packets under way, and three times
    /// its square between losses.
    #[must_use]
    pub fn new(rate: Bitrate, rtt: Duration, mtu: u64, headers: u64) -> Self {
        let payload = mtu.saturating_sub(headers).max(1);
        let window = minimum_window(rate, rtt).bytes().div_ceil(payload).max(1);
        Self {
            window_packets: window,
            run_length_packets: window.saturating_mul(window).saturating_mul(3),
        }
    }

    /// Judges whether `lost` of `sent` packets of a stream at or below the target rate are within
    /// the budget. It uses the sequential probability ratio test of RFC 8337 §7.2 (Wald), which
    /// distinguishes one loss per run length from four, with an error of 5 % either way.
    #[must_use]
    pub fn judge(&self, sent: u64, lost: u64) -> LossVerdict {
        const ERROR: f64 = 0.05;
        let good = 1.0 / self.run_length_packets as f64;
        // RFC 8337 §7.2 takes a fourfold rate as bad; a run of a few packets has no fourfold.
        let bad = (4.0 * good).min(0.99);
        let weight = (bad * (1.0 - good) / (good * (1.0 - bad))).ln();
        let expected = ((1.0 - good) / (1.0 - bad)).ln() / weight * sent as f64;
        let margin = ((1.0 - ERROR) / ERROR).ln() / weight;
        if lost as f64 <= expected - margin {
            LossVerdict::Within
        } else if lost as f64 >= expected + margin {
            LossVerdict::Beyond
        } else {
            LossVerdict::Undecided
        }
    }
}

/// Verdict of a stream on a loss budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossVerdict {
    /// Few enough losses for the target.
    Within,
    /// Too many: TCP does not reach the target, however it is tuned.
    Beyond,
    /// The stream was too short for a verdict.
    Undecided,
}

const NANOSECONDS_A_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mbit(rate: f64) -> Bitrate {
        Bitrate::from_bits_per_second((rate * 1e6) as u64)
    }

    fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    fn bytes(count: u64) -> ByteCount {
        ByteCount::new(count)
    }

    /// RFC 6349 §3.3.1, the table of link rates, RTTs, BDPs and windows: kilobytes are of 1000.
    #[test]
    fn windows_match_the_rfc_6349_table() {
        let table = [
            (1.536, 20_000, 3.84),
            (1.536, 50_000, 9.60),
            (1.536, 100_000, 19.20),
            (44.21, 10_000, 55.26),
            (44.21, 15_000, 82.89),
            (44.21, 25_000, 138.16),
            (100.0, 1_000, 12.5),
            (100.0, 2_000, 25.0),
            (100.0, 5_000, 62.5),
            (1_000.0, 100, 12.5),
            (1_000.0, 500, 62.5),
            (1_000.0, 1_000, 125.0),
            (10_000.0, 50, 62.5),
            (10_000.0, 300, 375.0),
        ];
        for (rate, rtt, kilobytes) in table {
            let window = minimum_window(mbit(rate), us(rtt)).bytes() as f64 / 1e3;
            assert!((window - kilobytes).abs() < 0.005, "{rate} {rtt}: {window}");
            let bits = bandwidth_delay_bits(mbit(rate), us(rtt)) as f64;
            assert!((bits / 8e3 - window).abs() < 0.001, "{rate} {rtt}: {bits}");
        }
    }

    /// RFC 6349 §3.3.1: an asymmetric path has a BDP for each direction.
    #[test]
    fn each_direction_has_its_own_product() {
        assert_eq!(bandwidth_delay_bits(mbit(5.0), us(90_000)), 450_000);
        assert_eq!(bandwidth_delay_bits(mbit(0.64), us(90_000)), 57_600);
    }

    /// RFC 6349 §3.3.1: 16 KB over 5 ms.
    #[test]
    fn a_small_window_limits_the_throughput() {
        assert_eq!(window_limited(bytes(16_000), us(5_000)), Some(mbit(25.6)));
        assert_eq!(window_limited(bytes(16_000), Duration::ZERO), None);
    }

    /// RFC 6349 §4.1.1: packets a second of T3 by PPP and of Ethernet at three rates.
    #[test]
    fn packet_rates_match_section_4_1_1() {
        let t3 = packets_per_second(mbit(44.21), 1_500, T3_PPP_OVERHEAD);
        assert_eq!(t3 as u64, 3_664);
        for (rate, packets) in [(100.0, 8_127), (1_000.0, 81_274), (10_000.0, 812_743)] {
            let found = packets_per_second(mbit(rate), 1_500, ETHERNET_OVERHEAD);
            assert_eq!(found as u64, packets);
        }
    }

    /// RFC 6349 §4.1.1: 42.8 Mbit/s of a T3, 94.9 of Fast Ethernet.
    #[test]
    fn maximum_tcp_throughput_matches_section_4_1_1() {
        let most = |rate, overhead| {
            let most = maximum_throughput(mbit(rate), 1_500, HEADERS_IPV4, overhead);
            most.bits_per_second() as f64 / 1e6
        };
        assert!((most(44.21, T3_PPP_OVERHEAD) - 42.8).abs() < 0.05);
        assert!((most(100.0, ETHERNET_OVERHEAD) - 94.9).abs() < 0.05);
        assert!((most(1_000.0, ETHERNET_OVERHEAD) - 949.2).abs() < 0.1);
    }

    /// The window-limited host of a published case study: 100 Mbit/s Ethernet, 20 ms. The published
    /// 100 Mbit/s for the last window is more than the line carries of payload.
    #[test]
    fn ideal_is_limited_by_window_then_by_line() {
        let most = maximum_throughput(mbit(100.0), 1_500, HEADERS_IPV4, ETHERNET_OVERHEAD);
        for (window, expected) in [
            (32_000, 12.8),
            (64_000, 25.6),
            (128_000, 51.2),
            (256_000, 94.92),
        ] {
            let ideal = ideal_throughput(bytes(window), us(20_000), most);
            let ideal = ideal.bits_per_second() as f64 / 1e6;
            assert!((ideal - expected).abs() < 0.01, "{window}: {ideal}");
        }
    }

    /// RFC 6349 §4.1.2: 5 connections of 100 MB each on 500 Mbit/s take 12 s instead of 8 s.
    #[test]
    fn transfer_time_ratio_matches_section_4_1_2() {
        let ideal = transfer_time(bytes(500_000_000), mbit(500.0));
        assert_eq!(ideal, Duration::from_secs(8));
        assert_eq!(
            transfer_time_ratio(Duration::from_secs(12), ideal),
            Some(1.5)
        );
        assert_eq!(transfer_time_ratio(ideal, Duration::ZERO), None);
    }

    /// RFC 6349 §4.2: 100,000 bytes, of which 2,000 were retransmitted. The RFC truncates to 98.03
    /// %.
    #[test]
    fn efficiency_is_that_of_section_4_2() {
        let percent = efficiency_percent(bytes(102_000), bytes(2_000)).unwrap();
        assert!((percent - 98.039).abs() < 0.001, "{percent}");
        assert_eq!(efficiency_percent(bytes(0), bytes(0)), None);
    }

    /// RFC 6349 §4.3: 25 ms become 32 ms.
    #[test]
    fn buffer_delay_is_that_of_section_4_3() {
        let percent = buffer_delay_percent(us(32_000), us(25_000)).unwrap();
        assert!((percent - 28.0).abs() < 1e-9, "{percent}");
        assert_eq!(buffer_delay_percent(us(1), Duration::ZERO), None);
        let samples = [us(30_000), us(34_000)];
        assert_eq!(average_rtt(&samples), Some(us(32_000)));
        assert_eq!(average_rtt(&[]), None);
    }

    /// RFC 6349 §3.3.2: 500 Mbit/s and 5 ms, filled by windows of 16, 32, 64 and 128 KB.
    #[test]
    fn connections_to_fill_a_path_match_the_rfc() {
        let bdp = minimum_window(mbit(500.0), us(5_000));
        assert_eq!(bdp, bytes(312_500));
        for (window, connections) in [(16_000, 20), (32_000, 10), (64_000, 5), (128_000, 3)] {
            assert_eq!(connections_to_fill(bdp, bytes(window)), connections);
        }
    }

    #[test]
    fn walk_takes_quarters_of_bdp_and_listed_windows() {
        let also = [bytes(65_536), bytes(125_000), bytes(0)];
        let windows = walk(bytes(250_000), &WALK_PERCENT, &also);
        let expected = [62_500, 125_000, 187_500, 250_000, 375_000, 65_536].map(bytes);
        assert_eq!(windows, expected);
    }

    /// RFC 8337 §5.2: 1 Mbit/s over 50 ms in packets of 1500 bytes with 52 of headers and options is
    /// ceil(6250 / 1448) = 5 packets, one loss in 75.
    #[test]
    fn loss_budget_is_three_times_the_squared_window() {
        let budget = LossBudget::new(mbit(1.0), us(50_000), 1_500, 52);
        assert_eq!((budget.window_packets, budget.run_length_packets), (5, 75));
        let long = LossBudget::new(mbit(100.0), us(50_000), 1_500, 52);
        assert_eq!(long.window_packets, 432);
        assert_eq!(long.run_length_packets, 559_872);
    }

    /// RFC 8337 §7.2: clean after long enough, dirty at four times the rate, otherwise too short
    /// for a verdict.
    #[test]
    fn budget_is_judged_once_stream_is_long_enough() {
        let budget = LossBudget::new(mbit(1.0), us(50_000), 1_500, 52);
        assert_eq!(budget.judge(20, 0), LossVerdict::Undecided);
        assert_eq!(budget.judge(1_000, 0), LossVerdict::Within);
        assert_eq!(budget.judge(1_000, 13), LossVerdict::Within);
        assert_eq!(budget.judge(1_000, 53), LossVerdict::Beyond);
        assert_eq!(budget.judge(20, 10), LossVerdict::Beyond);
    }

    proptest! {
        #[test]
        fn any_figures_give_a_figure(
            rate in any::<u64>(), nanoseconds in any::<u64>(), size in any::<u64>(), mtu in 0_u64..70_000,
        ) {
            let (rate, span) = (Bitrate::from_bits_per_second(rate), Duration::from_nanos(nanoseconds));
            let bdp = minimum_window(rate, span);
            let most = maximum_throughput(rate, mtu.max(1), HEADERS_IPV6, 0);
            prop_assert!(ideal_throughput(bytes(size), span, most) <= most);
            prop_assert!(connections_to_fill(bdp, bytes(size)) >= 1);
            prop_assert!(walk(bdp, &WALK_PERCENT, &[bytes(size)]).len() <= 6);
            let budget = LossBudget::new(rate, span, mtu, HEADERS_IPV4);
            prop_assert!(budget.judge(size, 0) != LossVerdict::Beyond);
        }
    }
}
