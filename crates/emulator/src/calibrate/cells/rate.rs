//! Rate: the output of a line that always has a packet waiting.
//!
//! ```text
//!   rate = IP bytes after the first packet ÷ (last − first arrival)         at the receiver
//!   model's instant of a packet = first + IP bytes since then ÷ rate        fitted to the earliest
//! ```
//! The sender offers a little more than the line takes, after a head start that fills half of the
//! queue, so that a sender that is held up does not leave the line idle.

use std::time::Duration;

use anyhow::{Result, bail};
use vocab::Bitrate;

use super::super::certificate::{CertificateCell, MeasuredQuantity};
use super::super::stand::{CellDirection, StampMode};
use super::super::statistics::{batch_mean_interval, quantile};
use super::super::traffic::{
    self, LoadOutcome, ReceiverRecording, SendMode, SendingPace, TrafficLoad,
};
use super::MeasurementBench;
use host::stamped_sockets::ReceivedDatagram;

/// Full-size packets, in IP bytes.
const IP_LENGTH: u16 = 1_500;

/// The fewest packets that a rate is computed from.
const PACKETS_LEAST: f64 = 51.0;

/// Ratio of the offered load to the line's rate.
const SURPLUS: f64 = 1.04;

/// The queue holds the line's work of this long, and at least [`QUEUE_LEAST`] packets.
const QUEUE_S: f64 = 0.25;
const QUEUE_LEAST: f64 = 20.0;

/// Greatest relative error, in percent, up to 1 Gbit/s and from there on.
const BAR_PERCENT: f64 = 0.02;
const FAST_BAR_PERCENT: f64 = 0.1;
const FAST: Bitrate = Bitrate::from_bits_per_second(1_000_000_000);

/// Time that is not measured: a sender that begins on the link's processor fills the queue only
/// after the kernel has moved it away, which takes up to a tenth of a second.
const WARM_UP: Duration = Duration::from_millis(500);

/// Greatest lateness of a punctual departure, and the share of departures that must be punctual.
const PUNCTUAL_US: f64 = 200.0;
const PUNCTUAL_PERCENT: f64 = 99.0;

/// A rate to be measured for a given time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::calibrate) struct RateCell {
    pub(in crate::calibrate) rate: Bitrate,
    pub(in crate::calibrate) span: Duration,
}

impl RateCell {
    pub(super) fn title(&self) -> String {
        format!("rate {}", self.rate)
    }

    pub(super) fn expected_s(&self) -> f64 {
        self.packets() / self.packets_per_second() + 1.0
    }

    fn packets_per_second(&self) -> f64 {
        self.rate.bits_per_second() as f64 / (f64::from(IP_LENGTH) * 8.0)
    }

    fn packets(&self) -> f64 {
        let warm_up = self.packets_per_second() * WARM_UP.as_secs_f64();
        (self.packets_per_second() * self.span.as_secs_f64()).max(PACKETS_LEAST) + warm_up + 1.0
    }

    pub(super) fn measure(&self, bench: &mut MeasurementBench<'_>) -> Result<Vec<CertificateCell>> {
        let per_second = self.packets_per_second();
        let queue = (per_second * QUEUE_S).max(QUEUE_LEAST).ceil();
        let settings = bench.start(&[
            "--rate".to_owned(),
            self.rate.to_string(),
            "--queue".to_owned(),
            format!("{:.0}B", queue * f64::from(IP_LENGTH)),
        ])?;
        let (sender, receiver) = bench
            .stand
            .sockets(CellDirection::Forward, StampMode::Arrivals)?;
        let head_start = (queue / 2.0) as u64;
        let load = TrafficLoad {
            // What the queue still holds when the sender has done drains at the line's rate too.
            packets: (self.packets() * SURPLUS) as u64 + head_start,
            ip_length: IP_LENGTH,
            pace: SendingPace::Even {
                per_second: per_second * SURPLUS,
                head_start,
                debt_max: (queue / 2.0) as u64,
                together: (per_second / 2_000.0).ceil() as u64,
            },
            sending: SendMode::Plain,
        };
        let patience = Duration::from_secs_f64(3.0 / per_second) + Duration::from_millis(300);
        let outcome = traffic::run(
            &sender,
            &receiver,
            &load,
            ReceiverRecording::Arrivals,
            patience,
        )?;
        let mut cell = self.judge(&outcome)?;
        cell.settings = settings;
        cell.emulator = bench.stand.stop()?;
        let mut cells = [cell];
        bench.keep(
            &mut cells,
            "number_step,received_ns_step,ip_bytes",
            steps(&outcome),
        )?;
        Ok(cells.into())
    }

