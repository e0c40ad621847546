//! The one-way delay: from the stamp of leaving one end to the stamp of arriving at the other.
//!
//! Both stamps are the kernel's and of one clock. Beside TCP, one connection fills the line from A
//! to B, and the packets that are measured go from B to A: through the same busy emulator, but not
//! through the queue that TCP fills, whose waiting is no fault.

use std::time::Duration;

use anyhow::{Result, bail};
use vocab::Bitrate;

use super::super::certificate::{CertificateCell, MeasuredQuantity};
use super::super::stand::{CellDirection, StampMode, TestBed};
use super::super::statistics::{CONFIDENCE, median_interval, quantile};
use super::super::tcp;
use super::super::traffic::{
    self, LoadOutcome, ReceiverRecording, SendMode, SendingPace, TrafficLoad,
};
use super::{MeasurementBench, words};

/// Bars over the delay, microseconds.
const MEDIAN_BAR_US: f64 = 50.0;
const P99_BAR_US: f64 = 200.0;
const P99_BESIDE_TCP_BAR_US: f64 = 500.0;

/// A packet this much before its time is the emulator's fault and not the clock's.
const EARLY_US: f64 = 10.0;

/// Small packets, in IP bytes: their own time on a line is short.
const IP_LENGTH: u16 = 100;

/// Rate of the line that TCP fills.
const TCP_LINE: Bitrate = Bitrate::from_bits_per_second(155_520_000);

/// The line counts as filled from this share of it in payload; headers take 3.5 %.
const TCP_FILLS: f64 = 0.9;

/// TCP's slow start is over by then, at the delays it is used with.
const TCP_LEAD: Duration = Duration::from_millis(1_500);

/// Traffic that runs beside the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::calibrate) enum CompetingTraffic {
    /// No other traffic.
    Nothing,
    /// One TCP connection, as fast as it can.
    Tcp,
}

/// A delay to be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::calibrate) struct DelayCell {
    pub(in crate::calibrate) delay: Duration,
    pub(in crate::calibrate) packets_per_second: f64,
    pub(in crate::calibrate) span: Duration,
    pub(in crate::calibrate) beside: CompetingTraffic,
}

impl DelayCell {
    pub(super) fn title(&self) -> String {
        format!(
            "delay {} ms, {}",
            self.delay.as_secs_f64() * 1e3,
            self.condition()
        )
    }

    fn condition(&self) -> String {
        match self.beside {
            CompetingTraffic::Nothing => format!("{} packets/s", self.packets_per_second),
            CompetingTraffic::Tcp => "beside TCP".to_owned(),
        }
    }

    pub(super) fn expected_s(&self) -> f64 {
        let lead = match self.beside {
            CompetingTraffic::Nothing => Duration::ZERO,
            CompetingTraffic::Tcp => TCP_LEAD,
        };
        (self.span + self.delay + lead).as_secs_f64() + 0.5
    }

    fn load(&self) -> TrafficLoad {
        TrafficLoad {
            packets: (self.packets_per_second * self.span.as_secs_f64()) as u64,
            ip_length: IP_LENGTH,
            pace: SendingPace::Even {
                per_second: self.packets_per_second,
                head_start: 1,
                debt_max: 100,
                together: 1,
            },
            sending: SendMode::Plain,
        }
    }

