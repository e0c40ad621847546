//! What a run of TCP connections says: the three metrics of RFC 6349 §4 per connection and in all.
//!
//! The sender's kernel counts; the samples are its `tcp_info`, several a second. Throughput is what the
//! receiver acknowledged once the run was in equilibrium (RFC 6349 §1.3): the first second, or ten round
//! trips, is left out, in which connections start and windows are set, and what comes after the run's end,
//! when no more is sent. Efficiency is over everything that was sent, from
//! the first byte to the last, and so equals what a capture counts.

use std::time::Duration;

use vocab::{Bitrate, ByteCount};

use crate::metrics;
use crate::wire::RunSample;

/// What is left out at the beginning at least, and in round trips; of a short run no more than half.
pub const START_UP: Duration = Duration::from_secs(1);
/// Slow start doubles from ten segments once a round trip: ten of them reach any window of interest.
const START_UP_ROUND_TRIPS: u32 = 10;
/// How close the effective window comes to the one asked for, in percent.
pub const WINDOW_TOLERANCE_PERCENT: u64 = 2;

/// What a run is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ideal {
    /// The path's round trip without queues.
    pub baseline_rtt: Duration,
    /// What the bottleneck carries of TCP payload.
    pub maximum: Bitrate,
}

/// The figures of a connection, or of all of a direction.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Connections that they are of.
    pub connections: u16,
    /// Windows that the peers advertised, added up; [`None`] where the kernel does not tell.
    pub effective_window: Option<ByteCount>,
    /// Payload acknowledged a second, in equilibrium.
    pub throughput: Bitrate,
    /// What it should be, with this window over this path.
    pub ideal: Bitrate,
    /// Payload that was sent, retransmissions included.
    pub bytes_sent: ByteCount,
    /// Payload that was sent again.
    pub bytes_retransmitted: ByteCount,
    /// RFC 6349 §4.1; [`None`] where nothing was transferred.
    pub transfer_time_ratio: Option<f64>,
    /// RFC 6349 §4.2.
    pub efficiency_percent: Option<f64>,
    /// RFC 6349 §4.3, from one sample a second.
    pub average_rtt: Option<Duration>,
    /// RFC 6349 §4.3.
    pub buffer_delay_percent: Option<f64>,
    /// The share of its time that the sender waited for the peer's window, in percent.
    pub window_limited_percent: Option<f64>,
    /// The share of its time that the sender waited for its own buffer, in percent.
    pub send_buffer_limited_percent: Option<f64>,
}

impl Figures {
    /// The window of each connection, on average.
    #[must_use]
    pub fn window_each(&self) -> Option<ByteCount> {
        let all = self.effective_window?.bytes();
        Some(ByteCount::new(all / u64::from(self.connections.max(1))))
    }
}

/// One second of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// Where it ends, since the run began.
    pub at: Duration,
    /// Payload acknowledged in it.
    pub throughput: Bitrate,
    /// Payload sent again in it.
    pub retransmitted: ByteCount,
    /// The mean of the connections' RTTs at its end.
    pub rtt: Duration,
}

/// The figures of all connections of a direction together.
#[must_use]
pub fn figures(samples: &[RunSample], duration: Duration, ideal: &Ideal) -> Option<Figures> {
    let each: Vec<Figures> = numbers(samples)
        .iter()
        .filter_map(|number| connection_figures(samples, *number, duration, ideal))
        .collect();
    if each.is_empty() {
        return None;
    }
    let sum = |of: fn(&Figures) -> u64| each.iter().map(of).sum::<u64>();
    let mean = |of: fn(&Figures) -> Option<f64>| {
        let known: Vec<f64> = each.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let rtts: Vec<Duration> = each.iter().filter_map(|one| one.average_rtt).collect();
    let windows: Option<u64> = each
        .iter()
        .map(|one| one.effective_window.map(ByteCount::bytes))
        .sum();
    let measured = Measured {
        connections: each.len() as u16,
        window: windows.map(ByteCount::new),
        throughput: Bitrate::from_bits_per_second(sum(|one| one.throughput.bits_per_second())),
        sent: ByteCount::new(sum(|one| one.bytes_sent.bytes())),
        retransmitted: ByteCount::new(sum(|one| one.bytes_retransmitted.bytes())),
        average_rtt: metrics::average_rtt(&rtts),
        window_limited_percent: mean(|one| one.window_limited_percent),
        send_buffer_limited_percent: mean(|one| one.send_buffer_limited_percent),
    };
    Some(measured.judged(ideal))
}

/// The figures of one connection; [`None`] where it has no two samples in equilibrium.
#[must_use]
pub fn connection_figures(
    samples: &[RunSample],
    connection: u16,
    duration: Duration,
    ideal: &Ideal,
) -> Option<Figures> {
    let own = of_connection(samples, connection);
    let end = own.last()?;
    let start_up = START_UP.max(ideal.baseline_rtt * START_UP_ROUND_TRIPS);
    let equilibrium = start_up.min(duration / 2)..=duration + SAMPLE_LATE;
    let steady: Vec<&RunSample> = own
        .iter()
        .filter(|one| equilibrium.contains(&one.at))
        .copied()
        .collect();
    let (first, last) = (steady.first()?, steady.last()?);
    let acknowledged = last
        .info
        .bytes_acknowledged
        .bytes()
        .checked_sub(first.info.bytes_acknowledged.bytes())?;
    let span = last
        .at
        .checked_sub(first.at)
        .filter(|span| !span.is_zero())?;
    let bits = u128::from(acknowledged) * 8_000_000_000 / span.as_nanos();
    let rtts: Vec<Duration> = each_second(&steady).map(|one| one.info.rtt).collect();
    let share = |of: fn(&RunSample) -> Duration| {
        let spent = of(last).saturating_sub(of(first));
        Some(spent.as_secs_f64() / span.as_secs_f64() * 100.0)
    };
    let measured = Measured {
        connections: 1,
        window: median_window(&steady),
        throughput: Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX)),
        sent: end.info.bytes_sent,
        retransmitted: end.info.bytes_retransmitted,
        average_rtt: metrics::average_rtt(&rtts),
        window_limited_percent: share(|one| one.info.receive_window_limited),
        send_buffer_limited_percent: share(|one| one.info.send_buffer_limited),
    };
    Some(measured.judged(ideal))
}