    fn judge(&self, outcome: &LoadOutcome) -> Result<CertificateCell> {
        let arrivals = backlogged(&outcome.arrivals);
        let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
            bail!("nothing arrived");
        };
        if (arrivals.len() as f64) < PACKETS_LEAST {
            bail!("only {} packets arrived", arrivals.len());
        }
        if arrivals.iter().any(|one| one.stamp_ns == 0) {
            bail!("the kernel did not stamp every packet");
        }
        let set = self.rate.bits_per_second() as f64;
        let rate = |arrivals: &[ReceivedDatagram]| match (arrivals.first(), arrivals.last()) {
            (Some(first), Some(last)) => {
                let others = arrivals.len() as u64 - 1;
                let payload = bytes(arrivals) - u64::from(first.length);
                let bits = (payload + others * u64::from(outcome.headers)) as f64 * 8.0;
                bits * 1e9 / (last.stamp_ns.saturating_sub(first.stamp_ns)).max(1) as f64
            }
            _ => 0.0,
        };
        // Neighbouring batches share the packet between them: it ends one and begins the other.
        let edge = |batch: usize| (arrivals.len() - 1) * batch / 10;
        let batches = std::array::from_fn(|at| rate(&arrivals[edge(at)..=edge(at + 1)]));
        let (scale, unit) = unit(self.rate);
        let measured = rate(arrivals) / scale;
        let [low, high] = batch_mean_interval(&batches);
        let configured = set / scale;
        let lateness = lateness_us(arrivals, outcome.headers, set);
        let punctual = lateness.partition_point(|late| *late <= PUNCTUAL_US) as f64
            / lateness.len() as f64
            * 100.0;
        let bar = if self.rate >= FAST {
            FAST_BAR_PERCENT
        } else {
            BAR_PERCENT
        };
        let error = ((measured - configured) / configured * 100.0).abs();
        let seconds = (last.stamp_ns.saturating_sub(first.stamp_ns)) as f64 / 1e9;
        Ok(CertificateCell::new(
            MeasuredQuantity::Rate,
            (configured, unit),
            measured,
            [low / scale, high / scale],
            arrivals.len() as u64,
        )
        .must(format!("within {bar} %"), error <= bar)
        .must(
            format!("{PUNCTUAL_PERCENT} % of departures within {PUNCTUAL_US} us of the model's"),
            punctual >= PUNCTUAL_PERCENT,
        )
        .figure("measured_for_s", seconds)
        .figure("departures_within_200us_percent", punctual)
        .figure("departure_lateness_p50_us", quantile(&lateness, 0.5))
        .figure("departure_lateness_p99_us", quantile(&lateness, 0.99))
        .figure("departure_lateness_p99_9_us", quantile(&lateness, 0.999))
        .figure("departure_lateness_max_us", quantile(&lateness, 1.0))
        .figure("receiver_dropped_packets", outcome.receiver_dropped as f64))
    }
}

/// Arrivals from the time on at which the sender kept the line busy.
fn backlogged(arrivals: &[ReceivedDatagram]) -> &[ReceivedDatagram] {
    let begin = arrivals.first().map_or(0, |first| first.stamp_ns) + WARM_UP.as_nanos() as u64;
    // Without stamps nothing is cut off, and `judge` complains.
    let unstamped = arrivals.iter().any(|one| one.stamp_ns == 0);
    let from = if unstamped {
        0
    } else {
        arrivals.partition_point(|one| one.stamp_ns < begin)
    };
    &arrivals[from..]
}