    pub(super) fn measure(&self, bench: &mut MeasurementBench<'_>) -> Result<Vec<CertificateCell>> {
        let mut settings = vec!["--delay".to_owned(), vocab::format_duration(self.delay)];
        let mut on_the_line = Duration::ZERO;
        if self.beside == CompetingTraffic::Tcp {
            settings.extend(["--rate".to_owned(), TCP_LINE.to_string()]);
            on_the_line = TCP_LINE.time_for(vocab::ByteCount::new(IP_LENGTH.into()));
        }
        let settings = bench.start(&settings)?;
        let patience = self.delay + Duration::from_millis(300);
        let (outcome, tcp) = match self.beside {
            CompetingTraffic::Nothing => {
                let (sender, receiver) = bench
                    .stand
                    .sockets(CellDirection::Forward, StampMode::Both)?;
                let load = self.load();
                let outcome = traffic::run(
                    &sender,
                    &receiver,
                    &load,
                    ReceiverRecording::Arrivals,
                    patience,
                )?;
                (outcome, None)
            }
            CompetingTraffic::Tcp => tcp::run_beside_tcp(bench.stand, TCP_LEAD, || {
                let (sender, receiver) =
                    bench.stand.sockets(CellDirection::Back, StampMode::Both)?;
                traffic::run(
                    &sender,
                    &receiver,
                    &self.load(),
                    ReceiverRecording::Arrivals,
                    patience,
                )
            })
            .map(|(outcome, rate)| (outcome, Some(rate)))?,
        };
        let mut cell = self.judge(&outcome, on_the_line)?;
        if let Some(rate) = tcp {
            let fills = rate >= TCP_LINE.bits_per_second() as f64 * TCP_FILLS;
            cell = cell
                .figure("tcp_mbit_s", rate / 1e6)
                .must(format!("TCP fills {TCP_LINE}"), fills);
        }
        cell.settings = settings;
        cell.emulator = bench.stand.stop()?;
        let mut cells = [cell];
        bench.keep(
            &mut cells,
            "number,left_ns,received_after_ns",
            rows(&outcome),
        )?;
        Ok(cells.into())
    }

    fn judge(&self, outcome: &LoadOutcome, on_the_line: Duration) -> Result<CertificateCell> {
        let expected_us = (self.delay + on_the_line).as_secs_f64() * 1e6;
        let mut excess: Vec<f64> = spans_us(outcome)
            .iter()
            .map(|span| span - expected_us)
            .collect();
        if excess.is_empty() {
            bail!("no packet arrived with both stamps");
        }
        excess.sort_by(f64::total_cmp);
        let at = |share| quantile(&excess, share);
        let configured = self.delay.as_secs_f64() * 1e3;
        let as_delay = |excess_us: f64| configured + excess_us / 1e3;
        let [low, high] = median_interval(&excess, CONFIDENCE);
        let cell = CertificateCell::new(
            MeasuredQuantity::Delay,
            (configured, "ms"),
            as_delay(at(0.5)),
            [as_delay(low), as_delay(high)],
            excess.len() as u64,
        )
        .under(self.condition())
        .must(
            format!("none over {EARLY_US} us early"),
            at(0.0) >= -EARLY_US,
        )
        .figure("excess_p50_us", at(0.5))
        .figure("excess_p99_us", at(0.99))
        .figure("excess_p99_9_us", at(0.999))
        .figure("excess_max_us", at(1.0))
        .figure("excess_min_us", at(0.0))
        .figure(
            "packets_per_second",
            outcome.sent as f64 / outcome.sending_took.as_secs_f64().max(1e-9),
        )
        .figure("sent_packets", outcome.sent as f64);
        let at_most = |cell: CertificateCell, what: &str, share: f64, bar: f64| {
            cell.must(format!("{what} at most {bar} us over"), at(share) <= bar)
        };
        Ok(match self.beside {
            CompetingTraffic::Nothing => {
                let cell = at_most(cell, "median", 0.5, MEDIAN_BAR_US);
                at_most(cell, "p99", 0.99, P99_BAR_US)
            }
            CompetingTraffic::Tcp => at_most(cell, "p99", 0.99, P99_BESIDE_TCP_BAR_US),
        })
    }
}

