//! Results of a run of TCP connections: the three metrics of RFC 6349 §4, for each connection and
//! for all together.
//!
//! The sender's kernel counts; the samples are its `tcp_info`, several per second. Throughput is
//! the data that the receiver acknowledged while the run was in equilibrium (RFC 6349 §1.3):
//! without the first second, or ten round trips, in which connections start and windows are set,
//! and without the time after the run's end. Efficiency is over everything that was sent, from the
//! first byte to the last, and so equals the count of a capture.

use std::time::Duration;

use vocab::{Bitrate, ByteCount};

use crate::metrics;
use crate::wire::RunSample;

/// Least time that is left out at the beginning, and the same in round trips; in a short run at
/// most half of it is left out.
pub const START_UP: Duration = Duration::from_secs(1);
/// Slow start doubles from ten segments once a round trip: ten of them reach any window of interest.
const START_UP_ROUND_TRIPS: u32 = 10;
/// Greatest difference of the effective window from the requested one, in percent.
pub const WINDOW_TOLERANCE_PERCENT: u64 = 2;

/// Reference values for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdealPath {
    /// The path's round trip without queues.
    pub baseline_rtt: Duration,
    /// TCP payload rate that the bottleneck carries.
    pub maximum: PathMaximum,
}

/// Knowledge of the highest payload rate that the path carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMaximum {
    /// Known from the bottleneck's rate (RFC 6349 §4.1.1).
    Known(Bitrate),
    /// Reached by TCP, without a known limit of the path: the ideal of a run with a larger window
    /// is not known.
    AtLeast(Bitrate),
}

impl IdealPath {
    /// Ideal throughput of a run whose senders see this window in total (RFC 6349 §3.3.1).
    #[must_use]
    fn throughput(&self, window: Option<ByteCount>) -> Option<Bitrate> {
        let limited = window.and_then(|window| metrics::window_limited(window, self.baseline_rtt));
        match self.maximum {
            PathMaximum::Known(maximum) => Some(limited.map_or(maximum, |rate| rate.min(maximum))),
            PathMaximum::AtLeast(reached) => {
                let most =
                    reached.bits_per_second() as u128 * (100 + WINDOW_TOLERANCE_PERCENT) as u128;
                limited.filter(|rate| u128::from(rate.bits_per_second()) * 100 <= most)
            }
        }
    }
}

/// The figures of a connection, or of all of a direction.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFigures {
    /// Connections that they are of.
    pub connections: u16,
    /// Sum of the windows that the peers advertised; [`None`] where the kernel does not report
    /// them.
    pub effective_window: Option<ByteCount>,
    /// Payload acknowledged a second, in equilibrium.
    pub throughput: Bitrate,
    /// Ideal throughput with this window over this path; [`None`] where it is not known.
    pub ideal: Option<Bitrate>,
    /// Payload that was sent, retransmissions included; [`None`] where only the receiver is ours.
    pub bytes_sent: Option<ByteCount>,
    /// Payload that was sent again.
    pub bytes_retransmitted: Option<ByteCount>,
    /// Transfer time ratio (RFC 6349 §4.1); [`None`] where nothing was transferred, or the ideal is
    /// not known.
    pub transfer_time_ratio: Option<f64>,
    /// RFC 6349 §4.2.
    pub efficiency_percent: Option<f64>,
    /// RFC 6349 §4.3, from one sample a second.
    pub average_rtt: Option<Duration>,
    /// RFC 6349 §4.3.
    pub buffer_delay_percent: Option<f64>,
    /// The least RTT that the senders' kernels saw, which is of whole segments.
    pub rtt_min: Option<Duration>,
    /// The share of its time that the sender waited for the peer's window, in percent.
    pub window_limited_percent: Option<f64>,
    /// The share of its time that the sender waited for its own buffer, in percent.
    pub send_buffer_limited_percent: Option<f64>,
}

impl RunFigures {
    /// The window of each connection, on average.
    #[must_use]
    pub fn window_each(&self) -> Option<ByteCount> {
        let all = self.effective_window?.bytes();
        Some(ByteCount::new(all / u64::from(self.connections.max(1))))
    }
}

