//! Compares a fitted model with the device that was measured.

use std::time::Duration;

use profile::{DeviceFit, ParameterKind};
use vocab::{ByteCount, DeviceModel, DeviceQueueLimit};

use super::draw::SIZES;

/// Packets of a short burst that meet in the servers, at least.
const BURST_PACKETS: u32 = 7;
/// Times of the stamps' noise by which the longest wait for a server must exceed it.
const NOISE_SHARE: u32 = 3;
/// Times of the device's usual lateness by which it must exceed that.
const LATE_SHARE: u32 = 3;
/// Smallest slot that the fit tells from bytes.
const SLOT_LEAST: u64 = 64;

/// Quality of the ports by which a device was measured, and of the process that was the device.
#[derive(Clone, Copy, Debug)]
pub struct MeasurementQuality {
    /// Time between packets of an overload.
    pub overload_gap: Duration,
    /// Time between packets of a short burst.
    pub burst_gap: Duration,
    /// Noise of the stamps.
    pub resolution: Duration,
    /// Time by which the emulated device delivered half of the lone packets and short bursts too late.
    pub probe_lateness: Duration,
    /// Time within which it delivered 99 of 100 packets of the overloads, counted from the model's time.
    pub overload_lateness: Duration,
}

impl MeasurementQuality {
    /// Ports that send each packet at its time and stamp it to a nanosecond, and a device that is never
    /// late.
    pub const EXACT: MeasurementQuality = MeasurementQuality {
        overload_gap: Duration::ZERO,
        burst_gap: Duration::ZERO,
        resolution: Duration::from_nanos(1),
        probe_lateness: Duration::ZERO,
        overload_lateness: Duration::ZERO,
    };

    /// Tells whether a noise is below the time that the largest packet is on the line of `device`, so
    /// that the packets in its queue can be counted.
    #[must_use]
    pub fn can_count_packets(&self, device: &DeviceModel) -> bool {
        self.resolution <= device.output.serialisation(1_500)
    }

    /// Tells whether the emulated device was later than the smallest effect that tells the unit of its
    /// queue from another one. A fit then sees the machine and not the queue.
    #[must_use]
    pub fn is_late_for_unit(&self, device: &DeviceModel) -> bool {
        unit_effect(device, &overloaded_sizes(device, self))
            .is_some_and(|effect| self.overload_lateness > effect)
    }

    /// Tells whether the emulated device was later than the time in which its full queue drains, so that
    /// the idle times of its line and the pauses of the machine look the same; or whether the noise of the
    /// stamps hides the distance of its packets.
    #[must_use]
    pub fn is_late_for_rate(&self, device: &DeviceModel) -> bool {
        let overhead = device.output.overhead.bytes();
        let queue = device.output.queue;
        let held = queue.limit() / queue.cost(1_500 + overhead);
        let drain = device.output.serialisation(1_500).as_nanos() * u128::from(held);
        self.overload_lateness.as_nanos() > drain || !self.can_count_packets(device)
    }

    /// Tells whether the emulated device was late by more than a small share of the longest wait for a
    /// server, where that wait exceeds the noise of the stamps.
    #[must_use]
    pub fn is_late_for_servers(&self, device: &DeviceModel) -> bool {
        self.can_see_servers(device)
            && self.probe_lateness * LATE_SHARE > longest_wait(device, self.burst_gap)
    }

    /// Tells whether the packets of a short burst wait for a server by more than the noise.
    fn can_see_servers(&self, device: &DeviceModel) -> bool {
        longest_wait(device, self.burst_gap) > NOISE_SHARE * self.resolution
    }
}

/// Errors of one fit.
#[derive(Clone, Copy, Debug)]
pub struct FitErrors {
    /// Error of the rate, in percent; `None` if the plan did not overload the output, or the machine hides
    /// the rate.
    pub rate_percent: Option<f64>,
    /// Greatest error of the transit that exceeds 5 % and the noise of the stamps, in µs; zero if none
    /// does.
    pub transit_us: f64,
    /// The unit of the queue is right; `None` if the plan did not fill the queue, or the stamps are too
    /// noisy to count its packets.
    pub unit_is_right: Option<bool>,
    /// Error of the queue's size in percent. An error of one packet counts as none.
    pub queue_percent: Option<f64>,
    /// The number of servers is right; `None` if the bursts of the plan hardly wait for a server.
    pub servers_are_right: Option<bool>,
}

impl FitErrors {
    /// Errors of a device that could not be fitted.
    pub(super) fn all_wrong() -> Self {
        Self {
            rate_percent: Some(100.0),
            transit_us: 1e3,
            unit_is_right: Some(false),
            queue_percent: Some(100.0),
            servers_are_right: Some(false),
        }
    }
}