/// The run, second by second, all connections together.
#[must_use]
pub fn seconds(samples: &[RunSample]) -> Vec<Second> {
    let connections: Vec<Vec<&RunSample>> = numbers(samples)
        .iter()
        .map(|number| of_connection(samples, *number))
        .collect();
    let Some(end) = samples.iter().map(|sample| sample.at).max() else {
        return Vec::new();
    };
    let mut seconds = Vec::new();
    let mut before = (Duration::ZERO, 0, 0);
    // Samples come a little after the moment they are meant for.
    for second in 1..=(end + SAMPLE_LATE).as_secs() {
        let at = Duration::from_secs(second) + SAMPLE_LATE;
        let there: Vec<&RunSample> = connections
            .iter()
            .filter_map(|own| own.iter().rev().find(|sample| sample.at <= at).copied())
            .collect();
        let Some(latest) = there.iter().map(|sample| sample.at).max() else {
            continue;
        };
        let sum = |of: fn(&RunSample) -> ByteCount| {
            there.iter().map(|sample| of(sample).bytes()).sum::<u64>()
        };
        let acknowledged = sum(|one| one.info.bytes_acknowledged);
        let retransmitted = sum(|one| one.info.bytes_retransmitted);
        let span = latest.saturating_sub(before.0).as_nanos();
        if span == 0 {
            continue;
        }
        let bits = u128::from(acknowledged.saturating_sub(before.1)) * 8_000_000_000 / span;
        let rtts: Vec<Duration> = there.iter().map(|sample| sample.info.rtt).collect();
        seconds.push(Second {
            at: latest,
            throughput: Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX)),
            retransmitted: ByteCount::new(retransmitted.saturating_sub(before.2)),
            rtt: metrics::average_rtt(&rtts).unwrap_or_default(),
        });
        before = (latest, acknowledged, retransmitted);
    }
    seconds
}

/// How much later than its moment a sample may be taken.
const SAMPLE_LATE: Duration = Duration::from_millis(80);

/// What was measured of one connection, or of several.
struct Measured {
    connections: u16,
    window: Option<ByteCount>,
    throughput: Bitrate,
    sent: ByteCount,
    retransmitted: ByteCount,
    average_rtt: Option<Duration>,
    window_limited_percent: Option<f64>,
    send_buffer_limited_percent: Option<f64>,
}

impl Measured {
    fn judged(self, ideal: &Ideal) -> Figures {
        let best = self.window.map_or(ideal.maximum, |window| {
            metrics::ideal_throughput(window, ideal.baseline_rtt, ideal.maximum)
        });
        let actual = self.throughput.bits_per_second();
        // The same payload takes longer by what the throughput is less.
        let ratio = (actual > 0).then(|| best.bits_per_second() as f64 / actual as f64);
        Figures {
            connections: self.connections,
            effective_window: self.window,
            throughput: self.throughput,
            ideal: best,
            bytes_sent: self.sent,
            bytes_retransmitted: self.retransmitted,
            transfer_time_ratio: ratio,
            efficiency_percent: metrics::efficiency_percent(self.sent, self.retransmitted),
            average_rtt: self.average_rtt,
            buffer_delay_percent: self
                .average_rtt
                .and_then(|rtt| metrics::buffer_delay_percent(rtt, ideal.baseline_rtt)),
            window_limited_percent: self.window_limited_percent,
            send_buffer_limited_percent: self.send_buffer_limited_percent,
        }
    }
}

/// The window that half of the samples show at least: single ones are smaller for as long as data waits
/// to be read.
fn median_window(samples: &[&RunSample]) -> Option<ByteCount> {
    let mut windows: Vec<ByteCount> = samples
        .iter()
        .filter_map(|sample| sample.info.peer_window)
        .collect();
    windows.sort_unstable();
    windows.get(windows.len() / 2).copied()
}