/// One second of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunSecond {
    /// End of the second, since the run began.
    pub at: Duration,
    /// Payload acknowledged in it; where only the receiver is ours, read.
    pub throughput: Bitrate,
    /// Payload retransmitted in it; [`None`] where only the receiver is ours.
    pub retransmitted: Option<ByteCount>,
    /// The mean of the connections' RTTs at its end.
    pub rtt: Option<Duration>,
}

/// The figures of all connections of a direction together.
#[must_use]
pub fn figures(samples: &[RunSample], duration: Duration, ideal: &IdealPath) -> Option<RunFigures> {
    let each: Vec<RunFigures> = numbers(samples)
        .iter()
        .filter_map(|number| connection_figures(samples, *number, duration, ideal))
        .collect();
    if each.is_empty() {
        return None;
    }
    let sum = |of: fn(&RunFigures) -> u64| each.iter().map(of).sum::<u64>();
    let mean = |of: fn(&RunFigures) -> Option<f64>| {
        let known: Vec<f64> = each.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let rtts: Vec<Duration> = each.iter().filter_map(|one| one.average_rtt).collect();
    let measured = RunMeasurement {
        connections: each.len() as u16,
        window: sum_of_all(&each, |one| one.effective_window),
        throughput: Bitrate::from_bits_per_second(sum(|one| one.throughput.bits_per_second())),
        sent: sum_of_all(&each, |one| one.bytes_sent),
        retransmitted: sum_of_all(&each, |one| one.bytes_retransmitted),
        average_rtt: metrics::average_rtt(&rtts),
        rtt_min: each.iter().filter_map(|one| one.rtt_min).min(),
        window_limited_percent: mean(|one| one.window_limited_percent),
        send_buffer_limited_percent: mean(|one| one.send_buffer_limited_percent),
    };
    Some(measured.judged(ideal))
}

/// Sum over all connections; [`None`] where one of them has no value.
fn sum_of_all(each: &[RunFigures], of: fn(&RunFigures) -> Option<ByteCount>) -> Option<ByteCount> {
    let sum: Option<u64> = each.iter().map(|one| of(one).map(ByteCount::bytes)).sum();
    sum.map(ByteCount::new)
}

/// Figures of one connection; [`None`] where it has fewer than two samples in equilibrium.
#[must_use]
pub fn connection_figures(
    samples: &[RunSample],
    connection: u16,
    duration: Duration,
    ideal: &IdealPath,
) -> Option<RunFigures> {
    let own = of_connection(samples, connection);
    let end = own.last()?;
    let equilibrium = equilibrium(duration, ideal);
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
    let span = last.at.checked_sub(first.at)?;
    let throughput = rate(acknowledged, span)?;
    let rtts: Vec<Duration> = each_second(&steady).map(|one| one.info.rtt).collect();
    let share = |of: fn(&RunSample) -> Duration| {
        let spent = of(last).saturating_sub(of(first));
        Some(spent.as_secs_f64() / span.as_secs_f64() * 100.0)
    };
    let measured = RunMeasurement {
        connections: 1,
        window: median_window(&steady),
        throughput,
        sent: Some(end.info.bytes_sent),
        retransmitted: Some(end.info.bytes_retransmitted),
        average_rtt: metrics::average_rtt(&rtts),
        rtt_min: least_rtt(&own),
        window_limited_percent: share(|one| one.info.receive_window_limited),
        send_buffer_limited_percent: share(|one| one.info.send_buffer_limited),
    };
    Some(measured.judged(ideal))
}

/// The run, second by second, all connections together.
#[must_use]
pub fn seconds(samples: &[RunSample]) -> Vec<RunSecond> {
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
        seconds.push(RunSecond {
            at: latest,
            throughput: Bitrate::from_bits_per_second(u64::try_from(bits).unwrap_or(u64::MAX)),
            retransmitted: Some(ByteCount::new(retransmitted.saturating_sub(before.2))),
            rtt: metrics::average_rtt(&rtts),
        });
        before = (latest, acknowledged, retransmitted);
    }
    seconds
}

/// Payload that a receiver had read by a moment of a run, all connections together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadProgress {
    /// Time since the run began.
    pub at: Duration,
    /// Payload.
    pub bytes: ByteCount,
}