/// Judges `fit` of `device`; `dropped_sizes` is the number of sizes of which the output dropped
/// packets.
///
/// # Panics
/// When the device has no rate.
#[must_use]
pub fn judge(
    device: &DeviceModel,
    fit: &DeviceFit,
    dropped_sizes: usize,
    quality: MeasurementQuality,
) -> FitErrors {
    let true_rate = rate_of(device).expect("each known device has a rate");
    let overloaded = overloaded_sizes(device, &quality).len();
    let rate_percent = match rate_of(&fit.model) {
        _ if quality.is_late_for_rate(device) => None,
        Some(rate) => Some((rate / true_rate - 1.0).abs() * 100.0),
        None if overloaded >= 2 => Some(100.0),
        None => None,
    };
    let is_queue_found = fit.is_identified(ParameterKind::OutputQueue);
    let is_queue_judged = quality.can_count_packets(device)
        && !quality.is_late_for_unit(device)
        && (is_queue_found || dropped_sizes >= 2);
    let (unit_is_right, queue_percent) = if is_queue_judged {
        let right = is_queue_found && is_same_unit(device, fit.model.output.queue);
        let error = if right {
            queue_error(device, fit.model.output.queue)
        } else {
            100.0
        };
        (Some(right), Some(error))
    } else {
        (None, None)
    };
    FitErrors {
        rate_percent,
        transit_us: transit_error(device, &fit.model, quality.resolution),
        unit_is_right,
        queue_percent,
        servers_are_right: (quality.can_see_servers(device)
            && !quality.is_late_for_servers(device))
        .then(|| {
            device.servers.as_ref().map(|servers| servers.count)
                == fit.model.servers.as_ref().map(|servers| servers.count)
        }),
    }
}

/// Sizes of the plan by which the output is overloaded.
fn overloaded_sizes(device: &DeviceModel, quality: &MeasurementQuality) -> Vec<u64> {
    let is_overloaded = |size: &u64| {
        let pace = device.service_time(*size).as_nanos() as f64
            / f64::from(device.servers.as_ref().map_or(1, |servers| servers.count));
        let pace = pace.max(quality.overload_gap.as_nanos() as f64);
        device.output.serialisation(*size).as_nanos() as f64 > 1.05 * pace
    };
    SIZES.into_iter().filter(is_overloaded).collect()
}

/// Smallest time by which the content of the queue at packets of one of these sizes must be wrong so
/// that another unit explains all sizes; `None` if no other unit contradicts them.
fn unit_effect(device: &DeviceModel, sizes: &[u64]) -> Option<Duration> {
    let queue = device.output.queue;
    let overhead = device.output.overhead.bytes();
    let slots = (SLOT_LEAST..1_500 + overhead).map(|slot| DeviceQueueLimit::Slots {
        count: 1,
        slot: ByteCount::new(slot),
    });
    let others = [
        DeviceQueueLimit::Packets(1),
        DeviceQueueLimit::Bytes(ByteCount::new(1)),
    ]
    .into_iter()
    .chain(slots)
    .filter(|other| !is_same_unit(device, *other));
    let effect = |other: DeviceQueueLimit| {
        // The largest content that was accepted, and the smallest that was dropped, in the other unit.
        let accepted = |size: &u64| queue.limit() / queue.cost(size + overhead);
        let cost = |size: &u64| other.cost(size + overhead);
        let full = sizes
            .iter()
            .max_by_key(|size| accepted(size) * cost(size))?;
        let empty = sizes
            .iter()
            .min_by_key(|size| (accepted(size) + 1) * cost(size))?;
        let gap =
            (accepted(full) * cost(full) + 1).checked_sub((accepted(empty) + 1) * cost(empty));
        // Where there is none, the other unit explains these sizes as well.
        let gap = gap.filter(|gap| *gap > 0)?;
        [full, empty]
            .into_iter()
            .map(|size| {
                let packets = gap as f64 / cost(size) as f64;
                device.output.serialisation(*size).mul_f64(packets)
            })
            .min()
    };
    others.filter_map(effect).min()
}

/// Longest wait for a server in a short burst of packets of 1500 bytes.
fn longest_wait(device: &DeviceModel, gap: Duration) -> Duration {
    let count = device
        .servers
        .as_ref()
        .map_or(BURST_PACKETS as u16, |servers| servers.count);
    let mut free = vec![Duration::ZERO; usize::from(count)];
    (0..BURST_PACKETS)
        .map(|number| {
            let sent = gap * number;
            let server = free.iter_mut().min().expect("there is a server");
            let wait = server.saturating_sub(sent);
            *server = sent + wait + device.service_time(1_500);
            wait
        })
        .max()
        .expect("the burst has packets")
}

fn rate_of(model: &DeviceModel) -> Option<f64> {
    model.output.rate.map(|rate| rate.bits_per_second() as f64)
}