/// Lateness of each packet relative to a line of this rate that was never idle, sorted; the
/// earliest packet counts as punctual.
fn lateness_us(arrivals: &[ReceivedDatagram], headers: u16, bits_per_second: f64) -> Vec<f64> {
    let start = arrivals.first().map_or(0, |first| first.stamp_ns);
    let mut passed = 0.0;
    let mut late: Vec<f64> = arrivals
        .iter()
        .enumerate()
        .map(|(at, one)| {
            if at > 0 {
                passed += f64::from(one.length + u32::from(headers));
            }
            let instant_us = passed * 8e6 / bits_per_second;
            (one.stamp_ns.saturating_sub(start)) as f64 / 1e3 - instant_us
        })
        .collect();
    let earliest = late.iter().copied().fold(f64::INFINITY, f64::min);
    for value in &mut late {
        *value -= earliest;
    }
    late.sort_by(f64::total_cmp);
    late
}

fn bytes(arrivals: &[ReceivedDatagram]) -> u64 {
    arrivals.iter().map(|one| u64::from(one.length)).sum()
}

/// Value and unit, in the form of the published table.
fn unit(rate: Bitrate) -> (f64, &'static str) {
    if rate.bits_per_second() < 10_000_000 {
        (1e3, "kbit/s")
    } else {
        (1e6, "Mbit/s")
    }
}

/// Rows of differences, a third of the length of the numbers themselves.
fn steps(outcome: &LoadOutcome) -> impl Iterator<Item = String> {
    let headers = u32::from(outcome.headers);
    let mut before = (0, 0);
    outcome.arrivals.iter().map(move |one| {
        let number = i128::from(one.number) - before.0;
        let stamp = i128::from(one.stamp_ns) - before.1;
        before = (one.number.into(), one.stamp_ns.into());
        format!("{number},{stamp},{}", one.length + headers)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(rate: u64) -> RateCell {
        RateCell {
            rate: Bitrate::from_bits_per_second(rate),
            span: Duration::from_secs(1),
        }
    }

    /// Packets of 1500 bytes each `gap_ns` after the one before.
    fn arrivals(count: u64, gap_ns: u64) -> LoadOutcome {
        LoadOutcome {
            arrivals: (0..count)
                .map(|number| ReceivedDatagram {
                    number,
                    length: u32::from(IP_LENGTH) - 28,
                    stamp_ns: 1_000_000 + number * gap_ns,
                })
                .collect(),
            headers: 28,
            ..LoadOutcome::default()
        }
    }

    #[test]
    fn an_exact_line_is_exact() {
        let judged = cell(12_000_000).judge(&arrivals(1_001, 1_000_000)).unwrap();
        assert!((judged.measured - 12.0).abs() < 1e-9);
        assert_eq!(judged.unit, "Mbit/s");
        assert!(judged.within_bars, "{:?}", judged.bars);
        let [low, high] = judged.interval;
        assert!(low <= 12.0 + 1e-9 && 12.0 - 1e-9 <= high);
    }

    #[test]
    fn line_slow_by_a_thousandth_misses_its_bar() {
        let judged = cell(12_000_000).judge(&arrivals(1_001, 1_001_000)).unwrap();
        assert!(!judged.bars[0].holds);
        // Its departures drift away from the model's, too: 1 ms in all.
        assert!(!judged.bars[1].holds);
    }

    #[test]
    fn late_departures_are_seen_beside_an_exact_rate() {
        let mut outcome = arrivals(1_001, 1_000_000);
        for one in outcome.arrivals.iter_mut().skip(1).step_by(20) {
            one.stamp_ns += 300_000;
        }
        let judged = cell(12_000_000).judge(&outcome).unwrap();
        assert!(judged.bars[0].holds && !judged.bars[1].holds);
        assert!((judged.figures["departure_lateness_p99_us"] - 300.0).abs() < 1e-6);
    }

    #[test]
    fn too_few_packets_are_no_rate() {
        assert!(cell(64_000).judge(&arrivals(20, 1)).is_err());
        assert!(cell(64_000).packets() >= PACKETS_LEAST);
    }

    #[test]
    fn raw_steps_add_up_to_the_stamps() {
        let outcome = arrivals(3, 10);
        let rows: Vec<String> = steps(&outcome).collect();
        assert_eq!(rows, ["0,1000000,1500", "1,10,1500", "1,10,1500"]);
    }
}
