//! Compares a fitted model with the device that was measured.

use std::time::Duration;

use profile::{DeviceFit, ParameterKind};
use vocab::{DeviceModel, DeviceQueueLimit};

use super::draw::SIZES;

/// Errors of one fit.
#[derive(Clone, Copy, Debug)]
pub struct FitErrors {
    /// Error of the rate, in percent; `None` if the plan did not overload the output.
    pub rate_percent: Option<f64>,
    /// Greatest error of the transit that exceeds 5 %, in µs; zero if none does.
    pub transit_us: f64,
    /// The unit of the queue is right; `None` if the plan did not fill the queue.
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
/// packets. The ports send bursts with `gap` between the packets, and stamp within `resolution`.
///
/// # Panics
/// When the device has no rate.
#[must_use]
pub fn judge(
    device: &DeviceModel,
    fit: &DeviceFit,
    dropped_sizes: usize,
    (gap, resolution): (Duration, Duration),
) -> FitErrors {
    let true_rate = rate_of(device).expect("each known device has a rate");
    let is_overloaded = |size: &&u64| {
        let pace = device.service_time(**size).as_nanos() as f64
            / f64::from(device.servers.as_ref().map_or(1, |servers| servers.count));
        let pace = pace.max(gap.as_nanos() as f64);
        device.output.serialisation(**size).as_nanos() as f64 > 1.05 * pace
    };
    let overloaded = SIZES.iter().filter(is_overloaded).count();
    let rate_percent = match rate_of(&fit.model) {
        Some(rate) => Some((rate / true_rate - 1.0).abs() * 100.0),
        None if overloaded >= 2 => Some(100.0),
        None => None,
    };
    let is_queue_found = fit.is_identified(ParameterKind::OutputQueue);
    let (unit_is_right, queue_percent) = if is_queue_found || dropped_sizes >= 2 {
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
        transit_us: transit_error(device, &fit.model),
        unit_is_right,
        queue_percent,
        servers_are_right: (longest_wait(device, gap) > 3 * resolution).then(|| {
            device.servers.as_ref().map(|servers| servers.count)
                == fit.model.servers.as_ref().map(|servers| servers.count)
        }),
    }
}

/// Longest wait for a server in a burst of eight packets of 1500 bytes.
fn longest_wait(device: &DeviceModel, gap: Duration) -> Duration {
    let count = device.servers.as_ref().map_or(8, |servers| servers.count);
    let mut free = vec![Duration::ZERO; usize::from(count)];
    (0..8)
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

/// Greatest error in µs, at sizes between those of the plan as well; errors within 5 % are none.
fn transit_error(device: &DeviceModel, fitted: &DeviceModel) -> f64 {
    (64..=1_500)
        .map(|size| {
            let truth = device.transit.at(size).as_nanos() as f64;
            let error = (fitted.transit.at(size).as_nanos() as f64 - truth).abs();
            if error <= 0.05 * truth {
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
