//! Compares a fitted model with the device that was measured.

use std::time::Duration;

use profile::{DeviceFit, ParameterKind};
use vocab::{DeviceModel, DeviceQueueLimit};

use super::draw::SIZES;

/// Packets of a short burst that meet in the servers, at least.
const BURST_PACKETS: u32 = 7;

/// Quality of the ports by which a device was measured.
#[derive(Clone, Copy, Debug)]
pub struct PortQuality {
    /// Time between packets of an overload.
    pub overload_gap: Duration,
    /// Time between packets of a short burst.
    pub burst_gap: Duration,
    /// Noise of the stamps.
    pub resolution: Duration,
}

impl PortQuality {
    /// Ports that send each packet at its time and stamp it to a nanosecond.
    pub const EXACT: PortQuality = PortQuality {
        overload_gap: Duration::ZERO,
        burst_gap: Duration::ZERO,
        resolution: Duration::from_nanos(1),
    };

    /// Tells whether a noise is below the time that the largest packet is on the line of `device`, so
    /// that the packets in its queue can be counted.
    #[must_use]
    pub fn can_count_packets(&self, device: &DeviceModel) -> bool {
        self.resolution <= device.output.serialisation(1_500)
    }
}

/// Errors of one fit.
#[derive(Clone, Copy, Debug)]
pub struct FitErrors {
    /// Error of the rate, in percent; `None` if the plan did not overload the output.
    pub rate_percent: Option<f64>,
    /// Greatest error of the transit that exceeds 5 % and the noise of the stamps, in µs; zero if none
    /// does.
    pub transit_us: f64,
    /// The unit of the queue is right; `None` if the plan did not fill the queue, or the stamps are too
    /// noisy to count its packets.
    pub unit_is_right: Option<bool>,
    /// Error of the queue's size beyond one packet, in percent.
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
    quality: PortQuality,
) -> FitErrors {
    let true_rate = rate_of(device).expect("each known device has a rate");
    let is_overloaded = |size: &&u64| {
        let pace = device.service_time(**size).as_nanos() as f64
            / f64::from(device.servers.as_ref().map_or(1, |servers| servers.count));
        let pace = pace.max(quality.overload_gap.as_nanos() as f64);
        device.output.serialisation(**size).as_nanos() as f64 > 1.05 * pace
    };
    let overloaded = SIZES.iter().filter(is_overloaded).count();
    let rate_percent = match rate_of(&fit.model) {
        Some(rate) => Some((rate / true_rate - 1.0).abs() * 100.0),
        None if overloaded >= 2 => Some(100.0),
        None => None,
    };
    let is_queue_found = fit.is_identified(ParameterKind::OutputQueue);
    let is_queue_judged =
        quality.can_count_packets(device) && (is_queue_found || dropped_sizes >= 2);
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
        servers_are_right: (longest_wait(device, quality.burst_gap) > 3 * quality.resolution).then(
            || {
                device.servers.as_ref().map(|servers| servers.count)
                    == fit.model.servers.as_ref().map(|servers| servers.count)
            },
        ),
    }
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

/// Error of the number of packets that fit, beyond one packet, in percent of it; the greatest of all
/// sizes.
fn queue_error(device: &DeviceModel, fitted: DeviceQueueLimit) -> f64 {
    let overhead = device.output.overhead.bytes();
    SIZES
        .iter()
        .map(|size| {
            let fits = |queue: DeviceQueueLimit| queue.limit() / queue.cost(size + overhead);
            let truth = fits(device.output.queue);
            let error = fits(fitted).abs_diff(truth).saturating_sub(1);
            error as f64 * 100.0 / truth as f64
        })
        .fold(0.0, f64::max)
}
