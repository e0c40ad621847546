//! Queue: the part of a burst that gets through a slow line.
//!
//! The whole burst arrives before the first packet has left the line, so the packets that get
//! through are the content of the queue, the packet on the line included. The departure stamps show
//! how fast the burst was; one that took too long proves nothing, and is sent again.

use std::time::Duration;

use anyhow::{Result, bail};
use vocab::{Bitrate, ByteCount};

use super::super::certificate::{CertificateCell, MeasuredQuantity};
use super::super::stand::{CellDirection, StampMode};
use super::super::traffic::{
    self, LoadOutcome, ReceiverRecording, SendMode, SendingPace, TrafficLoad,
};
use super::{ATTEMPTS, MeasurementBench, lost_by_the_host};

/// The time of a packet on the line: the burst must be over in half of it.
const PACKET_TIME: Duration = Duration::from_millis(60);

/// Number of packets sent beyond those that fit.
const SURPLUS: u64 = 30;

/// Unit of a queue's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::calibrate) enum QueueUnit {
    /// Bytes of IP packets.
    Bytes,
    /// Packets.
    Packets,
}

/// A queue to be measured with packets of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::calibrate) struct QueueCell {
    pub(in crate::calibrate) limit: u64,
    pub(in crate::calibrate) unit: QueueUnit,
    pub(in crate::calibrate) ip_length: u16,
}

impl QueueCell {
    pub(super) fn title(&self) -> String {
        format!("queue {}, packets of {} B", self.setting(), self.ip_length)
    }

    fn setting(&self) -> String {
        match self.unit {
            QueueUnit::Bytes => ByteCount::new(self.limit).to_string(),
            QueueUnit::Packets => format!("{}packets", self.limit),
        }
    }

    /// Whole packets that fit.
    fn fitting(&self) -> u64 {
        match self.unit {
            QueueUnit::Bytes => self.limit / u64::from(self.ip_length),
            QueueUnit::Packets => self.limit,
        }
    }

    pub(super) fn expected_s(&self) -> f64 {
        PACKET_TIME.as_secs_f64() * (self.fitting() as f64 + 3.0) + 0.5
    }

    pub(super) fn measure(&self, bench: &mut MeasurementBench<'_>) -> Result<Vec<CertificateCell>> {
        let bits = f64::from(self.ip_length) * 8.0 / PACKET_TIME.as_secs_f64();
        let rate = Bitrate::from_bits_per_second(bits as u64);
        let flags = [
            "--rate".to_owned(),
            rate.to_string(),
            "--queue".to_owned(),
            self.setting(),
        ];
        let load = TrafficLoad {
            packets: self.fitting() + SURPLUS,
            ip_length: self.ip_length,
            pace: SendingPace::Even {
                per_second: 1e6,
                head_start: self.fitting() + SURPLUS,
                debt_max: self.fitting() + SURPLUS,
                together: 1,
            },
            sending: SendMode::Plain,
        };
        for _ in 0..ATTEMPTS {
            let settings = bench.start(&flags)?;
            let (sender, receiver) = bench
                .stand
                .sockets(CellDirection::Forward, StampMode::Both)?;
            let patience = PACKET_TIME * 3 + Duration::from_millis(200);
            let outcome = traffic::run(
                &sender,
                &receiver,
                &load,
                ReceiverRecording::Arrivals,
                patience,
            )?;
            let account = bench.stand.stop()?;
            let spoilt = outcome.receiver_dropped > 0 || lost_by_the_host(&account) > 0;
            if spoilt || burst_span(&outcome).is_none_or(|span| span > PACKET_TIME / 2) {
                continue;
            }
            let mut cell = self.judge(&outcome);
            cell.settings = settings;
            cell.emulator = account;
            let mut cells = [cell];
            let rows = outcome
                .arrivals
                .iter()
                .map(|one| format!("{},{}", one.number, one.stamp_ns));
            bench.keep(&mut cells, "number,received_ns", rows)?;
            return Ok(cells.into());
        }
        bail!(
            "no burst of {} packets left within {PACKET_TIME:?} in {ATTEMPTS} attempts; this host is too busy",
            load.packets
        )
    }

    fn judge(&self, outcome: &LoadOutcome) -> CertificateCell {
        let passed = outcome.arrivals.len() as u64;
        // Drop-tail lets the first ones through, and no other.
        let are_first = (0..passed)
            .zip(&outcome.arrivals)
            .all(|(expected, one)| expected == one.number);
        let length = u64::from(self.ip_length);
        let (unit, measured, interval) = match self.unit {
            QueueUnit::Packets => ("packets", passed, [passed as f64; 2]),
            // Any limit in this interval lets this many through.
            QueueUnit::Bytes => (
                "bytes",
                passed * length,
                [(passed * length) as f64, ((passed + 1) * length - 1) as f64],
            ),
        };
        let fitting = self.fitting();
        let mut cell = CertificateCell::new(
            MeasuredQuantity::Queue,
            (self.limit as f64, unit),
            measured as f64,
            interval,
            outcome.sent,
        )
        .under(format!("packets of {length} B"))
        .must(format!("exactly {fitting} packets"), passed == fitting)
        .must("the first ones, in order", are_first)
        .figure("passed_packets", passed as f64)
        .figure("fitting_packets", fitting as f64);
        cell.confidence = 1.0;
        cell
    }
}

/// Time from the first packet's departure to the last one's.
fn burst_span(outcome: &LoadOutcome) -> Option<Duration> {
    let left = || outcome.left_ns.iter().copied().filter(|left| *left > 0);
    if (left().count() as u64) < outcome.sent {
        return None;
    }
    Some(Duration::from_nanos(left().max()? - left().min()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::stamped_sockets::ReceivedDatagram;

    fn outcome(numbers: impl IntoIterator<Item = u64>) -> LoadOutcome {
        LoadOutcome {
            sent: 50,
            left_ns: (1..=50).collect(),
            arrivals: numbers
                .into_iter()
                .map(|number| ReceivedDatagram {
                    number,
                    length: 672,
                    stamp_ns: 0,
                })
                .collect(),
            ..LoadOutcome::default()
        }
    }

    #[test]
    fn a_queue_is_exact_to_the_packet() {
        let cell = QueueCell {
            limit: 15_000,
            unit: QueueUnit::Bytes,
            ip_length: 700,
        };
        assert_eq!(cell.fitting(), 21);
        let judged = cell.judge(&outcome(0..21));
        assert!(judged.within_bars);
        assert!(judged.interval[0] <= 15_000.0 && 15_000.0 <= judged.interval[1]);
        assert!(!cell.judge(&outcome(0..20)).within_bars);
        assert!(!cell.judge(&outcome(0..22)).within_bars);
        assert!(!cell.judge(&outcome(1..22)).within_bars);
    }

    #[test]
    fn a_burst_without_all_its_stamps_says_nothing() {
        assert_eq!(burst_span(&outcome([])), Some(Duration::from_nanos(49)));
        let mut torn = outcome([]);
        torn.left_ns[3] = 0;
        assert_eq!(burst_span(&torn), None);
    }
}