/// Greatest error in µs, at sizes between those of the plan as well; errors within 5 % or the noise are
/// none.
fn transit_error(device: &DeviceModel, fitted: &DeviceModel, noise: Duration) -> f64 {
    let noise = noise.as_nanos() as f64;
    (64..=1_500)
        .map(|size| {
            let truth = device.transit.at(size).as_nanos() as f64;
            let error = (fitted.transit.at(size).as_nanos() as f64 - truth).abs();
            if error <= noise.max(0.05 * truth) {
                0.0
            } else {
                error / 1e3
            }
        })
        .fold(0.0, f64::max)
}

/// Slots that the largest packet does not fill are packets, to every observer.
fn is_same_unit(device: &DeviceModel, fitted: DeviceQueueLimit) -> bool {
    let largest = 1_500 + device.output.overhead.bytes();
    match (device.output.queue, fitted) {
        (DeviceQueueLimit::Bytes(_), DeviceQueueLimit::Bytes(_))
        | (DeviceQueueLimit::Packets(_), DeviceQueueLimit::Packets(_))
        | (DeviceQueueLimit::Slots { .. }, DeviceQueueLimit::Slots { .. }) => true,
        (DeviceQueueLimit::Slots { slot, .. }, DeviceQueueLimit::Packets(_)) => {
            slot.bytes() >= largest
        }
        (DeviceQueueLimit::Slots { .. }, DeviceQueueLimit::Bytes(_))
        | (DeviceQueueLimit::Bytes(_), _)
        | (DeviceQueueLimit::Packets(_), _) => false,
    }
}

/// Error of the number of packets that fit, in percent of it; the greatest of all sizes. An error of one packet
/// counts as none.
fn queue_error(device: &DeviceModel, fitted: DeviceQueueLimit) -> f64 {
    let overhead = device.output.overhead.bytes();
    SIZES
        .iter()
        .map(|size| {
            let fits = |queue: DeviceQueueLimit| queue.limit() / queue.cost(size + overhead);
            let truth = fits(device.output.queue);
            let error = match fits(fitted).abs_diff(truth) {
                0 | 1 => 0,
                more => more,
            };
            error as f64 * 100.0 / truth as f64
        })
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_devices::draw;

    #[test]
    fn queue_may_be_off_by_one_packet_and_no_more() {
        let device = device_with(DeviceQueueLimit::Packets(100));
        assert_eq!(queue_error(&device, DeviceQueueLimit::Packets(101)), 0.0);
        assert_eq!(queue_error(&device, DeviceQueueLimit::Packets(94)), 6.0);
    }

    fn device_with(queue: DeviceQueueLimit) -> DeviceModel {
        let mut device = draw::device(0);
        // A byte takes a microsecond.
        device.output.rate = Some(vocab::Bitrate::from_bits_per_second(8_000_000));
        device.output.overhead = ByteCount::new(0);
        device.output.queue = queue;
        device
    }

    #[test]
    fn effect_is_what_separates_packets_from_the_nearest_slot() {
        let packets = device_with(DeviceQueueLimit::Packets(20));
        // Slots of 1300 bytes are packets of 64 and 1300 bytes; one of 1500 bytes takes two, so 20 of them
        // are 40 slots where 21 of the others are too many.
        let effect = unit_effect(&packets, &[64, 1_300, 1_500]).unwrap();
        // 20 slots are 20 packets of 64 bytes.
        assert_eq!(effect, Duration::from_micros(20 * 64));
        // Bytes and packets of one size are the same.
        assert_eq!(unit_effect(&packets, &[1_500]), None);
    }

    #[test]
    fn effect_falls_with_the_queue() {
        let effect = |bytes| {
            let device = device_with(DeviceQueueLimit::Bytes(ByteCount::new(bytes)));
            unit_effect(&device, &SIZES).unwrap()
        };
        assert!(effect(1_000_000) > 10 * effect(20_000));
    }

    #[test]
    fn late_device_is_not_judged() {
        let device = device_with(DeviceQueueLimit::Packets(20));
        let quality = |lateness| MeasurementQuality {
            overload_lateness: Duration::from_micros(lateness),
            ..MeasurementQuality::EXACT
        };
        assert!(!quality(0).is_late_for_rate(&device));
        // 20 packets of 1500 bytes.
        assert!(!quality(30_000).is_late_for_rate(&device));
        assert!(quality(30_001).is_late_for_rate(&device));
        let noisy = MeasurementQuality {
            resolution: Duration::from_micros(1_501),
            ..MeasurementQuality::EXACT
        };
        assert!(noisy.is_late_for_rate(&device));
        assert!(!quality(0).is_late_for_unit(&device));
        assert!(quality(1_000_000).is_late_for_unit(&device));
        let wait = longest_wait(&device, Duration::ZERO);
        let quality = |probe_lateness| MeasurementQuality {
            probe_lateness,
            ..MeasurementQuality::EXACT
        };
        assert!(!quality(wait / 4).is_late_for_servers(&device));
        assert!(quality(wait / 2).is_late_for_servers(&device));
    }
}
