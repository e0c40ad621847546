//! Results of draws, and the figures of many. Draws of several pieces are counted together.

use serde::{Deserialize, Serialize};

/// Result of one draw; a part that is not judged has `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrawResult {
    /// Seed of the device.
    pub seed: u64,
    /// Error of the rate, in percent.
    pub rate_error_percent: Option<f64>,
    /// Greatest error of the transit that exceeds 5 % and the noise.
    pub transit_error_us: f64,
    /// The unit of the queue is right.
    pub queue_unit_is_right: Option<bool>,
    /// Error of the queue's size beyond one packet, in percent.
    pub queue_size_error_percent: Option<f64>,
    /// The number of servers is right.
    pub servers_are_right: Option<bool>,
    /// Reason why the whole draw is not judged.
    pub void: Option<String>,
    /// Reason why no model could be fitted; the draw then counts as wrong in everything.
    pub unfitted: Option<String>,
    /// The noise of the stamps hides the packets of the queue.
    pub is_queue_noisy: bool,
    /// The emulated device was too late to tell the unit.
    pub is_queue_late: bool,
    /// The emulated device was too late to tell the servers.
    pub are_servers_late: bool,
    /// The emulated device was too late, or the stamps too noisy, to tell the rate.
    #[serde(default)]
    pub is_rate_hidden: bool,
    /// Noise of the stamps.
    pub noise_us: f64,
    /// Lateness of the emulated device for half of the lone packets and short bursts.
    pub probe_lateness_us: f64,
    /// Lateness within which the emulated device delivered 99 of 100 packets of the overloads.
    pub overload_lateness_us: f64,
    /// Measurements until this one.
    pub measurements: usize,
}

/// A draw without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmeasuredDraw {
    /// Seed of the device.
    pub seed: u64,
    /// Reason why it has no result.
    pub reason: String,
}

/// Figures of many draws.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KnownDeviceFigures {
    /// Devices that were drawn, measured and fitted.
    pub draws: usize,
    /// 95th percentile of the error of the rate.
    pub rate_error_p95_percent: f64,
    /// 95th percentile of the greatest error of the transit at any size, where it exceeds 5 %.
    pub transit_error_p95_us: f64,
    /// Share of the queues whose unit is right.
    pub queue_unit_right_share: f64,
    /// 95th percentile of the error of the queue's size beyond one packet.
    pub queue_size_error_p95_percent: f64,
    /// Share of the devices whose number of servers is right.
    pub servers_right_share: f64,
    /// Devices whose rate, queue and servers the plan overloads, so that they are judged.
    pub rates_judged: usize,
    /// Devices whose rate is not judged, because the emulated device delivered packets later than its
    /// queue needs to drain, or the noise of the stamps is longer than a packet of 1500 bytes on its line.
    #[serde(default)]
    pub rates_hidden: usize,
    /// Devices whose queue is judged.
    pub queues_judged: usize,
    /// Devices whose servers are judged.
    pub servers_judged: usize,
    /// Devices whose queue is not judged, because the noise of the stamps is longer than a packet of
    /// 1500 bytes on their line.
    pub queues_void: usize,
    /// Devices whose queue is not judged, because the emulated device delivered packets later than the
    /// smallest effect that tells the unit of its queue from another one.
    pub queues_late: usize,
    /// Devices whose servers are not judged, because the emulated device was late by a part of the wait
    /// for a server.
    pub servers_late: usize,
    /// Devices that are not judged at all, with the reason.
    pub void: Vec<String>,
    /// Median of the noise of the stamps, by the calibration over a cable.
    pub calibration_noise_us: f64,
    /// Lateness of the emulated device for half of the lone packets and short bursts: the median of the
    /// draws.
    pub probe_lateness_us: f64,
    /// Lateness within which it delivered 99 of 100 packets of the overloads: the median of the draws.
    pub overload_lateness_us: f64,
    /// Measurements that were made, those that were repeated included.
    pub measurements: usize,
    /// Each draw, so that the draws of several calls can be counted together.
    pub each: Vec<DrawResult>,
    /// Devices that could not be fitted, with the reason; they count as wrong in everything.
    pub unfitted: Vec<String>,
    /// Draws that were asked for and have no result.
    #[serde(default)]
    pub unmeasured: Vec<UnmeasuredDraw>,
}