/// One sample for each second, the first after it.
fn each_second<'a>(samples: &'a [&RunSample]) -> impl Iterator<Item = &'a RunSample> {
    let mut next = Duration::ZERO;
    samples.iter().copied().filter(move |sample| {
        let is_due = sample.at >= next;
        if is_due {
            next = Duration::from_secs(sample.at.as_secs() + 1);
        }
        is_due
    })
}

fn numbers(samples: &[RunSample]) -> Vec<u16> {
    let mut numbers: Vec<u16> = samples.iter().map(|sample| sample.connection).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn of_connection(samples: &[RunSample], connection: u16) -> Vec<&RunSample> {
    let mut own: Vec<&RunSample> = samples
        .iter()
        .filter(|sample| sample.connection == connection)
        .collect();
    own.sort_by_key(|sample| sample.at);
    own
}

/// Whether the window that senders saw is as good as the one that was asked for.
#[must_use]
pub fn is_window_reached(wanted: ByteCount, seen: ByteCount) -> bool {
    let off = seen.bytes().abs_diff(wanted.bytes());
    off.saturating_mul(100) <= wanted.bytes().saturating_mul(WINDOW_TOLERANCE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp_info::TcpInfo;

    /// A connection that acknowledges so many bytes in every tenth of a second after the first second.
    fn steady(connection: u16, tenth_bytes: u64, window: u64) -> Vec<RunSample> {
        (0..=100)
            .map(|tenth: u64| RunSample {
                connection,
                at: Duration::from_millis(tenth * 100),
                info: TcpInfo {
                    // Slow in the first second, which does not count.
                    bytes_acknowledged: ByteCount::new(tenth.saturating_sub(10) * tenth_bytes),
                    bytes_sent: ByteCount::new(tenth * 1_020),
                    bytes_retransmitted: ByteCount::new(tenth * 20),
                    rtt: Duration::from_millis(32),
                    receive_window_limited: Duration::from_millis(tenth * 90),
                    peer_window: Some(ByteCount::new(window)),
                    ..TcpInfo::default()
                },
            })
            .collect()
    }

    const TEN: Duration = Duration::from_secs(10);
    const IDEAL: Ideal = Ideal {
        baseline_rtt: Duration::from_millis(25),
        maximum: Bitrate::from_bits_per_second(94_900_000),
    };

    #[test]
    fn a_runs_figures_are_those_of_its_counters() {
        let samples = steady(0, 100_000, 25_000);
        let figures = figures(&samples, TEN, &IDEAL).unwrap();
        assert_eq!(figures.throughput, Bitrate::from_bits_per_second(8_000_000));
        assert_eq!(figures.ideal, Bitrate::from_bits_per_second(8_000_000));
        assert_eq!(figures.transfer_time_ratio, Some(1.0));
        assert_eq!(figures.bytes_sent, ByteCount::new(102_000));
        let efficiency = figures.efficiency_percent.unwrap();
        assert!((efficiency - 98.039).abs() < 0.001, "{efficiency}");
        assert_eq!(figures.average_rtt, Some(Duration::from_millis(32)));
        let delay = figures.buffer_delay_percent.unwrap();
        assert!((delay - 28.0).abs() < 1e-9, "{delay}");
        let limited = figures.window_limited_percent.unwrap();
        assert!((limited - 90.0).abs() < 1e-9, "{limited}");
    }

    #[test]
    fn connections_add_up() {
        let mut samples = steady(0, 100_000, 25_000);
        samples.extend(steady(1, 300_000, 75_000));
        let figures = figures(&samples, TEN, &IDEAL).unwrap();
        assert_eq!(figures.connections, 2);
        assert_eq!(
            figures.throughput,
            Bitrate::from_bits_per_second(32_000_000)
        );
        assert_eq!(figures.effective_window, Some(ByteCount::new(100_000)));
        assert_eq!(figures.bytes_sent, ByteCount::new(204_000));
        let one = connection_figures(&samples, 1, TEN, &IDEAL).unwrap();
        assert_eq!(one.throughput, Bitrate::from_bits_per_second(24_000_000));
        let seconds = seconds(&samples);
        assert_eq!(seconds.len(), 10);
        assert_eq!(
            seconds[4].throughput,
            Bitrate::from_bits_per_second(32_000_000)
        );
        assert_eq!(seconds[4].retransmitted, ByteCount::new(400));
        assert_eq!(super::figures(&[], TEN, &IDEAL), None);
    }

    #[test]
    fn a_window_is_reached_within_two_percent() {
        let wanted = ByteCount::new(32_000);
        for (seen, reached) in [
            (32_000, true),
            (32_640, true),
            (32_768, false),
            (31_000, false),
        ] {
            assert_eq!(
                is_window_reached(wanted, ByteCount::new(seen)),
                reached,
                "{seen}"
            );
        }
    }
}