/// Each packet's time from leaving to arriving, in microseconds, where both were stamped.
pub(super) fn spans_us(outcome: &LoadOutcome) -> Vec<f64> {
    outcome
        .arrivals
        .iter()
        .filter_map(|one| {
            let left = *outcome.left_ns.get(usize::try_from(one.number).ok()?)?;
            let both = left > 0 && one.stamp_ns > 0;
            both.then(|| (i128::from(one.stamp_ns) - i128::from(left)) as f64 / 1e3)
        })
        .collect()
}

/// Rows for the raw file, in the order of arrival.
pub(super) fn rows(outcome: &LoadOutcome) -> impl Iterator<Item = String> {
    outcome.arrivals.iter().map(|one| {
        let left = usize::try_from(one.number)
            .ok()
            .and_then(|number| outcome.left_ns.get(number))
            .copied()
            .unwrap_or_default();
        let span = i128::from(one.stamp_ns) - i128::from(left);
        format!("{},{left},{span}", one.number)
    })
}

/// Measures the delay that a link without any setting adds at 10,000 packets per second. Returns
/// the spans in microseconds, sorted.
pub(in crate::calibrate) fn added_delay(stand: &mut TestBed, span: Duration) -> Result<Vec<f64>> {
    stand.start(&words(&["--delay", "0"]))?;
    let cell = DelayCell {
        delay: Duration::ZERO,
        packets_per_second: 10_000.0,
        span,
        beside: CompetingTraffic::Nothing,
    };
    let (sender, receiver) = stand.sockets(CellDirection::Forward, StampMode::Both)?;
    let patience = Duration::from_millis(300);
    let outcome = traffic::run(
        &sender,
        &receiver,
        &cell.load(),
        ReceiverRecording::Arrivals,
        patience,
    )?;
    stand.stop()?;
    let mut spans = spans_us(&outcome);
    spans.sort_by(f64::total_cmp);
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::stamped_sockets::ReceivedDatagram;

    fn cell() -> DelayCell {
        DelayCell {
            delay: Duration::from_millis(10),
            packets_per_second: 1_000.0,
            span: Duration::from_secs(1),
            beside: CompetingTraffic::Nothing,
        }
    }

    fn outcome(excess_us: impl Fn(u64) -> i64) -> LoadOutcome {
        let left = |number: u64| 1_000_000_000 + number * 1_000_000;
        LoadOutcome {
            sent: 1_000,
            sending_took: Duration::from_secs(1),
            left_ns: (0..1_000).map(left).collect(),
            arrivals: (0..1_000)
                .map(|number| ReceivedDatagram {
                    number,
                    length: 72,
                    stamp_ns: (left(number) as i64 + 10_000_000 + excess_us(number) * 1_000) as u64,
                })
                .collect(),
            ..LoadOutcome::default()
        }
    }

    #[test]
    fn a_punctual_link_passes() {
        let judged = cell().judge(&outcome(|_| 20), Duration::ZERO).unwrap();
        assert!(judged.within_bars, "{:?}", judged.bars);
        assert!((judged.measured - 10.02).abs() < 1e-9);
        assert_eq!(judged.samples, 1_000);
    }

    #[test]
    fn lateness_and_earliness_are_seen() {
        let late = |number| if number % 50 == 0 { 900 } else { 20 };
        let judged = cell().judge(&outcome(late), Duration::ZERO).unwrap();
        assert!(!judged.within_bars);
        assert!((judged.figures["excess_p99_us"] - 900.0).abs() < 1e-6);
        let early = |number| if number == 7 { -50 } else { 20 };
        let judged = cell().judge(&outcome(early), Duration::ZERO).unwrap();
        assert!(!judged.within_bars);
    }

    #[test]
    fn packets_without_a_stamp_are_left_out() {
        let mut outcome = outcome(|_| 20);
        outcome.left_ns[5] = 0;
        outcome.arrivals[6].stamp_ns = 0;
        assert_eq!(spans_us(&outcome).len(), 998);
        outcome.left_ns.clear();
        assert!(cell().judge(&outcome, Duration::ZERO).is_err());
    }
}