impl KnownDeviceFigures {
    /// Counts draws together.
    #[must_use]
    pub fn of(each: Vec<DrawResult>, unmeasured: Vec<UnmeasuredDraw>) -> Self {
        let of_all =
            |value: fn(&DrawResult) -> f64| -> Vec<f64> { each.iter().map(value).collect() };
        let judged: Vec<&DrawResult> = each.iter().filter(|draw| draw.void.is_none()).collect();
        let count =
            |is_one: fn(&DrawResult) -> bool| judged.iter().filter(|draw| is_one(draw)).count();
        let values = |value: fn(&DrawResult) -> Option<f64>| -> Vec<f64> {
            judged.iter().filter_map(|draw| value(draw)).collect()
        };
        let answers = |value: fn(&DrawResult) -> Option<bool>| -> Vec<bool> {
            judged.iter().filter_map(|draw| value(draw)).collect()
        };
        let rates = values(|draw| draw.rate_error_percent);
        let transits = values(|draw| Some(draw.transit_error_us));
        let queues = values(|draw| draw.queue_size_error_percent);
        let units = answers(|draw| draw.queue_unit_is_right);
        let servers = answers(|draw| draw.servers_are_right);
        Self {
            draws: judged.len(),
            rate_error_p95_percent: quantile(&rates, 0.95),
            transit_error_p95_us: quantile(&transits, 0.95),
            queue_unit_right_share: share(&units),
            queue_size_error_p95_percent: quantile(&queues, 0.95),
            servers_right_share: share(&servers),
            rates_judged: rates.len(),
            rates_hidden: count(|draw| draw.is_rate_hidden),
            queues_judged: units.len(),
            servers_judged: servers.len(),
            queues_void: count(|draw| draw.is_queue_noisy),
            queues_late: count(|draw| draw.is_queue_late && !draw.is_queue_noisy),
            servers_late: count(|draw| draw.are_servers_late),
            void: each.iter().filter_map(|draw| draw.void.clone()).collect(),
            calibration_noise_us: quantile(&of_all(|draw| draw.noise_us), 0.5),
            probe_lateness_us: quantile(&of_all(|draw| draw.probe_lateness_us), 0.5),
            overload_lateness_us: quantile(&of_all(|draw| draw.overload_lateness_us), 0.5),
            measurements: each.iter().map(|draw| draw.measurements).sum(),
            unfitted: judged
                .iter()
                .filter_map(|draw| draw.unfitted.clone())
                .collect(),
            each,
            unmeasured,
        }
    }
}

fn share(right: &[bool]) -> f64 {
    right.iter().filter(|right| **right).count() as f64 / right.len().max(1) as f64
}

/// Smallest value that at least this share does not exceed; zero of none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right() -> DrawResult {
        DrawResult {
            seed: 7,
            rate_error_percent: Some(0.1),
            queue_unit_is_right: Some(true),
            noise_us: 3.0,
            measurements: 2,
            ..DrawResult::default()
        }
    }

    #[test]
    fn unfitted_is_wrong_and_void_does_not_count() {
        let wrong = DrawResult {
            rate_error_percent: Some(100.0),
            queue_unit_is_right: Some(false),
            servers_are_right: Some(false),
            unfitted: Some("no packet".to_owned()),
            ..right()
        };
        let void = DrawResult {
            void: Some("a busy machine".to_owned()),
            ..right()
        };
        let figures = KnownDeviceFigures::of(vec![right(), wrong, void], Vec::new());
        assert_eq!((figures.draws, figures.servers_judged), (2, 1));
        assert_eq!(figures.measurements, 6);
        assert!((figures.queue_unit_right_share - 0.5).abs() < 1e-12);
        assert!((figures.rate_error_p95_percent - 100.0).abs() < 1e-12);
        assert!((figures.calibration_noise_us - 3.0).abs() < 1e-12);
        assert_eq!(figures.unfitted, ["no packet"]);
        assert_eq!(figures.void, ["a busy machine"]);
        assert_eq!(figures.each.len(), 3);
    }

    #[test]
    fn late_parts_are_counted_and_not_judged() {
        let late = |are_servers_late| DrawResult {
            queue_unit_is_right: None,
            is_queue_late: true,
            is_rate_hidden: are_servers_late,
            rate_error_percent: (!are_servers_late).then_some(0.1),
            are_servers_late,
            overload_lateness_us: 2_000.0,
            ..right()
        };
        let figures = KnownDeviceFigures::of(vec![late(true), late(false)], Vec::new());
        assert_eq!(figures.draws, 2);
        assert_eq!((figures.rates_judged, figures.rates_hidden), (1, 1));
        assert_eq!((figures.queues_late, figures.servers_late), (2, 1));
        assert_eq!((figures.queues_judged, figures.servers_judged), (0, 0));
        assert!((figures.overload_lateness_us - 2_000.0).abs() < 1e-9);
    }
}