/// Figures of a run whose sender is not ours, from the receiver's reads: throughput, and its ideal
/// with the `window` that all connections together were offered. Values that only a sender knows
/// are not among them.
#[must_use]
pub fn received_figures(
    reads: &[ReadProgress],
    connections: u16,
    window: Option<ByteCount>,
    duration: Duration,
    ideal: &IdealPath,
) -> Option<RunFigures> {
    let equilibrium = equilibrium(duration, ideal);
    let steady: Vec<&ReadProgress> = reads
        .iter()
        .filter(|read| equilibrium.contains(&read.at))
        .collect();
    let (first, last) = (steady.first()?, steady.last()?);
    let measured = RunMeasurement {
        connections,
        window,
        throughput: rate(
            last.bytes.bytes().checked_sub(first.bytes.bytes())?,
            last.at.checked_sub(first.at)?,
        )?,
        sent: None,
        retransmitted: None,
        average_rtt: None,
        rtt_min: None,
        window_limited_percent: None,
        send_buffer_limited_percent: None,
    };
    Some(measured.judged(ideal))
}

/// The same run, second by second.
#[must_use]
pub fn received_seconds(reads: &[ReadProgress]) -> Vec<RunSecond> {
    let mut seconds = Vec::new();
    let (mut before, mut next) = (Duration::ZERO, Duration::from_secs(1));
    let mut read_before = 0;
    for read in reads {
        if read.at < next {
            continue;
        }
        let bytes = read.bytes.bytes();
        seconds.push(RunSecond {
            at: read.at,
            throughput: rate(bytes.saturating_sub(read_before), read.at - before)
                .unwrap_or_default(),
            retransmitted: None,
            rtt: None,
        });
        (before, read_before) = (read.at, bytes);
        next = Duration::from_secs(read.at.as_secs() + 1);
    }
    seconds
}

/// Time span in which a run is in equilibrium (RFC 6349 §1.3).
fn equilibrium(duration: Duration, ideal: &IdealPath) -> std::ops::RangeInclusive<Duration> {
    let start_up = START_UP.max(ideal.baseline_rtt * START_UP_ROUND_TRIPS);
    start_up.min(duration / 2)..=duration + SAMPLE_LATE
}

fn rate(bytes: u64, span: Duration) -> Option<Bitrate> {
    let bits = (u128::from(bytes) * 8_000_000_000).checked_div(span.as_nanos())?;
    Some(Bitrate::from_bits_per_second(
        u64::try_from(bits).unwrap_or(u64::MAX),
    ))
}

/// Greatest delay of a sample after its time.
const SAMPLE_LATE: Duration = Duration::from_millis(80);

/// Measured values of one connection, or of several.
struct RunMeasurement {
    connections: u16,
    window: Option<ByteCount>,
    throughput: Bitrate,
    sent: Option<ByteCount>,
    retransmitted: Option<ByteCount>,
    average_rtt: Option<Duration>,
    rtt_min: Option<Duration>,
    window_limited_percent: Option<f64>,
    send_buffer_limited_percent: Option<f64>,
}

impl RunMeasurement {
    fn judged(self, ideal: &IdealPath) -> RunFigures {
        let best = ideal.throughput(self.window);
        let actual = self.throughput.bits_per_second();
        // The same payload takes longer by what the throughput is less.
        let ratio = best
            .filter(|_| actual > 0)
            .map(|best| best.bits_per_second() as f64 / actual as f64);
        RunFigures {
            connections: self.connections,
            effective_window: self.window,
            throughput: self.throughput,
            ideal: best,
            bytes_sent: self.sent,
            bytes_retransmitted: self.retransmitted,
            transfer_time_ratio: ratio,
            efficiency_percent: self
                .sent
                .zip(self.retransmitted)
                .and_then(|(sent, again)| metrics::efficiency_percent(sent, again)),
            average_rtt: self.average_rtt,
            buffer_delay_percent: self
                .average_rtt
                .and_then(|rtt| metrics::buffer_delay_percent(rtt, ideal.baseline_rtt)),
            rtt_min: self.rtt_min,
            window_limited_percent: self.window_limited_percent,
            send_buffer_limited_percent: self.send_buffer_limited_percent,
        }
    }
}

/// Least RTT of all samples; a kernel without a measurement reports zero, or the greatest value.
fn least_rtt(samples: &[&RunSample]) -> Option<Duration> {
    /// Value of Linux before the first measurement: all ones, in microseconds.
    const NONE_YET: Duration = Duration::from_micros(u32::MAX as u64);
    let rtts = samples.iter().map(|sample| sample.info.rtt_min);
    rtts.filter(|rtt| !rtt.is_zero() && *rtt < NONE_YET).min()
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

/// Tells whether the window that senders saw is close enough to the requested one.
#[must_use]
pub fn is_window_reached(wanted: ByteCount, seen: ByteCount) -> bool {
    let off = seen.bytes().abs_diff(wanted.bytes());
    off.saturating_mul(100) <= wanted.bytes().saturating_mul(WINDOW_TOLERANCE_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp_info::TcpInfo;

    /// A connection that acknowledges so many bytes in every tenth of a second after the first
    /// second.
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
    const IDEAL: IdealPath = IdealPath {
        baseline_rtt: Duration::from_millis(25),
        maximum: PathMaximum::Known(Bitrate::from_bits_per_second(94_900_000)),
    };

    #[test]
    fn a_runs_figures_are_those_of_its_counters() {
        let samples = steady(0, 100_000, 25_000);
        let figures = figures(&samples, TEN, &IDEAL).unwrap();
        assert_eq!(figures.throughput, Bitrate::from_bits_per_second(8_000_000));
        let ideal = Some(Bitrate::from_bits_per_second(8_000_000));
        assert_eq!(figures.ideal, ideal);
        assert_eq!(figures.transfer_time_ratio, Some(1.0));
        assert_eq!(figures.bytes_sent, Some(ByteCount::new(102_000)));
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
        assert_eq!(figures.bytes_sent, Some(ByteCount::new(204_000)));
        let one = connection_figures(&samples, 1, TEN, &IDEAL).unwrap();
        assert_eq!(one.throughput, Bitrate::from_bits_per_second(24_000_000));
        let seconds = seconds(&samples);
        assert_eq!(seconds.len(), 10);
        assert_eq!(
            seconds[4].throughput,
            Bitrate::from_bits_per_second(32_000_000)
        );
        assert_eq!(seconds[4].retransmitted, Some(ByteCount::new(400)));
        assert_eq!(super::figures(&[], TEN, &IDEAL), None);
    }

    #[test]
    fn receiver_reports_throughput_without_sender_counters() {
        let reads: Vec<ReadProgress> = (0..=100_u64)
            .map(|tenth| ReadProgress {
                at: Duration::from_millis(tenth * 100),
                bytes: ByteCount::new(tenth.saturating_sub(10) * 50_000),
            })
            .collect();
        let window = Some(ByteCount::new(25_000));
        let figures = received_figures(&reads, 2, window, TEN, &IDEAL).unwrap();
        assert_eq!(figures.throughput, Bitrate::from_bits_per_second(4_000_000));
        assert_eq!(figures.transfer_time_ratio, Some(2.0));
        assert_eq!(
            (figures.bytes_sent, figures.efficiency_percent),
            (None, None)
        );
        assert_eq!((figures.average_rtt, figures.rtt_min), (None, None));
        let seconds = received_seconds(&reads);
        assert_eq!(seconds.len(), 10);
        assert_eq!(seconds[0].throughput, Bitrate::default());
        assert_eq!(
            seconds[9].throughput,
            Bitrate::from_bits_per_second(4_000_000)
        );
        assert_eq!(seconds[9].rtt, None);
        assert_eq!(received_figures(&[], 1, window, TEN, &IDEAL), None);
    }

    #[test]
    fn unknown_bottleneck_gives_large_windows_no_ideal() {
        let at_least = |reached| IdealPath {
            maximum: PathMaximum::AtLeast(Bitrate::from_bits_per_second(reached)),
            ..IDEAL
        };
        let samples = steady(0, 100_000, 25_000);
        let known = figures(&samples, TEN, &at_least(8_000_000)).unwrap();
        assert_eq!(known.ideal, Some(Bitrate::from_bits_per_second(8_000_000)));
        assert_eq!(known.transfer_time_ratio, Some(1.0));
        let beyond = figures(&samples, TEN, &at_least(7_000_000)).unwrap();
        assert_eq!((beyond.ideal, beyond.transfer_time_ratio), (None, None));
        assert_eq!(beyond.throughput, known.throughput);
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
